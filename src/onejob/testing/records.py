"""What the reference model keeps, and what goes in and out of it: plain records, times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onejob.testing.verdicts import Policy

QUEUED: Final = frozenset({"blocked", "delayed", "waiting"})
LIVE: Final = QUEUED | {"running"}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One enqueue. `key` is the identity (None: not unique), `caller` the chain it is made from."""

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


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What an enqueue answers: the job that stands for the call, and what was done."""

    id: str
    outcome: str
    holder: str | None = None
    differs: bool | None = None


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
