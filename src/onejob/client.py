"""The client: gets calls into the store and results out of it, from any loop, thread or forked child.

Everything is written once, as coroutines; sync calls run them on a private loop thread, but for the one that enqueues a job,
which goes straight to a store that takes it from a thread. Concurrent enqueues share round trips through a batcher per event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from onejob.background import BackgroundLoop, closed, outcome, refuse_in_loop
from onejob.batcher import Batcher
from onejob.core.errors import (
    InvalidOption,
    KeyBusy,
    SchemaMismatch,
    StoreBusy,
    StoreClosed,
    StoreFull,
    WrongCall,
    shown,
)
from onejob.core.job import ChainId, JobId, NewJob
from onejob.core.judge import Answer, Outcome
from onejob.core.options import MAX_BULK
from onejob.current import running_job
from onejob.explain import Explanation
from onejob.hooks import Hooks
from onejob.ids import new_id, new_ids
from onejob.logs import event, logger
from onejob.operations import explain_one_call, release_one_call, revoke_one_call
from onejob.plans import Call
from onejob.receipt import Receipt, in_words, lane_in_words, refusal
from onejob.results import await_last, result_of
from onejob.store import Amended, Direct, JobStore, Joined
from onejob.transactions import open_transaction

R = TypeVar("R")
T = TypeVar("T")
SLOW = 0.3
"""Seconds after which single calls no longer wait for those before them."""


class Client:
    """One app's way to its store."""

    def __init__(
        self,
        make_store: Callable[[], JobStore],
        hooks: Hooks,
        *,
        clock: Callable[[], int],
        result_type: Callable[[str], Any] = lambda _: Any,
    ) -> None:
        """`result_type` is what a task returns, by its name; `Any` for one that is not known."""
        self._make_store = make_store
        self._clock = clock
        self._result_type = result_type
        self._closed = False
        self.hooks = hooks
        self._start_afresh()
        _clients.add(self)

    @property
    def store(self) -> JobStore:
        """The store, made on first use."""
        store = self._store
        if store is None:
            made = self._make_store()
            with self._lock:
                if self._closed:
                    raise StoreClosed("This app has been closed; enter it again (`with app:`) to reopen it.")
                store = self._store = self._store or made
                self._direct = store if isinstance(store, Direct) else None
        return store

    @property
    def background(self) -> BackgroundLoop:
        """The private loop, started on first use."""
        background = self._background
        if background is None:
            made = BackgroundLoop()
            with self._lock:
                is_closed = self._closed
                background = self._background = None if is_closed else self._background or made
            if background is not made:
                made.stop()
            if background is None:
                raise closed()
        return background

    def enqueue(self, call: Call[R], connection: object = None) -> Receipt[R]:
        """Enqueue one call, from a thread without an event loop; or on a connection of the user's, who may block his."""
        if connection is None:
            refuse_in_loop("await {}.aenqueue(…)", call.planner.task)
        if not self.hooks.watch_enqueue:
            return self._receipt(call, self._ask_from_thread(self._new_job(call), connection))
        self.hooks.ask_in_thread((call,), self.background)
        answer = self._ask_from_thread(self._new_job(call), connection)
        self.hooks.tell_in_thread((Receipt(answer, call, self),), self.background)
        return self._receipt(call, answer)

    async def aenqueue(self, call: Call[R], connection: object = None) -> Receipt[R]:
        """Enqueue one call; whatever is enqueued at the same time shares its round trip."""
        if not self.hooks.watch_enqueue:
            return self._receipt(call, await self._ask(self._new_job(call), connection))
        await self.hooks.ask((call,))
        answer = await self._ask(self._new_job(call), connection)
        await self.hooks.tell((Receipt(answer, call, self),))
        return self._receipt(call, answer)

    def enqueue_many(self, calls: Iterable[Call[Any]], connection: object = None) -> list[Receipt[Any]]:
        """Enqueue any number of calls, in order, from a thread; see `enqueue`."""
        if connection is None:
            refuse_in_loop("await app.aenqueue_many(…)")
        checked, hooks = _checked(calls), self.hooks
        if hooks.watch_enqueue:
            hooks.ask_in_thread(checked, self.background)
        if connection is None:
            receipts = self.background.call(self._enqueue_all(checked))
        else:
            receipts = self._enqueue_joined(checked, self._join(connection))
        if hooks.watch_enqueue:
            hooks.tell_in_thread(receipts, self.background)
        return receipts

    async def aenqueue_many(
        self, calls: Iterable[Call[Any]], connection: object = None
    ) -> list[Receipt[Any]]:
        """Enqueue any number of calls, in order."""
        checked, hooks = _checked(calls), self.hooks
        if hooks.watch_enqueue:
            await hooks.ask(checked)
        receipts = await self._enqueue_all(checked, connection)
        if hooks.watch_enqueue:
            await hooks.tell(receipts)
        return receipts

    def result(self, receipt: Receipt[R], timeout: float | None) -> R:
        """See `Receipt.result`."""
        return self.call(self.aresult(receipt, timeout), instead="await receipt.aresult(…)")

    async def aresult(self, receipt: Receipt[R], timeout: float | None) -> R:
        """See `Receipt.aresult`."""
        inside = open_transaction(self.store) is not None
        last = await await_last(self.store, receipt, timeout, uncommitted=inside)
        return result_of(last, receipt, self._result_type)

    def explain_call(self, call: Call[Any]) -> Explanation:
        """See `Sender.explain`."""
        return self.call(self.aexplain_call(call), instead="await task.aexplain(…)")

    async def aexplain_call(self, call: Call[Any]) -> Explanation:
        """See `Sender.explain`."""
        return await explain_one_call(self.store, call)

    def release_call(self, call: Call[Any]) -> JobId | None:
        """See `Sender.release`."""
        return self.call(self.arelease_call(call), instead="await task.arelease(…)")

    async def arelease_call(self, call: Call[Any]) -> JobId | None:
        """See `Sender.release`."""
        return await release_one_call(self.store, call)

    def revoke_call(self, call: Call[Any]) -> Amended:
        """See `Sender.revoke`."""
        return self.call(self.arevoke_call(call), instead="await task.arevoke(…)")

    async def arevoke_call(self, call: Call[Any]) -> Amended:
        """See `Sender.revoke`."""
        return await revoke_one_call(self.store, call)

    def call(self, coroutine: Coroutine[Any, Any, T], *, instead: str) -> T:
        """Run a coroutine for a thread; inside an event loop, refuse and name the call to use instead."""
        try:
            refuse_in_loop(instead)
            background = self.background
        except BaseException:
            coroutine.close()
            raise
        return background.call(coroutine)

    def reopen(self) -> None:
        """Allow a closed client to be used again."""
        self._closed = False

    def close(self) -> None:
        """Let calls under way end, then let go of the store and the private loop."""
        refuse_in_loop("await app.aclose()")
        store, background = self._let_go()
        if store is not None:
            # On a loop of its own: at exit no thread may be started any more.
            with contextlib.closing(asyncio.new_event_loop()) as loop:
                loop.run_until_complete(store.close())
        if background is not None:
            background.stop()

    async def aclose(self) -> None:
        """As `close`, in async code."""
        store, background = self._let_go()
        if store is not None:
            await store.close()
        if background is not None:
            await asyncio.to_thread(background.stop)

    def after_fork(self) -> None:
        """In a forked child: leave everything inherited alone, for ever, and start afresh."""
        import ctypes

        for inherited in (self._store, self._background):
            if inherited is not None:
                # Never collected, not even at exit: closing it would act on what the parent still uses.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
        self._start_afresh()

    def _start_afresh(self) -> None:
        # Nothing is made under it, and its thread may come twice: a signal handler may enqueue in the midst of the first call.
        self._lock = threading.RLock()
        self._store: JobStore | None = None
        self._direct: Direct | None = None
        self._background: BackgroundLoop | None = None
        self._batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, Batcher[NewJob, Answer]] = (
            WeakKeyDictionary()
        )
        self._last: tuple[asyncio.AbstractEventLoop, Batcher[NewJob, Answer]] | None = None

    def _let_go(self) -> tuple[JobStore | None, BackgroundLoop | None]:
        with self._lock:
            held = self._store, self._background
            self._closed = True
            self._store = self._direct = self._background = self._last = None
            self._batchers.clear()
        return held

    def _new_job(self, call: Call[Any]) -> NewJob:
        return call.planner.new_job(call, new_id(), _caller(), self._clock)

    def _ask(self, job: NewJob, connection: object) -> Awaitable[Answer]:
        if connection is not None:
            return _one(self._join(connection).aenqueue, job)
        transaction = open_transaction(self._store)
        return self._batcher().put(job) if transaction is None else _one(transaction.enqueue, job)

    def _ask_from_thread(self, job: NewJob, connection: object) -> Answer:
        if connection is not None:
            return self._join(connection).enqueue([job], self._wait)[0]
        transaction = open_transaction(self._store)
        if transaction is not None:
            return self.background.call(_one(transaction.enqueue, job))
        store, direct = self.store, self._direct
        if direct is not None and (answer := direct.enqueue_from_thread(job)) is not None:
            return answer
        answered: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        loop = store.loop() or self.background.loop  # one thread less to go through
        try:
            loop.call_soon_threadsafe(self._put, job, answered)
        except RuntimeError:
            raise closed() from None
        return outcome(answered)

    def _put(self, job: NewJob, answered: concurrent.futures.Future[Answer]) -> None:
        try:
            self._batcher().put_for(job, answered)
        except Exception as error:
            answered.set_exception(error)

    def _batcher(self) -> Batcher[NewJob, Answer]:
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0] is loop:
            return last[1]
        made = Batcher(self.store.enqueue, limit=MAX_BULK, may_be_one=_may_be_one, slow=SLOW)
        with self._lock:  # loops of other threads come and go
            for other in [known for known in self._batchers if known.is_closed()]:
                del self._batchers[other]  # a batcher holds its loop, so it would not go by itself
            batcher = self._batchers.setdefault(loop, made)
        self._last = (loop, batcher)
        return batcher

    async def _enqueue_all(self, calls: Sequence[Call[Any]], connection: object = None) -> list[Receipt[Any]]:
        transaction = open_transaction(self._store)
        enqueue = self.store.enqueue if transaction is None else transaction.enqueue
        if connection is not None:
            enqueue = self._join(connection).aenqueue
        answers: list[Answer] = []
        for jobs in self._new_jobs(calls):
            answers += await enqueue(jobs)
        return self._receipts(calls, answers)

    def _enqueue_joined(self, calls: Sequence[Call[Any]], joined: Joined) -> list[Receipt[Any]]:
        answers: list[Answer] = []
        for jobs in self._new_jobs(calls):
            answers += joined.enqueue(jobs, self._wait)
        return self._receipts(calls, answers)

    def _new_jobs(self, calls: Sequence[Call[Any]]) -> Iterator[list[NewJob]]:
        """The jobs of the calls, as many at a time as a store takes."""
        caller, clock = _caller(), self._clock
        for start in range(0, len(calls), MAX_BULK):
            chunk = calls[start : start + MAX_BULK]
            ids = new_ids(len(chunk))
            yield [call.planner.new_job(call, id, caller, clock) for call, id in zip(chunk, ids, strict=True)]

    def _join(self, connection: object) -> Joined:
        if open_transaction(self._store) is not None:
            raise WrongCall(
                "connection=… was given inside app.transaction() or complete(), which is a transaction of its own, and two do "
                "not commit as one: leave connection=… out to enqueue in the block's, or do it outside of the block."
            )
        return self.store.join(connection)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.background.call(coroutine)

    def _receipts(self, calls: Sequence[Call[Any]], answers: Sequence[Answer]) -> list[Receipt[Any]]:
        receipts = [Receipt(answer, call, self) for answer, call in zip(answers, calls, strict=True)]
        for receipt in receipts:
            if receipt.former_lane is not None:
                log_lane(receipt)
        if logger.isEnabledFor(logging.INFO):
            for receipt in receipts:
                _log(receipt)
        return receipts

    def _receipt(self, call: Call[R], answer: Answer) -> Receipt[R]:
        receipt = Receipt(answer, call, self)
        if logger.isEnabledFor(logging.INFO):
            _log(receipt)
        if answer.former_lane is not None:
            log_lane(receipt)
        if answer.outcome is Outcome.REJECTED:
            raise refusal(receipt)
        return receipt


