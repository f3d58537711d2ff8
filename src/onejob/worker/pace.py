"""A worker's own rate: how many jobs it may still ask for. Local, and exact over any window.

A start is written down when the reply has come, and asked about before the next is sent: whatever instant in
between a store puts a start at, no window of that length holds more than the maximum.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from onejob.core.lane import Rate


class Pace:
    """The starts of one worker that its rate still counts."""

    __slots__ = ("_clock", "_max", "_per", "_starts")

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._max = rate.max
        self._per = rate.window / 1000
        self._clock = clock
        self._starts: deque[float] = deque()

    def room(self) -> int:
        """How many jobs may start now."""
        old = self._clock() - self._per
        while self._starts and self._starts[0] <= old:
            self._starts.popleft()
        return self._max - len(self._starts)

    def note(self, started: int) -> None:
        """So many jobs have started, at this instant at the latest."""
        self._starts.extend([self._clock()] * started)

    def opens_in(self) -> float:
        """Seconds until the oldest start no longer counts; 0 if none does."""
        return max(self._starts[0] + self._per - self._clock(), 0.0) if self._starts else 0.0
