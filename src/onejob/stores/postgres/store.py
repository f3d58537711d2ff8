"""The PostgreSQL store: the contract's operations, each a generator of statements handed to the engine."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from onejob.core.errors import KeyBusy, OnejobError
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
from onejob.stores.postgres import (
    amend,
    beating,
    checkup,
    claim,
    enqueue,
    inspect,
    limits,
    migrate,
    prune,
    scheduling,
    settle,
)
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.driver import Link
from onejob.stores.postgres.engine import Engine, Make, T
from onejob.stores.postgres.joined import Joined, Joining
from onejob.stores.postgres.portions import Portions
from onejob.stores.postgres.statements import FILES
from onejob.stores.postgres.transaction import PostgresTransaction

_LEASE_BYTES = 8
_LARGE = 131_072
"""Bytes of payloads that a socket may not take at once."""
_WARY = 50


class PostgresStore:
    """One schema of a PostgreSQL database, shared by any number of threads, processes and machines.

    Connections live on an event loop of the store's own, in a thread that starts with the first use, and anew in a
    forked child.
    """

    dialect = "postgresql"
    exchanges_at_once = 1

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        self._address = parse(url)
        self._clock = clock
        address = self._address
        self._engines = PerProcess(lambda: Engine(address, clock))
        self._large_claims = 0
        """For so many exchanges more, claims may bring much."""
        self._joining = Joining(self._address.schema, self._run, clock)
        # Not at the program's end: clients close their stores then, and one that is stopping could not be closed.
        weakref.finalize(self, self._engines.abandon).atexit = False

    @property
    def _engine(self) -> Engine:
        return self._engines.get()

    def loop(self) -> asyncio.AbstractEventLoop:
        """Where its connections live."""
        return self._engine.home.loop()

    async def open(self) -> None:
        """Connect and migrate."""
        await self._engine.use(_nothing, ready=True)

    async def close(self) -> None:
        """Flush, and close the connections."""
        await self._engine.close()

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """Accept newcomers; those whose keys are held up do not hold up the others."""
        if len(jobs) > MAX_BULK:
            raise ValueError(f"enqueue takes at most {MAX_BULK} jobs at a time, not {len(jobs)}")
        try:
            return await self._run(lambda work: enqueue.enqueue(work, jobs, alone=True), now=now)
        except KeyBusy:
            portions = Portions(jobs)
        while (part := portions.next()) is not None:
            some = part.jobs
            try:
                portions.done(
                    part,
                    await self._run(lambda work, some=some: enqueue.enqueue(work, some, alone=True), now=now),
                )
            except KeyBusy as error:
                portions.busy(part, error)
        try:
            return portions.answers()
        except KeyBusy as error:
            try:
                takers = await self.undecided()
            except OnejobError:
                takers = []  # what is to be told is that the key is busy
            raise enqueue.busy_with(error, takers) from error.__cause__

    def enqueue_from_thread(self, job: NewJob) -> Answer | None:
        """Accept a newcomer whose thread waits, if no other thread is about to: those had better share a commit."""
        answers = self._engine.run_from_thread(lambda: self.enqueue((job,)))
        return None if answers is None else answers[0]

    async def claim(self, ask: Ask, *, now: int | None = None) -> Claims:
        """Start waiting jobs for a worker."""
        token = os.urandom(_LEASE_BYTES)
        return await self._run(lambda work: claim.claim(work, ask, token), now=now)

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        """End attempts and claim the next."""
        token = os.urandom(_LEASE_BYTES)
        # A statement is not over before its rows have been taken, which a blocked loop does not do: see `AtHand`.
        run = self._engine.run if self._large_claims else self._engine.run_here
        reply = await run(lambda work: settle.settle(work, done, ask, token), now=now)
        if sum([len(job.payload) for job in reply.claims.jobs]) > _LARGE:
            self._large_claims = _WARY
        elif self._large_claims:
            self._large_claims -= 1
        return reply

    def at_hand(self) -> AbstractAsyncContextManager[None]:
        """Meanwhile `settle` goes from the running loop straight to the server."""
        return self._engine.at_hand()

    async def set_queue(self, queue: str, change: QueueChange) -> QueueLimits:
        """Change a queue's limits."""
        return await self._run(lambda work: limits.set_queue(work, queue, change))

    async def beat(self, beat: Beat, *, now: int | None = None) -> Pulse:
        """Prolong a worker's leases, on a connection of its own."""
        engine = self._engine
        return await engine.run(lambda work: beating.beat(work, beat), now=now, pool=engine.beats)

    async def leave(self, worker: WorkerId) -> None:
        """Forget a worker that stopped in good order."""
        await self._run(lambda work: beating.leave(work, worker))

    async def expired(self, limit: int, *, now: int | None = None) -> list[Expired]:
        """Running jobs whose workers are gone."""
        return await self._run(lambda work: beating.expired(work, limit), now=now)

    async def amend(
        self,
        ids: Sequence[JobId],
        amendment: Amendment,
        *,
        states: frozenset[State] | None = None,
        now: int | None = None,
    ) -> list[Amended]:
        """Revoke, retry or delete jobs."""
        return await self._run(lambda work: amend.amend(work, ids, amendment, states), now=now)

    async def put_schedules(self, schedules: Sequence[Schedule], *, now: int | None = None) -> list[bool]:
        """Write records that are as they were read."""
        return await self._run(lambda work: scheduling.put(work, schedules), now=now)

    async def drop_schedule(self, id: str) -> bool:
        """Remove a schedule."""
        return await self._run(lambda work: scheduling.drop(work, id))

    async def due(self, limit: int, *, now: int | None = None) -> Due:
        """Schedules whose next slot has come."""
        return await self._run(lambda work: scheduling.due(work, limit), now=now)

    async def fire(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        """Spend slots."""
        return await self._run(lambda work: scheduling.fire(work, firings), now=now)

    async def release(self, digest: bytes, *, holder: JobId | None = None) -> JobId | None:
        """Make a key vacant."""
        return await self._run(lambda work: amend.release(work, digest, holder))

    async def prune(self, retention: Retention, limit: int, *, now: int | None = None) -> Pruned:
        """Remove what has been kept long enough."""
        return await self._run(lambda work: prune.prune(work, retention, limit), now=now)

    def mark(self) -> int:
        """A point in the stream of hints."""
        return self._engine.signals.mark()

    async def wait(self, topics: frozenset[str], timeout: float, *, since: int | None = None) -> bool:
        """Sleep until a hint, or until it is time to look."""
        return await self._engine.signals.wait(topics, timeout, since)

    def transaction(self, timeout: float) -> PostgresTransaction:
        """A transaction for the user's own statements and enqueues together."""
        return PostgresTransaction(self._engine, timeout, self._clock)

    def join(self, connection: object) -> Joined:
        """The transaction that is open on a user's own connection."""
        return self._joining.join(connection)

    async def migrate(self) -> None:
        """Bring the schema up to date, whatever the URL says."""
        await self._engine.migrate()

    async def schema_version(self) -> int:
        """Which version of the tables is there; 0 if none."""
        return await self._engine.use(lambda link, _: migrate.version(link), ready=False)

    async def migration_script(self) -> str:
        """What `migrate` would do, as SQL."""
        return await self._engine.use(lambda link, _: migrate.script(link, self._address), ready=False)

    async def migrations(self) -> list[Migration]:
        """The steps that build the schema, and which of them are applied."""
        there = await self._version_we_know()
        return [Migration(name, number <= there) for number, name in enumerate(FILES.migration_names, 1)]

    async def time(self) -> int:
        """The store's clock."""
        return self._clock() if self._clock is not None else await self._look(inspect.time)

    async def job(self, id: JobId) -> Job | None:
        """One job."""
        return await self._look(lambda work: inspect.job(work, id))

    async def jobs(self, filter: JobFilter, limit: int = 100, cursor: str | None = None) -> Page:
        """Jobs that match, newest first."""
        return await self._look(lambda work: inspect.jobs(work, filter, limit, cursor))

    async def count(self, filter: JobFilter) -> int:
        """How many jobs match."""
        return await self._look(lambda work: inspect.count(work, filter))

    async def waiting_since(self) -> dict[str, int]:
        """Since when the longest waiting job of each queue has been due."""
        return await self._look(inspect.waiting_since)

    async def exists(self) -> bool:
        """True once there are tables of ours."""
        return await self.schema_version() != 0

    async def checkup(self) -> list[Finding]:
        """What is wrong with the store."""
        return await checkup.checkup(self._engine)

    async def dead(self, queue: str | None, start: int, stop: int) -> list[Job]:
        """Dead letters by range, newest first."""
        return await self._look(lambda work: inspect.dead(work, queue, start, stop))

    async def dead_errors(self, queue: str | None, limit: int = 100) -> list[DeadErrors]:
        """Dead letters by error."""
        return await self._look(lambda work: inspect.dead_errors(work, queue, limit))

    async def key(self, digest: bytes) -> Key | None:
        """One key's record."""
        await self._engine.flush()
        return await self._look(lambda work: inspect.key(work, digest))

    async def keys(self, queue: str | None = None, limit: int = 100, *, text: str | None = None) -> list[Key]:
        """Keys on record."""
        await self._engine.flush()
        return await self._look(lambda work: inspect.keys(work, queue, text, limit))

    async def counts(self) -> dict[str, dict[State, int]]:
        """Jobs per queue and state."""
        return await self._look(inspect.counts)

    async def limits(self) -> dict[str, QueueLimits]:
        """The limits of every queue that has any."""
        return await self._look(limits.limits)

    async def lane(self, queue: str, key: str) -> LaneView | None:
        """One lane."""
        return await self._look(lambda work: limits.lane(work, queue, key))

    async def lanes(self, queue: str | None = None, limit: int = 100) -> list[LaneView]:
        """Lanes in use."""
        return await self._look(lambda work: limits.lanes(work, queue, limit))

    async def ahead(self, id: JobId, limit: int = 1_000) -> int:
        """How many have their turn before a job."""
        return await self._look(lambda work: limits.ahead(work, id, limit))

    async def schedules(self, ids: Sequence[str] | None = None) -> list[Schedule]:
        """Schedules on record."""
        return await self._look(lambda work: scheduling.schedules(work, ids))

    async def workers(self) -> list[WorkerView]:
        """Workers on record."""
        return await self._look(inspect.workers)

    async def chain(self, id: JobId) -> list[Job]:
        """All jobs of a chain."""
        return await self._look(lambda work: inspect.chain(work, id))

    async def last(self, id: JobId) -> Job | None:
        """The last job of a chain."""
        return await self._look(lambda work: inspect.last(work, id))

    async def blockers(self, id: JobId) -> list[Blocker]:
        """The chains that a job waits or waited for."""
        return await self._look(lambda work: inspect.blockers(work, id))

    async def blocked(self, chain: ChainId, limit: int = 100) -> list[JobId]:
        """Jobs that wait for a chain as one of their blockers."""
        return await self._look(lambda work: inspect.blocked(work, chain, limit))

    async def followers(self, chain: ChainId) -> list[JobId]:
        """Jobs that wait for this chain to end."""
        return await self._look(lambda work: inspect.followers(work, chain))

    async def delays(self, id: JobId) -> list[Delay]:
        """Whose open transactions keep a due job from being started."""
        return await self._look(lambda work: inspect.delays(work, id))

    async def undecided(self) -> list[Delay]:
        """Whose open transactions have taken keys."""
        return await self._look(inspect.undecided)

    async def _run(self, make: Make[T], *, now: int | None = None) -> T:
        return await self._engine.run(make, now=now)

    async def _look(self, make: Make[T]) -> T:
        engine = self._engine
        return await engine.run(make, pool=engine.reads)

    async def _version_we_know(self) -> int:
        there = await self.schema_version()
        if there > migrate.known():
            raise migrate.mismatch(there, self._address)
        return there


async def _nothing(_link: Link, _again: bool) -> None:
    return None
