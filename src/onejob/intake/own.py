"""The store's own database as the source of rows: flag and job are one commit.

SQLAlchemy only compiles the statements; the store's own connection runs them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from onejob.core.errors import InvalidOption, TransactionTimeout, shown
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.intake.database import Statement
from onejob.intake.shapes import (
    POSTGRESQL,
    SQLITE,
    Description,
    Family,
    family_in_postgresql,
    family_named,
)
from onejob.store import Transaction
from onejob.transactions import AppTransaction, open_transaction

if TYPE_CHECKING:
    from onejob.client import Client

TIMEOUT: Final = 10
"""Seconds that a page may hold the store's writer."""


class Spoken(msgspec.Struct, frozen=True):
    """What differs between the databases that a store can be: how one asks them about tables, and what they can do."""

    dialect: Callable[[], Dialect]
    family: Callable[[str], Family]
    """What a declared type means."""
    locks: bool
    """Rows can be locked while they are taken."""
    tables: str
    columns: str
    """Name, declared type and place in the primary key (0: none) of the columns of the table `:name`."""
    indexes: str
    """Name of the index, whether no two rows share what it is of, place and name of each column."""


_SPOKEN: Final = {
    SQLITE: Spoken(
        dialect=lambda: sqlite.dialect(paramstyle="named"),
        family=family_named,
        locks=False,
        tables="select name from sqlite_master where type = 'table' and name not like 'sqlite_%'",
        columns="select name, type, pk from pragma_table_info(:name) order by cid",
        indexes="""
            select i.name, i."unique" and not i.partial, c.seqno, c.name
            from pragma_index_list(:name) i, pragma_index_info(i.name) c order by i.name, c.seqno
        """,
    ),
    POSTGRESQL: Spoken(
        dialect=lambda: postgresql.dialect(paramstyle="named"),
        family=family_in_postgresql,
        locks=True,
        tables="""
            select c.relname from pg_class c
            where c.relkind in ('r', 'p', 'f') and pg_table_is_visible(c.oid)
                and c.relnamespace <> 'pg_catalog'::regnamespace
        """,
        columns="""
            select
                a.attname, format_type(a.atttypid, a.atttypmod),
                coalesce(array_position(i.indkey::smallint[], a.attnum) + 1, 0)
            from pg_class c
            join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            left join pg_index i on i.indrelid = c.oid and i.indisprimary
            where c.relname = :name and pg_table_is_visible(c.oid)
            order by a.attnum
        """,
        indexes="""
            select x.relname, i.indisunique and i.indpred is null and i.indisvalid, k.place, a.attname
            from pg_class c
            join pg_index i on i.indrelid = c.oid
            join pg_class x on x.oid = i.indexrelid
            cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (number, place)
            left join pg_attribute a on a.attrelid = c.oid and a.attnum = k.number
            where c.relname = :name and pg_table_is_visible(c.oid) and k.place <= i.indnkeyatts
            order by x.relname, k.place
        """,
    ),
}


class OwnDatabase:
    """The tables beside the store's own."""

    def __init__(self, client: Client, spoken: str) -> None:
        known = _SPOKEN.get(spoken)
        if known is None:
            raise InvalidOption(
                f"An intake cannot share a transaction with a store that speaks {shown(spoken)}: say where its tables "
                "are with database=…."
            )
        self._client = client
        self._spoken = known
        self.dialect = known.dialect()
        self.locks = known.locks

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[OwnSession]:
        """See `RowDatabase`."""
        try:
            # As any transaction of the app's: what a hook enqueues meanwhile joins it, and does not wait for it.
            async with AppTransaction(self._client, TIMEOUT):
                transaction = open_transaction(self._client.store)
                assert transaction is not None
                yield OwnSession(transaction, self.dialect, self._spoken)
        except TransactionTimeout:
            raise TransactionTimeout(
                f"A page of rows held the store's writer for more than {TIMEOUT} seconds and was rolled back: lower "
                "per_fetch=…, or do less in arguments=…, key=… and the hooks around enqueues."
            ) from None


class OwnSession:
    """See `Session`."""

    def __init__(self, transaction: Transaction, dialect: Dialect, spoken: Spoken) -> None:
        self._transaction = transaction
        self._dialect = dialect
        self._spoken = spoken

    async def execute(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See `Session`."""
        text, values = compiled(statement, self._dialect)
        return await self._transaction.execute(text, values)

    async def enqueue(self, jobs: Sequence[NewJob], now: int) -> list[Answer]:
        """See `Session`."""
        return await self._transaction.enqueue(jobs, now=now)

    async def tables(self) -> frozenset[str]:
        """See `Session`."""
        return frozenset(row[0] for row in await self._transaction.execute(self._spoken.tables))

    async def describe(self, table: str) -> Description:
        """See `Session`."""
        columns = await self._transaction.execute(self._spoken.columns, {"name": table})
        keys = [name for name, _, place in columns if place]
        unique, leading = (set(keys) if len(keys) == 1 else set[str]()), set(keys[:1])
        parts: dict[str, list[str]] = {}
        singular: set[str] = set()
        for index, is_unique, _, column in await self._transaction.execute(
            self._spoken.indexes, {"name": table}
        ):
            parts.setdefault(index, []).append(column)
            singular |= {index} if is_unique else set()
        leading |= {names[0] for names in parts.values()}
        unique |= {names[0] for index, names in parts.items() if index in singular and len(names) == 1}
        families = {name: self._spoken.family(declared) for name, declared, _ in columns}
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
