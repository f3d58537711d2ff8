"""A few connections, opened when they are needed, the most recently used first. Lives in one event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from onejob.stores.postgres.driver import Link

IDLE: Final = 60.0
"""Seconds after which a connection that nobody used is closed."""


class Pool:
    """At most `size` connections; who finds them all in use waits for his turn."""

    def __init__(
        self,
        size: int,
        connect: Callable[[], Awaitable[Link]],
        spawn: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self.size = size
        self._connect = connect
        self._spawn = spawn
        self._idle: list[Link] = []
        self._in_use: set[Link] = set()
        self._opening = 0
        self._waiting: deque[asyncio.Future[Link | None]] = deque()
        self._reaper: asyncio.TimerHandle | None = None

    def idle(self) -> Link | None:
        """As `take`, if there is one that nobody uses."""
        while self._idle:
            link = self._idle.pop()
            if link.is_sound():
                self._in_use.add(link)
                return link
            link.terminate()
        return None

    async def take(self) -> Link:
        """A connection for the caller alone, until he gives it back or drops it."""
        while True:
            if (link := self.idle()) is not None:
                return link
            if len(self._in_use) + self._opening < self.size:
                return await self._open()
            link = await self._turn()
            if link is not None:
                return link

    def give_back(self, link: Link) -> None:
        """Let another use it, if it is fit for that."""
        if self.size == 0 or not link.is_sound():
            self.drop(link)
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(link)
                return
        self._in_use.discard(link)
        link.idle_since = time.monotonic()
        self._idle.append(link)
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(IDLE, self._reap)

    def drop(self, link: Link) -> None:
        """Close it: something may still be under way on it, or it is gone."""
        self._in_use.discard(link)
        if link.connection.is_closed():
            link.terminate()
        else:
            self._spawn(link.close())
        self._wake_one()

    def is_full(self) -> bool:
        """True if all are in use."""
        return len(self._in_use) >= self.size

    async def close(self) -> None:
        """Close them; those in use, once they come back."""
        self.size = 0
        while self._in_use:  # noqa: ASYNC110 - rare: users' transactions that are still open
            await asyncio.sleep(0.01)
        if self._reaper is not None:
            self._reaper.cancel()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(link.close() for link in idle))

    def terminate(self) -> None:
        """Drop all of them at once."""
        for link in (*self._idle, *self._in_use):
            link.terminate()
        self._idle.clear()
        self._in_use.clear()

    async def _open(self) -> Link:
        self._opening += 1
        try:
            link = await self._connect()
        except BaseException:
            self._opening -= 1
            self._wake_one()
            raise
        self._opening -= 1
        self._in_use.add(link)
        return link

    async def _turn(self) -> Link | None:
        """Wait to be handed a connection; None: there is room to open one."""
        waiter: asyncio.Future[Link | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                link = waiter.result()
                if link is None:
                    self._wake_one()
                else:
                    self.give_back(link)
            raise

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _reap(self) -> None:
        self._reaper = None
        oldest = time.monotonic() - IDLE
        old = [link for link in self._idle if link.idle_since <= oldest]
        self._idle = [link for link in self._idle if link.idle_since > oldest]
        for link in old:
            self._spawn(link.close())
        if self._idle:
            self._reaper = asyncio.get_running_loop().call_later(IDLE / 2, self._reap)
