"""One thread, one connection: everything that has gathered goes into the next commit.

Operations are plain functions of a `Session`. While a commit is under way newcomers gather in the queue, and
the next commit takes them all: group commit without a timer. If one operation of a group fails, the group is
rolled back and its operations are run again one by one, so that only the guilty one sees the error.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import apsw

from onejob.absorbing import Absorbed
from onejob.core.errors import OnejobError, StoreClosed
from onejob.interruptible import acquire
from onejob.stores.sqlite.connect import explained, rollback
from onejob.stores.sqlite.forking import forks
from onejob.stores.sqlite.session import Session

T = TypeVar("T")
Operation = Callable[[Session], T]
MAX_GROUP = 512
POLITE = 0.05
"""Seconds that a group waits for a thread that writes by itself: much longer than any of them takes."""


@dataclass(slots=True)
class Request(Generic[T]):
    """One operation, and the future on some event loop that waits for it."""

    operation: Operation[T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    takeover: bool = False
    """The operation manages its own transaction and keeps the connection until it returns."""
    result: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)


class ThreadRequest(Generic[T]):
    """One operation, and the thread that waits for it."""

    __slots__ = ("_answered", "error", "operation", "result")
    takeover = False

    def __init__(self, operation: Operation[T]) -> None:
        self.operation: Operation[Any] = operation
        self.result: Any = None
        self.error: BaseException | None = None
        self._answered = threading.Lock()  # the least that a thread can wait for
        self._answered.acquire()

    def wait(self) -> T:
        """Block until there is an answer; who is interrupted before his turn has asked for nothing."""
        try:
            acquire(self._answered)
        except BaseException:
            self.operation = _nothing
            raise
        if self.error is not None:
            raise self.error
        return self.result

    def answer(self) -> None:
        """Let the thread go on."""
        self._answered.release()


AnyRequest = Request[Any] | ThreadRequest[Any]


class Executor:
    """Runs operations for any number of event loops and threads, in the order in which they came."""

    def __init__(
        self,
        *,
        name: str,
        session: Callable[[], Session],
        begin: str,
        after_commit: Callable[[Session], None],
        path: str,
    ) -> None:
        self._name = name
        self._make_session = session
        self._begin = begin
        self._after_commit = after_commit
        self.path = path
        self.lock = threading.Lock()
        self.turn = threading.RLock()
        """Whoever writes should have it, so that nobody runs into the file's own lock; see `direct`."""
        self._session: Session | None = None
        self._serving = False
        self._queue: queue.SimpleQueue[AnyRequest | None] = queue.SimpleQueue()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = self._over = False
        self._on_end: list[Request[None]] = []
        forks.watch(self)

    async def run(self, operation: Operation[T], *, takeover: bool = False) -> T:
        """Run an operation inside a transaction and return what it returned, once that is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(Request(operation, loop, future, takeover))
        return await future

    def call(self, operation: Operation[T]) -> T:
        """As `run`, for a thread without an event loop."""
        request = ThreadRequest(operation)
        self._put(request)
        return request.wait()

    @property
    def is_idle(self) -> bool:
        """True if the connection is open, and nothing is under way or has gathered."""
        return self._session is not None and not self._serving and not self._closed and self._queue.empty()

    def count_absorbed(self, absorbed: Absorbed) -> None:
        """Count a duplicate that a thread found by itself; it is written with some later commit."""
        session = self._session
        if session is not None and session.count_absorbed(absorbed):
            self._queue.put(ThreadRequest(_nothing))  # from now on the thread does not sleep for ever

    def _put(self, request: AnyRequest) -> None:
        if self._thread is None:
            self._start()
        if self._closed:
            raise StoreClosed(f"Store {self.path} has been closed.")
        self._queue.put(request)
        if self._over:
            self._refuse_the_rest()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()

    async def close(self) -> None:
        """Let what has gathered be done, then close the connection, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        with self._start_lock:
            self._closed = True
            running = self._thread is not None and self._thread.is_alive()
            self._on_end.append(Request(_nothing, loop, ended))
        if running:
            self._queue.put(None)
            await ended

    def drop(self) -> None:
        """Close the connection before a fork; the next group opens another."""
        session, self._session = self._session, None
        if session is not None:
            session.connection.close()

    def _flush_and_close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _serve(self) -> None:
        try:
            while (group := self._gather(self._session)) is not None:
                self._serving = True
                with self.lock:
                    try:
                        session = self._current_session()
                    except BaseException as error:  # every waiting caller must hear of it
                        self._fail(group, error)
                    else:
                        self._serve_in_turn(session, group)
                self._serving = False
        finally:
            with self.lock:
                self._flush_and_close()
            self._over = True
            self._refuse_the_rest()
            deliver(self._on_end)

    def _current_session(self) -> Session:
        """The open session; a new one at first, after a fork, and once the file is another one."""
        if self._session is not None and self._session.is_stale():
            self.drop()
            raise OnejobError(
                f"Store {self.path} has been removed or replaced while it was open: what was acknowledged is in "
                "the old file. The next call opens what is there now."
            )
        if self._session is None:
            self._session = self._make_session()
        return self._session

    def _gather(self, session: Session | None) -> list[AnyRequest] | None:
        """The next group: one request at least, a takeover alone; None when it is time to end."""
        idle = session.flush_after if session is not None else None
        try:
            first = self._queue.get(timeout=idle)
        except queue.Empty:
            return []
        if first is None:
            return None
        group = [first]
        while len(group) < MAX_GROUP and not group[-1].takeover and not self._queue.empty():
            request = self._queue.get_nowait()  # nobody else takes from it
            if request is None:
                self._queue.put(None)
                break
            group.append(request)
        return group

    def _serve_in_turn(self, session: Session, group: list[AnyRequest]) -> None:
        turn = self.turn
        if not turn.acquire(timeout=POLITE):
            # Whoever has it was interrupted: by what waits for us, or for good.
            turn = self.turn = threading.RLock()
            turn.acquire()
        try:
            self._serve_group(session, group)
        finally:
            turn.release()

    def _serve_group(self, session: Session, group: list[AnyRequest]) -> None:
        plain = [request for request in group if not request.takeover]
        if plain or not group:
            self._commit(session, plain)
            self._conclude(session, plain)
        for request in group:
            if request.takeover:
                try:
                    request.result = request.operation(session)
                except BaseException as error:
                    session.forget_uncommitted()
                    rollback(session.connection)
                    request.error = explained(error, self.path) if isinstance(error, Exception) else error
                self._conclude(session, [request])

    def _conclude(self, session: Session, group: list[AnyRequest]) -> None:
        """Answer first, then hint: who asked should not wait for others to be woken."""
        session.committed()
        deliver(group)
        self._after_commit(session)

    def _commit(self, session: Session, group: list[AnyRequest]) -> None:
        try:
            session.execute(self._begin)
        except apsw.Error as error:
            for request in group:
                request.error = explained(error, self.path)
            session.postpone_flush()
            return
        try:
            for request in group:
                request.result = request.operation(session)
            session.flush_absorbed()
            session.execute("commit")
        except Exception as error:
            session.forget_uncommitted()
            with suppress(apsw.Error):
                rollback(session.connection)
            self._commit_one_by_one(session, group, error)

    def _commit_one_by_one(self, session: Session, group: list[AnyRequest], error: Exception) -> None:
        """The group failed: run its operations again, each in a commit of its own."""
        match group:
            case []:
                session.postpone_flush()
            case [guilty]:
                guilty.error = explained(error, self.path)
            case _:
                for request in group:
                    self._commit(session, [request])
                    session.committed()
                    self._after_commit(session)

    def _fail(self, group: list[AnyRequest], error: BaseException) -> None:
        for request in group:
            request.error = explained(error, self.path) if isinstance(error, Exception) else error
        deliver(group)

    def _refuse_the_rest(self) -> None:
        with suppress(queue.Empty):
            while True:
                request = self._queue.get_nowait()
                if request is not None:
                    self._fail([request], StoreClosed(f"Store {self.path} has been closed."))


def deliver(group: Sequence[AnyRequest]) -> None:
    """Hand results to the threads and loops that wait for them, one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Request[Any]]] = {}
    for request in group:
        if isinstance(request, ThreadRequest):
            request.answer()
        else:
            by_loop.setdefault(request.loop, []).append(request)
    for loop, requests in by_loop.items():
        with suppress(RuntimeError):  # that loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, requests)


def _resolve(requests: list[Request[Any]]) -> None:
    for request in requests:
        if request.future.done():
            continue
        if request.error is not None:
            request.future.set_exception(request.error)
        else:
            request.future.set_result(request.result)


def _nothing(_: Session) -> None:
    return None
