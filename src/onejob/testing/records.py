"""What the reference model keeps, and what goes in and out of it: plain records, times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from onejob.testing.verdicts import Policy

QUEUED: Final = frozenset({"blocked", "delayed", "waiting"})
"""To the model, a job of a lane that is ready waits, whether it may start now or is parked."""
LIVE: Final = QUEUED | {"running"}


@dataclass(frozen=True)
class Pace:
    """At most `max` starts in any `per` milliseconds."""

    max: int
    per: int


@dataclass(frozen=True)
class LaneLimits:
    """A lane as a call names it: its key, and what is to stand for the whole lane from then on."""

    key: str
    concurrency: int = 1
    pace: Pace | None = None
    hold: bool = False


@dataclass(frozen=True)
class QueueSettings:
    """What is set for a queue."""

    concurrency: int | None = None
    pace: Pace | None = None
    paused: bool = False


@dataclass(frozen=True)
class Grave:
    """Where the copy of a failed job waits: the queue, and the id that the copy has."""

    queue: str
    id: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """One enqueue, or how a chain goes on. `key` is the identity (None: not unique), `caller` the chain it is made from."""

    id: str
    queue: str = "q"
    task: str = "t"
    payload: bytes = b"{}"
    key: bytes | None = None
    policy: Policy | None = None
    priority: int = 0
    delay: int = 0
    expires: int | None = None
    max_crashes: int = 3
    caller: str | None = None
    items: int = 0
    lane: LaneLimits | None = None
    dead_letter: str | None = None
    """The queue in which it is buried if it fails."""
    blockers: tuple[str, ...] = ()
    """Jobs whose chains must have ended before it may start."""
    runs_anyway: bool = False
    """It runs even if one of them did not complete."""
    schedule: str | None = None
    """The schedule that it comes from, and the slot that it is for."""
    slot: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What an enqueue answers: the job that stands for the call, and what was done."""

    id: str
    outcome: str
    holder: str | None = None
    differs: bool | None = None
    former_lane: LaneLimits | None = None
    """The limits of its lane that it has changed."""
    lane_may_be_forgotten: bool = False
    """Nobody used the lane before, so a store need not know its former limits."""


@dataclass(kw_only=True)
class ModelJob:
    """A job's row."""

    call: Call
    state: str
    payload: bytes
    told: bytes
    """The arguments that later calls are compared with; collected items do not change them."""
    accepted: int
    updated: int
    due: int
    since: int
    number: int
    chain: str
    """The first job of its chain; of a lone job, itself."""
    index: int
    expires: int | None
    items: int
    follows: str | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    misses: int = 0
    aborting: bool = False
    lease: int = 0
    worker: str | None = None
    ended: int | None = None
    calls: tuple[tuple[str, Reply], ...] = ()
    """The last calls applied to it or to those it took the key from, with their replies."""
    slot: bool = False
    """It takes a slot of its lane."""
    origin: str | None = None
    """Of a dead letter: the job that failed."""
    origin_queue: str | None = None
    blockers: tuple[str, ...] = ()
    """The chains that it waits or waited for."""
    awaits: set[str] = field(default_factory=set[str])
    """Those of them that have yet to end."""

    @property
    def lane(self) -> tuple[str, str] | None:
        """Queue and key of its lane."""
        return None if self.call.lane is None else (self.call.queue, self.call.lane.key)


@dataclass(kw_only=True)
class ModelKey:
    """A key's record; `end` is how its holder ended if the job itself is gone."""

    holder: str
    since: int
    completed_until: int | None
    failed_until: int | None
    told: bytes
    follows: str | None = None
    end: str | None = None


@dataclass(frozen=True, kw_only=True)
class LaneSight:
    """A lane as an observer sees it."""

    queue: str
    limits: LaneLimits
    holders: frozenset[str]
    ready: int
    head: str | None
    openings: frozenset[int | None]
    """What may be said of when its rate next lets somebody start; more than one where slots are full as well."""
