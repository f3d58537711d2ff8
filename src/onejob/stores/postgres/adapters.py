"""A user's own connection, whatever his driver: run a statement with `$1, $2, …` and give its rows as tuples.

asyncpg, psycopg 3 and SQLAlchemy 2 over either of them. A driver is recognised only if it is loaded, so nothing is
imported here. What a driver raises comes out as it is: his code knows how to catch it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from onejob.core.errors import InvalidOption, WrongCall
from onejob.stores.postgres.steps import Row

SUPPORTED: Final = (
    "a connection of asyncpg or psycopg 3, or a Connection, Session, AsyncConnection or AsyncSession of SQLAlchemy 2 "
    "over one of these drivers"
)
_IDLE: Final = 0
"""What psycopg says of a connection without a transaction."""
_AT_ONCE: Final[dict[str, Any]] = {"stream_results": False, "yield_per": None}
"""For SQLAlchemy: no cursor on the server, whatever the user has chosen for his own statements. It takes nothing but queries."""
_PARAMETER = re.compile(r"\$(\d+)")


class AsyncpgConnection:
    """asyncpg's connection, or what its pool hands out in its place."""

    kind: Final = "asyncpg"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def enter(self) -> object:
        """Make sure of a transaction; returns the driver's own connection."""
        if self._connection.is_closed():
            raise WrongCall(
                "The connection in using(connection=…) is closed: open another, and a transaction on it."
            )
        if not self._connection.is_in_transaction():
            raise _no_transaction("open one with `async with connection.transaction():`")
        # A pool makes a new proxy each time, and none that can be remembered.
        return getattr(self._connection, "_con", self._connection)

    async def execute(self, text: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement and return its rows."""
        return [tuple(row) for row in await self._connection.fetch(text, *parameters)]


class PsycopgConnection:
    """psycopg's connection for sync code. Outside of autocommit mode its first statement opens a transaction."""

    kind: Final = "psycopg"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def enter(self) -> object:
        """Make sure of a transaction; returns the driver's own connection."""
        _refuse_autocommit(self._connection, "open one with `with connection.transaction():`")
        return self._connection

    def execute(self, text: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement and return its rows."""
        psycopg = sys.modules["psycopg"]
        # Of the plain kind, whatever cursors and rows the user has chosen for his own statements.
        with psycopg.Cursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(translated(text), named(parameters))
            try:
                return _plain(cursor.fetchall())
            except psycopg.ProgrammingError as error:
                return _no_rows(cursor, error)


class PsycopgAsyncConnection:
    """psycopg's connection for async code."""

    kind: Final = "psycopg"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def enter(self) -> object:
        """Make sure of a transaction; returns the driver's own connection."""
        _refuse_autocommit(self._connection, "open one with `async with connection.transaction():`")
        return self._connection

    async def execute(self, text: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement and return its rows."""
        psycopg = sys.modules["psycopg"]
        async with psycopg.AsyncCursor(self._connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(translated(text), named(parameters))
            try:
                return _plain(await cursor.fetchall())
            except psycopg.ProgrammingError as error:
                return _no_rows(cursor, error)


class AlchemyConnection:
    """SQLAlchemy's connection; it opens a transaction by itself when it has none."""

    kind: Final = "SQLAlchemy"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._dollars = False

    def enter(self) -> object:
        """Make sure of a driver that we know and of a transaction; returns the driver's own connection."""
        dialect = self._connection.dialect
        if dialect.name != "postgresql" or dialect.driver not in ("asyncpg", "psycopg"):
            raise _unknown(f"SQLAlchemy's over {dialect.name}+{dialect.driver}")
        if isinstance(self._connection.get_transaction(), sys.modules["sqlalchemy"].TwoPhaseTransaction):
            raise WrongCall(
                "This transaction is to be prepared (twophase=True), and until somebody decides on it nobody could start the jobs "
                "that it touches: enqueue once it is committed, or in a transaction of one phase."
            )
        self._dollars = dialect.driver == "asyncpg"
        pooled = self._connection.connection
        if pooled.dbapi_connection.autocommit:
            raise _no_transaction('give it another isolation level than "AUTOCOMMIT"')
        return pooled.driver_connection

    def execute(self, text: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement and return its rows."""
        if self._dollars:
            result = self._connection.exec_driver_sql(text, tuple(parameters), _AT_ONCE)
        else:
            result = self._connection.exec_driver_sql(translated(text), named(parameters), _AT_ONCE)
        return _plain(result.all()) if result.returns_rows else []


class AlchemySession(AlchemyConnection):
    """SQLAlchemy's session: what it flushes and what is enqueued share its transaction."""

    def __init__(self, session: Any) -> None:
        super().__init__(None)
        self._session = session

    def enter(self) -> object:
        """As its connection."""
        self._connection = self._session.connection()
        return super().enter()


class AlchemyAsyncConnection:
    """SQLAlchemy's connection for async code: the sync one, run as SQLAlchemy runs it there."""

    kind: Final = "SQLAlchemy"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._inner = AlchemyConnection(None)

    async def enter(self) -> object:
        """As the sync one."""

        def inside(connection: Any) -> object:
            self._inner = AlchemyConnection(connection)
            return self._inner.enter()

        return await self._connection.run_sync(inside)

    async def execute(self, text: str, parameters: Sequence[Any]) -> list[Row]:
        """Run one statement and return its rows."""

        def inside(_: Any) -> list[Row]:
            return self._inner.execute(text, parameters)

        return await self._connection.run_sync(inside)


class AlchemyAsyncSession(AlchemyAsyncConnection):
    """SQLAlchemy's session for async code."""

    def __init__(self, session: Any) -> None:
        super().__init__(None)
        self._session = session

    async def enter(self) -> object:
        """As its connection."""
        self._connection = await self._session.connection()
        return await super().enter()


SyncAdapter: TypeAlias = PsycopgConnection | AlchemyConnection
AsyncAdapter: TypeAlias = AsyncpgConnection | PsycopgAsyncConnection | AlchemyAsyncConnection
Adapter: TypeAlias = SyncAdapter | AsyncAdapter

_ADAPTERS: Final[tuple[tuple[str, str, type[Adapter]], ...]] = (
    ("asyncpg", "Connection", AsyncpgConnection),
    ("psycopg", "Connection", PsycopgConnection),
    ("psycopg", "AsyncConnection", PsycopgAsyncConnection),
    ("sqlalchemy", "Connection", AlchemyConnection),
    ("sqlalchemy.orm", "Session", AlchemySession),
    ("sqlalchemy.orm", "scoped_session", AlchemySession),
    ("sqlalchemy.ext.asyncio", "AsyncConnection", AlchemyAsyncConnection),
    ("sqlalchemy.ext.asyncio", "AsyncSession", AlchemyAsyncSession),
    ("sqlalchemy.ext.asyncio", "async_scoped_session", AlchemyAsyncSession),
)


def adapter_of(connection: object) -> Adapter:
    """How to run statements on a connection; raises `InvalidOption` for what is none that we know."""
    for module, name, adapter in _ADAPTERS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(connection, kind):
            return adapter(connection)
    # Never the thing itself: it may be a URL with a password.
    raise _unknown(f"of type {type(connection).__module__}.{type(connection).__qualname__}")


def wrong_colour(adapter: Adapter) -> WrongCall:
    """What to raise when async code is wanted of a sync connection, or the other way round."""
    if isinstance(adapter, SyncAdapter):
        return WrongCall(
            f"This connection of {adapter.kind} is for sync code: write `task.using(connection=…).enqueue(…)` or "
            "`app.enqueue_many(…, connection=…)`, without await."
        )
    return WrongCall(
        f"This connection of {adapter.kind} is for async code: write `await task.using(connection=…).aenqueue(…)` or "
        "`await app.aenqueue_many(…, connection=…)`."
    )


@cache
def translated(text: str) -> str:
    """A statement with psycopg's placeholders: `%(p1)s` for `$1`."""
    return _PARAMETER.sub(r"%(p\1)s", text.replace("%", "%%"))


def named(parameters: Sequence[Any]) -> dict[str, Any]:
    """The parameters by the names that `translated` gives them."""
    return {f"p{number}": value for number, value in enumerate(parameters, 1)}


def _plain(rows: Sequence[Sequence[Any]]) -> list[Row]:
    """Rows as tuples, in which bytes are bytes: psycopg may give a view of its buffer."""
    return [tuple(bytes(value) if type(value) is memoryview else value for value in row) for row in rows]


def _no_rows(cursor: Any, error: Any) -> list[Row]:
    """A statement that has none; in a pipeline that is known only once rows were asked for."""
    if error.sqlstate is None and cursor.description is None:
        return []
    raise error


def _refuse_autocommit(connection: Any, remedy: str) -> None:
    if connection.autocommit and connection.info.transaction_status == _IDLE:
        raise _no_transaction(remedy)


def _no_transaction(remedy: str) -> WrongCall:
    return WrongCall(
        f"No transaction is open on this connection, so there is none to join, and each statement would commit by "
        f"itself: {remedy}, or leave connection=… out, as a plain enqueue commits at once anyway."
    )


def _unknown(what: str) -> InvalidOption:
    return InvalidOption(
        f"connection=… is {what}, and jobs cannot join that: give {SUPPORTED}; the connection itself, not its pool or "
        "engine."
    )
