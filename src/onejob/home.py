"""The private event loop of a store, in a thread of its own, and the way there and back.

A store may be called from any loop or thread, but a connection belongs to one loop. So calls are handed over: they
gather in an inbox there and their results in an outbox per calling loop, and a loop is woken only if it has not been
since it last emptied its box. A busy loop takes many for one wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from onejob.core.errors import StoreClosed
from onejob.interruptible import acquire
from onejob.loops import new_loop

T = TypeVar("T")
Make = Callable[[], Coroutine[Any, Any, T]]
_ROUNDS = 5


class Home:
    """One event loop in one daemon thread; starts with its first call."""

    def __init__(self, name: str, on_end: Callable[[], None]) -> None:
        """`on_end` is called there when nothing runs any more, to let go of what is still held."""
        self._name = name
        self._on_end = on_end
        self._inbox: deque[_Call] = deque()
        self._woken = False
        self._outboxes: dict[asyncio.AbstractEventLoop, _Outbox] = {}
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = self._stopping = False

    @property
    def started(self) -> bool:
        """True once there has been a call."""
        return self._loop is not None

    @property
    def is_here(self) -> bool:
        """True if whoever asks is on this loop already."""
        return self._thread is threading.current_thread()

    def loop(self) -> asyncio.AbstractEventLoop:
        """That loop, started if need be."""
        return self._loop or self._start()

    async def run(self, make: Make[T]) -> T:
        """Make a coroutine there and run it to its end; cancelling the caller cancels it."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return await make()
        future: asyncio.Future[Any] = loop.create_future()
        outbox = self._outboxes.get(loop) or self._outbox(loop)
        call = _Call(make, outbox.put, future)
        home = self._ask(call)
        try:
            return await future
        except asyncio.CancelledError:
            call.abandoned = True
            with suppress(RuntimeError):
                home.call_soon_threadsafe(call.cancel)
            raise

    def run_from_thread(self, make: Make[T]) -> T:
        """As `run`, from a thread that has no event loop, and waits. One that is interrupted leaves what has begun to go on."""
        ended = threading.Lock()
        ended.acquire()
        call = _Call(make, lambda _: ended.release())
        self._ask(call)
        try:
            acquire(ended)
        except BaseException:
            call.abandoned = True
            raise
        if call.error is not None:
            raise _raisable(call.error)
        return call.result

    def _ask(self, call: _Call) -> asyncio.AbstractEventLoop:
        """Hand a call over; and who has it."""
        home = self.loop()
        self._inbox.append(call)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # it has just been closed
                home.call_soon_threadsafe(self._empty_inbox)
        if self._over:
            self._refuse_the_rest()
        return home

    def post(self, make: Callable[[], object]) -> None:
        """Call a function there, soon; nobody waits for it."""
        with suppress(RuntimeError):
            self.loop().call_soon_threadsafe(make)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """From within the loop: run something beside what is asked."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def stop(self) -> None:
        """End the loop and its thread; whatever still runs there is cancelled. From any thread."""
        with self._lock:
            loop, stopping, self._stopping = self._loop, self._stopping, self._loop is not None
        if loop is not None and not stopping:  # a second one would cut short what the end has still to do
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)

    async def stopped(self) -> None:
        """Stop, and wait for the thread's end. From any event loop."""
        self.stop()
        while self._thread is not None and self._thread.is_alive():  # noqa: ASYNC110 - it has no loop to tell us from
            await asyncio.sleep(0.001)

    def _start(self) -> asyncio.AbstractEventLoop:
        """Start it. Of those who do so at the same time, a thread and the signal handler that interrupts it among them, the
        first to be ready has the loop that counts.
        """
        made = new_loop()
        thread = threading.Thread(target=self._serve, args=(made,), name=self._name, daemon=True)
        thread.start()
        with self._lock:
            if self._loop is None:
                self._loop, self._thread = made, thread
            loop = self._loop
        if loop is not made:
            made.call_soon_threadsafe(made.stop)
        return loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            if loop is self._loop:
                loop.run_until_complete(_end_all(self._on_end))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            if loop is self._loop:
                self._over = True
                self._refuse_the_rest()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it has it as well; if nobody does, it is no news

    def _refuse_the_rest(self) -> None:
        with suppress(IndexError):
            while True:
                call = self._inbox.popleft()
                call.error = asyncio.CancelledError()
                call.tell(call)

    def _empty_inbox(self) -> None:
        self._woken = False  # before looking: who comes from now on wakes us again
        loop, inbox = self._loop, self._inbox
        assert loop is not None
        if self._stopping:  # what begins now might not end
            self._refuse_the_rest()
        while inbox:
            call = inbox.popleft()
            if not call.abandoned:
                call.task = loop.create_task(call.serve())

    def _outbox(self, loop: asyncio.AbstractEventLoop) -> _Outbox:
        for known in list(self._outboxes):
            if known.is_closed():
                self._outboxes.pop(known, None)
        return self._outboxes.setdefault(loop, _Outbox(loop))


class Limit:
    """Cancels the task that makes it when its time is up."""

    __slots__ = ("_loop", "handle", "is_over", "since", "task")

    def __init__(self, seconds: float, spent: float = 0.0) -> None:
        """`spent`: so many of them have passed already."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.is_over = False
        self.since = self._loop.time() - spent
        self.handle = self._loop.call_later(max(seconds - spent, 0.0), self._end)

    def age(self) -> float:
        """Seconds since it was made."""
        return self._loop.time() - self.since

    def _end(self) -> None:
        self.is_over = True
        self.task.cancel()


class _Call:
    """One coroutine to run at home, and who is told of its end; the future waits elsewhere, if no thread does."""

    __slots__ = ("abandoned", "error", "future", "make", "result", "task", "tell")

    def __init__(
        self, make: Make[Any], tell: Callable[[_Call], object], future: asyncio.Future[Any] | None = None
    ) -> None:
        self.make = make
        self.tell = tell
        self.future = future
        self.abandoned = False
        self.task: asyncio.Task[None] | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    async def serve(self) -> None:
        try:
            self.result = await self.make()
        except BaseException as error:
            self.error = error
        self.tell(self)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _Outbox:
    """Results on their way to one calling loop."""

    __slots__ = ("_done", "_loop", "_woken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[_Call] = deque()
        self._woken = False

    def put(self, call: _Call) -> None:
        self._done.append(call)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # that loop has been closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False
        done = self._done
        while done:
            call = done.popleft()
            future = call.future
            if future is None or future.done():
                continue
            if call.error is not None:
                future.set_exception(_raisable(call.error))
            else:
                future.set_result(call.result)


async def _end_all(on_end: Callable[[], None]) -> None:
    """Cancel what still runs, and let end what that starts in turn: the driver tells the server of a cancelled query."""
    this = asyncio.current_task()
    for number in range(_ROUNDS):
        left = asyncio.all_tasks() - {this}
        if not left:
            break
        if number != 1:
            for task in left:
                task.cancel()
        await asyncio.wait(left, timeout=1)
    on_end()
    await asyncio.sleep(0.001)  # transports hear of their end from the loop


def _raisable(error: BaseException) -> BaseException:
    """A future takes no StopIteration; and who did not cancel his call is not told that he did."""
    match error:
        case asyncio.CancelledError():
            return StoreClosed("The store was closed while this call was under way.")
        case StopIteration():
            return RuntimeError(f"an operation raised {error!r}")
        case _:
            return error
