"""The engines beneath the stores: what each can do bare, and how to fill a store of ours with a million rows.

Another store is another module that fits `Engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from bench.jobs import Repetition


class Filling(StrEnum):
    """What there may be a million of."""

    WAITING = "waiting"
    FINISHED = "finished"
    KEYS = "keys"
    LANES = "lanes"
    PARKED = "parked"
    """In one lane, behind a job that runs."""


def per_job(before: int | None, after: int | None, count: int) -> float | None:
    """What lies between two counts of transactions, for each of so many jobs."""
    return None if before is None or after is None else (after - before) / count


class Engine(Protocol):
    """One store's engine. Rates are in rows per second, durable as the store is. A folder stands for a store."""

    name: str
    durability: str

    def url(self, folder: Path) -> str:
        """A store of ours, fresh if the folder is."""
        ...

    @property
    def run(self) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        """Run a producer's coroutine, in the loop that its peers have as well."""
        ...

    def one_by_one(self, folder: Path) -> float:
        """Insert one row per commit."""
        ...

    def bulk(self, folder: Path) -> float:
        """Insert many rows per commit."""
        ...

    def deduplicated(self, folder: Path, repetition: Repetition) -> float:
        """Offer many rows per commit, each with a key; only the first of a key is inserted."""
        ...

    def drain(self, folder: Path, batch: int) -> float:
        """Claim a batch in one commit and end it in the next, until nothing is left."""
        ...

    def fill(self, folder: Path, filling: Filling, count: int) -> None:
        """Make the store in this folder hold that many rows more, faster than our own operations could."""
        ...

    def copy(self, source: Path, target: Path) -> None:
        """Copy a store that nobody has open."""
        ...

    def size(self, folder: Path) -> int:
        """The bytes that a store takes."""
        ...

    def analyze(self, folder: Path) -> None:
        """Let the engine look at what a store was just filled with, as it would do by itself in time."""
        ...

    def committed(self, folder: Path) -> int | None:
        """Transactions so far, as told by connections that are closed; None where they are not counted."""
        ...

    def forget(self, folder: Path) -> None:
        """Remove what the engine keeps of a folder elsewhere."""
        ...

    def close(self) -> None:
        """Stop what was started."""
        ...
