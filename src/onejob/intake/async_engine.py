"""A database behind an async SQLAlchemy engine, in the event loop that calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.intake.database import Statement
from onejob.intake.engine import described, rows_of, skips_locked, tables_of, unopened
from onejob.intake.files import refuse_missing_file
from onejob.intake.shapes import Description
from onejob.store import Store

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from onejob.client import Client


class AsyncDatabase:
    """See `RowDatabase`."""

    def __init__(self, engine: AsyncEngine, client: Client) -> None:
        self._engine = engine
        self._client = client
        self.dialect = engine.dialect
        self.locks = skips_locked(engine.dialect)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[AwaitedSession]:
        """See `RowDatabase`."""
        refuse_missing_file(self._engine.url)
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._engine.connect())
            except Exception as error:
                raise unopened(self._engine.url, error) from error
            yield AwaitedSession(connection, self._client.store)
            await connection.commit()


class AwaitedSession:
    """See `Session`."""

    def __init__(self, connection: AsyncConnection, store: Store) -> None:
        self._connection = connection
        self._store = store

    async def execute(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See `Session`."""
        return rows_of(await self._connection.execute(statement))

    async def enqueue(self, jobs: Sequence[NewJob], now: int) -> list[Answer]:
        """See `Session`."""
        return await self._store.enqueue(jobs, now=now)

    async def tables(self) -> frozenset[str]:
        """See `Session`."""
        return await self._connection.run_sync(tables_of)

    async def describe(self, table: str) -> Description:
        """See `Session`."""
        return await self._connection.run_sync(described, table)
