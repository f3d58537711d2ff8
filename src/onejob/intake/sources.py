"""Where rows come from, as users write it: a table or date-named tables, a query, or plain Python.

Only settings live here, checked where they are made. Nothing is opened, and SQLAlchemy is not imported.
"""

from __future__ import annotations

import datetime as dt
import inspect
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import whole_number
from onejob.core.timing import check_zone

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Engine, SelectBase
    from sqlalchemy.ext.asyncio import AsyncEngine

DueAs: TypeAlias = Literal["seconds", "milliseconds"]
Database: TypeAlias = "str | Engine | AsyncEngine"
Row: TypeAlias = Any
"""A row as the user's functions get it: a mapping of columns to values, or what a function of `Rows` yielded."""

MAX_DAYS_BACK: Final = 366
MAX_NAME: Final = 200


class _Named(msgspec.Struct, frozen=True):
    name: str


class Table(_Named, frozen=True, kw_only=True):
    """Rows of a table, or of one table per day: `Table("sms_{day:%Y%m%d}", due="send_at")`.

    `id`, `due` and `flag` name columns: one that no two rows share, when a row is due, and whether it has been
    scheduled (NULL is false). `database` is a SQLAlchemy URL, Engine or AsyncEngine; None is the store's own, where
    flag and job are one commit. `tz` is the zone of due times that have none of their own, and of the days in a name.
    Numbers in the due column are `due_as="seconds"` or `"milliseconds"` since 1970. Tables of days are looked
    into from `days_back` days ago up to where the look-ahead ends.
    """

    due: str
    id: str = "id"
    flag: str = "scheduled"
    database: Database | None = None
    tz: str = "UTC"
    days_back: int = 7
    due_as: DueAs | None = None

    def __post_init__(self) -> None:
        _check_table(self.name)
        for option in ("id", "due", "flag"):
            _check_column(f"Table({option}=…)", getattr(self, option))
        if len({self.id, self.due, self.flag}) < 3:
            raise InvalidOption(
                f"Table(id={self.id!r}, due={self.due!r}, flag={self.flag!r}) names a column twice: id, due time and "
                "flag are three columns."
            )
        _check_database("Table", self.database)
        check_zone(self.tz)
        whole_number("Table(days_back=…)", self.days_back, 0, MAX_DAYS_BACK)
        _check_due_as("Table", self.due_as)

    @property
    def by_day(self) -> bool:
        """True if the name is a pattern: one table per day."""
        return "{" in self.name


class _Selected(msgspec.Struct, frozen=True):
    select: SelectBase


class Query(_Selected, frozen=True, kw_only=True):
    """Rows of a SQLAlchemy Core `select(…)`.

    `id` and `due` name columns of it. `flag` is the column, of a table with that same id column, that is set once a
    row is scheduled; without one, the job's key alone remembers, for 30 days past its due time, and rows that
    are older than that are left alone. `database`, `tz` and `due_as` are as for `Table`.
    """

    id: str
    due: str
    flag: ColumnElement[Any] | None = None
    database: Database | None = None
    tz: str = "UTC"
    due_as: DueAs | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.select, "subquery", None)):
            raise InvalidOption(f"Query(…) takes a SQLAlchemy select(…), not {shown(self.select)}.")
        for option in ("id", "due"):
            _check_column(f"Query({option}=…)", getattr(self, option))
        if self.flag is not None and not callable(getattr(getattr(self.flag, "table", None), "update", None)):
            raise InvalidOption(
                f"Query(flag=…) must be a column of a table, as in messages.c.scheduled, or None, not {shown(self.flag)}."
            )
        if self.flag is not None and not callable(getattr(self.select, "add_columns", None)):
            raise InvalidOption(
                "Query(flag=…) needs a plain select(…), to which the flag can be added: write "
                "select(union.subquery()), or leave the flag out."
            )
        _check_database("Query", self.database)
        check_zone(self.tz)
        _check_due_as("Query", self.due_as)


RowFunction: TypeAlias = Callable[[dt.datetime], AsyncIterator[Row]]
Flagged: TypeAlias = Callable[[Sequence[Any]], Awaitable[object]]


class _Yielded(msgspec.Struct, frozen=True):
    function: RowFunction


class Rows(_Yielded, frozen=True, kw_only=True):
    """Rows from plain Python: an async generator function of the horizon, up to which rows are wanted.

    It yields mappings or objects; `id` and `due` name their keys or attributes. `flagged` is an async function of a
    list of ids, called once their jobs are stored; without one, see `Query(flag=None)`.
    """

    id: str
    due: str
    flagged: Flagged | None = None
    tz: str = "UTC"
    due_as: DueAs | None = None

    def __post_init__(self) -> None:
        if not inspect.isasyncgenfunction(self.function):
            raise InvalidOption(
                f"Rows(…) takes an async generator function of the horizon, `async def rows(until): … yield row`, "
                f"not {shown(self.function)}."
            )
        for option in ("id", "due"):
            _check_column(f"Rows({option}=…)", getattr(self, option))
        if self.flagged is not None and not inspect.iscoroutinefunction(self.flagged):
            raise InvalidOption(
                f"Rows(flagged=…) must be an async function of a list of ids, or None, not {shown(self.flagged)}."
            )
        check_zone(self.tz)
        _check_due_as("Rows", self.due_as)


Source: TypeAlias = Table | Query | Rows


def _check_table(name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidOption(
            f"Table(…) takes the name of a table of 1 to {MAX_NAME} characters, not {shown(name)}."
        )
    try:
        fields = [field for field in string.Formatter().parse(name) if field[1] is not None]
        first, second = (name.format(day=day) for day in (dt.date(2001, 1, 1), dt.date(2002, 2, 2)))
    except (ValueError, LookupError, AttributeError):
        raise _bad_pattern(name) from None
    if "{" in name and (
        any(field[1] != "day" or not field[2] or field[3] for field in fields) or first == second
    ):
        raise _bad_pattern(name)


def _bad_pattern(name: object) -> InvalidOption:
    return InvalidOption(
        f"Table name {shown(name)} is no pattern of days: write the day as in sms_{{day:%Y%m%d}}, with codes of "
        "strftime."
    )


def _check_column(what: str, name: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidOption(f"{what} must be the name of a column, not {shown(name)}.")


def _check_database(what: str, database: object) -> None:
    if database is None:
        return
    if isinstance(database, str):
        if "://" in database:
            return
    elif callable(getattr(database, "connect", None)) and hasattr(database, "dialect"):
        return
    raise InvalidOption(
        f"{what}(database=…) must be a SQLAlchemy URL, Engine or AsyncEngine, or None for the store's own database, "
        f"not {shown(database if not isinstance(database, str) else database.partition('@')[2] or database)}."
    )


def _check_due_as(what: str, value: object) -> None:
    if value not in (None, "seconds", "milliseconds"):
        raise InvalidOption(
            f'{what}(due_as=…) must be "seconds" or "milliseconds" since 1970, or None for times, not '
            f"{shown(value)}."
        )
