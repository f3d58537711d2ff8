"""Hints within one process: who waits for what, in whichever loop, and what has been heard so far.

How hints come from other processes, and how often one looks without any, is a store's own affair.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Final

ANY: Final = "*"
"""A topic that stands for all of them."""


class Hints:
    """The stream of hints that one store hears, and those who sleep until one of theirs comes. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may enqueue, and be heard, in the midst of it
        self._count = 0
        self._heard: dict[str, int] = {}
        self._waiting: dict[asyncio.Future[bool], frozenset[str]] = {}

    @property
    def are_awaited(self) -> bool:
        """True if somebody waits for one."""
        return bool(self._waiting)

    def mark(self) -> int:
        """How many hints have been heard so far."""
        with self._lock:
            return self._count

    async def wait(
        self, topics: frozenset[str], timeout: float, since: int | None, *, otherwise: bool = False
    ) -> bool:
        """Sleep until one of the topics is hinted at, or was after `since`: True; `otherwise` when the time is up."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if since is not None and any(self._heard.get(topic, 0) > since for topic in (*topics, ANY)):
                return True
            future: asyncio.Future[bool] = loop.create_future()
            self._waiting[future] = topics
        timer = loop.call_later(timeout, _resolve, future, otherwise)
        try:
            return await future
        finally:
            timer.cancel()
            with self._lock:
                self._waiting.pop(future, None)

    def hear(self, topics: set[str], *, here: asyncio.AbstractEventLoop | None = None) -> None:
        """A hint has arrived: wake those who wait for it. `here`: the loop that calls us, if it is sure to wait for us."""
        with self._lock:
            self._count += 1
            for topic in topics:
                self._heard[topic] = self._count
            woken = [
                future
                for future, wanted in tuple(self._waiting.items())
                if ANY in topics or not wanted.isdisjoint(topics)
            ]
            for future in woken:
                self._waiting.pop(future, None)
        for future in woken:
            if future.get_loop() is here:
                _resolve(future, True)
                continue
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_resolve, future, True)


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
