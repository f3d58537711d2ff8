"""How an intake stands, why a row is or is not scheduled, and letting a row be scheduled again."""

from __future__ import annotations

import datetime as dt
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from onejob.core.dedup import FOREVER
from onejob.core.errors import InvalidOption
from onejob.core.filter import JobFilter
from onejob.core.job import Job, JobId, State
from onejob.core.judge import Holder
from onejob.core.timing import as_datetime
from onejob.intake.pages import Parts
from onejob.intake.rows import BadRow, Newcomer, has, value_of
from onejob.intake.taking import batches, key_suffix
from onejob.intake.views import Allowed, RowExplanation, RowReason, TableStatus

if TYPE_CHECKING:
    from onejob.intake.catalog import Catalog
    from onejob.intake.database import RowDatabase
    from onejob.intake.shapes import Shape
    from onejob.intake.sources import Rows, Table


ALIKE: Final = 10
"""How many jobs are looked through for a row's own: of long keys only the beginning is shown, and searched by."""


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row that was asked about."""

    table: str
    id: Any
    row: Any
    due: object
    flagged: bool
    suffix: str = ""
    shape: Shape | None = None


async def table_statuses(parts: Parts, catalog: Catalog, database: RowDatabase) -> tuple[TableStatus, ...]:
    """How each table stands: one query per table."""
    from onejob.intake import statements  # with it comes SQLAlchemy

    now = await parts.client.store.time()
    statuses: list[TableStatus] = []
    for shape in await catalog.usable(now, now + parts.look_ahead):
        async with database.session() as session:
            [(total, scheduled, due)] = await session.execute(
                statements.counts(shape, parts.reader.times, now)
            )
        pending = None if scheduled is None else total - scheduled
        index = statements.index(shape, database.dialect)
        statuses.append(
            TableStatus(
                name=shape.name, total=total, scheduled=scheduled, pending=pending, due=due, index=index
            )
        )
    return tuple(statuses)


async def find_in_tables(
    parts: Parts,
    catalog: Catalog,
    database: RowDatabase,
    source: Table | None,
    id: Any,
    *,
    table: str | None,
) -> list[FoundRow]:
    """The rows of that id, one at most in each table."""
    from onejob.intake import statements  # see above

    now = await parts.client.store.time()
    found: list[FoundRow] = []
    for shape in await catalog.usable(now, now + parts.look_ahead, table):
        wanted = shape.id_value(id)
        if wanted is None:
            continue
        async with database.session() as session:
            rows = await session.execute(statements.one(shape, wanted))
        if not rows:
            continue
        flagged = shape.flag is not None and bool(rows[0][-1])
        values = rows[0] if shape.flag is None else rows[0][:-1]
        row = dict(zip(shape.columns, values[:-2], strict=True))
        suffix = _suffix(parts, source, shape.name, values[-1])
        found.append(FoundRow(shape.name, values[-2], row, values[-1], flagged, suffix, shape))
    return found


async def find_in_rows(parts: Parts, source: Rows, id: Any) -> list[FoundRow]:
    """The row of that id, if the function yields it now."""
    now = await parts.client.store.time()
    async with aclosing(batches(source, now + parts.look_ahead, parts.per_fetch)) as found:
        async for rows in found:
            for row in rows:
                if has(row, source.id) and str(value_of(row, source.id)) == str(id):
                    due = value_of(row, source.due) if has(row, source.due) else None
                    return [FoundRow(parts.name, value_of(row, source.id), row, due, False)]
    return []


async def explain(parts: Parts, found: FoundRow | None, id: Any, every: float) -> RowExplanation:
    """Say why a row is or is not scheduled."""
    now = await parts.client.store.time()
    if found is None:
        text = f"Row {id} is in none of the tables that intake {parts.name} looks into."
        return RowExplanation(intake=parts.name, id=str(id), reason=RowReason.NOT_FOUND, text=text)
    telling = _Telling(parts, found, now)
    if found.flagged:
        return await telling.flagged()
    if found.due is None:
        return telling.told(RowReason.NO_DUE_TIME, "has no due time, and so is never due.")
    try:
        due = parts.reader.due(found.due)
        if due > now + parts.look_ahead:
            return telling.not_yet(due)
        newcomer = parts.reader.newcomer(found.row, found.id, due, now, found.suffix)
    except BadRow as bad:
        return telling.told(RowReason.BAD_ROW, f"cannot become a job: {bad}")
    if parts.handed_over is not None and parts.handed_over.knows(found.table, found.id, due, now):
        return await telling.just_taken(newcomer)
    holder = await _holder(parts, newcomer, now)
    if holder is not None:
        return telling.remembered(newcomer, holder)
    return telling.told(
        RowReason.PENDING,
        f"is due {_shown(due)}, and will be fetched within {every:g} s by any worker of this app.",
        newcomer=newcomer,
        due=due,
    )


async def allow(
    parts: Parts, database: RowDatabase | None, found: FoundRow | None, *, force: bool
) -> Allowed:
    """Let a row be scheduled again, unless its job has not ended."""
    if found is None:
        return Allowed.NOT_FOUND
    store = parts.client.store
    now = await store.time()
    newcomer = _newcomer(parts, found, now)
    if newcomer is not None:
        holder = await _holder(parts, newcomer, now)
        if holder is not None and not holder.state.ended and not force:
            return Allowed.QUEUED
        # First the key, then the flag: the other way round, a fetch in between would set the flag again.
        if holder is not None:
            # Not if the key is another's by now: somebody else has allowed the row, and it was taken.
            await store.release(newcomer.digest, holder=JobId(holder.id))
    if database is not None and found.shape is not None and found.shape.flag is not None:
        from onejob.intake import statements  # see above

        async with database.session() as session:
            await session.execute(statements.mark(found.shape, [found.id], flagged=False))
    if newcomer is not None and parts.handed_over is not None:
        parts.handed_over.forget(found.table, found.id, newcomer.due)
    return Allowed.ALLOWED


def the_one(intake: str, found: list[FoundRow], id: Any) -> FoundRow | None:
    """The row that is meant; raises if several tables have one."""
    if len(found) > 1:
        tables = ", ".join(row.table for row in found)
        raise InvalidOption(
            f"Intake {intake!r} has a row {id!r} in several tables ({tables}): say which with table=…."
        )
    return found[0] if found else None


class _Telling:
    def __init__(self, parts: Parts, found: FoundRow, now: int) -> None:
        self._parts = parts
        self._found = found
        self._now = now

    def told(
        self,
        reason: RowReason,
        text: str,
        *,
        newcomer: Newcomer | None = None,
        due: int | None = None,
        job: Job | Holder | None = None,
        until: int | None = None,
    ) -> RowExplanation:
        found = self._found
        return RowExplanation(
            intake=self._parts.name,
            id=str(found.id),
            reason=reason,
            text=f"Row {found.id} of {found.table} {text}",
            table=found.table,
            due=None if due is None else as_datetime(due),
            key=None if newcomer is None else newcomer.key,
            job=None if job is None else JobId(job.id),
            state=None if job is None else job.state,
            until=None if until is None or until >= FOREVER else as_datetime(until),
        )

    async def flagged(self) -> RowExplanation:
        newcomer = _newcomer(self._parts, self._found, self._now)
        job = None if newcomer is None else await _newest(self._parts, newcomer)
        if newcomer is None or job is None:
            return self.told(
                RowReason.FLAGGED,
                "is marked as scheduled, and no job of it is on record: it was marked by hand, or its job is gone.",
                newcomer=newcomer,
            )
        return self.told(
            RowReason.FLAGGED,
            f"is marked as scheduled: it became job {job.id}, which is {job.state} (key {newcomer.key}).",
            newcomer=newcomer,
            due=newcomer.due,
            job=job,
        )

    def not_yet(self, due: int) -> RowExplanation:
        begins = due - self._parts.look_ahead
        text = f"is due {_shown(due)}, beyond the look-ahead: it will be fetched from {_shown(begins)} on."
        return self.told(RowReason.NOT_YET, text, due=due, until=begins)

    async def just_taken(self, newcomer: Newcomer) -> RowExplanation:
        job = await _newest(self._parts, newcomer)
        which = "" if job is None else f" as job {job.id}"
        text = f"was handed over{which} less than a minute ago; until then it is not looked at again."
        return self.told(RowReason.JUST_TAKEN, text, newcomer=newcomer, due=newcomer.due, job=job)

    def remembered(self, newcomer: Newcomer, holder: Holder) -> RowExplanation:
        until = holder.completed_until if holder.state is State.COMPLETED else holder.failed_until
        if not holder.state.ended:
            until = None
        lasts = "" if until is None or until >= FOREVER else f" until {_shown(until)}"
        text = (
            f"has job {holder.id}, which is {holder.state}: its key {newcomer.key} remembers that{lasts}, so the next "
            "fetch makes no other and marks it as scheduled."
        )
        return self.told(
            RowReason.REMEMBERED, text, newcomer=newcomer, due=newcomer.due, job=holder, until=until
        )


def _newcomer(parts: Parts, found: FoundRow, now: int) -> Newcomer | None:
    """The row as the job that it would become; None if it cannot."""
    try:
        return parts.reader.newcomer(found.row, found.id, parts.reader.due(found.due), now, found.suffix)
    except BadRow:
        return None


def _suffix(parts: Parts, source: Table | None, table: str, due: object) -> str:
    try:
        return key_suffix(source, parts.reader, table, parts.reader.due(due))
    except BadRow:
        return ""


async def _holder(parts: Parts, newcomer: Newcomer, now: int) -> Holder | None:
    key = await parts.client.store.key(newcomer.digest)
    return None if key is None else key.holder.at(now)


async def _newest(parts: Parts, newcomer: Newcomer) -> Job | None:
    wanted = JobFilter(
        queues=frozenset({parts.reader.queue}),
        tasks=frozenset({parts.reader.task}),
        keys=frozenset({newcomer.key}),
    )
    jobs = (await parts.client.store.jobs(wanted, limit=ALIKE)).jobs
    return next((job for job in jobs if job.digest == newcomer.digest), None)


def _shown(instant: int) -> str:
    moment: dt.datetime = as_datetime(instant)
    return moment.isoformat()
