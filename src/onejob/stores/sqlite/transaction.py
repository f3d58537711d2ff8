"""The user's own statements and enqueues in one commit, on the store's own connection.

The block holds the file's only writer, so it is bounded in time: past that it is rolled back, and every later
use of it raises.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onejob.core.errors import OnejobError, TransactionTimeout, WrongCall
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.core.lifecycle import Settlement
from onejob.store import SettleReply
from onejob.stores.sqlite.connect import explained, rollback
from onejob.stores.sqlite.enqueue import enqueue
from onejob.stores.sqlite.executor import Executor, Operation, Request, deliver
from onejob.stores.sqlite.parameters import rows
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.settle import settle

T = TypeVar("T")
ENDING_WORDS = frozenset({"begin", "commit", "end", "rollback"})


class SqliteTransaction:
    """One open transaction: its commands travel to the writer's thread one by one."""

    def __init__(self, executor: Executor, timeout: float) -> None:
        self._executor = executor
        self._timeout = timeout
        self._commands: queue.SimpleQueue[Request[Any]] = queue.SimpleQueue()
        self._over: OnejobError | None = None
        self._committed = False
        self._finished: asyncio.Task[bool] | None = None

    async def __aenter__(self) -> SqliteTransaction:
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        begun = Request[None](_nothing, loop, started)
        self._finished = loop.create_task(
            self._executor.run(lambda session: self._hold(session, begun), takeover=True)
        )
        try:
            await asyncio.wait({started, self._finished}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            # Whoever waited is gone: the writer must not be held for a block that will never run.
            self._commands.put(Request(_roll_back, loop, loop.create_future()))
            raise
        if not started.done():
            await self._finished
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        finished = self._finished
        assert finished is not None
        try:
            if self._over is None:
                await self._send(_commit if kind is None else _roll_back)
        except TransactionTimeout:
            pass  # raised below, unless the block has an error of its own
        finally:
            await finished
        if kind is None and not self._committed:
            raise self._over or OnejobError("The transaction was not committed.")

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        if (word := _first_word(statement)) in ENDING_WORDS:
            raise WrongCall(
                f"{word} inside app.transaction() would end it behind its back: leave the block to commit, raise to "
                "roll back."
            )
        return await self._send(lambda session: rows(session, statement, parameters))

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """Accept newcomers as part of this transaction."""
        return await self._send(lambda session: _whole(session, lambda: enqueue(session, jobs, now)))

    async def settle(self, done: Settlement, *, now: int | None = None) -> SettleReply:
        """End an attempt as part of this transaction."""
        return await self._send(lambda session: _whole(session, lambda: settle(session, [done], None, now)))

    async def _send(self, operation: Operation[Any]) -> Any:
        if self._over is not None:
            raise self._over
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._commands.put(Request(operation, loop, future))
        return await future

    def _hold(self, session: Session, begun: Request[None]) -> bool:
        """In the writer's thread: serve commands until one ends the transaction, or time is up."""
        session.connection.execute("begin immediate")
        deliver([begun])
        deadline = time.monotonic() + self._timeout
        while True:
            command = self._next(deadline)
            if command is None:
                rollback(session.connection)
                session.forget_uncommitted()
                self._expire()
                return False
            try:
                command.result = command.operation(session)
            except Exception as error:
                command.error = explained(error, self._executor.path)
            ending = command.operation in (_commit, _roll_back)
            if ending or not session.connection.in_transaction:
                self._end(session, command)
                deliver([command])
                return True
            deliver([command])

    def _end(self, session: Session, command: Request[Any]) -> None:
        """The transaction is over: by our own command, or because a statement ended it."""
        self._committed = command.operation is _commit and command.error is None
        if self._committed:
            self._over = OnejobError("This transaction has ended: open a new one with app.transaction().")
            return
        rollback(session.connection)
        session.forget_uncommitted()
        self._over = OnejobError(
            "This transaction was rolled back, and nothing of it is stored: one of its statements ended it "
            "(rollback, commit, or a conflict that rolls back). Leave that to the block."
        )

    def _next(self, deadline: float) -> Request[Any] | None:
        try:
            return self._commands.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            return None

    def _expire(self) -> None:
        self._over = TransactionTimeout(
            f"The transaction held the store's writer for more than {self._timeout:g} s and was rolled "
            "back: keep slow work outside of it, or give the block a longer timeout=…."
        )
        while True:
            try:
                late = self._commands.get_nowait()
            except queue.Empty:
                return
            late.error = self._over
            deliver([late])


def _whole(session: Session, operation: Callable[[], T]) -> T:
    """Do all of it, or nothing if it raises: whoever catches the error may still commit the rest."""
    session.execute("savepoint onejob_operation")
    try:
        result = operation()
    except BaseException:
        if session.connection.in_transaction:
            session.execute("rollback to onejob_operation")
            session.execute("release onejob_operation")
        raise
    session.execute("release onejob_operation")
    return result


def _first_word(statement: str) -> str:
    return statement.lstrip().partition(" ")[0].rstrip(";").lower()


def _nothing(_: Session) -> None:
    return None


def _commit(session: Session) -> None:
    session.connection.execute("commit")


def _roll_back(session: Session) -> None:
    rollback(session.connection)
