"""Every kind of connection that a user may enqueue on, behind one face: begin, enqueue, execute, commit, roll back.

Those of sync code are used in threads, so that one test serves all.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onejob import App, Receipt
from onejob.plans import Call
from onejob.tasks import Sender

T = TypeVar("T")


class Hand:
    """One connection in a transaction."""

    is_async = True

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self, isolation: str | None = None) -> None:
        """Open a transaction, where the driver does not do so by itself."""
        if isolation is not None:
            await self.execute(f"set transaction isolation level {isolation}")

    async def enqueue(self, sender: Sender[..., T], *arguments: Any) -> Receipt[T]:
        return await sender.using(connection=self.connection).aenqueue(*arguments)

    async def enqueue_many(self, app: App, calls: Iterable[Call[Any]]) -> list[Receipt[Any]]:
        return await app.aenqueue_many(calls, connection=self.connection)

    @abstractmethod
    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement in the open transaction."""

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class AsyncpgHand(Hand):
    async def begin(self, isolation: str | None = None) -> None:
        self._transaction = self.connection.transaction(
            isolation=(isolation or "read committed").replace(" ", "_")
        )
        await self._transaction.start()

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(statement)]

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class PsycopgHand(Hand):
    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(statement)
        return await cursor.fetchall() if cursor.description else []


class AlchemyHand(Hand):
    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = await self.connection.execute(sqlalchemy.text(statement))
        return [tuple(row) for row in result.all()] if result.returns_rows else []


class SyncHand(Hand):
    is_async = False

    async def enqueue(self, sender: Sender[..., T], *arguments: Any) -> Receipt[T]:
        return await asyncio.to_thread(sender.using(connection=self.connection).enqueue, *arguments)

    async def enqueue_many(self, app: App, calls: Iterable[Call[Any]]) -> list[Receipt[Any]]:
        return await asyncio.to_thread(app.enqueue_many, calls, connection=self.connection)

    async def commit(self) -> None:
        await asyncio.to_thread(self.connection.commit)

    async def rollback(self) -> None:
        await asyncio.to_thread(self.connection.rollback)


class SyncPsycopgHand(SyncHand):
    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = await asyncio.to_thread(self.connection.execute, statement)
        return cursor.fetchall() if cursor.description else []


class SyncAlchemyHand(SyncHand):
    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        result = await asyncio.to_thread(self.connection.execute, sqlalchemy.text(statement))
        return [tuple(row) for row in result.all()] if result.returns_rows else []


Kind = Callable[[str], Any]
"""An async context manager of a hand, by the server's URL as drivers take it."""


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Hand]:
    connection = await asyncpg.connect(url)
    try:
        yield AsyncpgHand(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Hand]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield AsyncpgHand(connection)


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[Hand]:
    connection = await asyncio.to_thread(psycopg.connect, url)
    try:
        yield SyncPsycopgHand(connection)
    finally:
        connection.close()


@asynccontextmanager
async def by_psycopg_async(url: str) -> AsyncIterator[Hand]:
    connection = await psycopg.AsyncConnection.connect(url)
    try:
        yield PsycopgHand(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def by_alchemy(url: str) -> AsyncIterator[Hand]:
    engine = sqlalchemy.create_engine(of_dialect(url, "psycopg"))
    connection = await asyncio.to_thread(engine.connect)
    try:
        yield SyncAlchemyHand(connection)
    finally:
        connection.close()
        engine.dispose()


@asynccontextmanager
async def by_alchemy_session(url: str) -> AsyncIterator[Hand]:
    engine = sqlalchemy.create_engine(of_dialect(url, "psycopg"))
    session = Session(engine)
    try:
        yield SyncAlchemyHand(session)
    finally:
        session.close()
        engine.dispose()


def by_async_alchemy(driver: str) -> Kind:
    @asynccontextmanager
    async def kind(url: str) -> AsyncIterator[Hand]:
        engine = create_async_engine(of_dialect(url, driver))
        async with engine.connect() as connection:
            yield AlchemyHand(connection)
        await engine.dispose()

    return kind


def by_async_alchemy_session(driver: str) -> Kind:
    @asynccontextmanager
    async def kind(url: str) -> AsyncIterator[Hand]:
        engine = create_async_engine(of_dialect(url, driver))
        async with AsyncSession(engine) as session:
            yield AlchemyHand(session)
        await engine.dispose()

    return kind


KINDS: dict[str, Kind] = {
    "asyncpg": by_asyncpg,
    "asyncpg-pool": by_asyncpg_pool,
    "psycopg": by_psycopg,
    "psycopg-async": by_psycopg_async,
    "sqlalchemy": by_alchemy,
    "sqlalchemy-session": by_alchemy_session,
    "sqlalchemy-asyncpg": by_async_alchemy("asyncpg"),
    "sqlalchemy-asyncpg-session": by_async_alchemy_session("asyncpg"),
    "sqlalchemy-psycopg-async": by_async_alchemy("psycopg"),
    "sqlalchemy-psycopg-async-session": by_async_alchemy_session("psycopg"),
}


def of_dialect(url: str, driver: str) -> str:
    """A URL as SQLAlchemy takes it."""
    return url.replace("postgresql://", f"postgresql+{driver}://")
