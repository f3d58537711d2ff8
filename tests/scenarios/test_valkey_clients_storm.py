"""Several clients of a Valkey store do at random what can be done, at once, on few jobs in several queues; and die now and
then between two calls. Once the next has looked, nothing is half-written and nothing left behind; and everything can end.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from servers.layout_checks import inspect_layout, left_over
from valkey_cutting import AWAY, EVERYTHING, LEASE, QUEUES, Died, World, id, new

from onejob.core.dedup import Unique
from onejob.core.errors import UnknownBlocker
from onejob.core.job import Claimed, NewJob, WorkerId
from onejob.core.lane import LanePlan, Rate
from onejob.core.lifecycle import Lost, Move, after_attempt
from onejob.core.options import JobOptions, encode_options
from onejob.store import Amendment, Ask, Beat
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock

CLIENTS = 4
JOBS = 12
"""How many of the newest jobs are waited for, revoked, retried and so on."""
LIVING = ("q", "r", "s")
POLICIES = (None, Unique.in_flight(), Unique.latest(), Unique.once(within=5), Unique.restart())
LANES = (None, None, LanePlan("x"), LanePlan("y", 2, Rate(3, 10)), LanePlan("x", hold=True))
BURIED = encode_options(JobOptions(dead_letter="dead"))


class Storm:
    """What all clients share: dice, a clock, and the leases that anybody ever had."""

    def __init__(self, url: str, seed: int) -> None:
        self.dice = random.Random(seed)
        self.clock = FakeClock()
        self.url = url
        self.leases: list[Claimed] = []
        self.deaths = self.done = self.jobs = 0

    async def rage(self, steps: int) -> None:
        worlds = [
            World(ValkeyStore(self.url, clock=self.clock), self.url, self.clock, {}) for _ in range(CLIENTS)
        ]
        try:
            await asyncio.gather(
                *(self._act(world, f"worker-{number}", steps) for number, world in enumerate(worlds))
            )
            worlds[0].new_client()
            await worlds[0].tick()
            found = inspect_layout(self.url)
            assert found == [], "\n".join(found)
            await worlds[0].drain()
            await worlds[0].drain()  # windows and rates are over by now
            assert [*inspect_layout(self.url), *left_over(self.url)] == []
        finally:
            await asyncio.gather(*(world.store.close() for world in worlds))

    async def _act(self, world: World, worker: str, steps: int) -> None:
        kinds = (self._put, self._put, self._claim, self._settle, self._settle, self._settle, self._amend)
        for _ in range(steps):
            doomed = self.dice.random() < 0.3
            how = self.dice.choice(("before", "after", "again"))
            world.new_client(self.dice.randint(1, self.dice.choice((5, 12))) if doomed else 0, how)
            try:
                act = self.dice.choice((*kinds, self._keep)) if self.dice.random() < 0.9 else self._keep
                await act(world, worker)
                self.done += 1
            except Died:
                self.deaths += 1
            except UnknownBlocker:
                continue

    async def _put(self, world: World, _: str) -> None:
        await world.put(*(self._new() for _ in range(self.dice.randint(1, 3))))

    def _new(self) -> NewJob:
        blockers = [self._some() for _ in range(self.dice.choice((0, 0, 0, 1, 2)))]
        settings: dict[str, Any] = {
            "queue": self.dice.choice(LIVING),
            "unique": self.dice.choice(POLICIES),
            "lane": self.dice.choice(LANES),
            "options": self.dice.choice((None, BURIED)),
            "delay": self.dice.choice((0, 0, 1_000)),
            "expires": self.dice.choice((None, None, 2_000)),
            "payload": b'{"v":%d}' % self.dice.randrange(3),
        }
        self.jobs += 1
        return new(self.jobs, *blockers, runs_anyway=self.dice.random() < 0.3, **settings)

    def _some(self) -> int:
        """One of the newest."""
        return max(self.jobs - self.dice.randrange(JOBS), 1)

    async def _claim(self, world: World, worker: str) -> None:
        await world.store.beat(Beat(WorkerId(worker), LEASE))
        queues = tuple(self.dice.sample(QUEUES, self.dice.randint(1, 4)))
        claims = await world.store.claim(Ask(WorkerId(worker), queues, 3))
        self.leases += claims.jobs

    async def _settle(self, world: World, _: str) -> None:
        """End attempts, of which many are lost already."""
        if not self.leases:
            return
        some = [self.leases.pop(self.dice.randrange(len(self.leases)))]
        if self.leases and self.dice.random() < 0.3:
            some.append(self.dice.choice(self.leases))
        world.leases = {held.id: held for held in some}
        await world.end(*(self._end_of(world, held) for held in world.leases))

    def _end_of(self, world: World, held: str) -> Any:
        move = self.dice.choice((Move.COMPLETE, Move.COMPLETE, Move.FAIL, Move.RETRY, Move.HAND_BACK))
        settings: dict[str, Any] = {}
        if move is Move.COMPLETE and self.dice.random() < 0.6:
            settings["then"] = self.dice.choice(LIVING)
            settings["waits"] = self.dice.choice(((), (id(self._some()),)))
        if move is Move.FAIL and self.dice.random() < 0.5:
            settings["dead_letter"] = "dead"
        return world.done(held, move, **settings)

    async def _amend(self, world: World, _: str) -> None:
        await world.amend(id(self._some()), self.dice.choice(list(Amendment)))

    async def _keep(self, world: World, _: str) -> None:
        self.clock.tick(self.dice.choice((1, 100, 1_500, LEASE)))
        match self.dice.randrange(3):
            case 0:
                lost = await world.store.expired(EVERYTHING)
                await world.end(*(after_attempt(found.job, Lost(found.worker)) for found in lost))
            case 1:
                retention = msgspec.structs.replace(AWAY, failed=self.dice.choice((0, 5_000)))
                await world.store.prune(retention, self.dice.choice((1, 100)))
            case _:
                await world.tick()


@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_come_and_go_leave_nothing_behind(seed: int, valkey_url: str) -> None:
    storm = Storm(valkey_url, seed)
    await storm.rage(60)
    assert storm.deaths > 10
    assert storm.done > 100


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100, 130))
async def test_many_clients_that_come_and_go_leave_nothing_behind(seed: int, valkey_url: str) -> None:
    storm = Storm(valkey_url, seed)
    await storm.rage(200)
    assert storm.deaths > 40
