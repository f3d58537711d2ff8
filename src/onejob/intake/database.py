"""What an intake needs of the database that has its rows, whichever that is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from onejob.core.job import NewJob
from onejob.core.judge import Answer

if TYPE_CHECKING:
    from sqlalchemy import CompoundSelect, Dialect, Select, Update

    from onejob.client import Client
    from onejob.intake.shapes import Description
    from onejob.intake.sources import Database


Statement: TypeAlias = "Select[*tuple[Any, ...]] | CompoundSelect[*tuple[Any, ...]] | Update"


class Session(Protocol):
    """One transaction there, and the way of its rows into the store."""

    async def execute(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        ...

    async def enqueue(self, jobs: Sequence[NewJob], now: int) -> list[Answer]:
        """Give jobs to the store: in the same commit where both are one database, else at once."""
        ...

    async def tables(self) -> frozenset[str]:
        """The names of all tables."""
        ...

    async def describe(self, table: str) -> Description:
        """The columns and indexes of a table."""
        ...


class RowDatabase(Protocol):
    """A database that has rows to be taken."""

    @property
    def dialect(self) -> Dialect:
        """The SQL that it speaks."""
        ...

    @property
    def locks(self) -> bool:
        """True if rows can be locked, and locked ones be skipped."""
        ...

    def session(self) -> AbstractAsyncContextManager[Session]:
        """A transaction, committed at the end of the block, rolled back on any error."""
        ...


def open_database(database: Database | None, client: Client) -> RowDatabase:
    """The store's own database (None), or the one that a URL or an engine names."""
    if database is not None:
        from onejob.intake.engine import engine_database

        return engine_database(database, client)
    from onejob.intake.own import OwnDatabase

    spoken = client.store.dialect
    assert spoken is not None, "it is refused where it is declared"
    return OwnDatabase(client, spoken)
