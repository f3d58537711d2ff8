"""A transaction that stays open and holds back vacuum: what every operation reads of the jobs that have ended since then.

Entries of indexes that died since somebody took his snapshot cannot be thrown out, nor be marked, so whoever looks for the
first live one passes all of them. Here that is held to be so once for each look, at the price in docs/guides/postgres.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import pytest
from servers.stepping import Play, Session
from test_postgres_flat import Operation, looking, reads

from onejob.core.dedup import Unique
from onejob.core.job import NewJob, WorkerId
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask, Beat
from onejob.stores.postgres import beating
from onejob.testing.conformance.steps import beat, job, start

AT_ONCE = 1_000
KEYS, LANES = 100, 20
BATCH = 20
FOREVER = 10**9
QUEUES = ("q", "keyed", "laned")
WISH = Ask(WorkerId("w"), ("q",), BATCH)
PER_JOB = {
    "a claim": 1,
    "a claim of more than there is": 2,  # it looks whether somebody has locked what it did not get
    "an end": 0.01,
    "an end and a claim": 1,
    "a beat": 1.1,
    "enqueues": 0.001,
    "enqueues under keys": 0.1,
    "a claim in lanes": 2,
}
"""How many rows and entries an operation passes for each job that has ended since the snapshot."""
OWN = 1_000
"""What it may read for itself, whatever has ended."""
BURDEN = 1e-6
"""Processor seconds of the server for each of them; three to six times what it takes."""


@dataclass
class Held:
    """A store in which nothing that has ended is gone."""

    play: Play
    session: Session
    ended: int = 0

    async def turn_over(self, jobs: int) -> None:
        """Let so many jobs come and end: of ten, one has a key that others had before it, and one is in a lane."""
        for first in range(self.ended, self.ended + jobs, AT_ONCE):
            await self.play.store.enqueue([_job(number) for number in range(first, first + AT_ONCE)])
            await self.drain()
            self.play.clock.advance(0.001)
        self.ended += jobs

    async def drain(self) -> None:
        while running := await start(self.play.store, queues=QUEUES, limit=AT_ONCE):
            await self.play.store.settle([Settlement(one.lease, Move.COMPLETE) for one in running])

    async def measured(self, times: int = 1) -> dict[str, tuple[int, float]]:
        """What each operation reads, and its processor time at the server."""
        store = self.play.store
        await store.enqueue([job() for _ in range(BATCH + 1)])
        await store.enqueue([job(queue="laned", lane=LanePlan(f"lane {place}")) for place in range(BATCH)])
        [running] = await start(store, limit=1)
        operations: dict[str, Operation] = {
            "a claim": lambda session: session.claim(limit=BATCH).done(),
            "a claim of more than there is": lambda session: session.claim(limit=BATCH + 1).done(),
            "an end": lambda session: session.settle(running).done(),
            "an end and a claim": lambda session: session.settle(running, wish=WISH).done(),
            "a beat": looking(beating.beat, Beat(WorkerId("w"), FOREVER)),
            "enqueues": lambda session: session.enqueue_many(*(job() for _ in range(BATCH))).done(),
            "enqueues under keys": lambda session: session.enqueue_many(
                *(_job(number) for number in range(0, 10 * BATCH, 10))
            ).done(),
            "a claim in lanes": lambda session: session.claim(queues=("laned",), limit=BATCH).done(),
        }
        found: dict[str, tuple[int, float]] = {}
        backend = psutil.Process(self.session.pid)
        for name, operation in operations.items():
            read = (await reads(self.play, self.session, {name: operation}))[name]
            before = sum(backend.cpu_times()[:2])
            for _ in range(times):
                await reads(self.play, self.session, {name: operation})
            found[name] = read, (sum(backend.cpu_times()[:2]) - before) / times
        await store.settle([Settlement(running.lease, Move.COMPLETE)])
        await self.drain()
        return found


def _job(number: int) -> NewJob:
    match number % 10:
        case 0:
            return job(queue="keyed", unique=Unique.in_flight(), key=f"key {number // 10 % KEYS}")
        case 1:
            return job(queue="laned", lane=LanePlan(f"lane {number // 10 % LANES}"))
        case _:
            return job()


async def held(play: Play) -> Held:
    user = await play.user()
    await user.begin("repeatable read")
    await user.execute("select count(*) from pg_class")  # from now on it has a snapshot
    await beat(play.store, "w", FOREVER)
    return Held(play, await play.ours())


def too_much(found: dict[str, tuple[int, float]], ended: int) -> dict[str, int]:
    return {name: read for name, (read, _) in found.items() if read > PER_JOB[name] * ended + OWN}


async def test_what_has_ended_behind_a_snapshot_is_passed_once_for_each_look(postgres_url: str) -> None:
    async with Play(postgres_url) as play:
        jobs = await held(play)
        await jobs.turn_over(8_000)
        found = await jobs.measured()
        assert too_much(found, jobs.ended) == {}
        assert found["a claim"][0] > jobs.ended / 2, "so the snapshot holds"


@pytest.mark.torture
async def test_an_hour_behind_a_snapshot_is_survived(new_postgres_url: str) -> None:
    async with Play(new_postgres_url) as play:
        jobs = await held(play)
        for _ in range(3):
            await jobs.turn_over(100_000)
            found = await jobs.measured(times=20)
            for name, (read, spent) in found.items():
                print(f"{jobs.ended:,} ended: {name} reads {read:,} in {spent * 1_000:.1f} ms")  # noqa: T201 - to be read with pytest -s
            assert too_much(found, jobs.ended) == {}
            slow = {name: spent for name, (read, spent) in found.items() if spent > 0.01 + BURDEN * read}
            assert slow == {}
