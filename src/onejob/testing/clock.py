"""A clock that stands still until it is told to move."""

from __future__ import annotations

from onejob.core.options import Seconds, millis

START = 1_800_000_000_000


class FakeClock:
    """Milliseconds for a store's `clock`; only `advance` and `tick` move it.

    `App("memory:", clock=FakeClock())` makes windows, delays and leases a matter of arithmetic.
    """

    def __init__(self, start: int = START) -> None:
        """`start` is in milliseconds since 1970."""
        self.now = start

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: Seconds) -> int:
        """Move on by seconds or a timedelta; negative ones set the clock back. Returns the new time."""
        self.now += millis("advance(seconds)", seconds)
        return self.now

    def tick(self, milliseconds: int = 1) -> int:
        """Move on by whole milliseconds, the store's smallest step. Returns the new time."""
        self.now += milliseconds
        return self.now

    def __repr__(self) -> str:
        return f"FakeClock({self.now})"
