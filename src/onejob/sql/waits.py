"""Whom a job is to wait for, as the SQL stores find it."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

Id = TypeVar("Id")


class Waits(msgspec.Struct, Generic[Id], frozen=True):
    """The chains that a job is to wait for, as they stand: which of them live, and why it cannot run, if so."""

    chains: tuple[Id, ...] = ()
    live: frozenset[Id] = frozenset()
    reason: str | None = None
    """It fails, because one of them has ended and did not complete."""

    @property
    def blocked(self) -> bool:
        """True if it may not start yet, or ever."""
        return bool(self.live) or self.reason is not None
