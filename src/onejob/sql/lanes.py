"""Lanes and limits as columns, for every SQL store: plans, places, and what the end of an attempt does to them."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import msgspec

from onejob.core.job import ENDED, State
from onejob.core.lane import LanePlan, QueueLimits, Rate

OWN_RATE = ""
"""Stands for the queue itself where starts are counted: no lane has this key."""

EVERYBODY = 2**31 - 1

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LanePlan)


class Place(IntEnum):
    """Where a live job stands in its lane."""

    NOT_READY = 0
    READY = 1
    HAS_SLOT = 2
    """It is its turn, or it runs."""
    KEEPS_SLOT = 3
    """Until it has ended, whatever happens in between."""


def place_after(state: State, lane: str | None, holds: bool) -> Place | None:
    """Where a job stands in its lane once its attempt has ended."""
    if lane is None or state in ENDED:
        return None
    if holds:
        return Place.KEEPS_SLOT
    return Place.READY if state is State.PARKED else Place.NOT_READY


def stored_plan(plan: LanePlan | None) -> bytes | None:
    """The limits that a job brings, as they are kept with it; None is one at a time."""
    return None if plan is None or plan == LanePlan(plan.key) else _encoder.encode(plan)


def brought_plan(key: str, stored: bytes | None) -> LanePlan:
    """Read what `stored_plan` wrote."""
    return LanePlan(key) if stored is None else _decoder.decode(stored)


def plan_of(key: str, concurrency: int, rate_max: int | None, rate_per: int | None, hold: int) -> LanePlan:
    """Read a lane's columns."""
    return LanePlan(key, concurrency, rate_of(rate_max, rate_per), bool(hold))


def limits_of(
    concurrency: int | None, rate_max: int | None, rate_per: int | None, paused: int
) -> QueueLimits:
    """Read a queue's columns."""
    return QueueLimits(concurrency, rate_of(rate_max, rate_per), bool(paused))


@lru_cache(maxsize=1_000)
def rate_of(rate_max: int | None, rate_per: int | None) -> Rate | None:
    """Read a rate's columns."""
    return None if rate_max is None or rate_per is None else Rate(rate_max, rate_per / 1000)
