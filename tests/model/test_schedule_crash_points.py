"""Schedules, cut off before each statement: a slot is spent and its job made, or neither; see test_crash_points."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from policies import WINDOW
from schedule_pair import SchedulePair
from test_crash_points import (
    LANE,
    MakePair,
    Step,
    beat,
    call,
    die_anywhere,
    fail_anywhere,
    loop,  # noqa: F401 - a fixture
    pairs,
    put,
    start,
)

from onejob.testing.records import Call
from onejob.testing.timetable import MISSED, Wish
from onejob.testing.verdicts import Policy

Does = Callable[[SchedulePair], Any]
RAISES = {"queued": "raise"}


def wish(period: int = 1_000, slots: Call | None = None, **settings: Any) -> Wish:
    return Wish(period=period, call=slots or Call(id=""), **settings)


def planned(*wishes: Wish) -> Does:
    """Schedules s0, s1 … are there."""

    def plan(pair: SchedulePair) -> None:
        for number, one in enumerate(wishes):
            pair.put(f"s{number}", one)

    return plan


def drafted(**wishes: Wish) -> Does:
    """Somebody has decided how to put some."""

    def draft(pair: SchedulePair) -> None:
        for id, one in wishes.items():
            pair.draft(id, one)

    return draft


def due(after: int = 1_000) -> Does:
    """Somebody has seen what is due by then."""

    def see(pair: SchedulePair) -> None:
        pair.lead = after
        pair.see_due()

    return see


def rejected(number: int) -> Call:
    return call(number, "in_flight", policy=Policy(preset="in_flight", overrides=RAISES))


FIRE: Does = lambda pair: pair.fire(*range(len(pair.firings)))  # noqa: E731
OPERATIONS: dict[str, tuple[list[Does | Step], Does]] = {
    "put_schedules: new ones": (
        [drafted(s0=wish(), s1=wish(60_000, from_zero=True))],
        lambda pair: pair.write(0, 1),
    ),
    "put_schedules: another timing, and one who comes too late": (
        [planned(wish(), wish(2_500)), drafted(s0=wish(2_500), s1=wish(1_000)), lambda pair: pair.drop("s1")],
        lambda pair: pair.write(2, 3),
    ),
    "put_schedules: a pause": (
        [planned(wish()), lambda pair: pair.draft_pause("s0", paused=True)],
        lambda pair: pair.write(1),
    ),
    "drop_schedule": ([planned(wish()), due(), FIRE], lambda pair: pair.drop("s0")),
    "fire: a slot": ([planned(wish()), due()], FIRE),
    "fire: the last of many": ([planned(wish()), due(55_500)], FIRE),
    "fire: several, in a lane": (
        [
            planned(
                wish(slots=Call(id="", lane=LANE)), wish(slots=Call(id="", lane=LANE, queue="r")), wish()
            ),
            due(),
        ],
        FIRE,
    ),
    "fire: a missed one and another": (
        [planned(wish(90_000, lets_go=True), wish(90_000)), due(90_000 + MISSED)],
        FIRE,
    ),
    "fire: kept": ([put(call(1, "in_flight")), planned(wish(slots=call(0, "in_flight"))), due()], FIRE),
    "fire: rejected": ([put(call(1, "in_flight")), planned(wish(slots=rejected(0))), due()], FIRE),
    "fire: an update": ([put(call(1, "latest")), planned(wish(slots=call(0, "latest"))), due()], FIRE),
    "fire: a cancelled holder": (
        [put(call(1, "restart")), start, planned(wish(slots=call(0, "restart"))), due()],
        FIRE,
    ),
    "fire: a key that is taken for a while": (
        [planned(wish(slots=call(0, "throttle", within=WINDOW))), due()],
        FIRE,
    ),
    "fire: one that fired already, and one that did not": (
        [planned(wish(), wish(2_500)), due(), FIRE, due(2_500)],
        FIRE,
    ),
}


@pytest.fixture
def make_pair(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[MakePair]:  # noqa: F811
    yield from pairs(SchedulePair, tmp_path, loop)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_process_that_dies_leaves_all_or_nothing(name: str, tmp_path: Path, make_pair: MakePair) -> None:
    prepare, operate = OPERATIONS[name]
    die_anywhere([beat, *prepare], operate, tmp_path, make_pair)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_statement_that_fails_leaves_nothing_and_can_be_repeated(name: str, make_pair: MakePair) -> None:
    prepare, operate = OPERATIONS[name]
    fail_anywhere([beat, *prepare], operate, make_pair)
