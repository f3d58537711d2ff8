"""What stands for a transaction here: the end of a job, and nothing beside it.

A script is atomic within one queue, and a user's own rows are in no queue. So `complete()` ends the job and lets its chain
go on, and whatever else one would do in the block is refused, with the way to do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

from onejob.core.errors import TransactionTimeout, WrongCall, shown
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.core.lifecycle import Settlement
from onejob.loops import outlast
from onejob.store import SettleReply


class Settles(Protocol):
    """The store, as far as it is needed here."""

    async def settle(self, done: Sequence[Settlement], *, now: int | None = None) -> SettleReply:
        """As `Store.settle`."""
        ...


class ValkeyTransaction:
    """A block in which nothing but the job's own end is written."""

    def __init__(self, store: Settles, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._until = 0.0

    async def __aenter__(self) -> Self:
        self._until = asyncio.get_running_loop().time() + self._timeout
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Refused: there is no database."""
        raise WrongCall(
            f"{shown(statement)} cannot be run in the store's transaction: a store on Valkey has no database, so your rows "
            "and a job cannot be one commit. Write your rows on a connection of your own before the job ends, keyed by "
            "current_job().idempotency_key, so that doing it twice is harmless; or use a store on PostgreSQL or SQLite."
        )

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """Refused: a script writes to one queue."""
        self._refuse_enqueue()

    async def settle(self, done: Settlement, *, now: int | None = None) -> SettleReply:
        """End the attempt."""
        if asyncio.get_running_loop().time() > self._until:
            raise TransactionTimeout(
                f"The block took longer than its timeout of {self._timeout:g} s, and nothing of it is stored. Do slow "
                "work before the block."
            )
        # This is the commit: it cannot be called back, so whoever cancels us waits until it is known how it went.
        settling = asyncio.ensure_future(self._store.settle([done], now=now))
        cancelled = await outlast(settling)
        if cancelled is not None and (task := asyncio.current_task()) is not None:
            task.uncancel()
            task.cancel()  # once more, for what comes behind us
        return settling.result()

    def _refuse_enqueue(self) -> NoReturn:
        raise WrongCall(
            "Nothing can be enqueued inside app.transaction() or complete() on a store on Valkey, which has no transactions: "
            "enqueue outside of the block, under a key that makes it harmless to repeat; or let the chain go on with "
            "current_job().continue_with(…), which is one step with the job's end; or use a store on PostgreSQL or SQLite."
        )
