"""Taking rows in: page after page of every table, until one is not full.

A row that stays as it is, because it cannot become a job, never holds up those behind it: a page starts where the
one before ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from onejob.core.judge import Outcome
from onejob.core.timing import as_datetime
from onejob.intake import journal
from onejob.intake.days import table_of
from onejob.intake.pages import Page, Parts
from onejob.intake.rows import RowReader
from onejob.intake.views import FailedRow, IntakeReport, Progress, TableReport

if TYPE_CHECKING:
    from onejob.intake.catalog import Catalog
    from onejob.intake.database import RowDatabase, Statement
    from onejob.intake.shapes import Shape
    from onejob.intake.sources import Rows, Table
    from onejob.intake.statements import Place

BREATH: Final = 0.01
"""Seconds between pages: room for the writes of others."""
MAX_FAILURES: Final = 100
PROGRESS_EVERY: Final = 5.0

OnPage = Callable[[Progress], None]


class Run:
    """One run of an intake over all its tables."""

    def __init__(self, parts: Parts, now: int, on_page: OnPage | None) -> None:
        self._parts = parts
        self._now = now
        self._tables: dict[str, TableReport] = {}
        self._failures: list[FailedRow] = []
        self._done = 0
        self._about: int | None = None
        self._on_page = on_page
        self._began = self._told_at = asyncio.get_running_loop().time()

    @property
    def horizon(self) -> int:
        """Up to when rows are taken."""
        return self._now + self._parts.look_ahead

    def report(self) -> IntakeReport:
        """What it brought so far."""
        return IntakeReport(
            name=self._parts.name,
            tables=tuple(self._tables.values()),
            failures=tuple(self._failures),
            at=as_datetime(self._now),
            seconds=round(asyncio.get_running_loop().time() - self._began, 3),
        )

    async def take_tables(self, catalog: Catalog, database: RowDatabase, source: Table | None) -> None:
        """Take the rows of every table that can be used; then raise what is wrong with the others."""
        from onejob.intake import statements  # with it comes SQLAlchemy

        shapes, wrong = await catalog.shapes(self._now, self.horizon)
        times = self._parts.reader.times

        async def count() -> int:
            """All rows of the run, those that have left meanwhile included: a flag takes them out of the count."""
            async with database.session() as session:
                found = [await session.execute(statements.how_many(s, times, self.horizon)) for s in shapes]
            left = sum(rows[0][0] for rows in found)
            if any(shape.flag is None for shape in shapes):
                return left
            return left + sum(table.taken + table.kept for table in self._tables.values())

        try:
            if self._on_page is not None:
                self._about = await count()
            for shape in shapes:
                async for page in TakingTable(self._parts, shape, database, source, self.horizon).pages():
                    await self._note(page, count)
                    if page.fetched == self._parts.per_fetch:
                        await asyncio.sleep(BREATH)
        except Exception:
            catalog.forget()  # it may be that a table is no longer what it was
            raise
        self._say_how_many_failed()
        if wrong:
            raise wrong[0]

    async def take_rows(self, source: Rows) -> None:
        """Take what a function of the user's yields."""
        parts = self._parts
        async with aclosing(batches(source, self.horizon, parts.per_fetch)) as found:
            async for rows in found:
                now = await parts.client.store.time()
                page = Page(parts, parts.name, now, self.horizon, fetched=len(rows))
                await page.whole(self._take_batch(page, rows, source))
                await self._note(page, None)
        self._say_how_many_failed()

    async def _take_batch(self, page: Page, rows: list[Any], source: Rows) -> None:
        for row in rows:
            await page.sort_in_yielded(row, source.id, source.due)
        await page.hand_over()
        if page.newcomers and source.flagged is not None:
            await source.flagged(page.ids)
        await page.settle(flagged=source.flagged is not None)

    def _say_how_many_failed(self) -> None:
        failed = sum(table.failed for table in self._tables.values())
        if self._parts.told.is_more(failed):
            journal.many_bad_rows(self._parts.name, failed, len(self._parts.told))

    async def _note(self, page: Page, count: Callable[[], Awaitable[int]] | None) -> None:
        before = self._tables.get(page.table, TableReport(page.table))
        created = sum(answer.outcome is Outcome.CREATED for answer in page.answers)
        self._tables[page.table] = TableReport(
            page.table,
            before.taken + created,
            before.kept + len(page.answers) - created,
            before.failed + len(page.failures),
            before.skipped + page.skipped,
        )
        self._failures += page.failures[: MAX_FAILURES - len(self._failures)]
        self._done += page.fetched
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= PROGRESS_EVERY:
            self._told_at = now
            if self._about is None and count is not None:
                self._about = await count()
            journal.progress(self._parts.name, self._done, self._about)
        if self._on_page is not None:
            self._on_page(Progress(self._done, max(self._done, self._about or 0)))


class TakingTable:
    """The pages of one table, one transaction each."""

    def __init__(
        self, parts: Parts, shape: Shape, database: RowDatabase, source: Table | None, horizon: int
    ) -> None:
        self._parts = parts
        self._shape = shape
        self._database = database
        self._source = source
        self._horizon = horizon

    async def pages(self) -> AsyncGenerator[Page]:
        """Take page after page until one is not full."""
        after: Place | None = None
        while True:
            page = await self._take(after)
            yield page
            if page.fetched < self._parts.per_fetch:
                return
            after = page.last

    async def _take(self, after: Place | None) -> Page:
        from onejob.intake import statements  # see `Run.take_tables`

        parts, shape = self._parts, self._shape
        now = await parts.client.store.time()
        page = Page(parts, shape.name, now, self._horizon, self._suffix)
        wanted = statements.page(
            shape,
            parts.reader.times,
            self._horizon,
            after,
            parts.per_fetch,
            locked=self._database.locks,
            nulls_first=self._database.dialect.name not in statements.NULLS_LAST,
        )
        await page.whole(self._take_page(page, wanted))
        return page

    async def _take_page(self, page: Page, wanted: Statement) -> None:
        from onejob.intake import statements  # see `Run.take_tables`

        shape = self._shape
        async with self._database.session() as session:
            for *values, id, due in await session.execute(wanted):
                page.fetched += 1
                page.last = (due, id)
                await page.sort_in(dict(zip(shape.columns, values, strict=True)), id, due)
            await page.hand_over(session)
            if page.newcomers and shape.flag is not None:
                await session.execute(statements.mark(shape, page.ids, flagged=True))
        await page.settle(flagged=shape.flag is not None)

    def _suffix(self, due: int) -> str:
        return key_suffix(self._source, self._parts.reader, self._shape.name, due)


def key_suffix(source: Table | None, reader: RowReader, table: str, due: int) -> str:
    """What a default key says of the table: nothing, but where a row is not in the table of its own day.

    Ids of different days may be the same, and then so may be their due times.
    """
    if source is None or not source.by_day:
        return ""
    return "" if table_of(source, reader.times.local(due).date()) == table else f"-{table}"


async def batches(source: Rows, horizon: int, size: int) -> AsyncGenerator[list[Any]]:
    """What a function of the user's yields, so many at a time."""
    batch: list[Any] = []
    yielded: Any = source.function(as_datetime(horizon))
    async with aclosing(yielded):
        async for row in yielded:
            batch.append(row)
            if len(batch) == size:
                yield batch
                batch = []
    if batch:
        yield batch
