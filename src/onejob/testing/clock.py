"""A clock that stands still until it is told to move."""

from __future__ import annotations

import datetime as dt

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import Seconds, millis

START = 1_800_000_000_000


class FakeClock:
    """Milliseconds for a store's `clock`; only `advance`, `tick` and `set` move it.

    `App("memory:", clock=FakeClock())` makes windows, delays and leases a matter of arithmetic.
    """

    def __init__(self, start: int | dt.datetime = START) -> None:
        """`start` is a datetime with a time zone, or milliseconds since 1970."""
        self.now = _instant("FakeClock(…)", start)

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

    def set(self, moment: int | dt.datetime) -> int:
        """Set it to a datetime with a time zone, or to milliseconds since 1970. Returns the new time."""
        self.now = _instant("set(…)", moment)
        return self.now

    def __repr__(self) -> str:
        return f"FakeClock({self.now})"


def _instant(what: str, moment: object) -> int:
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    if isinstance(moment, dt.datetime) and moment.utcoffset() is not None:
        return round(moment.timestamp() * 1000)
    raise InvalidOption(
        f"{what} takes a datetime with a time zone, such as datetime(2027, 1, 15, 8, tzinfo=UTC), or whole milliseconds "
        f"since 1970, not {shown(moment)}."
    )
