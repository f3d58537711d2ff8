"""The user's own statements and enqueues in one commit, on a connection of the store's.

The block is bounded in time: past that it is rolled back, and every later use of it raises. After a statement that
failed PostgreSQL takes no other in the same transaction; what is ours runs in a savepoint, so that a call that was
refused leaves the rest usable.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from onejob.core.errors import (
    InvalidOption,
    OnejobError,
    StoreUnavailable,
    TransactionTimeout,
    WrongCall,
    shown,
)
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.core.lifecycle import Settlement
from onejob.store import SettleReply
from onejob.stores.postgres.driver import LOCK_TIMEOUT, Link, drive
from onejob.stores.postgres.engine import Engine
from onejob.stores.postgres.enqueue import enqueue
from onejob.stores.postgres.failures import CONTENTION, explained, is_lost, sqlstate
from onejob.stores.postgres.parameters import other_placeholder, positional
from onejob.stores.postgres.settle import settle
from onejob.stores.postgres.steps import Steps
from onejob.stores.postgres.work import Work

T = TypeVar("T")
ENDING: Final = frozenset({"begin", "start", "commit", "end", "rollback", "abort", "prepare"})
_LEADING = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|;)*([a-z]*)(?:\s+(?:work\s+|transaction\s+)?(to|transaction)\b)?",
    re.I | re.S,
)
_NOTHING_STORED: Final = "it was rolled back, and nothing of it is stored"
_FAILED: Final = "25P02"
_EXPECTS: Final = "the server expects"
"""What asyncpg says of so many parameters."""
_NOT_UNDERSTOOD: Final = frozenset({"42601", "42703", "42883", "42P18", "42P02"})
"""Bad syntax, or no such column, operator or parameter: what PostgreSQL says of `?` and `%s`, among other things."""
_TRACES = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*(?:set\s+(?!local\b)|reset\b|discard\b|listen\b|load\b|prepare\b|deallocate\b|do\b|call\b)|"
    r".*(?:\btemp(?:orary)?\b|\bset_config\b|advisory_lock|\bwith\s+hold\b)",
    re.IGNORECASE | re.DOTALL,
)
"""What outlives a transaction: settings, locks and tables of the session, which the next user must not inherit."""


class PostgresTransaction:
    """One open transaction: what is asked of it runs one by one, in the store's own event loop."""

    def __init__(self, engine: Engine, timeout: float, clock: Callable[[], int] | None) -> None:
        self._engine = engine
        self._timeout = timeout
        self._clock = clock
        self._link: Link | None = None
        self._lock: asyncio.Lock | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over: Exception | None = None
        self._works: list[Work] = []
        self._leaves_traces = False
        self._busy: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> PostgresTransaction:
        await self._engine.at_home(self._begin)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ending = self._engine.home.run(self._commit if kind is None else self._roll_back)
        if kind is None:
            await ending
            return
        # An error is on its way: that of rolling back must not hide it, nor a second cancellation leave it open.
        await asyncio.shield(asyncio.ensure_future(ending))

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; parameters are `$1`, `$2`, …, or `:name` with a mapping."""
        if word := _ends_it(statement):
            raise WrongCall(
                f"{word} inside app.transaction() would end it behind its back: leave the block to commit, raise to "
                "roll back."
            )
        text, values = positional(statement, parameters)
        self._leaves_traces |= _TRACES.match(text) is not None
        try:
            return await self._engine.home.run(lambda: self._do(lambda link: _fetch(link, text, values)))
        except Exception as error:
            if _EXPECTS in str(error):
                raise InvalidOption(f"The parameters do not fit {shown(statement)}: {error}.") from None
            if not parameters or sqlstate(error) not in _NOT_UNDERSTOOD:
                raise
            mark = other_placeholder(text)
            if mark is None:
                raise
            what = f"{mark} needs a dict" if mark.startswith(":") else f"{mark} is no placeholder there"
            raise WrongCall(
                f"PostgreSQL does not understand {shown(statement)} ({error}): {what}. Write :name and pass a dict, which works on "
                "SQLite, too, or $1, $2, … and a sequence. The transaction is rolled back."
            ) from error

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        """Accept newcomers as part of this transaction."""
        return await self._operate(lambda work: enqueue(work, jobs), now)

    async def settle(self, done: Settlement, *, now: int | None = None) -> SettleReply:
        """End an attempt as part of this transaction."""
        token = os.urandom(8)  # of a claim that is not asked for
        return await self._operate(lambda work: settle(work, [done], None, token), now)

    async def _operate(self, make: Callable[[Work], Steps[T]], now: int | None) -> T:
        if now is None and self._clock is not None:
            now = self._clock()
        work = Work(now, foreign=True)
        result = await self._engine.home.run(lambda: self._do(lambda link: self._whole(link, make(work))))
        self._works.append(work)
        return result

    async def _begin(self) -> None:
        self._lock = asyncio.Lock()

        async def begin(link: Link, _: bool) -> Link:
            await link.execute(f"{link.begin}; {_bounds(self._timeout)}")
            return link

        engine = self._engine
        self._link = await engine.tries(begin, engine.transactions, keep=True)
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire)

    async def _do(self, use: Callable[[Link], Coroutine[Any, Any, T]]) -> T:
        assert self._lock is not None
        async with self._lock:
            link = self._open_link()
            self._busy = asyncio.current_task()
            try:
                result = await use(link)
            except asyncio.CancelledError:
                self._drop(self._over or _rolled_back("a statement of it was cancelled"))
                if isinstance(self._over, TransactionTimeout):
                    raise self._over from None
                raise
            except Exception as error:
                if is_lost(error) or link.connection.is_closed():
                    self._drop(self._lost(error, _NOTHING_STORED))
                    raise self._over or error from error
                raise
            finally:
                self._busy = None
            if not link.connection.is_in_transaction():
                self._drop(_rolled_back("one of its statements ended it; leave that to the block"))
                raise self._over or AssertionError
            return result

    async def _whole(self, link: Link, steps: Steps[T]) -> T:
        """Do all of it, or nothing if it raises: whoever catches the error may still commit the rest."""
        try:
            await link.execute(f"savepoint onejob_operation; set local lock_timeout = {LOCK_TIMEOUT}")
        except Exception as error:
            steps.close()
            raise _explained_failure(error) from error
        try:
            result = await drive(link, steps, joined=True)
        except Exception as error:
            if not link.connection.is_closed():
                await link.execute("rollback to onejob_operation; release onejob_operation")
            if isinstance(error, OnejobError) or sqlstate(error) in CONTENTION:
                raise  # a deadlock concerns his whole transaction: he begins it again
            raise explained(error, self._engine.address) from error
        await link.execute(f"release onejob_operation; {_bounds(self._timeout)}")
        return result

    async def _commit(self) -> None:
        assert self._lock is not None
        async with self._lock:
            link = self._open_link()
            if link.connection.is_closed():
                lost = self._lost(ConnectionError("it was closed"), _NOTHING_STORED)
                self._drop(lost)
                raise lost
            self._busy = asyncio.current_task()
            try:
                status = await link.execute("commit")
            except asyncio.CancelledError:
                self._drop(self._over or _rolled_back("its commit was cancelled"))
                if isinstance(self._over, TransactionTimeout):
                    raise self._over from None
                raise
            except Exception as error:
                found = explained(error, self._engine.address)
                if is_lost(error):
                    found = self._lost(error, "it is not known whether it was committed")
                self._drop(found)
                raise found from error
            finally:
                self._busy = None
            self._finish(OnejobError("This transaction has ended: open a new one with app.transaction()."))
        if status != "COMMIT":
            raise _rolled_back("a statement of it had failed, after which PostgreSQL takes no other")
        for work in self._works:
            self._engine.committed(work)

    async def _roll_back(self) -> None:
        assert self._lock is not None
        async with self._lock:
            link = self._link
            if link is None:
                return
            try:
                await link.execute("rollback")
            except Exception:  # without its connection it is rolled back as well
                self._drop(_rolled_back("it was left by an error"))
                return
            except asyncio.CancelledError:
                self._drop(_rolled_back("it was left by an error"))
                raise
            self._finish(_rolled_back("it was left by an error"))

    def _lost(self, error: Exception, outcome: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"The connection to PostgreSQL at {self._engine.address.place} was lost in a transaction ({error}): {outcome}."
        )

    def _open_link(self) -> Link:
        if self._over is not None:
            raise self._over
        assert self._link is not None
        return self._link

    def _finish(self, over: Exception) -> None:
        """It has ended: its connection is fit for the next, unless it left something there."""
        if self._leaves_traces:
            self._drop(over)
            return
        link, self._link = self._link, None
        self._over = over
        if self._timer is not None:
            self._timer.cancel()
        if link is not None:
            self._engine.transactions.give_back(link)

    def _drop(self, over: Exception) -> None:
        """It has ended somehow: nobody else may have its connection."""
        link, self._link = self._link, None
        self._over = over
        if self._timer is not None:
            self._timer.cancel()
        if link is not None:
            self._engine.transactions.drop(link)

    def _expire(self) -> None:
        self._over = TransactionTimeout(
            f"The transaction was open for more than {self._timeout:g} s and was rolled back: keep slow work "
            "outside of it, or give the block a longer timeout=…."
        )
        if self._busy is not None:
            self._busy.cancel()
        else:
            self._drop(self._over)


async def _fetch(link: Link, text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    try:
        return [tuple(row) for row in await link.connection.fetch(text, *values)]
    except Exception as error:
        raise _explained_failure(error) from error


def _explained_failure(error: Exception) -> Exception:
    """A user's errors are his, but for the one that only says that there was another before."""
    if sqlstate(error) != _FAILED:
        return error
    return _rolled_back("a statement of it had failed, after which PostgreSQL takes no other")


def _rolled_back(why: str) -> OnejobError:
    return OnejobError(f"This transaction was rolled back, and nothing of it is stored: {why}.")


def _bounds(timeout: float) -> str:
    """Inside a user's block, his statements may wait and run for as long as the block may."""
    milliseconds = max(1, min(round(timeout * 1000), 2**31 - 1))
    idle = min(milliseconds + 5_000, 2**31 - 1)
    return (
        f"set local lock_timeout = {milliseconds}; set local statement_timeout = {milliseconds}; "
        f"set local idle_in_transaction_session_timeout = {idle}"
    )


def _ends_it(statement: str) -> str | None:
    """The word by which a statement would begin or end a transaction; going back to a savepoint is none."""
    match = _LEADING.match(statement)
    word, next_word = (match[1].lower(), (match[2] or "").lower()) if match else ("", "")
    if word not in ENDING or (word == "rollback" and next_word == "to"):
        return None
    return None if word == "prepare" and next_word != "transaction" else word
