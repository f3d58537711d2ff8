"""What an intake tells: what a run brought, how its tables stand, and why a row is or is not scheduled."""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Any

import msgspec

from onejob.core.job import JobId, State
from onejob.core.span import counted


class Allowed(StrEnum):
    """What became of the wish that a row may be scheduled again."""

    ALLOWED = "allowed"
    QUEUED = "queued"
    """Nothing was changed: its job has not ended."""
    NOT_FOUND = "not_found"


class FailedRow(msgspec.Struct, frozen=True):
    """A row that cannot become a job, and why."""

    table: str
    id: str
    reason: str


class TableReport(msgspec.Struct, frozen=True):
    """What a run brought from one table."""

    name: str
    taken: int = 0
    """Rows that became a job."""
    kept: int = 0
    """Rows whose key had a job already: only their flag was set."""
    failed: int = 0
    """Rows that cannot become a job."""
    skipped: int = 0
    """Rows that this process handed over a moment ago."""


class IntakeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of an intake brought."""

    name: str
    """The intake's."""
    tables: tuple[TableReport, ...] = ()
    failures: tuple[FailedRow, ...] = ()
    """The first 100 rows that failed."""
    at: dt.datetime
    """When it began."""
    seconds: float = 0.0

    @property
    def taken(self) -> int:
        """Rows that became a job."""
        return sum(table.taken for table in self.tables)

    @property
    def kept(self) -> int:
        """Rows whose key had a job already."""
        return sum(table.kept for table in self.tables)

    @property
    def failed(self) -> int:
        """Rows that cannot become a job."""
        return sum(table.failed for table in self.tables)

    @property
    def skipped(self) -> int:
        """Rows that this process handed over a moment ago."""
        return sum(table.skipped for table in self.tables)

    def __str__(self) -> str:
        more = (
            f", {self.failed:,} cannot become {'a job' if self.failed == 1 else 'jobs'}"
            if self.failed
            else ""
        )
        return f"intake {self.name}: {became_jobs(self.taken)}, {self.kept:,} had one already{more}"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        totals = {what: getattr(self, what) for what in ("taken", "kept", "failed", "skipped")}
        return {**msgspec.to_builtins(self), **totals}


class Progress(msgspec.Struct, frozen=True):
    """How far a run is."""

    done: int
    """Rows looked at so far."""
    about: int
    """How many there are, as counted once it proved to be more than a page."""


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one table stands. What cannot be known is None: plain Python, or a query without a flag."""

    name: str
    total: int | None = None
    scheduled: int | None = None
    """Rows whose flag is set."""
    pending: int | None = None
    """Rows whose flag is not set, due or not."""
    due: int | None = None
    """Pending rows that are due by now; texts with an offset of their own count as if they had none."""
    index: str | None = None
    """The statement that makes the index it needs; None if there is one."""


class IntakeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How an intake stands."""

    name: str
    task: str
    queue: str
    tables: tuple[TableStatus, ...] = ()
    failed: int = 0
    """Rows that this process knows cannot become jobs."""
    last: IntakeReport | None = None
    """What the last run in this process brought; None if there was none."""

    @property
    def total(self) -> int:
        """Rows in all tables."""
        return sum(table.total or 0 for table in self.tables)

    @property
    def scheduled(self) -> int:
        """Rows whose flag is set."""
        return sum(table.scheduled or 0 for table in self.tables)

    @property
    def pending(self) -> int:
        """Rows whose flag is not set."""
        return sum(table.pending or 0 for table in self.tables)

    @property
    def due(self) -> int:
        """Pending rows that are due by now."""
        return sum(table.due or 0 for table in self.tables)

    def __str__(self) -> str:
        everything = TableStatus(
            name=f"intake {self.name}",
            total=self.total,
            scheduled=self.scheduled,
            pending=self.pending,
            due=self.due,
        )
        tables = self.tables if len(self.tables) > 1 else ()
        return "\n  ".join(map(_counted, (everything, *tables)))

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        totals = {what: getattr(self, what) for what in ("total", "scheduled", "pending", "due")}
        return {
            **msgspec.to_builtins(self),
            **totals,
            "last": None if self.last is None else self.last.as_dict(),
        }


class RowReason(StrEnum):
    """Why a row is or is not scheduled."""

    NOT_FOUND = "not_found"
    FLAGGED = "flagged"
    """Its flag is set: by its job, or by hand."""
    NO_DUE_TIME = "no_due_time"
    NOT_YET = "not_yet"
    """It is due beyond the look-ahead."""
    BAD_ROW = "bad_row"
    """It cannot become a job."""
    JUST_TAKEN = "just_taken"
    """This process handed it over a moment ago, and does not look again so soon."""
    REMEMBERED = "remembered"
    """Its key has a job: the next fetch sets the flag and makes no other."""
    PENDING = "pending"
    """It will be fetched."""


class RowExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a row is or is not scheduled. `print(…)` it, or take `as_dict()`."""

    intake: str
    id: str
    reason: RowReason
    text: str
    """The same in words."""
    table: str | None = None
    due: dt.datetime | None = None
    key: str | None = None
    job: JobId | None = None
    """The newest job of its key."""
    state: State | None = None
    """How that job stands."""
    until: dt.datetime | None = None
    """When its key is forgotten (`remembered`), or when it will be fetched from (`not_yet`)."""

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        return msgspec.to_builtins(self)


def rows(number: int) -> str:
    """So many rows, in words."""
    return counted(number, "row")


def became_jobs(number: int, where: str = "") -> str:
    """That so many rows became jobs, in words."""
    return f"{rows(number)}{where} became {'a job' if number == 1 else 'jobs'}"


def _counted(table: TableStatus) -> str:
    return (
        f"{table.name}: {rows(table.total or 0)}, {table.scheduled or 0:,} scheduled, {table.pending or 0:,} pending, "
        f"{table.due or 0:,} of those due now"
    )
