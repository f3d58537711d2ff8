"""The contract between onejob and a store: every promise that the rest of the house relies on.

A store holds jobs, keys and workers. It decides nothing: `core.judge` says what becomes of a newcomer,
`core.lifecycle` what becomes of an attempt; a store applies both atomically. Operations are batched, take
ids made by the caller, and may be called from any event loop or thread of the process.

What every implementation promises, and `onejob.testing.conformance` checks:

* **Unit of atomicity.** One call on one queue is one transaction: all of it or nothing. A call that spans
  queues is atomic per queue; what crosses queues must be harmless to repeat, by its identity.
* **Clock.** Instants are milliseconds on the store's clock. `now=None` means that clock; tests pass a time.
* **Guards.** Every change of a running job is guarded by id, state and lease. A write that fails its guard
  changes nothing at all: not the job, not its key, not a follower.
* **Acknowledged is durable** to the degree stated in docs/GUARANTEES.md for that store.
* **Bounded waits.** No call blocks for longer than the store's patience; then it raises `StoreBusy`.

* **Lanes and limits** are derived from rows that name their jobs: who holds a slot, which starts are still
  inside a rate's window. There is no counter that could drift. See `claim`.

* **Chains.** A chain is a job and its continuations; a lone job is a chain of one. There is at most one job per
  place in it, and the next exists if and only if the one before it completed with it. It ends with the first job
  that ends without going on; only then are its key forgotten or remembered, and its followers and those who wait
  for it as a blocker let go.

* **Schedules.** Their records are opaque but for their instants; `core.schedule` says what becomes of one. A store
  compares and sets: it replaces a record if its revision is still the one that was read. Any number of workers may
  tick at once, and none leads.

On a cluster, a queue is the unit of placement.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from onejob.core.filter import JobFilter
from onejob.core.job import ChainId, Claimed, Job, JobId, NewJob, State, WorkerId
from onejob.core.judge import Answer, Holder
from onejob.core.lane import LanePlan, QueueChange, QueueLimits
from onejob.core.lifecycle import Settlement
from onejob.core.span import span

if TYPE_CHECKING:
    import asyncio

    from onejob.core.schedule import Firing, Schedule


class Ask(msgspec.Struct, frozen=True):
    """A worker's wish for work: up to `limit` jobs, visiting `queues` in the order given."""

    worker: WorkerId
    queues: tuple[str, ...]
    limit: int
    stock: int = 0
    """So many more, which wait at the worker for a free slot; see `Store.claim`."""


class Claims(msgspec.Struct, frozen=True):
    """What a claim brought. `next_due` is how long (ms) until a job of these queues becomes due by itself."""

    jobs: list[Claimed]
    next_due: int | None = None


class Settled(StrEnum):
    """What became of one settlement."""

    DONE = "done"
    REVOKED = "revoked"
    """Applied, but the job had been flagged: it ended revoked, whatever the move."""
    LOST = "lost"
    """Refused: the lease is no longer the job's. Nothing was changed."""
    DIVERGED = "diverged"
    """Applied, but the chain's next job was there already, with another task or payload; the first stands."""
    REFUSED = "refused"
    """Nothing was changed, because its continuation cannot be made: `SettleReply.reasons` says why."""


class SettleReply(msgspec.Struct, frozen=True):
    """One `Settled` per settlement, in order, and what the same commit claimed, if anything was asked."""

    settled: list[Settled]
    claims: Claims
    reasons: dict[JobId, str] = {}
    """Why settlements were refused, or diverged, by their jobs."""


class Beat(msgspec.Struct, frozen=True):
    """A worker's sign of life: it owns its leases for `lease` more milliseconds."""

    worker: WorkerId
    lease: int
    queues: tuple[str, ...] = ()
    host: str = ""
    pid: int = 0
    concurrency: int = 0
    progress: dict[JobId, bytes] = {}
    """The newest progress of jobs it runs (encoded), written with the beat."""


class Pulse(msgspec.Struct, frozen=True):
    """What a beat learns: the leases still held, by job, and which of those jobs are asked to stop."""

    held: dict[JobId, bytes]
    aborting: frozenset[JobId]


class Expired(msgspec.Struct, frozen=True):
    """A running job whose worker has stopped beating."""

    job: Claimed
    worker: WorkerId


