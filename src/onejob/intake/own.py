"""The store's own database as the source of rows: flag and job are one commit.

SQLAlchemy only compiles the statements; the store's own connection runs them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Dialect
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from onejob.core.errors import InvalidOption, TransactionTimeout, shown
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.intake.database import Statement
from onejob.intake.shapes import SQLITE, Description, family_named
from onejob.store import Transaction
from onejob.transactions import AppTransaction, open_transaction

if TYPE_CHECKING:
    from onejob.client import Client

TIMEOUT: Final = 10
"""Seconds that a page may hold the store's writer."""

_TABLES: Final = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
_COLUMNS: Final = "select name, type, pk from pragma_table_info(?) order by cid"
_INDEXES: Final = """
select i.name, i."unique" and not i.partial, c.seqno, c.name
from pragma_index_list(?) i, pragma_index_info(i.name) c order by i.name, c.seqno
"""


class OwnDatabase:
    """The tables beside the store's own."""

    def __init__(self, client: Client, spoken: str) -> None:
        if spoken != SQLITE:
            raise InvalidOption(
                f"An intake cannot share a transaction with a store that speaks {shown(spoken)}: say where its tables "
                "are with database=…."
            )
        self._client = client
        self.dialect: Dialect = sqlite.dialect(paramstyle="named")
        self.locks = False

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[OwnSession]:
        """See `RowDatabase`."""
        try:
            # As any transaction of the app's: what a hook enqueues meanwhile joins it, and does not wait for it.
            async with AppTransaction(self._client, TIMEOUT):
                transaction = open_transaction(self._client.store)
                assert transaction is not None
                yield OwnSession(transaction, self.dialect)
        except TransactionTimeout:
            raise TransactionTimeout(
                f"A page of rows held the store's writer for more than {TIMEOUT} seconds and was rolled back: lower "
                "per_fetch=…, or do less in arguments=…, key=… and the hooks around enqueues."
            ) from None


class OwnSession:
    """See `Session`."""

    def __init__(self, transaction: Transaction, dialect: Dialect) -> None:
        self._transaction = transaction
        self._dialect = dialect

    async def execute(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See `Session`."""
        text, values = compiled(statement, self._dialect)
        return await self._transaction.execute(text, values)

    async def enqueue(self, jobs: Sequence[NewJob], now: int) -> list[Answer]:
        """See `Session`."""
        return await self._transaction.enqueue(jobs, now=now)

    async def tables(self) -> frozenset[str]:
        """See `Session`."""
        return frozenset(row[0] for row in await self._transaction.execute(_TABLES))

    async def describe(self, table: str) -> Description:
        """See `Session`."""
        columns = await self._transaction.execute(_COLUMNS, (table,))
        keys = [name for name, _, place in columns if place]
        unique, leading = (set(keys) if len(keys) == 1 else set[str]()), set(keys[:1])
        parts: dict[str, list[str]] = {}
        singular: set[str] = set()
        for index, is_unique, _, column in await self._transaction.execute(_INDEXES, (table,)):
            parts.setdefault(index, []).append(column)
            singular |= {index} if is_unique else set()
        leading |= {names[0] for names in parts.values()}
        unique |= {names[0] for index, names in parts.items() if index in singular and len(names) == 1}
        families = {name: family_named(declared) for name, declared, _ in columns}
        return Description(families, frozenset(unique), frozenset(leading))


def compiled(statement: Statement, dialect: Dialect) -> tuple[str, dict[str, Any]]:
    """A statement as text and values, for a connection that is not SQLAlchemy's."""
    made = statement.compile(dialect=dialect)
    assert isinstance(made, SQLCompiler)
    state = made.construct_expanded_state()
    values = dict(state.parameters)
    processes: dict[str, Any] = {**state.processors}  # of the values of an IN only
    for bind, name in made.bind_names.items():
        processes.setdefault(name, bind.type.dialect_impl(dialect).bind_processor(dialect))
    for name, process in processes.items():
        if name in values and callable(process):
            values[name] = process(values[name])
    return state.statement, values
