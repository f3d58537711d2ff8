"""The state machine: which moves exist, which are legal from where, and what an attempt's end leads to.

A store applies moves; it never invents one. Every move of a running job is guarded by id, state and lease.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import assert_never

import msgspec

from onejob.core.dead_letter import dead_letter_of
from onejob.core.job import QUEUED, Claimed, Lease, NewJob, State


class Move(StrEnum):
    """Every way in which a job changes its state."""

    PROMOTE = "promote"
    PARK = "park"
    RELEASE = "release"
    POSTPONE = "postpone"
    START = "start"
    COMPLETE = "complete"
    RETRY = "retry"
    SNOOZE = "snooze"
    HAND_BACK = "hand_back"
    MISS = "miss"
    LOSE = "lose"
    PERISH = "perish"
    CRASH = "crash"
    SUCCUMB = "succumb"
    FAIL = "fail"
    REVOKE = "revoke"
    EXPIRE = "expire"
    STRAND = "strand"
    REVIVE = "revive"


class Rule(msgspec.Struct, frozen=True):
    """One legal move: from where, to where, and what it adds to the job's counts."""

    source: frozenset[State]
    target: frozenset[State]
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    misses: int = 0
    orphaned: bool = False
    """Legal only while the lease's worker has stopped beating, so that a late heartbeat wins over a rescue."""


_READY = frozenset({State.WAITING, State.PARKED})
_SOON = _READY | {State.DELAYED}
_RUNNING = frozenset({State.RUNNING})
_AGAIN = _SOON | {State.REVOKED}

MOVES: dict[Move, Rule] = {
    Move.PROMOTE: Rule(frozenset({State.DELAYED, State.PARKED}), _READY),
    Move.PARK: Rule(frozenset({State.WAITING}), frozenset({State.PARKED})),
    Move.RELEASE: Rule(frozenset({State.BLOCKED}), _SOON),
    Move.POSTPONE: Rule(_SOON, _SOON),
    Move.START: Rule(frozenset({State.WAITING}), _RUNNING, attempt=1),
    Move.COMPLETE: Rule(_RUNNING, frozenset({State.COMPLETED, State.REVOKED})),
    Move.RETRY: Rule(_RUNNING, _AGAIN, failures=1),
    Move.SNOOZE: Rule(_RUNNING, _AGAIN),
    Move.HAND_BACK: Rule(_RUNNING, _AGAIN, attempt=-1),
    Move.MISS: Rule(_RUNNING, _AGAIN, attempt=-1, misses=1),
    Move.LOSE: Rule(_RUNNING, _AGAIN, crashes=1, orphaned=True),
    Move.PERISH: Rule(_RUNNING, frozenset({State.FAILED, State.REVOKED}), crashes=1, orphaned=True),
    Move.CRASH: Rule(_RUNNING, _AGAIN, crashes=1),
    Move.SUCCUMB: Rule(_RUNNING, frozenset({State.FAILED, State.REVOKED}), crashes=1),
    Move.FAIL: Rule(_RUNNING, frozenset({State.FAILED, State.REVOKED}), failures=1),
    Move.REVOKE: Rule(QUEUED, frozenset({State.REVOKED})),
    Move.EXPIRE: Rule(QUEUED, frozenset({State.REVOKED})),
    Move.STRAND: Rule(frozenset({State.BLOCKED}), frozenset({State.FAILED})),
    Move.REVIVE: Rule(frozenset({State.FAILED, State.REVOKED}), _SOON | {State.BLOCKED}),
}
"""A running job that has been flagged ends revoked by whichever settling move comes next."""