class Amendment(StrEnum):
    """What an operator may ask of a job, whatever its state."""

    REVOKE = "revoke"
    RETRY = "retry"
    RETRY_WITHOUT_KEY = "retry_without_key"
    DELETE = "delete"
    DELETE_WITH_WAITING = "delete_with_waiting"
    """Delete, even if others wait for it: to them it is revoked."""


class Amended(StrEnum):
    """What became of one amendment."""

    REVOKED = "revoked"
    FLAGGED = "flagged"
    """It is running: its handler is asked to stop, and it will end revoked."""
    FINISHED = "finished"
    """Nothing to revoke, or nothing to retry: it had already ended, or completed."""
    RETRIED = "retried"
    KEPT = "kept"
    """Not retried: another job holds its key."""
    RUNNING = "running"
    """Not deleted or retried: it is running, or queued already."""
    AWAITED = "awaited"
    """Not deleted: jobs wait for it to end, or have yet to read what it returned."""
    STRANDED = "stranded"
    """Not retried: a chain that it waits for did not complete; retry that one first."""
    DELETED = "deleted"
    MOVED = "moved"
    """Left alone: it was no longer in one of the states that were asked for."""
    NOT_FOUND = "not_found"


class Retention(msgspec.Struct, frozen=True):
    """How long ended jobs stay, per outcome (ms)."""

    completed: int = 24 * 3600_000
    failed: int = 7 * 24 * 3600_000
    revoked: int = 24 * 3600_000


class Pruned(msgspec.Struct, frozen=True):
    """What one round of pruning removed. `more` says that the limit cut it short."""

    jobs: int = 0
    keys: int = 0
    workers: int = 0
    expired: int = 0
    more: bool = False


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as an observer sees it."""

    digest: bytes
    text: str
    queue: str
    task: str
    """The holder's task."""
    holder: Holder
    generation: int
    """How many jobs have taken it."""
    absorbed: int
    """Duplicates that made no job since it was last taken."""
    differing: int
    """How many of those came with other arguments."""
    ended_at: int | None = None


class WorkerView(msgspec.Struct, frozen=True):
    """A worker as an observer sees it."""

    id: WorkerId
    queues: tuple[str, ...]
    host: str
    pid: int
    concurrency: int
    started: int
    seen: int
    alive: bool
    running: int


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """A lane as an observer sees it: its limits, who takes its slots, and who waits for one."""

    queue: str
    plan: LanePlan
    """Its key, and the limits in force."""
    holders: list[JobId]
    """The jobs that take its slots, at most 100 of them: those that run, and those held over a retry."""
    taken: int
    """How many slots are taken."""
    ready: int
    """How many jobs are due and wait for their turn."""
    head: JobId | None = None
    """Whose turn is next."""
    opens_at: int | None = None
    """When its rate next lets a job start; None if it is not the rate that holds jobs up."""


class Blocker(msgspec.Struct, frozen=True, gc=False):
    """A chain that a job waits or waited for, as it stands: by its last job."""

    chain: ChainId
    state: State | None
    """None if it is no longer on record."""
    task: str = ""
    """The task of its last job, whose result is the chain's."""
    result: bytes | None = None
    error: str | None = None


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's open transaction that keeps a due job from being started."""

    what: str
    """What it has locked, such as `its row`."""
    session: int | None
    """The server's number for its session; None: it was prepared, and has none."""
    gid: str | None = None
    """The name under which it was prepared."""
    application: str = ""
    address: str | None = None
    age: int | None = None
    """How long (ms) it has been open, if that may be known."""
    idle: bool = False
    """It waits for its client, not for the server."""
    query: str = ""
    """What it last said."""

    def __str__(self) -> str:
        """Whose it is, as people are told."""
        if self.session is None:
            return f"the prepared transaction {self.gid!r}"
        named = f"application {self.application!r}" if self.application else "an application without a name"
        where = "" if self.address is None else f" at {self.address}"
        since = "" if self.age is None else f", in a transaction for {span(self.age)}"
        return f"session {self.session} ({named}{where}{since}{', idle now' if self.idle else ''})"


class Due(msgspec.Struct, frozen=True):
    """Schedules whose next slot has come, the most overdue first, and when the next of the others is due."""

    schedules: list[Schedule]
    next_at: int | None = None


class Fired(msgspec.Struct, frozen=True):
    """What became of one firing: whether it won, and what the call for its job was answered."""

    won: bool
    answer: Answer | None = None


