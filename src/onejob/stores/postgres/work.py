"""What an operation works with beside its statements: the clock, and what is to be told once it is committed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Absorbed(msgspec.Struct, frozen=True):
    """A duplicate that made no job; counted in memory, written with others."""

    digest: bytes
    holder: str
    differs: bool


class Work:
    """One try of one operation. A new one is made for each try, so that what did not commit told nothing."""

    __slots__ = ("absorbed", "again", "foreign", "now", "topics")

    def __init__(self, now: int | None = None, *, foreign: bool = False, again: bool = False) -> None:
        self.now = now
        """The instant that the caller or the store's test clock gives; None: the server's `clock_timestamp()`."""
        self.foreign = foreign
        """It runs in a transaction that is the user's, and may stay open for long."""
        self.again = again
        """The reply to an earlier try may have been lost: it may have been committed."""
        self.topics: set[str] = set()
        """What others are to be told after the commit."""
        self.absorbed: list[Absorbed] = []

    def tell(self, kind: str, queues: Iterable[str]) -> None:
        """Remember to hint at `work` or `done` in these queues."""
        self.topics.update(f"{kind}:{queue}" for queue in queues)

    def absorb(self, digest: bytes, holder: str, differs: bool) -> None:
        """Count a duplicate."""
        self.absorbed.append(Absorbed(digest, holder, differs))
