"""What a job is: its ids, its states, and the records that travel between client, store and worker.

Nothing here decides anything: moves are in `lifecycle`, duplicates in `dedup`.
Times are whole milliseconds (`Millis`); instants are on the store's clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NewType

import msgspec

if TYPE_CHECKING:
    from onejob.core.dedup import Plan
    from onejob.core.lane import LanePlan

JobId = NewType("JobId", str)
ChainId = NewType("ChainId", str)
WorkerId = NewType("WorkerId", str)
Millis = NewType("Millis", int)


class State(StrEnum):
    """Where a job stands; exactly one at any moment."""

    BLOCKED = "blocked"
    DELAYED = "delayed"
    PARKED = "parked"
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    REVOKED = "revoked"

    @property
    def queued(self) -> bool:
        """True before a start: blocked, delayed, parked or waiting."""
        return self in QUEUED

    @property
    def ended(self) -> bool:
        """True once nothing more will happen to the job by itself."""
        return self in ENDED


QUEUED = frozenset({State.BLOCKED, State.DELAYED, State.PARKED, State.WAITING})
ENDED = frozenset({State.COMPLETED, State.FAILED, State.REVOKED})
LIVE = QUEUED | {State.RUNNING}


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """One request to run a task, as the store receives it.

    `id` is made by the client before the first try, so that a call repeated after a lost reply is recognised.
    `delay` and `expires` count from acceptance. `caller` is the chain of the handler that makes the call,
    if any. `options` are the settings that differ from the defaults, encoded by `core.options`.
    """

    id: JobId
    queue: str
    task: str
    payload: bytes
    plan: Plan | None = None
    priority: int = 0
    delay: int = 0
    expires: int | None = None
    max_crashes: int = 3
    options: bytes | None = None
    caller: ChainId | None = None
    lane: LanePlan | None = None
    blockers: tuple[JobId, ...] = ()
    """Chains that must have ended before it may start, by the id of any of their jobs."""
    runs_anyway: bool = False
    """It runs even if one of them did not complete."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A worker's right to settle one start of one job."""

    id: JobId
    token: bytes


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A job that has just been started for a worker, with all that its run needs."""

    lease: Lease
    queue: str
    task: str
    payload: bytes
    options: bytes | None
    attempt: int
    failures: int
    crashes: int
    max_crashes: int
    misses: int
    accepted: Millis
    due: Millis
    chain: ChainId
    chain_index: int
    key: str | None
    lane: str | None = None
    blockers: int = 0
    """How many chains it waited for."""

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.lease.id


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as an observer sees it: a snapshot, not a handle."""

    id: JobId
    queue: str
    task: str
    state: State
    payload: bytes
    priority: int
    accepted: Millis
    updated: Millis
    due: Millis
    expires: Millis | None = None
    started: Millis | None = None
    ended: Millis | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    max_crashes: int = 3
    misses: int = 0
    items: int = 0
    worker: WorkerId | None = None
    aborting: bool = False
    follows: ChainId | None = None
    chain: ChainId
    chain_index: int = 0
    key: str | None = None
    digest: bytes | None = None
    plan: bytes | None = None
    options: bytes | None = None
    progress: bytes | None = None
    result: bytes | None = None
    error: str | None = None
    origin: JobId | None = None
    """Of a dead letter: the job that failed, and its queue."""
    origin_queue: str | None = None
    lane: str | None = None
    """The key of its lane."""
    blockers: int = 0
    """How many chains it waits or waited for."""
