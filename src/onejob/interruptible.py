"""Waits of plain threads that a signal ends, whenever it comes.

One that comes right before a wait without an end is noticed only after it: Ctrl-C would have to be pressed twice. So these
look up now and then.
"""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Final

LOOK: Final = 1.0
"""Seconds."""


def acquire(lock: threading.Lock) -> None:
    """Take a lock, however long that takes."""
    while not lock.acquire(timeout=LOOK):
        pass


def until_done(future: concurrent.futures.Future[Any]) -> None:
    """Wait for a future to have a result, or to be cancelled."""
    while not future.done():  # of one that is cancelled, `wait` hears only from an executor
        concurrent.futures.wait([future], LOOK)
