"""Job ids: UUIDv7 as text, made by the client, strictly increasing within a process."""

from __future__ import annotations

import os
import threading
import time

from onejob.core.job import JobId

__all__ = ["new_id", "new_ids"]


class IdMaker:
    """Makes ids: 48 bits of Unix milliseconds, 26 random ones, and 48 that start at random and count up.

    All ids of one millisecond share what stands before the count, so that one costs little more than a
    formatted number. The count goes on while the clock stands still or goes back: order of making is order
    of text.
    """

    __slots__ = ("_lock", "_millisecond", "_prefix", "_tail")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = 0
        self._prefix = ""
        self._tail = 0

    def one(self) -> JobId:
        """The next id."""
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._millisecond:
                self._start(now)
            self._tail += 1
            return JobId(f"{self._prefix}{self._tail:012x}")

    def many(self, count: int) -> list[JobId]:
        """The next `count` ids, in order."""
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._millisecond:
                self._start(now)
            first = self._tail + 1
            self._tail += count
            pattern = f"{self._prefix}%012x"
        return [JobId(pattern % tail) for tail in range(first, first + count)]

    def reset(self) -> None:
        """Start afresh in a forked child, which must not count on from where its parent stands."""
        self._lock = threading.Lock()
        self._millisecond = 0

    def _start(self, now: int) -> None:
        self._millisecond = now
        random = int.from_bytes(os.urandom(10), "big")
        # The top bit of the count stays free: one millisecond cannot use up the other half of the range.
        self._tail = random & 0x7FFF_FFFF_FFFF
        high, low = random >> 48 & 0xFFF, 0x8000 | random >> 60 & 0x3FFF
        self._prefix = f"{now >> 16 & 0xFFFF_FFFF:08x}-{now & 0xFFFF:04x}-7{high:03x}-{low:04x}-"


_maker = IdMaker()
os.register_at_fork(after_in_child=_maker.reset)

new_id = _maker.one
new_ids = _maker.many
