"""The heartbeat: for which calls it says that what they brought is still ours."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from test_pump import Bench

from onejob.core.job import WorkerId
from onejob.store import Beat, Pulse
from onejob.worker import heartbeat
from onejob.worker.heartbeat import Heartbeat


class Time:
    """A monotonic clock that stands still."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Body:
    """A heart that beats when it is told to, for a worker with a lease of 30 seconds."""

    def __init__(self) -> None:
        self.time = Time()
        self.bench = Bench(4)
        self.takes = 0.0
        self.heart = Heartbeat(self, WorkerId("w"), self.bench.settings, {})  # type: ignore[arg-type]

    async def beat(self, _: Beat) -> Pulse:
        self.time.now += self.takes
        return Pulse({}, frozenset())

    async def beats(self, *, takes: float = 0.0) -> None:
        self.takes = takes
        await self.heart._beat_once()


class Idle:
    """A thread that does nothing."""

    def start(self) -> None: ...


@asynccontextmanager
async def begun() -> AsyncIterator[Body]:
    """One that has beaten once."""
    body = Body()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeat, "time", body.time)
        with pytest.MonkeyPatch.context() as threadless:
            threadless.setattr(threading, "Thread", lambda **_: Idle())
            await body.heart.start(body.bench.pump, lambda _: None)
        yield body
        body.heart._own_loop.close()


async def test_beats_in_time_hold_what_was_asked_for_long_ago() -> None:
    async with begun() as body:
        asked = body.time.now
        for _ in range(5):
            body.time.now += 29
            assert body.heart.holds(asked)
            await body.beats()
        assert body.heart.holds(asked)


async def test_nothing_is_held_once_a_lease_has_passed_since_the_last_beat() -> None:
    async with begun() as body:
        asked = body.time.now + 29
        body.time.now += 30
        assert not body.heart.holds(asked), "the lease counts from the beat, and not from the call"


async def test_a_beat_after_the_lease_holds_only_what_is_asked_for_after_it() -> None:
    async with begun() as body:
        before = body.time.now + 29
        body.time.now += 31
        await body.beats()
        assert body.heart.fresh()
        assert not body.heart.holds(before)
        assert body.heart.holds(body.time.now)


async def test_a_beat_that_is_answered_after_the_lease_may_have_come_too_late() -> None:
    async with begun() as body:
        asked = body.time.now
        body.time.now += 29
        await body.beats(takes=2)
        assert body.heart.fresh()
        assert not body.heart.holds(asked)
        assert body.heart.holds(body.time.now)