async def _one(enqueue: Callable[[list[NewJob]], Awaitable[list[Answer]]], job: NewJob) -> Answer:
    return (await enqueue([job]))[0]


def _checked(calls: Iterable[Call[Any]]) -> list[Call[Any]]:
    if not isinstance(cast("object", calls), Iterable):
        raise InvalidOption(
            f"enqueue_many takes a list of calls made with task.job(…), not {shown(calls)}; nothing was stored."
        )
    listed = list(cast("Iterable[object]", calls))
    for index, call in enumerate(listed):
        if type(call) is not Call:
            raise InvalidOption(
                f"enqueue_many takes calls made with task.job(…), but item {index} is {shown(call)}; "
                "nothing was stored."
            )
    return cast("list[Call[Any]]", listed)


def _caller() -> ChainId | None:
    job = running_job()
    return None if job is None else job.chain


def _may_be_one(error: Exception) -> bool:
    """True for an error that a single item of a batch may have caused."""
    if isinstance(error, KeyBusy):
        return True
    return not isinstance(error, (StoreBusy, StoreFull, StoreClosed, SchemaMismatch, OSError))


def _log(receipt: Receipt[Any]) -> None:
    fields = {"job": receipt.id, "task": receipt.task, "queue": receipt.queue, "key": receipt.key}
    text = f"{in_words(receipt)}, task {receipt.task}"
    event(logger, logging.INFO, f"job.{receipt.outcome}", text, outcome=str(receipt.outcome), **fields)


def log_lane(receipt: Receipt[Any]) -> None:
    """Say that a call has changed the limits of its lane."""
    text = f"{lane_in_words(receipt)}: the newest job of a lane sets its limits (task {receipt.task})"
    fields = {"job": receipt.id, "task": receipt.task, "queue": receipt.queue}
    event(logger, logging.WARNING, "lane.changed", text, lane=receipt.lane, **fields)


def _close_all() -> None:
    for client in list(_clients):
        client.close()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


_clients: WeakSet[Client] = WeakSet()
atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
