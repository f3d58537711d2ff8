"""Handlers that are plain functions: called in a thread, awaited in the worker's loop to their real end.

What they return gathers in a box, and the loop is woken once for all that is in it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

LOOK = 1.0
"""Seconds between looks of idle threads at whether the program has come to its end without closing us."""


class Threads:
    """As many threads as a worker has slots, started when they are needed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._queue: SimpleQueue[_Visit | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        """Never fewer than there are calls under way, up to the count: a call waits for no other one's thread. They stay,
        as what handlers keep by thread does.
        """
        self._under_way = 0
        self._closed = False
        self._box: _Box | None = None

    def close(self) -> None:
        """Let idle threads end; one that is still in a handler goes on to its return."""
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._queue.put(None)

    async def run(self, call: Callable[[], Any], on_return: Callable[[], None]) -> Any:
        """Make a call in a thread, in a copy of this context, and return or raise what it does.

        Whoever cancels us waits for it all the same: until then it is running. `on_return` is called in the thread,
        whether or not our loop is still there to learn of it.
        """
        loop = asyncio.get_running_loop()
        box = self._box
        if box is None or box.loop is not loop:
            box = self._box = _Box(loop)
        visit = _Visit(call, on_return, box)
        self._submit(visit)
        while not visit.over:
            visit.waiter = loop.create_future()
            try:
                await visit.waiter
            except asyncio.CancelledError:
                continue
        if visit.error is not None:
            raise visit.error
        return visit.value

    def _submit(self, visit: _Visit) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("handlers are not called any more: their worker has stopped")
            if self._started < min(self._under_way + 1, self._count):
                name = f"onejob-handler_{self._started}"
                threading.Thread(target=self._serve, name=name, daemon=False).start()
                self._started += 1
            self._under_way += 1
            self._queue.put(visit)

    def _serve(self) -> None:
        while (visit := self._next()) is not None:
            visit.context.run(visit.make)
            with self._lock:
                self._under_way -= 1
            visit.tell()
            del visit  # what it holds should not be held until the next one comes

    def _next(self) -> _Visit | None:
        """The next call; None when it is time to end."""
        while True:
            try:
                return self._queue.get(timeout=LOOK)
            except Empty:
                if not threading.main_thread().is_alive() and self._leave():
                    return None

    def _leave(self) -> bool:
        """End an idle thread, unless a call has come for it; one that comes later starts another."""
        with self._lock:
            left = self._queue.empty()
            self._started -= left
            return left


class _Visit:
    """One call in a thread."""

    __slots__ = ("_box", "_call", "_on_return", "context", "error", "over", "value", "waiter")

    def __init__(self, call: Callable[[], Any], on_return: Callable[[], None], box: _Box) -> None:
        self._call = call
        self._on_return = on_return
        self._box = box
        self.context = contextvars.copy_context()
        self.over = False
        """Set in the loop, as is the waiter."""
        self.waiter: asyncio.Future[None] | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        # The error travels as a value: a future refuses StopIteration, and the loop dies of SystemExit.
        try:
            self.value = self._call()
        except BaseException as error:
            self.error = error
        finally:
            self._on_return()

    def tell(self) -> None:
        self._box.put(self)

    def end(self) -> None:
        self.over = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class _Box:
    """Calls that have returned, on their way to the loop that waits for them."""

    __slots__ = ("_returned", "_woken", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._returned: deque[_Visit] = deque()
        self._woken = False

    def put(self, visit: _Visit) -> None:
        self._returned.append(visit)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # that loop has been closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._woken = False  # before looking: who comes from now on wakes us again
        while self._returned:
            self._returned.popleft().end()
