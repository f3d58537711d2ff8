"""Which tables an intake looks into, and their shapes: asked of the database once a minute, not once a page."""

from __future__ import annotations

from typing import Final

from onejob.core.errors import InvalidOption, shown
from onejob.intake.database import RowDatabase
from onejob.intake.days import existing
from onejob.intake.rows import RowReader
from onejob.intake.shapes import Shape, query_shape, table_shape
from onejob.intake.sources import Query, Table

KNOWN_FOR: Final = 60_000
"""Milliseconds for which what was read counts."""


class Catalog:
    """The tables of one source."""

    def __init__(self, intake: str, source: Table | Query, database: RowDatabase, reader: RowReader) -> None:
        self._intake = intake
        self._source = source
        self._database = database
        self._reader = reader
        self._names: frozenset[str] = frozenset()
        self._shapes: dict[str, Shape] = {}
        self._read_at: int | None = None

    def forget(self) -> None:
        """Ask again: something was not as it was read."""
        self._read_at = None

    async def shapes(self, now: int, horizon: int) -> tuple[list[Shape], list[InvalidOption]]:
        """The tables that matter now, the oldest day first, and what is wrong with those that cannot be used."""
        read_at = self._read_at
        self.forget()  # unless all is well: what is wrong may have been mended by the next time
        if read_at is None or not 0 <= now - read_at < KNOWN_FOR:
            await self._read()
            read_at = now
        shapes, wrong = await self._wanted(now, horizon)
        if not wrong:
            self._read_at = read_at
        return shapes, wrong

    async def _wanted(self, now: int, horizon: int) -> tuple[list[Shape], list[InvalidOption]]:
        if isinstance(self._source, Query):
            return [self._of_query(self._source)], []
        shapes: list[Shape] = []
        wrong: list[InvalidOption] = []
        for name in existing(self._source, self._names, now, horizon):
            try:
                shapes.append(await self._of_table(self._source, name))
            except InvalidOption as error:
                wrong.append(error)
        return shapes, wrong

    async def usable(self, now: int, horizon: int, table: str | None = None) -> list[Shape]:
        """The same as it is this moment, or one of them; raises if there is something wrong with any."""
        self.forget()
        shapes, wrong = await self.shapes(now, horizon)
        if wrong:
            raise wrong[0]
        if table is None:
            return shapes
        named = [shape for shape in shapes if shape.name == table]
        if not named:
            names = ", ".join(shape.name for shape in shapes) or "none"
            raise InvalidOption(
                f"Intake {self._intake!r} does not look into table {shown(table)}: it looks into {names}."
            )
        return named

    async def _read(self) -> None:
        self._shapes.clear()
        if isinstance(self._source, Table):
            async with self._database.session() as session:
                self._names = await session.tables()

    async def _of_table(self, source: Table, name: str) -> Shape:
        shape = self._shapes.get(name)
        if shape is None:
            async with self._database.session() as session:
                described = await session.describe(name)
            shape = table_shape(source, name, described, self._database.dialect.name)
            self._check(shape)
            self._shapes[name] = shape
        return shape

    def _of_query(self, source: Query) -> Shape:
        shape = self._shapes.get("")
        if shape is None:
            shape = query_shape(source, self._intake, self._database.dialect.name)
            self._check(shape)
            self._shapes[""] = shape
        return shape

    def _check(self, shape: Shape) -> None:
        missing = self._reader.missing(shape.columns)
        if missing is not None:
            raise InvalidOption(
                f"Table {shape.name!r} has {missing} Or say with arguments=… what a row becomes."
            )