class Level(StrEnum):
    """How bad a finding is."""

    WARNING = "warning"
    """Worth knowing; jobs run."""
    ERROR = "error"
    """Jobs do not run, or may get lost."""


class Finding(msgspec.Struct, frozen=True):
    """Something wrong with a store: what, and what to do about it."""

    level: Level
    name: str
    """One word or two for programs, such as `no_file`."""
    what: str
    remedy: str
    blocking: bool = False
    """Nothing more can be found out before this is mended."""


class Migration(msgspec.Struct, frozen=True):
    """One step of building the schema."""

    name: str
    applied: bool


class DeadErrors(msgspec.Struct, frozen=True):
    """Dead letters that died of the same: the first line of their errors."""

    error: str
    count: int
    sample: JobId
    """The newest of them."""
    first: int
    """When the first and the last of them were buried."""
    last: int


class Page(msgspec.Struct, frozen=True):
    """Some jobs, newest first, and where the next page starts (None: nowhere)."""

    jobs: list[Job]
    cursor: str | None = None


@runtime_checkable
class Direct(Protocol):
    """A store that a thread without an event loop can ask by itself: one thread less to go through."""

    def enqueue_from_thread(self, job: NewJob) -> Answer | None:
        """As `enqueue` of one job. What other threads ask meanwhile shares the next commit.

        A thread that is interrupted before its turn has asked for nothing. None: nothing was asked, and `enqueue` has to be.
        """
        ...


@runtime_checkable
class AtHand(Protocol):
    """A store that can be asked by a worker without leaving the worker's event loop, if it is told for how long."""

    def at_hand(self) -> AbstractAsyncContextManager[None]:
        """Meanwhile calls of `settle` and `wait` from the running loop may take a shorter way; they promise the same.

        A handler may block that loop for any time, and others must not wait for it: what would keep locks goes the usual way.
        """
        ...


