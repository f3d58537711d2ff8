"""The Valkey store: the contract's operations, each handed to the queues that it concerns."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from onejob.core.errors import WrongCall
from onejob.core.job import ChainId, Job, JobId, NewJob, State, WorkerId
from onejob.core.judge import Answer
from onejob.core.lane import QueueChange, QueueLimits
from onejob.core.lifecycle import Settlement
from onejob.core.options import MAX_BULK
from onejob.core.schedule import Firing, Schedule
from onejob.forking import PerProcess
from onejob.store import (
    Amended,
    Amendment,
    Ask,
    Beat,
    Blocker,
    Claims,
    DeadErrors,
    Delay,
    Due,
    Expired,
    Finding,
    Fired,
    JobFilter,
    Key,
    LaneView,
    Migration,
    Page,
    Pruned,
    Pulse,
    Retention,
    SettleReply,
    WorkerView,
)
from onejob.stores.valkey import amend, enqueue, inspect, keeping, lane_views, scheduling
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.engine import Engine
from onejob.stores.valkey.transaction import ValkeyTransaction


class ValkeyStore:
    """A namespace of a Valkey server or cluster, shared by any number of threads, processes and machines."""

    dialect = None
    exchanges_at_once = 2

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        address = parse(url)
        self._clock = clock
        self._engines = PerProcess(lambda: Engine(address, clock))
        # Not at the program's end: clients close their stores then, and one that is stopping could not be closed.
        weakref.finalize(self, self._engines.abandon).atexit = False

    @property
    def _engine(self) -> Engine:
        return self._engines.get()

    def loop(self) -> asyncio.AbstractEventLoop:
        """Where all is seen to that goes wrong elsewhere, or belongs to no caller."""
        return self._engine.link.loop()

    async def open(self) -> None:
        """Connect, and look whether the server keeps what it is given."""
        await self._engine.open()

    async def close(self) -> None:
        """Flush, and close the connections."""
        await self._engine.close()

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """Accept newcomers."""
        if len(jobs) > MAX_BULK:
            raise ValueError(f"enqueue takes at most {MAX_BULK} jobs at a time, not {len(jobs)}")
        with self._engine as engine:
            return await enqueue.enqueue(engine.office, jobs, engine.absorb_from_anywhere, now)

    def enqueue_from_thread(self, job: NewJob) -> Answer | None:
        """Accept a newcomer whose thread waits, if no other thread is about to."""
        return self._engine.enqueue_from_thread(job)

    async def claim(self, ask: Ask, *, now: int | None = None) -> Claims:
        """Start waiting jobs for a worker."""
        with self._engine as engine:
            return await engine.working.claim(ask, now)

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        """End attempts and claim the next."""
        with self._engine as engine:
            return await engine.working.settle(done, ask, now)

    async def set_queue(self, queue: str, change: QueueChange) -> QueueLimits:
        """Change a queue's limits."""
        return await self._engine.run(lambda engine: keeping.set_queue(engine.office, queue, change))

    async def beat(self, beat: Beat, *, now: int | None = None) -> Pulse:
        """Prolong a worker's leases, on a connection of its own."""
        return await self._engine.run(lambda engine: engine.working.beat(beat, now))

    async def leave(self, worker: WorkerId) -> None:
        """Forget a worker that stopped in good order."""
        await self._engine.run(lambda engine: engine.working.leave(worker))

    async def expired(self, limit: int, *, now: int | None = None) -> list[Expired]:
        """Running jobs whose workers are gone."""
        return await self._engine.run(lambda engine: engine.working.expired(limit, now))

    async def amend(
        self,
        ids: Sequence[JobId],
        amendment: Amendment,
        *,
        states: frozenset[State] | None = None,
        now: int | None = None,
    ) -> list[Amended]:
        """Revoke, retry or delete jobs."""
        return await self._engine.run(lambda engine: amend.amend(engine.office, ids, amendment, states, now))

    async def put_schedules(self, schedules: Sequence[Schedule], *, now: int | None = None) -> list[bool]:
        """Write records that are as they were read."""
        return await self._engine.run(lambda engine: scheduling.put(engine.office, schedules, now))

    async def drop_schedule(self, id: str) -> bool:
        """Remove a schedule."""
        return await self._engine.run(lambda engine: scheduling.drop(engine.office, id))

    async def due(self, limit: int, *, now: int | None = None) -> Due:
        """Schedules whose next slot has come."""
        return await self._engine.run(lambda engine: scheduling.due(engine.office, limit, now))

    async def fire(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        """Spend slots."""
        return await self._engine.run(lambda engine: scheduling.fire(engine.office, firings, now))

    async def release(self, digest: bytes, *, holder: JobId | None = None) -> JobId | None:
        """Make a key vacant."""
        return await self._engine.run(lambda engine: keeping.release(engine.office, digest, holder))

    async def prune(self, retention: Retention, limit: int, *, now: int | None = None) -> Pruned:
        """Remove what has been kept long enough."""
        at = await self.time() if now is None else now
        return await self._engine.run(lambda engine: keeping.prune(engine.office, retention, limit, at))

    def mark(self) -> int:
        """A point in the stream of hints."""
        return self._engine.signals.mark()

    async def wait(self, topics: frozenset[str], timeout: float, *, since: int | None = None) -> bool:
        """Sleep until a hint, or until it is time to look."""
        return await self._engine.signals.wait(topics, timeout, since)

    def at_hand(self) -> AbstractAsyncContextManager[None]:
        """Hear of work on the running loop."""
        return self._engine.signals.at_hand()

    def transaction(self, timeout: float) -> ValkeyTransaction:
        """The end of a job by itself; rows of one's own are refused, as there is no database."""
        return ValkeyTransaction(self, timeout)

    def join(self, connection: object) -> NoReturn:
        """Refused: there are no transactions to join."""
        raise WrongCall(
            "connection=… is for a store on PostgreSQL: Valkey has no transactions that your rows could share with a job. "
            "Commit your rows first and then enqueue, under a key that makes it harmless to repeat; or move the store to "
            "the database of those rows."
        )

    async def migrate(self) -> None:
        """There is no schema, and a queue is made by its first job; but from now on the store is there to be looked into."""
        await self._engine.run(lambda engine: engine.make())

    async def migration_script(self) -> str:
        """Refused: there is no schema."""
        raise WrongCall(
            "A store on Valkey has no tables, so there is no SQL to print: a queue is made by its first job."
        )

    async def migrations(self) -> list[Migration]:
        """None: there is no schema."""
        return []

    async def time(self) -> int:
        """The store's clock."""
        if self._clock is not None:
            return self._clock()
        return await self._engine.run(lambda engine: inspect.time(engine.office))

    async def job(self, id: JobId) -> Job | None:
        """One job."""
        return await self._engine.run(lambda engine: inspect.job(engine.office, id))

    async def jobs(self, filter: JobFilter, limit: int = 100, cursor: str | None = None) -> Page:
        """Jobs that match, newest first."""
        return await self._engine.run(lambda engine: inspect.jobs(engine.office, filter, limit, cursor))

    async def count(self, filter: JobFilter) -> int:
        """How many jobs match."""
        return await self._engine.run(lambda engine: inspect.count(engine.office, filter))

    async def waiting_since(self) -> dict[str, int]:
        """Since when the longest waiting job of each queue has been due."""
        return await self._engine.run(lambda engine: inspect.waiting_since(engine.office))

    async def exists(self) -> bool:
        """True once somebody has written, or migrated."""
        return await self._engine.run(lambda engine: engine.exists())

    async def checkup(self) -> list[Finding]:
        """What is wrong with the store."""
        return await self._engine.checkup()

    async def dead(self, queue: str | None, start: int, stop: int) -> list[Job]:
        """Dead letters by range, newest first."""
        return await self._engine.run(lambda engine: inspect.dead(engine.office, queue, start, stop))

    async def dead_errors(self, queue: str | None, limit: int = 100) -> list[DeadErrors]:
        """Dead letters by error."""
        return await self._engine.run(lambda engine: inspect.dead_errors(engine.office, queue, limit))

    async def key(self, digest: bytes) -> Key | None:
        """One key's record."""
        return await self._engine.run(lambda engine: inspect.key(engine.office, digest), flushed=True)

    async def keys(self, queue: str | None = None, limit: int = 100, *, text: str | None = None) -> list[Key]:
        """Keys on record."""
        return await self._engine.run(
            lambda engine: inspect.keys(engine.office, queue, limit, text), flushed=True
        )

    async def counts(self) -> dict[str, dict[State, int]]:
        """Jobs per queue and state."""
        return await self._engine.run(lambda engine: inspect.counts(engine.office))

    async def limits(self) -> dict[str, QueueLimits]:
        """The limits of every queue that has any."""
        return await self._engine.run(lambda engine: lane_views.limits(engine.office))

    async def lane(self, queue: str, key: str) -> LaneView | None:
        """One lane."""
        return await self._engine.run(lambda engine: lane_views.lane(engine.office, queue, key))

    async def lanes(self, queue: str | None = None, limit: int = 100) -> list[LaneView]:
        """Lanes in use."""
        return await self._engine.run(lambda engine: lane_views.lanes(engine.office, queue, limit))

    async def ahead(self, id: JobId, limit: int = 1_000) -> int:
        """How many have their turn before a job."""
        return await self._engine.run(lambda engine: lane_views.ahead(engine.office, id, limit))

    async def schedules(self, ids: Sequence[str] | None = None) -> list[Schedule]:
        """Schedules on record."""
        return await self._engine.run(lambda engine: scheduling.schedules(engine.office, ids))

    async def workers(self) -> list[WorkerView]:
        """Workers on record."""
        return await self._engine.run(lambda engine: inspect.workers(engine.office))

    async def chain(self, id: JobId) -> list[Job]:
        """All jobs of a chain."""
        return await self._engine.run(lambda engine: inspect.chain(engine.office, id))

    async def last(self, id: JobId) -> Job | None:
        """The last job of a chain."""
        return await self._engine.run(lambda engine: inspect.last(engine.office, id))

    async def blockers(self, id: JobId) -> list[Blocker]:
        """The chains that a job waits or waited for."""
        return await self._engine.run(lambda engine: inspect.blockers(engine.office, id))

    async def blocked(self, chain: ChainId, limit: int = 100) -> list[JobId]:
        """Jobs that wait for a chain as one of their blockers."""
        return await self._engine.run(lambda engine: inspect.blocked(engine.office, chain, limit))

    async def followers(self, chain: ChainId) -> list[JobId]:
        """Jobs that wait for this chain to end."""
        return await self._engine.run(lambda engine: inspect.followers(engine.office, chain))

    async def delays(self, id: JobId) -> list[Delay]:
        """None: nobody's transaction can hold up a job here."""
        return []

    async def undecided(self) -> list[Delay]:
        """None: see `delays`."""
        return []
