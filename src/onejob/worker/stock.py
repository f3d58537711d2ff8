"""The stock: jobs that a worker has claimed, and that wait for a slot to begin.

While handlers are quick, a worker claims ahead what they will take up in the next moments, so that they go on while the
store is at work, and a call carries more. What waits here for longer than that goes back to the store.
"""

from __future__ import annotations

from collections import deque

from onejob.worker.attempt import Attempt

HORIZON = 0.01
"""Seconds for which there should be enough. Handlers that take longer than this gain nothing by it."""
PATIENCE = 0.1
"""Seconds after which a job that still waits here is better off elsewhere."""
_WEIGHT = 1 / 64
_UNKNOWN = 1.0
"""Seconds that handlers are taken to need at first: it takes some three hundred quick ones to believe otherwise."""


class Stock:
    """Claimed attempts, in the order in which they are to begin. It belongs to the worker's loop."""

    __slots__ = ("_most", "_seconds", "_slots", "waiting")

    def __init__(self, slots: int, most: int) -> None:
        """`slots` is how many handlers run at once, `most` how many attempts may ever wait for one."""
        self.waiting: deque[Attempt] = deque()
        self._slots = slots
        self._most = most
        self._seconds = _UNKNOWN
        """How long a handler takes, the last ones weighing most."""

    @property
    def size(self) -> int:
        """How many attempts should wait here now."""
        if self._seconds > HORIZON:
            return 0
        return int(min(self._most, self._slots * HORIZON / max(self._seconds, 1e-6)))

    def learn(self, seconds: float) -> None:
        """A handler took so long."""
        self._seconds += (seconds - self._seconds) * _WEIGHT

    def take(self, number: int) -> list[Attempt]:
        """Up to so many, those that came first."""
        return [self.waiting.popleft() for _ in range(min(number, len(self.waiting)))]

    def take_late(self, now: float) -> list[Attempt]:
        """Those that have waited for too long. Handlers are slower than we believed: nobody follows for a while."""
        late: list[Attempt] = []
        while self.waiting and self.waiting[0].since <= now - PATIENCE:
            late.append(self.waiting.popleft())
        if late:
            self._seconds = _UNKNOWN
        return late