class Store(Protocol):
    """Everything that writes."""

    @property
    def dialect(self) -> str | None:
        """The SQL that `Transaction.execute` speaks, as SQLAlchemy names it; None if it speaks none."""
        ...

    @property
    def exchanges_at_once(self) -> int:
        """How many calls of `settle` one worker should have under way while there is plenty to do, 1 or 2.

        Two where what a call waits for is mostly the way there and back; one where they would wait for each other, or
        a smaller batch costs the store more per job.
        """
        ...

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """An event loop of the store's own, on which calling it costs least; None if it has none.

        Nothing may block it: whatever the store does waits meanwhile.
        """
        ...

    async def open(self) -> None:
        """Connect, and bring the schema up to date; raises `SchemaMismatch` if the store is newer than we.

        Idempotent and safe to call concurrently; every other operation does it by itself on first use.
        """
        ...

    async def close(self) -> None:
        """Flush what is counted in memory, let calls under way end, and let go of everything."""
        ...

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """Accept newcomers, exactly as if they came one by one in this order. At most 1,000.

        For each: find its key's holder, `judge`, apply. Key and job are written together or not at all.
        A job without a plan is created. An id that was accepted before gets its original answer and changes
        nothing. A *kept* duplicate writes nothing; absorbed duplicates are counted in memory and flushed
        later. `kept` and `updated` name a job that was committed and in that state at that moment.

        The limits in a created job's `lane` stand from now on for the whole lane; if they were others before,
        `Answer.former_lane` says which. A holder that is changed keeps its own lane, and its own blockers.

        A job with `blockers` is blocked until all of those chains have ended; one of them that failed or was revoked
        fails it at once, unless it `runs_anyway`. One that is not on record raises `UnknownBlocker`.
        """
        ...

    async def claim(self, ask: Ask, *, now: int | None = None) -> Claims:
        """Start up to `ask.limit` waiting jobs for a worker, by queue in order, then priority, then due time.

        Delayed jobs whose time has come are promoted first; jobs past their `expires` end revoked instead of
        starting. A claim is a start: it counts an attempt and gives each job a fresh lease token. It never
        looks at keys. A worker that has not beaten yet is registered by its claim.

        **Ahead.** Beyond the limit a claim may start up to `ask.stock` more, of a queue without limits, in the same
        order, up to the first that has a lane, was once lost with its worker, or must never be (`max_crashes=0`):
        neither may a lane wait for what else a worker has to do, nor such a job be lost with it before it has begun.
        A store may start fewer of them, for whatever reason.

        **Lanes.** A job of a lane starts only into a free slot of it (`LanePlan.concurrency`), and only while fewer
        than `Rate.max` starts of the lane are younger than its window. A ready job that may not start now is
        `parked`, or still `waiting` where a store parks late; to an observer both are ready. Whose turn it is: the
        oldest by acceptance of the ready jobs of an `ordered` lane, else by priority, due time and acceptance. A
        job that is delayed or blocked holds up nobody. A slot is taken from start to settlement, or, under `hold`,
        from the first start until the job has ended; such a job needs no other slot to start again, but the rate's
        leave, and goes first.

        Limits change while jobs run: those that stand at a settlement decide whether the slot is kept, and a rate
        counts the starts since there is one, but none that a shorter window has let a store forget. A lane that is
        not in use may be forgotten; then the limits that a revived job once brought stand again.

        **Queue limits** (`set_queue`) hold over all workers: nothing of a paused queue starts, no more than
        `concurrency` of its jobs run, no more than `rate` start. Every start counts, retries included.

        `next_due` also says when a rate's window opens for somebody who waits for it. It may be too early, never
        too late.
        """
        ...

    async def set_queue(self, queue: str, change: QueueChange) -> QueueLimits:
        """Change a queue's limits, and return them. The very next claim of any worker obeys them."""
        ...

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        """End attempts, each guarded by id, state and lease, and claim the next in the same commit.

        Moves and their counters are those of `core.lifecycle`. A flagged job ends revoked by any move. When a
        job ends, its followers are released and its key forgotten or remembered, in the same commit, if and
        only if the guard held. `LOSE` and `PERISH` also require that the worker has stopped beating.

        A settlement with a `dead_letter` that really ends its job as failed makes, in the same commit, a copy
        that waits in that queue: under `core.dead_letter.copy_id`, with the same task, payload and error, due
        now, without a key and without a dead letter of its own. `origin` and `origin_queue` say whose it is.
        It is an ordinary job there: any worker of that queue may run it.

        A settlement with `then` that really completes its job makes the chain's next job in the same commit. If a
        job is at that place already, that one stands; if one that belongs to no chain or another has its id, the
        chain ends. If it cannot be made, because a blocker of it is unknown or would wait for this very chain,
        nothing changes: `refused`.
        """
        ...

    async def beat(self, beat: Beat, *, now: int | None = None) -> Pulse:
        """Prolong a worker's leases, and tell it which it still holds and which jobs should stop.

        Must be callable while everything else of the process is busy.
        """
        ...

    async def leave(self, worker: WorkerId) -> None:
        """Forget a worker that stopped in good order; jobs it still runs become expired at once."""
        ...

    async def expired(self, limit: int, *, now: int | None = None) -> list[Expired]:
        """Running jobs whose workers have stopped beating. Reading claims nothing: settle with `Lost`."""
        ...

    async def amend(
        self,
        ids: Sequence[JobId],
        amendment: Amendment,
        *,
        states: frozenset[State] | None = None,
        now: int | None = None,
    ) -> list[Amended]:
        """Revoke, retry or delete jobs, one answer each, in order.

        With `states`, only those that are still in one of them, because who chose them saw them so; the others
        are left alone and answered `moved`, or `not_found`.

        A revoked queued job ends at once and frees followers and key; a running one is flagged. A retry
        revives the same id with a fresh budget, if `core.judge.may_revive`; its window is not moved. A deleted
        live job counts as revoked; what its key remembers is written into the key first.

        Whichever of its jobs is named, the amendment is one of the whole chain: a live chain's last job is revoked,
        a failed or revoked one's last job is retried, all jobs are deleted. A chain that others wait for is not
        deleted, unless with `DELETE_WITH_WAITING`. A job that failed because of a blocker can be retried once that
        one has completed or is live again.

        A retry of a dead letter is a retry of its original, by the same rules, and a retry of either removes
        the dead letter in the same commit, which is revoked to those who wait for it; while the dead letter or
        its own chain runs, the answer is `running`. If the original is gone, it is made again from its dead
        letter: under its old id, in its old queue, without a key. If the key that it once had is still
        remembered, and so names it, it is that key's holder while it is on record. Deleting a dead letter
        leaves its original alone, and the other way round; the id of an original that is gone stands for its
        dead letter.
        """
        ...

    async def put_schedules(self, schedules: Sequence[Schedule], *, now: int | None = None) -> list[bool]:
        """Write records, each if the stored one's revision is the one before its own; 1: if there is none.

        `since` must be the same, too: who was removed and put anew meanwhile is another schedule.
        False: it has been changed, put or removed since it was read. Nothing of that one is written.
        """
        ...

    async def drop_schedule(self, id: str) -> bool:
        """Remove a schedule; its jobs stay as they are. False if there is none."""
        ...

    async def due(self, limit: int, *, now: int | None = None) -> Due:
        """Up to `limit` schedules whose next slot has come and that are not paused. Reading fires nothing."""
        ...

    async def fire(self, firings: Sequence[Firing], *, now: int | None = None) -> list[Fired]:
        """Spend slots: each if the schedule's revision and `since` are those that were read and it is not paused.

        In the same commit its job is enqueued, as `enqueue` would, and the record becomes `core.schedule.fired`. A
        job that is kept or rejected spends its slot, too. Who comes second changes nothing.
        """
        ...

    async def release(self, digest: bytes, *, holder: JobId | None = None) -> JobId | None:
        """Make a key vacant; its holder, whose id is returned, lives on without it.

        With `holder`, only while it is that one's, because who asks saw it so.
        """
        ...

    async def prune(self, retention: Retention, limit: int, *, now: int | None = None) -> Pruned:
        """Remove ended chains past their retention, forgotten keys and dead workers; end expired jobs.

        At most `limit` of each per call. A chain goes as a whole, once its last job is old enough for the way it
        ended, and not while jobs wait for it or have yet to read what it returned. One whose key is still remembered
        leaves its end in the key.
        """
        ...

    def mark(self) -> int:
        """A point in the stream of hints: take it, look, and then `wait(…, since=mark)` misses nothing."""
        ...

    async def wait(self, topics: frozenset[str], timeout: float, *, since: int | None = None) -> bool:
        """Sleep until something may have happened on one of these topics; False when the time is up.

        Topics are `work:QUEUE` (something may be claimable), `done:QUEUE` (a job ended) and `schedules` (one has
        been put or changed). With `since`, a
        hint that came after that mark counts too. Only a hint: it may come late, twice, or for nothing, and
        nothing depends on it but latency.
        """
        ...

    def transaction(self, timeout: float) -> AbstractAsyncContextManager[Transaction]:
        """A transaction for the user's own statements and enqueues together; rolled back on any error.

        Raises `TransactionTimeout`, and rolls back, if the block takes longer than `timeout` seconds.
        """
        ...

    def join(self, connection: object) -> Joined:
        """The transaction that is open on a user's own connection to the store's database.

        `InvalidOption` if that is no connection that this store knows. Its use raises `WrongCall` if no transaction is
        open there, or if it leads to another database. A store that users cannot connect to raises `WrongCall`.
        """
        ...

    async def migrate(self) -> None:
        """Bring the schema up to date, even if the URL says that `open` shall not."""
        ...

    async def migration_script(self) -> str:
        """What `migrate` would do, as SQL for people who apply it themselves; empty if that is nothing.

        Changes nothing. `WrongCall` where that is no way.
        """
        ...


