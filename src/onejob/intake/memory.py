"""What one process knows of rows, bounded in number and age. None of it is ever the truth: that is in the databases."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

REMEMBERED: Final = 60_000
"""Milliseconds for which a row that was handed over is not looked at again."""
MAX_ROWS: Final = 10_000
"""Some pages: what is no longer known is only asked of the store again."""
MAX_TOLD: Final = 1_000


class HandedOver:
    """Rows that this process has handed over a moment ago, by table, id and due time."""

    def __init__(self, most: int = MAX_ROWS) -> None:
        self._rows: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        self._most = most
        self._lock = threading.Lock()  # a worker's loop and a sync call may both be at it

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, table: str, id: object, due: int, now: int) -> None:
        """Remember a row; of too many, and of those too old, the ones that were handed over first are forgotten."""
        row = (table, str(id), due)
        with self._lock:
            self._rows.pop(row, None)
            self._rows[row] = now
            while len(self._rows) > self._most or now - next(iter(self._rows.values())) >= REMEMBERED:
                self._rows.popitem(last=False)

    def knows(self, table: str, id: object, due: int, now: int) -> bool:
        """True if that row was handed over within the last minute, and not allowed since."""
        row = (table, str(id), due)
        with self._lock:
            at = self._rows.get(row)
            if at is None:
                return False
            if 0 <= now - at < REMEMBERED:
                return True
            del self._rows[row]
            return False

    def forget(self, table: str, id: object, due: int) -> None:
        """Look at a row again."""
        with self._lock:
            self._rows.pop((table, str(id), due), None)


class Told:
    """What was last said about rows that are no good, so that it is said once; of too many, about the first ones."""

    def __init__(self, most: int = MAX_TOLD) -> None:
        self._said: dict[tuple[str, str], str] = {}
        self._most = most
        self._total = 0
        self._met: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._said)

    def is_news(self, table: str, id: object, text: str) -> bool:
        """True if that is to be said about a row."""
        row = (table, str(id))
        before = self._said.get(row)
        if before is not None or len(self._said) < self._most:
            self._met.add(row)
        if before == text or (before is None and len(self._said) >= self._most):
            return False
        self._said[row] = text
        return True

    def is_more(self, total: int) -> bool:
        """At the end of a run: true if there are more such rows than could be named, and another number than before.

        Rows that the run did not meet any more, as they were deleted or are too old, make room for others.
        """
        self._said = {row: text for row, text in self._said.items() if row in self._met}
        self._met.clear()
        before, self._total = self._total, total
        return total > self._most and total != before

    def forget(self, table: str, id: object) -> None:
        """What is said next about a row is news."""
        self._said.pop((table, str(id)), None)