SETTLING = frozenset(move for move, rule in MOVES.items() if rule.source == _RUNNING)
ENDING = {
    Move.COMPLETE: State.COMPLETED,
    Move.FAIL: State.FAILED,
    Move.PERISH: State.FAILED,
    Move.SUCCUMB: State.FAILED,
}
"""The settling moves after which a job does not run again, and how it then stands."""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How one attempt ends. `delay` counts from the store's now; a store applies it only under `lease`."""

    lease: Lease
    move: Move
    delay: int = 0
    result: bytes | None = None
    error: str | None = None
    dead_letter: str | None = None
    """Where a copy waits from now on, if this really ends the job as failed."""
    then: NewJob | None = None
    """The chain's next job, if this really completes the job; its id is that of `core.chain.continuation_id`."""


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned; `result` is encoded, or None for no result. `then` is how the chain goes on."""

    result: bytes | None
    then: NewJob | None = None


class Raised(msgspec.Struct, frozen=True):
    """The handler raised, or ran out of time. `retry_in` is what its retry curve asks for (ms)."""

    error: str
    attempts: int
    retry_in: int
    final: bool = False


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to run again later."""

    delay: int


class Returned(msgspec.Struct, frozen=True):
    """The worker gives the job back unfinished (shutdown); nothing is charged."""


class Unknown(msgspec.Struct, frozen=True):
    """This worker does not know the job's task; another one may (rolling deploys)."""

    known: str


class Lost(msgspec.Struct, frozen=True):
    """The worker that ran it stopped beating."""

    worker: str


class Crashed(msgspec.Struct, frozen=True):
    """The process that ran it died; its worker lives on and says how."""

    reason: str


Outcome = Succeeded | Raised | Snoozed | Returned | Unknown | Lost | Crashed

EXPIRED = "expired: it was not started in time"
"""Why a job ends that nobody started before its `expires`."""

MISS_DELAY = 15_000
MAX_MISSES = 40
CRASH_DELAY = 1_000
"""The wait (ms) after a first crash; each further one doubles it."""
MAX_CRASH_DELAY = 60_000


def after_attempt(job: Claimed, outcome: Outcome) -> Settlement:
    """Say what becomes of a job once its attempt has ended."""
    match outcome:
        case Succeeded():
            return Settlement(job.lease, Move.COMPLETE, result=outcome.result, then=outcome.then)
        case Raised(error, attempts, retry_in, False) if job.failures + 1 < attempts:
            return Settlement(job.lease, Move.RETRY, delay=retry_in, error=error)
        case Raised(error):
            return _failed(job, Move.FAIL, error)
        case Snoozed(delay):
            return Settlement(job.lease, Move.SNOOZE, delay=delay)
        case Returned():
            return Settlement(job.lease, Move.HAND_BACK)
        case Unknown() if job.misses < MAX_MISSES:
            return Settlement(job.lease, Move.MISS, delay=MISS_DELAY)
        case Unknown(known):
            return _failed(
                job,
                Move.FAIL,
                f"UnknownTask: no worker of queue {job.queue!r} knew task {job.task!r} for 10 minutes; "
                f"the last one knows {known}",
            )
        case Lost(worker) if job.crashes < job.max_crashes:
            return Settlement(job.lease, Move.LOSE, error=_lost(worker))
        case Lost(worker):
            return _failed(
                job,
                Move.PERISH,
                f"{_lost(worker)}; lost {job.crashes + 1} times, max_crashes is {job.max_crashes}",
            )
        case Crashed(reason) if job.crashes < job.max_crashes:
            return Settlement(job.lease, Move.CRASH, delay=_crash_delay(job.crashes), error=reason)
        case Crashed(reason):
            return _failed(
                job,
                Move.SUCCUMB,
                f"{reason}; crashed {job.crashes + 1} times, max_crashes is {job.max_crashes}",
            )
        case _:
            assert_never(outcome)


def _failed(job: Claimed, move: Move, error: str) -> Settlement:
    return Settlement(job.lease, move, error=error, dead_letter=dead_letter_of(job.options, job.queue))


def _crash_delay(crashes: int) -> int:
    return min(CRASH_DELAY << min(crashes, 16), MAX_CRASH_DELAY)


def _lost(worker: str) -> str:
    return f"Lost: worker {worker} stopped beating while running this job"


def in_turn(done: Sequence[Settlement]) -> Iterator[Sequence[Settlement]]:
    """Batches to settle one after the other: how chains stand must be on record before somebody waits for them."""
    start = 0
    for place, one in enumerate(done):
        if one.then is not None and one.then.blockers:
            yield from (part for part in (done[start:place], done[place : place + 1]) if part)
            start = place + 1
    if done[start:]:
        yield done[start:]
