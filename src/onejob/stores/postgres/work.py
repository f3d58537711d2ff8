"""What an operation works with beside its statements: the clock, and what is to be told once it is committed."""

from __future__ import annotations

from collections.abc import Iterable

from onejob.absorbing import Absorbed


class Guesses:
    """What the last operations met, and so the next may meet. A wrong guess costs a statement, and nothing else."""

    __slots__ = ("burden", "contended", "repetitive")

    def __init__(self, *, burden: int = 0, contended: bool = False, repetitive: bool = False) -> None:
        self.burden = burden
        """In so many calls more, jobs that end may have keys, lanes or chains; 0: they are expected to have none."""
        self.contended = contended
        """The last holder that was changed by itself was changed by somebody else, too."""
        self.repetitive = repetitive
        """Most keys of the last newcomers were held."""


class Work:
    """One try of one operation. A new one is made for each try, so that what did not commit told nothing."""

    __slots__ = ("absorbed", "again", "foreign", "guesses", "now", "topics")

    def __init__(
        self,
        now: int | None = None,
        *,
        foreign: bool = False,
        again: bool = False,
        guesses: Guesses | None = None,
    ) -> None:
        self.now = now
        """The instant that the caller or the store's test clock gives; None: the server's `clock_timestamp()`."""
        self.foreign = foreign
        """It runs in a transaction that is the user's, and may stay open for long."""
        self.again = again
        """The reply to an earlier try may have been lost: it may have been committed."""
        self.guesses = guesses or Guesses()
        self.topics: set[str] = set()
        """What others are to be told after the commit."""
        self.absorbed: list[Absorbed] = []
        """What is to be counted after the commit."""

    def tell(self, kind: str, queues: Iterable[str]) -> None:
        """Remember to hint at `work` or `done` in these queues."""
        self.topics.update(f"{kind}:{queue}" for queue in queues)
