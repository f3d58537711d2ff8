"""`app.transaction()`: the user's own statements and this app's enqueues in one commit.

Which transaction an enqueue joins is a matter of context: the innermost open one of the same app. The same
object serves `async with` and `with`; the sync form keeps the transaction in one task of the private loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from onejob.background import BackgroundLoop, outcome, refuse_in_loop
from onejob.core.errors import WrongCall, shown
from onejob.core.options import Seconds, millis
from onejob.store import JobStore, Transaction

Parameters = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]
Opened: TypeAlias = AbstractAsyncContextManager[Transaction]


class Owner(Protocol):
    """Whose transactions these are."""

    @property
    def store(self) -> JobStore:
        """The store they are of."""
        ...

    @property
    def background(self) -> BackgroundLoop:
        """The loop on which the sync form runs."""
        ...


class AsyncTransaction:
    """An open transaction, in async code."""

    __slots__ = ("_calls", "_inner", "_unawaited")

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self._calls = 0
        self._unawaited: dict[int, str] = {}
        """The statements of calls that nobody has awaited yet."""

    def execute(self, statement: str, parameters: Parameters = ()) -> Coroutine[Any, Any, Rows]:
        """Run one statement and return its rows; await it.

        `:name` parameters with a dict work on SQLite and on PostgreSQL. With a sequence they are `?` on SQLite, and `$1`,
        `$2`, … on PostgreSQL.
        """
        self._calls += 1
        self._unawaited[self._calls] = statement
        return self._execute(self._calls, statement, parameters)

    def forgotten(self) -> WrongCall | None:
        """What is to be raised for a call without `await`, of which nothing has been done."""
        if not self._unawaited:
            return None
        statement = shown(next(iter(self._unawaited.values())))
        return WrongCall(
            f"tx.execute({statement}) was called in a transaction and never awaited, so it was not run: write `await "
            "tx.execute(…)`. Nothing of the transaction is stored."
        )

    async def _execute(self, call: int, statement: str, parameters: Parameters) -> Rows:
        del self._unawaited[call]
        return await self._inner.execute(statement, parameters)


class SyncTransaction:
    """An open transaction, in sync code."""

    __slots__ = ("_background", "_inner")

    def __init__(self, inner: Transaction, background: BackgroundLoop) -> None:
        self._inner = inner
        self._background = background

    def execute(self, statement: str, parameters: Parameters = ()) -> Rows:
        """Run one statement and return its rows; parameters are as in `AsyncTransaction.execute`."""
        return self._background.call(self._inner.execute(statement, parameters))


class AppTransaction:
    """What `app.transaction()` returns; open between entering and leaving the block, once."""

    def __init__(
        self, owner: Owner, timeout: Seconds, *, around: Callable[[Opened], Opened] | None = None
    ) -> None:
        """`around` wraps the store's transaction, to do something before its commit."""
        self._owner = owner
        self._around = around
        self._timeout = millis("timeout", timeout, minimum=1) / 1000
        self._outer: AppTransaction | None = None
        self._token: Token[AppTransaction | None] | None = None
        self._manager: Opened | None = None
        self._tx: AsyncTransaction | None = None
        self._held: _Held | None = None
        self._store: JobStore | None = None
        self._inner: Transaction | None = None

    def of(self, store: JobStore | None) -> Transaction | None:
        """The store's open transaction here or further out; None if there is none."""
        if self._store is store and self._inner is not None:
            return self._inner
        return None if self._outer is None else self._outer.of(store)

    async def __aenter__(self) -> AsyncTransaction:
        store = self._may_enter()
        self._manager = self._opened(store)
        tx = self._tx = AsyncTransaction(self._entered(store, await self._manager.__aenter__()))
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left()
        assert self._manager is not None
        assert self._tx is not None
        forgotten = self._tx.forgotten() if error is None else None
        if forgotten is None:
            await self._manager.__aexit__(kind, error, trace)
            return
        await self._manager.__aexit__(WrongCall, forgotten, None)
        raise forgotten

    def __enter__(self) -> SyncTransaction:
        refuse_in_loop("async with app.transaction() as tx:")
        store, background = self._may_enter(), self._owner.background
        self._held = _Held(background, self._opened(store))
        return SyncTransaction(self._entered(store, self._held.enter()), background)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left()
        assert self._held is not None
        self._held.leave(undo=error is not None)

    def _may_enter(self) -> JobStore:
        store = self._owner.store
        if self._store is not None:
            raise WrongCall("A transaction can be entered once: call app.transaction() again for the next.")
        refuse_nesting(store)
        return store

    def _opened(self, store: JobStore) -> Opened:
        made = store.transaction(self._timeout)
        return made if self._around is None else self._around(made)

    def _entered(self, store: JobStore, inner: Transaction) -> Transaction:
        self._store, self._inner = store, inner
        self._outer = _innermost.get()
        self._token = _innermost.set(self)
        return inner

    def _left(self) -> None:
        self._inner = None
        if self._token is not None:
            _innermost.reset(self._token)


def open_transaction(store: JobStore | None) -> Transaction | None:
    """The open transaction of a store that this context is in."""
    innermost = _innermost.get()
    return None if innermost is None else innermost.of(store)


def refuse_nesting(store: JobStore) -> None:
    """Raise if this context is in an open transaction of the store."""
    if open_transaction(store) is not None:
        raise WrongCall("A transaction of this app is open here already: transactions do not nest.")


class _Undo(Exception):
    """Makes a store's transaction roll back; the block's own error is already on its way."""


class _Held:
    """A store's transaction kept open by one task of the private loop, entered and left in that same task."""

    def __init__(self, background: BackgroundLoop, manager: Opened) -> None:
        self._background = background
        self._manager = manager
        self._opened: concurrent.futures.Future[Transaction] = concurrent.futures.Future()
        self._end: asyncio.Future[bool] = background.loop.create_future()
        self._task: concurrent.futures.Future[None] | None = None

    def enter(self) -> Transaction:
        """Open it."""
        self._task = asyncio.run_coroutine_threadsafe(self._keep(), self._background.loop)
        return outcome(self._opened)

    def leave(self, *, undo: bool) -> None:
        """Commit it, or roll it back."""
        assert self._task is not None
        self._background.loop.call_soon_threadsafe(self._end.set_result, undo)
        outcome(self._task)

    async def _keep(self) -> None:
        try:
            async with self._manager as inner:
                self._opened.set_result(inner)
                if await self._end:
                    raise _Undo
        except _Undo:
            return
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)


_innermost: ContextVar[AppTransaction | None] = ContextVar("onejob_transaction", default=None)
