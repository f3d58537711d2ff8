"""Any two operations, and any place between two statements of the first at which the second comes.

Whatever the order, afterwards every job runs or has ended, no key and no lane has two at once, and no note is left.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from interleaving import COALESCE, LANE, LATEST, ONCE, RESTART
from servers.stepping import PATIENCE, Act, Play, Session

from onejob.core.dedup import Unique
from onejob.core.errors import UnknownBlocker
from onejob.core.job import JobId, Lease, WorkerId
from onejob.core.lifecycle import Move
from onejob.store import Amendment, Ask
from onejob.testing.conformance.blockers import waiting_for
from onejob.testing.conformance.chains import next_of
from onejob.testing.conformance.steps import AT_ONCE, job

TABLES = ("job", "key", "flag", "blocker", "recheck", "touch", "lane", "worker")
FOLLOW = Unique.in_flight(queued="follow", running="follow")
Operation = Callable[[Session, SimpleNamespace], Act[Any]]
Scene = Callable[[Session], Awaitable[SimpleNamespace]]


async def chains(session: Session) -> SimpleNamespace:
    """One runs, another follows it; for each of them somebody waits. An older holder of the key has failed."""
    failed, first, follower = job(unique=COALESCE), job(unique=COALESCE), job(unique=COALESCE, payload=b"2")
    await session.enqueue(failed).done()
    [claimed] = (await session.claim().done()).jobs
    await session.settle(claimed, Move.FAIL).done()
    await session.enqueue(first).done()
    [running] = (await session.claim().done()).jobs
    for newcomer in (follower, waiting_for(first.id), waiting_for(follower.id, runs_anyway=True)):
        await session.enqueue(newcomer).done()
    return SimpleNamespace(running=running, first=first.id, next=follower.id, failed=failed.id)


async def lane(session: Session) -> SimpleNamespace:
    """One of a lane runs, two others stand in line, and one of these follows it, too."""
    first, second, follower = (job(unique=LATEST, key=key, lane=LANE) for key in ("k", "f", "k"))
    await session.enqueue(first).done()
    [running] = (await session.claim().done()).jobs
    for newcomer in (second, follower):
        await session.enqueue(newcomer).done()
    return SimpleNamespace(running=running, first=first.id, next=second.id, failed=first.id)


def comes(unique: Unique | None = None, **settings: Any) -> Operation:
    """A newcomer."""
    return lambda session, _: session.enqueue(job(unique=unique, payload=b"3", **settings))


ENQUEUES: dict[str, Operation] = {
    "coalesce": comes(COALESCE),
    "latest": comes(LATEST),
    "restart": comes(RESTART),
    "follow": comes(FOLLOW),
    "force": comes(ONCE, force=True),
    "in the lane": comes(lane=LANE),
    "latest in the lane": comes(LATEST, key="f", lane=LANE),
    "wait": lambda session, there: session.enqueue(waiting_for(there.first)),
    "wait for the next": lambda session, there: session.enqueue(waiting_for(there.next, runs_anyway=True)),
    "wait under the key": lambda session, there: session.enqueue(waiting_for(there.first, unique=COALESCE)),
    "bulk": lambda session, there: session.enqueue(
        job(unique=COALESCE), job(unique=RESTART), waiting_for(there.first), job(unique=LATEST)
    ),
}
OPERATIONS: dict[str, Operation] = {
    **ENQUEUES,
    "complete": lambda session, there: session.settle(there.running),
    "complete and claim": lambda session, there: session.settle(
        there.running, wish=Ask(WorkerId("w"), ("q",), 10)
    ),
    "go on": lambda session, there: session.settle(there.running, then=next_of(there.running)),
    "fail": lambda session, there: session.settle(there.running, Move.FAIL),
    "come back": lambda session, there: session.settle(there.running, Move.RETRY, delay=10),
    "claim": lambda session, _: session.claim(),
    "revoke": lambda session, there: session.amend(there.first, Amendment.REVOKE),
    "revoke the next": lambda session, there: session.amend(there.next, Amendment.REVOKE),
    "delete the next": lambda session, there: session.amend(there.next, Amendment.DELETE_WITH_WAITING),
    "retry": lambda session, there: session.amend(there.failed, Amendment.RETRY),
    "retry without key": lambda session, there: session.amend(there.failed, Amendment.RETRY_WITHOUT_KEY),
    "prune": lambda session, _: session.prune(AT_ONCE),
}
BESIDE_THE_KEY = {"force", "retry without key"}
"""Those may run beside the key's holder."""


class Pair(NamedTuple):
    """Two operations; each is ours or in a user's transaction, and the second user may commit later than the first."""

    first: str
    second: str
    first_is_users: bool
    second_is_users: bool
    stays_open: bool


