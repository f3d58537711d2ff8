"""Another database as the source of rows, through a SQLAlchemy engine: the key bridges the gap between job and flag.

A plain engine works in threads; what is behind an async one is in `async_engine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from onejob.core.errors import InvalidOption, OnejobError
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.intake.database import RowDatabase, Statement
from onejob.intake.files import refuse_missing_file
from onejob.intake.shapes import Description, family_of
from onejob.intake.uncut import uncut
from onejob.store import Store

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from onejob.client import Client
    from onejob.intake.sources import Database

T = TypeVar("T")

_SKIPPING_LOCKED: Final = frozenset({"postgresql", "mysql", "mariadb", "oracle"})


def engine_database(database: Database, client: Client) -> RowDatabase:
    """The database that a URL or an engine names; nothing is opened yet."""
    if isinstance(database, str):
        try:
            return _behind_url(database, client)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            scheme = database.partition("://")[0]
            said = str(error).rstrip(".")
            raise InvalidOption(
                f"database={scheme}://… cannot be opened: {said}. Give a URL that SQLAlchemy knows, and install its "
                "driver."
            ) from None
    if isinstance(database, sa.Engine):
        return ThreadedDatabase(database, client)
    return _asynchronous(database, client)


class ThreadedDatabase:
    """A database behind a plain engine."""

    def __init__(self, engine: sa.Engine, client: Client) -> None:
        self._engine = engine
        self._client = client
        self.dialect = engine.dialect
        self.locks = skips_locked(engine.dialect)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[ThreadedSession]:
        """See `RowDatabase`."""
        refuse_missing_file(self._engine.url)
        try:
            connection = await _in_thread(self._engine.connect)
        except Exception as error:
            raise unopened(self._engine.url, error) from error
        try:
            yield ThreadedSession(connection, self._client.store)
            await _in_thread(connection.commit)
        finally:
            await _in_thread(connection.close)


class ThreadedSession:
    """See `Session`."""

    def __init__(self, connection: sa.Connection, store: Store) -> None:
        self._connection = connection
        self._store = store

    async def execute(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See `Session`."""
        return await _in_thread(lambda: rows_of(self._connection.execute(statement)))

    async def enqueue(self, jobs: Sequence[NewJob], now: int) -> list[Answer]:
        """See `Session`."""
        return await self._store.enqueue(jobs, now=now)

    async def tables(self) -> frozenset[str]:
        """See `Session`."""
        return await _in_thread(lambda: tables_of(self._connection))

    async def describe(self, table: str) -> Description:
        """See `Session`."""
        return await _in_thread(lambda: described(self._connection, table))


def unopened(url: sa.URL, error: Exception) -> OnejobError:
    """A database that cannot be connected to, in one line and without a password, whichever the driver."""
    place = sa.URL.create(url.drivername, host=url.host, port=url.port, database=url.database)
    original = getattr(error, "orig", None) or error
    said = " ".join(f"{type(original).__name__}: {original}".split()).rstrip(".")
    return OnejobError(
        f"The database of the rows, {place}, cannot be opened ({said}): start it, or correct database=…."
    )


def skips_locked(dialect: sa.Dialect) -> bool:
    """True if `for update skip locked` is understood."""
    return dialect.name in _SKIPPING_LOCKED


def rows_of(result: sa.CursorResult[Any]) -> list[tuple[Any, ...]]:
    """The rows that a statement returned, if it returns any."""
    return [tuple(row) for row in result] if result.returns_rows else []


def tables_of(connection: sa.Connection) -> frozenset[str]:
    """The names of all tables."""
    return frozenset(sa.inspect(connection).get_table_names())


def described(connection: sa.Connection, table: str) -> Description:
    """The columns and indexes of a table."""
    inspector = sa.inspect(connection)
    columns = {column["name"]: family_of(column["type"]) for column in inspector.get_columns(table)}
    keys = inspector.get_pk_constraint(table)["constrained_columns"]
    unique, leading = set(keys if len(keys) == 1 else ()), set(keys[:1])
    for index in inspector.get_indexes(table):
        names = [name for name in index["column_names"] if name is not None]
        leading |= set(names[:1])
        if index["unique"] and len(index["column_names"]) == 1 and not _partial(index):
            unique |= set(names)
    for constraint in inspector.get_unique_constraints(table):
        names = constraint["column_names"]
        leading |= set(names[:1])
        unique |= set(names) if len(names) == 1 else set()
    return Description(columns, frozenset(unique), frozenset(leading))


def _partial(index: Any) -> bool:
    options = cast("dict[str, Any]", index.get("dialect_options", {}))
    return any(option.endswith("_where") for option in options)


def _behind_url(text: str, client: Client) -> RowDatabase:
    """An engine for a URL; it keeps no connections, so that it can be used from any loop and after a fork."""
    url = sa.make_url(text)
    if url.get_dialect().is_async:
        from sqlalchemy.ext.asyncio import create_async_engine  # see `_asynchronous`

        return _asynchronous(create_async_engine(url, poolclass=NullPool), client)
    return ThreadedDatabase(sa.create_engine(url, poolclass=NullPool), client)


def _asynchronous(engine: AsyncEngine, client: Client) -> RowDatabase:
    from onejob.intake.async_engine import AsyncDatabase  # needs greenlet, which not everybody has

    return AsyncDatabase(engine, client)


async def _in_thread(call: Callable[[], T]) -> T:
    """Make a call in a thread, to its end: a connection is not for two."""
    return await uncut(asyncio.to_thread(call))
