"""Chains: under which id a continuation is made, and how it is said that chains would wait for each other."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from onejob.core.derived import derived_id
from onejob.core.job import ChainId, JobId

T = TypeVar("T")
OnBlockerFailure: TypeAlias = Literal["fail", "run"]

MAX_BLOCKERS = 10_000
LONGEST_REASON = 200
"""How much of a blocker's own error is told: where one waits for another, reasons nest."""


def continuation_id(chain: ChainId, index: int) -> JobId:
    """The id of a chain's job at a place: made from both alone, so that there is one, whoever makes it."""
    origin = uuid.UUID(chain).bytes
    made = derived_id(b"onejob continuation", origin + index.to_bytes(4, "big"))
    return JobId(str(uuid.UUID(bytes=made)))


def stranded(chain: ChainId, state: str, error: str | None) -> str:
    """Why a job fails that waited for a chain which did not complete."""
    why = f": {error.splitlines()[0][:LONGEST_REASON]}" if error else ""
    return f"BlockerFailed: it waited for job {chain}, which {state}{why}"


def unknown_blocker(id: str) -> str:
    """Why nothing can wait for a job."""
    return (
        f"Job {id} is not on record, so nothing can wait for it: it never was accepted here, or ended and has been "
        "pruned. Name a job that is stored."
    )


def diverged(found: str, asked: str) -> str:
    """Why a chain goes on otherwise than its job asked: its next job was there already."""
    other = "with other arguments" if found == asked else f"of task {found!r}, not {asked!r}"
    return f"its chain had gone on already with a job {other}; that one stands"


def circle(path: Sequence[ChainId]) -> str:
    """Why a job cannot wait for a chain that waits for it; the path ends where it began."""
    return f"BlockerCycle: these would wait for each other for ever: {' → '.join(path)}"


def path_to(goal: T, origins: Mapping[T, T]) -> list[T]:
    """The way to `goal`, given for each chain that was reached the one from which it was."""
    path = [goal]
    while (before := origins.get(path[-1])) is not None:
        path.append(before)
    return path[::-1]