def pairs() -> Iterator[Pair]:
    for first, second in itertools.product(OPERATIONS, OPERATIONS):
        for mine, yours, stays in itertools.product((False, True), repeat=3):
            if mine <= (first in ENQUEUES) and yours <= (second in ENQUEUES) and stays <= yours:
                yield Pair(first, second, mine, yours, stays)


class Crossing:
    """Sessions of one store, used for one meeting after the other."""

    def __init__(self, play: Play, scene: Scene) -> None:
        self._play = play
        self._scene = scene

    async def open(self) -> None:
        play = self._play
        self._ours = [await play.ours(), await play.ours()]
        self._users = [await play.user(), await play.user()]
        self._worker = await play.ours()

    async def meet(self, pair: Pair) -> int:
        """Let the second come before each statement of the first in turn: in how many places."""
        for cut in itertools.count(1):
            for table in TABLES:
                await self._play.look(f"delete from {{}}.{table}")
            there = await self._scene(self._worker)
            came_between = await self._cross(pair, there, cut)
            await self._look(pair, f"{pair}, before statement {cut}")
            if not came_between:
                return cut
        raise AssertionError

    async def _cross(self, pair: Pair, there: SimpleNamespace, cut: int) -> bool:
        """False if the first had no such statement: then the second came after its last, or before the user's commit."""
        one = (self._users if pair.first_is_users else self._ours)[0]
        two = (self._users if pair.second_is_users else self._ours)[1]
        if pair.first_is_users:
            await one.begin()
        first = OPERATIONS[pair.first](one, there)
        between = False
        with suppress(UnknownBlocker):
            for _ in range(cut):
                between = await first.step()
        if pair.second_is_users:
            await two.begin()
        second = OPERATIONS[pair.second](two, there).go()
        await self._until(lambda: second.is_done, two, one)
        if second.is_done and pair.second_is_users and not pair.stays_open:
            await two.commit()
        first.go()
        await self._until(lambda: first.is_done, one, two)
        if not first.is_done:  # it waits for a user who has all that he wants
            await two.commit()
        await self._end(first, one)
        await self._end(second, two)
        return between

    async def _until(self, done: Callable[[], bool], session: Session, other: Session) -> None:
        """Wait until a session is done, or waits for the other."""
        async with asyncio.timeout(PATIENCE):
            while not done() and other.pid not in await self._play.blockers(session):
                pass

    async def _end(self, act: Act[Any], session: Session) -> None:
        with suppress(UnknownBlocker):  # whom somebody wants to wait for may be deleted meanwhile
            await act.done()
        if session.connection.is_in_transaction():
            await session.commit()

    async def _look(self, pair: Pair, what: str) -> None:
        """Run everything to its end, and see that there is nobody left."""
        play, worker = self._play, self._worker
        free = not BESIDE_THE_KEY.isdisjoint(pair)
        for _ in range(20):
            running = await play.look(
                "select j.id, j.lease, coalesce(r.digest, j.digest), j.lane from {0}.job j "
                "left join {0}.job r on r.id = j.chain where j.state = 'running'"
            )
            keys, lanes = (
                Counter(row[2] for row in running if row[2]),
                Counter(row[3] for row in running if row[3]),
            )
            assert free or max(keys.values(), default=0) <= 1, f"two at once under one key: {what}"
            assert max(lanes.values(), default=0) <= 1, f"two at once in a lane: {what}"
            for id, token, *_ in running:
                await worker.settle(SimpleNamespace(lease=Lease(JobId(str(id)), token))).done()  # type: ignore[arg-type]
            play.clock.tick(1_000)
            if not (await worker.claim().done()).jobs and not running:
                break
        left = await play.look("select task, state, key, lane, follows from {}.job where ended is null")
        assert left == [], f"somebody never runs: {what}"
        for table in ("recheck", "touch"):
            assert await play.look(f"select count(*) from {{}}.{table}") == [(0,)], f"{table}: {what}"


async def crossed(url: str, scene: Scene, chosen: list[Pair]) -> int:
    async with Play(url) as play:
        crossing = Crossing(play, scene)
        await crossing.open()
        return sum([await crossing.meet(pair) for pair in chosen])


@pytest.mark.parametrize("scene", [chains, lane])
async def test_some_pairs_of_operations_meet_at_every_place(postgres_url: str, scene: Scene) -> None:
    every = list(pairs())
    assert await crossed(postgres_url, scene, every[7 :: len(every) // 5]) > 5


@pytest.mark.torture
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("scene", [chains, lane])
async def test_all_pairs_of_operations_meet_at_every_place(postgres_url: str, scene: Scene) -> None:
    assert await crossed(postgres_url, scene, list(pairs())) > 1_000
