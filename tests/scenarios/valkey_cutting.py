"""Clients of a Valkey store that die between two of their calls, or whose replies are lost; and pictures of what they leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import msgspec
from servers.layout import Queue, Reader
from servers.layout_checks import problems
from servers.namespaces import Namespaces

from onejob.core.chain import continuation_id
from onejob.core.dead_letter import copy_id
from onejob.core.errors import OnejobError
from onejob.core.job import ChainId, Claimed, JobId, NewJob, WorkerId
from onejob.core.lifecycle import Lost, Move, Settlement, after_attempt
from onejob.store import Amended, Amendment, Ask, Beat, Retention, Settled
from onejob.stores.valkey.office import Office
from onejob.stores.valkey.store import ValkeyStore
from onejob.stores.valkey.working import Working
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import job

How = Literal["before", "after", "again"]
"""A client dies before a call, or when it has counted; or its reply was lost, and the link makes it again."""
LEASE = 30_000
EVERYTHING = 1_000
LONGEST_WAY = 12
QUEUES = ("q", "r", "s", "dead")
KEEP = Retention(2**40, 2**40, 2**40)
AWAY = Retention(0, 0, 0)


def id(number: int) -> JobId:
    """The id of the job of that number."""
    return JobId(str(UUID(int=number)))


def next_id(number: int, index: int = 1) -> JobId:
    """The id of the job at a place of the chain that begins with that number."""
    return continuation_id(ChainId(id(number)), index)


def letter_id(number: int) -> JobId:
    """The id of a job's dead letter."""
    return JobId(str(UUID(bytes=copy_id(UUID(int=number).bytes))))


def new(number: int, *blockers: int, runs_anyway: bool = False, **settings: Any) -> NewJob:
    """The job of that number, which waits for others."""
    made = job(id=id(number), **settings)
    return msgspec.structs.replace(
        made, blockers=tuple(id(other) for other in blockers), runs_anyway=runs_anyway
    )


class Died(OnejobError):
    """Whoever makes a call is dead."""


class Cut:
    """The way to the server, which ends at one of the calls, by its number or script; 0: it goes on. With "again", from there on
    each is made twice."""

    def __init__(self, run: Any, at: int | str = 0, how: How = "before") -> None:
        self._run = run
        self._at = at
        self._how: How = how
        self._dead = False
        self.calls = 0

    @property
    def fired(self) -> bool:
        return isinstance(self._at, int) and 0 < self._at <= self.calls

    async def __call__(
        self, script: str, keys: Sequence[Any], args: Sequence[bytes], *, beat: bool = False
    ) -> Any:
        if self._dead:
            raise Died(script)
        self.calls += 1
        meant = self._at in (self.calls, script) or (self._how == "again" and self.fired)
        self._dead = meant and self._how != "again"
        if meant and self._how == "before":
            raise Died(script)
        reply = await self._run(script, keys, args, beat=beat)
        if self._dead:
            raise Died(script)
        if meant:
            reply = await self._run(script, keys, args, beat=beat)
        return reply


@dataclass
class World:
    """A namespace as clients see it one after the other, and the leases of a worker there."""

    store: ValkeyStore
    url: str
    clock: FakeClock
    leases: dict[str, Claimed]
    kept: Any = None
    """What the preparation of an operation leaves to it."""

    def new_client(self, at: int | str = 0, how: How = "before") -> Cut:
        """From now on somebody acts who knows of nothing, and who may die."""
        engine = self.store._engine
        cut = Cut(engine.link.run, at, how)
        engine.office = Office(cut, Reader(self.url).namespace, self.clock, engine.signals.tell)
        engine.working = Working(engine.office)
        return cut

    async def put(self, *jobs: NewJob) -> list[str]:
        return [answer.outcome for answer in await self.store.enqueue(jobs)]

    async def start(self, *queues: str) -> None:
        """Start everything that is due in these queues."""
        await self.store.beat(Beat(WorkerId("w"), LEASE))
        claims = await self.store.claim(Ask(WorkerId("w"), queues or QUEUES, EVERYTHING))
        self.leases |= {claimed.id: claimed for claimed in claims.jobs}

    async def end(self, *done: Settlement) -> list[Settled]:
        return (await self.store.settle(done)).settled

    async def amend(self, id: JobId, amendment: Amendment) -> list[Amended]:
        return await self.store.amend([id], amendment)

    def done(self, which: str, move: Move = Move.COMPLETE, **settings: Any) -> Settlement:
        """The end of a job's attempt; `then` is the queue of its next job, and `waits` what that waits for."""
        held = self.leases[which]
        queue, blockers = settings.pop("then", None), settings.pop("waits", ())
        if queue is not None:
            id = continuation_id(held.chain, held.chain_index + 1)
            settings["then"] = msgspec.structs.replace(
                job(id=id, task="next", queue=queue), blockers=blockers
            )
        return Settlement(held.lease, move, error=None if move is Move.COMPLETE else "boom", **settings)

    async def tick(self) -> None:
        """What any worker does now and then, though it has nothing to do with these queues."""
        worker = WorkerId("another")
        await self.store.beat(Beat(worker, LEASE, queues=("elsewhere",)))
        await self.store.claim(Ask(worker, ("elsewhere",), EVERYTHING))
        await self.store.expired(EVERYTHING)

    async def drain(self) -> None:
        """Let a worker run everything to its end; who held jobs before is gone."""
        for _ in range(LONGEST_WAY):
            self.clock.tick(LEASE)
            lost = await self.store.expired(EVERYTHING)
            await self.end(*(after_attempt(found.job, Lost(found.worker)) for found in lost))
            self.leases.clear()
            await self.start()
            if not self.leases:
                break
            await self.end(*(Settlement(one.lease, Move.COMPLETE) for one in self.leases.values()))
        else:
            raise AssertionError("it never ends")
        self.clock.tick()
        await self.store.prune(AWAY, EVERYTHING)


class Worlds:
    """Prepares an operation again and again, each time in a world of its own."""

    def __init__(self, store: ValkeyStore, clock: FakeClock, namespaces: Namespaces) -> None:
        self._store = store
        self._clock = clock
        self._start = clock.now
        self._namespaces = namespaces

    @contextmanager
    def one(self) -> Iterator[World]:
        url = self._namespaces.take()
        self._clock.now = self._start
        try:
            yield World(self._store, url, self._clock, {})
        finally:
            self._namespaces.give_back(url)


def picture(url: str) -> dict[str, Any]:
    """Everything that is on the server, but for tokens, and numbers that come from its own clock; nothing may be amiss."""
    queues = Reader(url).read()
    found = problems(queues)
    assert not found, found
    return {name: _picture(queue) for name, queue in sorted(queues.items())}


def _picture(queue: Queue) -> dict[str, Any]:
    heads = {id: {**vars(head), "lease": bool(head.lease)} for id, head in queue.heads.items()}
    records = {
        "cards": {id: vars(card) for id, card in queue.cards.items()},
        "keys": {digest: vars(key) for digest, key in queue.keys.items()},
        "blockers": queue.blockers,
        "lanes": queue.lanes,
    }
    others = {
        letter: {
            name: value for name, value in some.items() if letter != "i" and not _goes_by_time(letter, name)
        }
        for letter, some in queue.others.items()
    }
    return {"heads": heads, **records, "others": others, "index": queue.index}


def _goes_by_time(letter: str, name: bytes) -> bool:
    return letter == "m" and (name == b"born" or name[:1] == b"o")