class Joined(Protocol):
    """A transaction that is open on a user's own connection.

    What is enqueued is visible to others, and hinted at, exactly when he commits; rolled back, nothing of it remains.
    What his driver raises comes out as it is. A call that is refused leaves his transaction usable. Duplicates that are
    absorbed here are not counted, because nobody says whether he commits.
    """

    def enqueue(
        self,
        jobs: Sequence[NewJob],
        wait: Callable[[Coroutine[Any, Any, None]], None],
        *,
        now: int | None = None,
    ) -> list[Answer]:
        """As `Store.enqueue`, in this thread, on a connection of sync code.

        `wait` runs a coroutine of the store's to its end: something may have to be asked on a connection of its own.
        """
        ...

    async def aenqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """As `Store.enqueue`, on a connection of async code."""
        ...


class Transaction(Protocol):
    """The user's own writes and enqueues in one commit."""

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        ...

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """As `Store.enqueue`, visible to others only once the transaction commits."""
        ...

    async def settle(self, done: Settlement, *, now: int | None = None) -> SettleReply:
        """As `Store.settle` for one attempt: its end and the user's own writes are one commit."""
        ...


class Inspector(Protocol):
    """Everything that only reads. Reads see committed data only, and never block a writer."""

    async def time(self) -> int:
        """The store's clock."""
        ...

    async def job(self, id: JobId) -> Job | None:
        """One job, or None if it never was or is gone."""
        ...

    async def jobs(self, filter: JobFilter, limit: int = 100, cursor: str | None = None) -> Page:
        """Jobs that match, newest first."""
        ...

    async def count(self, filter: JobFilter) -> int:
        """How many jobs match: those that `jobs` would list, page by page."""
        ...

    async def waiting_since(self) -> dict[str, int]:
        """Since when the longest waiting job of each queue has been due; queues where none waits are left out.

        Parked jobs do not count, but for those whose turn it is in a lane with a free slot, which only the next claim
        will say. Dead letters do not count: they wait for a person, not for a worker.
        """
        ...

    async def exists(self) -> bool:
        """True if there is something to look into; never makes it."""
        ...

    async def checkup(self) -> list[Finding]:
        """What is wrong with the store itself, the worst first; nothing if it is sound.

        Never creates or changes a store, and never raises for a state that it is there to report: no store yet,
        no right to use it, another version's schema, damage.
        """
        ...

    async def migrations(self) -> list[Migration]:
        """The steps that build the schema, in order; never makes or changes one.

        Raises `SchemaMismatch` if the store is newer than we.
        """
        ...

    async def dead(self, queue: str | None, start: int, stop: int) -> list[Job]:
        """Dead letters of jobs of a queue (None: of all), newest first, by half-open range.

        Those that have been dealt with, as completed or revoked, are left out.
        """
        ...

    async def dead_errors(self, queue: str | None, limit: int = 100) -> list[DeadErrors]:
        """The same dead letters by the first line of their error, the most numerous first."""
        ...

    async def key(self, digest: bytes) -> Key | None:
        """One key's record with its holder, forgotten or not; None if there is no record."""
        ...

    async def keys(self, queue: str | None = None, limit: int = 100, *, text: str | None = None) -> list[Key]:
        """Keys on record, the most recently taken first; with `text`, those that read so."""
        ...

    async def counts(self) -> dict[str, dict[State, int]]:
        """Jobs per queue and state; a state without jobs is left out."""
        ...

    async def limits(self) -> dict[str, QueueLimits]:
        """The limits of every queue that has any, or is paused."""
        ...

    async def lane(self, queue: str, key: str) -> LaneView | None:
        """One lane; None if no job of it is live and no start of it is inside its rate's window."""
        ...

    async def lanes(self, queue: str | None = None, limit: int = 100) -> list[LaneView]:
        """Lanes in use, by queue and key."""
        ...

    async def ahead(self, id: JobId, limit: int = 1_000) -> int:
        """How many ready jobs of its lane have their turn before a ready job, counted up to `limit`."""
        ...

    async def schedules(self, ids: Sequence[str] | None = None) -> list[Schedule]:
        """Schedules on record, by id; with `ids`, those of them that are."""
        ...

    async def workers(self) -> list[WorkerView]:
        """Workers on record, alive or not."""
        ...

    async def chain(self, id: JobId) -> list[Job]:
        """All jobs of the chain that a job belongs to, by place; none if the job is not on record."""
        ...

    async def last(self, id: JobId) -> Job | None:
        """The last job of that chain: its state is the chain's, its result the chain's output."""
        ...

    async def blockers(self, id: JobId) -> list[Blocker]:
        """The chains that a job waits or waited for, in the order given when it was made."""
        ...

    async def blocked(self, chain: ChainId, limit: int = 100) -> list[JobId]:
        """Jobs that wait for a chain to end as one of their blockers."""
        ...

    async def followers(self, chain: ChainId) -> list[JobId]:
        """Jobs that start only after this chain has ended."""
        ...

    async def delays(self, id: JobId) -> list[Delay]:
        """Whose open transactions keep a due job from being started; none where writers take turns."""
        ...

    async def undecided(self) -> list[Delay]:
        """Whose open transactions have taken keys: until they end, nobody else can know which. Waits for none of them."""
        ...


class JobStore(Store, Inspector, Protocol):
    """What `onejob.stores.open_store` returns: a store one can also look into."""
