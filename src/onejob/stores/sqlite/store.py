"""The SQLite store: the contract's operations, each handed to the thread that owns the right connection."""

from __future__ import annotations

import asyncio
import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from onejob.core.errors import WrongCall
from onejob.core.job import ChainId, Job, JobId, NewJob, State, WorkerId
from onejob.core.judge import Answer
from onejob.core.lane import QueueChange, QueueLimits
from onejob.core.lifecycle import Settlement
from onejob.core.options import MAX_BULK
from onejob.core.schedule import Firing, Schedule
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
from onejob.stores.sqlite import amend, checkup, claim, enqueue, inspect, limits, scheduling, settle
from onejob.stores.sqlite.connect import (
    Connection,
    connect,
    memory_folder,
    migrate,
    warn_if_on_network,
)
from onejob.stores.sqlite.direct import Direct
from onejob.stores.sqlite.executor import Executor
from onejob.stores.sqlite.forking import forks
from onejob.stores.sqlite.selection import register
from onejob.stores.sqlite.session import Session, system_clock
from onejob.stores.sqlite.signals import Signals
from onejob.stores.sqlite.statements import read_all, statements
from onejob.stores.sqlite.transaction import SqliteTransaction

PATIENCE = 10.0


class SqliteStore:
    """One SQLite file, shared by any number of threads and processes; or, without a path, memory.

    Writes go through one thread that commits whatever has gathered, but for single enqueues of threads that can make them by
    themselves (`direct`); reads have a thread of their own.
    """

    dialect = "sqlite"
    exchanges_at_once = 1

    def __init__(
        self, path: str | None, *, clock: Callable[[], int] | None = None, patience: float = PATIENCE
    ) -> None:
        self._folder = memory_folder() if path is None else None
        if self._folder is not None:
            path = str(self._folder / "jobs.db")
            weakref.finalize(self, _remove, self._folder, os.getpid())
        assert path is not None
        self.path = os.path.abspath(path)  # noqa: PTH100 - resolving would follow symbolic links
        self._clock = clock or system_clock
        self._patience = patience
        self._signals = Signals(None if self._folder else self.path, self._connect)
        self._writer = self._executor("onejob-writer", self._open_writer, "begin immediate")
        self._direct = Direct(self._writer, partial(self._connect, 0.0), self._clock, self._signals.tell)
        self._reader = self._executor("onejob-reader", self._open_reader, "begin")

    def loop(self) -> None:
        """It has a thread, and no event loop."""

    async def open(self) -> None:
        """Connect and migrate."""
        await self._writer.run(_nothing)

    async def close(self) -> None:
        """End the threads and close the connections."""
        self._signals.close()
        await self._reader.close()
        await self._writer.close()
        self._direct.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """Accept newcomers."""
        if len(jobs) > MAX_BULK:
            raise ValueError(f"enqueue takes at most {MAX_BULK} jobs at a time, not {len(jobs)}")
        return await self._writer.run(lambda session: enqueue.enqueue(session, jobs, now))

    def enqueue_from_thread(self, job: NewJob) -> Answer:
        """Accept a newcomer whose thread waits."""
        answer = self._direct.enqueue(job)
        return answer or self._writer.call(lambda session: enqueue.enqueue(session, (job,), None))[0]

    async def claim(self, ask: Ask, *, now: int | None = None) -> Claims:
        """Start waiting jobs for a worker."""
        return await self._writer.run(lambda session: claim.claim(session, ask, now))

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        """End attempts and claim the next."""
        return await self._writer.run(lambda session: settle.settle(session, done, ask, now))

    async def set_queue(self, queue: str, change: QueueChange) -> QueueLimits:
        """Change a queue's limits."""
        return await self._writer.run(lambda session: limits.set_queue(session, queue, change))

    async def beat(self, beat: Beat, *, now: int | None = None) -> Pulse:
        """Prolong a worker's leases."""
        return await self._writer.run(lambda session: settle.beat(session, beat, now))

    async def leave(self, worker: WorkerId) -> None:
        """Forget a worker that stopped in good order."""
        await self._writer.run(lambda session: session.run(statements("beat")["leave"], {"worker": worker}))

    async def expired(self, limit: int, *, now: int | None = None) -> list[Expired]:
        """Running jobs whose workers are gone."""
        return await self._reader.run(lambda session: settle.expired(session, limit, now))

    async def amend(
        self,
        ids: Sequence[JobId],
        amendment: Amendment,
        *,
        states: frozenset[State] | None = None,
        now: int | None = None,
    ) -> list[Amended]:
        """Revoke, retry or delete jobs."""
        return await self._writer.run(lambda session: amend.amend(session, ids, amendment, states, now))

    async def put_schedules(self, schedules: Sequence[Schedule], *, now: int | None = None) -> list[bool]:
        """Write records that are as they were read."""
        return await self._writer.run(lambda session: scheduling.put(session, schedules))

    async def drop_schedule(self, id: str) -> bool:
        """Remove a schedule."""
        return await self._writer.run(lambda session: scheduling.drop(session, id))

    async def due(self, limit: int, *, now: int | None = None) -> Due:
        """Schedules whose next slot has come."""
        return await self._reader.run(lambda session: scheduling.due(session, limit, now))

    async def fire(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        """Spend slots."""
        return await self._writer.run(lambda session: scheduling.fire(session, firings, now))

    async def release(self, digest: bytes, *, holder: JobId | None = None) -> JobId | None:
        """Make a key vacant."""
        return await self._writer.run(lambda session: amend.release(session, digest, holder))

    async def prune(self, retention: Retention, limit: int, *, now: int | None = None) -> Pruned:
        """Remove what has been kept long enough."""
        return await self._writer.run(lambda session: amend.prune(session, retention, limit, now))

    def mark(self) -> int:
        """A point in the stream of hints."""
        return self._signals.mark()

    async def wait(self, topics: frozenset[str], timeout: float, *, since: int | None = None) -> bool:
        """Sleep until a hint, or until the time is up."""
        return await self._signals.wait(topics, timeout, since)

    def transaction(self, timeout: float) -> SqliteTransaction:
        """A transaction for the user's own statements and enqueues together."""
        return SqliteTransaction(self._writer, timeout)

    def join(self, connection: object) -> NoReturn:
        """Refused: a second connection to the file would wait for the first, or damage it."""
        raise WrongCall(
            "connection=… is for a store on PostgreSQL: a SQLite file has one writer, which is onejob's. Let your statements "
            "run there, `async with app.transaction() as tx: await tx.execute(…)`; what is enqueued in the block joins."
        )

    async def migrate(self) -> None:
        """Make the file, or bring its schema up to date."""
        await self.open()

    async def migration_script(self) -> NoReturn:
        """Refused: the file is ours to make."""
        raise WrongCall(
            "A SQLite store has no script to apply by hand, as only onejob opens its file: `onejob migrate` without "
            "--sql makes it, or brings it up to date; so does the first enqueue or worker."
        )

    async def migrations(self) -> list[Migration]:
        """The steps that build the schema, and which of them the file has."""
        return await asyncio.to_thread(checkup.migrations_of, self.path)

    async def time(self) -> int:
        """The store's clock."""
        return self._clock()

    async def job(self, id: JobId) -> Job | None:
        """One job."""
        return await self._reader.run(lambda session: inspect.job(session, id))

    async def jobs(self, filter: JobFilter, limit: int = 100, cursor: str | None = None) -> Page:
        """Jobs that match, newest first."""
        return await self._reader.run(lambda session: inspect.jobs(session, filter, limit, cursor))

    async def count(self, filter: JobFilter) -> int:
        """How many jobs match."""
        return await self._reader.run(lambda session: inspect.count(session, filter))

    async def waiting_since(self) -> dict[str, int]:
        """Since when the longest waiting job of each queue has been due."""
        return await self._reader.run(inspect.waiting_since)

    async def exists(self) -> bool:
        """True once the file has our tables; or is damaged, which the next look will tell."""
        return await asyncio.to_thread(checkup.has_tables, self.path)

    async def checkup(self) -> list[Finding]:
        """What is wrong with the file."""
        return await asyncio.to_thread(checkup.checkup, self.path, self._patience)

    async def dead(self, queue: str | None, start: int, stop: int) -> list[Job]:
        """Dead letters by range, newest first."""
        return await self._reader.run(lambda session: inspect.dead(session, queue, start, stop))

    async def dead_errors(self, queue: str | None, limit: int = 100) -> list[DeadErrors]:
        """Dead letters by error."""
        return await self._reader.run(lambda session: inspect.dead_errors(session, queue, limit))

    async def key(self, digest: bytes) -> Key | None:
        """One key's record."""
        await self._flush()
        return await self._reader.run(lambda session: inspect.key(session, digest))

    async def keys(self, queue: str | None = None, limit: int = 100, *, text: str | None = None) -> list[Key]:
        """Keys on record."""
        await self._flush()
        return await self._reader.run(lambda session: inspect.keys(session, queue, text, limit))

    async def counts(self) -> dict[str, dict[State, int]]:
        """Jobs per queue and state."""
        return await self._reader.run(inspect.counts)

    async def limits(self) -> dict[str, QueueLimits]:
        """The limits of every queue that has any."""
        return await self._reader.run(limits.limits)

    async def lane(self, queue: str, key: str) -> LaneView | None:
        """One lane."""
        return await self._reader.run(lambda session: limits.lane(session, queue, key))

    async def lanes(self, queue: str | None = None, limit: int = 100) -> list[LaneView]:
        """Lanes in use."""
        return await self._reader.run(lambda session: limits.lanes(session, queue, limit))

    async def ahead(self, id: JobId, limit: int = 1_000) -> int:
        """How many have their turn before a job."""
        return await self._reader.run(lambda session: limits.ahead(session, id, limit))

    async def schedules(self, ids: Sequence[str] | None = None) -> list[Schedule]:
        """Schedules on record."""
        return await self._reader.run(lambda session: scheduling.schedules(session, ids))

    async def workers(self) -> list[WorkerView]:
        """Workers on record."""
        return await self._reader.run(inspect.workers)

    async def chain(self, id: JobId) -> list[Job]:
        """All jobs of a chain."""
        return await self._reader.run(lambda session: inspect.chain(session, id))

    async def last(self, id: JobId) -> Job | None:
        """The last job of a chain."""
        return await self._reader.run(lambda session: inspect.last(session, id))

    async def blockers(self, id: JobId) -> list[Blocker]:
        """The chains that a job waits or waited for."""
        return await self._reader.run(lambda session: inspect.blockers(session, id))

    async def blocked(self, chain: ChainId, limit: int = 100) -> list[JobId]:
        """Jobs that wait for a chain as one of their blockers."""
        return await self._reader.run(lambda session: inspect.blocked(session, chain, limit))

    async def followers(self, chain: ChainId) -> list[JobId]:
        """Jobs that wait for this chain to end."""
        return await self._reader.run(lambda session: inspect.followers(session, chain))

    async def delays(self, id: JobId) -> list[Delay]:
        """Nobody: writers of a file take turns."""
        return []

    async def undecided(self) -> list[Delay]:
        """Nobody: see `delays`."""
        return []

    async def _flush(self) -> None:
        """Counts kept in memory show in what is read next."""
        await self._writer.run(lambda session: session.flush_absorbed(always=True))

    def _executor(self, name: str, session: Callable[[], Session], begin: str) -> Executor:
        return Executor(
            name=name, session=session, begin=begin, after_commit=self._after_commit, path=self.path
        )

    def _after_commit(self, session: Session) -> None:
        if session.topics:
            topics, session.topics = session.topics, set()
            self._signals.tell(topics)

    def _connect(self, patience: float | None = None) -> Connection:
        forks.check(self.path)
        waits = self._patience if patience is None else patience
        return connect(self.path, waits, durable=self._folder is None)

    def _open_writer(self) -> Session:
        warn_if_on_network(self.path)
        read_all()
        connection = self._connect()
        migrate(connection, self.path)
        return Session(connection, self._clock, self.path)

    def _open_reader(self) -> Session:
        connection = self._connect()
        migrate(connection, self.path)
        connection.pragma("query_only", True)
        register(connection)
        return Session(connection, self._clock, self.path)


def _remove(folder: Path, owner: int) -> None:
    """Remove a store that lived in memory; not from a forked child, whose parent may still use it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _nothing(_: Session) -> None:
    return None
