"""Job ids: UUIDv7 as text, made by the client, strictly increasing within a process."""

from __future__ import annotations

import os
import threading
import time
from itertools import count, islice
from typing import NamedTuple

from onejob.core.job import JobId

__all__ = ["new_id", "new_ids"]


class Series(NamedTuple):
    """The ids of a millisecond: what stands before the count, and the count."""

    millisecond: int
    prefix: str
    tail: count[int]


class IdMaker:
    """Makes ids: 48 bits of Unix milliseconds, 26 random ones, and 48 that start at random and count up.

    All ids of one millisecond share what stands before the count, so that one costs little more than a
    formatted number. The count goes on while the clock stands still or goes back: order of making is order
    of text. Nobody waits here, so that a signal handler may make one in the midst of another: a count gives each
    number once, and who finds that another begins a new series goes on with the old one.
    """

    __slots__ = ("_beginning", "_series")

    def __init__(self) -> None:
        self.reset()

    def one(self) -> JobId:
        """The next id."""
        series = self._now()
        return JobId(f"{series.prefix}{next(series.tail):012x}")

    def many(self, number: int) -> list[JobId]:
        """The next ids, so many, in order."""
        series = self._now()
        pattern = f"{series.prefix}%012x"
        return [JobId(pattern % tail) for tail in islice(series.tail, number)]

    def reset(self) -> None:
        """Start afresh in a forked child, which must not count on from where its parent stands."""
        self._beginning = threading.Lock()
        self._series = _series(time.time_ns() // 1_000_000)

    def _now(self) -> Series:
        now = time.time_ns() // 1_000_000
        if now > self._series.millisecond and self._beginning.acquire(blocking=False):
            try:
                if now > self._series.millisecond:
                    self._series = _series(now)
            finally:
                self._beginning.release()
        return self._series


def _series(now: int) -> Series:
    random = int.from_bytes(os.urandom(10), "big")
    high, low = random >> 48 & 0xFFF, 0x8000 | random >> 60 & 0x3FFF
    prefix = f"{now >> 16 & 0xFFFF_FFFF:08x}-{now & 0xFFFF:04x}-7{high:03x}-{low:04x}-"
    # The top bit of the count stays free: one millisecond cannot use up the other half of the range.
    return Series(now, prefix, count(random & 0x7FFF_FFFF_FFFF))


_maker = IdMaker()
os.register_at_fork(after_in_child=_maker.reset)

new_id = _maker.one
new_ids = _maker.many
