"""The statements of an intake, in SQLAlchemy Core: a page of rows, the flag, counts, one row, and the index it needs.

Values are compared and returned as the driver has them: `raw` takes away what SQLAlchemy would make of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from onejob.intake.due import DueKind, DueTimes, easternmost
from onejob.intake.shapes import Shape

Selected: TypeAlias = "sa.Select[*tuple[Any, ...]]"
Compound: TypeAlias = "sa.CompoundSelect[*tuple[Any, ...]]"
Place = tuple[Any, Any]
"""Where a page ended: the raw due time and id of its last row."""

ID: Final = "onejob_id"
DUE: Final = "onejob_due"
"""What the id and the due time of a row are called in what is selected, beside its own columns."""
_PARTIAL_INDEXES: Final = frozenset({"sqlite", "postgresql"})
_WITH_OFFSET: Final = ("%+%", "%Z")
NULLS_LAST: Final = frozenset({"postgresql", "oracle"})
"""Databases that sort NULL behind everything else."""
_AFTER_DIGITS: Final = ":"
"""What sorts behind this begins with no digit, and is no time."""


def page(
    shape: Shape,
    times: DueTimes,
    horizon: int,
    after: Place | None,
    limit: int,
    *,
    locked: bool,
    nulls_first: bool = True,
) -> Selected | Compound:
    """Up to `limit` rows that are due by the horizon and not flagged, from where the page before ended.

    The last two columns are the id and the due time. Some rows may turn out to be due later: see `due_by`.
    """
    id, due = raw(shape.id), raw(shape.due)
    rows = _all_of(shape, id, due).where(*unflagged(shape))
    if after is not None:
        behind = _behind(id, after[1], nulls_first=nulls_first)
        rows = rows.where(due >= after[0], sa.or_(due > after[0], behind))
    if locked and shape.lockable:
        found = rows.where(due_by(shape, times, horizon)).order_by(due, id).limit(limit)
        return found.with_for_update(skip_locked=True)
    ranges = _ranges(shape, times, horizon)
    parts = [rows.where(due_there).order_by(due, id).limit(limit) for due_there in ranges]
    if len(parts) == 1:
        return parts[0]
    # Each range by the index: asked for together, they would be found by looking at all rows that are pending.
    return sa.union_all(*(sa.select(part.subquery()) for part in parts)).order_by(DUE, ID).limit(limit)


def mark(shape: Shape, ids: Sequence[Any], *, flagged: bool) -> sa.Update:
    """Set or clear the flag of rows."""
    assert shape.target_id is not None
    assert shape.target_flag is not None
    value = _flag(shape, flagged=flagged)
    return (
        sa.update(shape.target).where(raw(shape.target_id).in_(ids)).values({shape.target_flag.name: value})
    )


def counts(shape: Shape, times: DueTimes, now: int) -> Selected:
    """How many rows there are, how many are flagged, and how many of the others are due."""
    total = sa.func.count()
    if shape.flag is None:
        return sa.select(total, sa.null(), sa.null()).select_from(shape.source)
    pending = unflagged(shape)[0]
    return sa.select(
        total,
        total - _number_of(pending),
        _number_of(sa.and_(pending, due_by(shape, times, now, exactly=True))),
    ).select_from(shape.source)


def how_many(shape: Shape, times: DueTimes, horizon: int) -> Selected:
    """How many rows all pages together will have."""
    wanted = [due_by(shape, times, horizon), *unflagged(shape)]
    return sa.select(sa.func.count()).select_from(shape.source).where(*wanted)


def one(shape: Shape, id: Any) -> Selected:
    """One row: all its columns, its id and due time, and whether it is flagged."""
    found = _all_of(shape, raw(shape.id), raw(shape.due))
    if shape.flag is not None:
        found = found.add_columns(sa.case((unflagged(shape)[0], 0), else_=1).label("onejob_flagged"))
    return found.where(raw(shape.id) == id)


def index(shape: Shape, dialect: sa.Dialect) -> str | None:
    """The statement that makes the index by which pages are found; None if there is one that will do.

    Where an index can be of some rows only, it is of those that are pending, in the order in which they are taken: a page
    costs the same however many rows have been scheduled, or wait to be.
    """
    if not shape.needs_index or shape.flag is None:
        return None
    flag, due, id = (str(column.key) for column in (shape.flag, shape.due, shape.id))
    columns = (sa.Column(name, sa.types.NullType()) for name in (flag, due, id))
    table = sa.Table(shape.name, sa.MetaData(), *columns)
    name = f"{shape.name}_{flag}_{due}"
    if dialect.name in _PARTIAL_INDEXES:
        pending = _is_unset(shape, table.c[flag])
        options: dict[str, Any] = {f"{dialect.name}_where": pending}
        wanted = sa.Index(name, table.c[due], table.c[id], **options)
    else:
        wanted = sa.Index(name, table.c[flag], table.c[due])
    return str(sa.schema.CreateIndex(wanted).compile(dialect=dialect))


def due_by(shape: Shape, times: DueTimes, horizon: int, *, exactly: bool = False) -> sa.ColumnElement[bool]:
    """True for rows that are due by an instant, and maybe some that are not; `exactly`: rather too few.

    Texts are compared as texts. So those with an offset of their own are compared by the latest that could be meant,
    and what is no time at all is found, too: somebody should be told.
    """
    if shape.kind is DueKind.TEXT and exactly:
        due, bound = raw(shape.due), times.bound(horizon, shape.kind)
        return sa.and_(due < _AFTER_DIGITS, _spaced(due) <= bound)
    return sa.or_(*_ranges(shape, times, horizon))


def _ranges(shape: Shape, times: DueTimes, horizon: int) -> list[sa.ColumnElement[bool]]:
    """What `due_by` says, as one or several ranges of an index on the due time."""
    due, bound = raw(shape.due), times.bound(horizon, shape.kind)
    if shape.kind is not DueKind.TEXT:
        return [due <= bound]
    passed = _spaced(due) <= bound
    with_offset = sa.or_(*(due.like(pattern) for pattern in _WITH_OFFSET))
    # Other forms of ISO 8601, as 20250806T203000 and 2025-W32-3, sort behind all of their year that are written with dashes.
    year = int(str(bound)[:4])
    first, last = f"{year:04}-{_AFTER_DIGITS}", f"{year + 1:04}-"
    usual = sa.and_(
        due <= easternmost(horizon), sa.or_(due < first, due >= last), sa.or_(passed, with_offset)
    )
    return [usual, sa.and_(due >= first, due < last), due >= _AFTER_DIGITS]


def _spaced(due: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A time in text, with a space between its date and the rest."""
    return sa.func.replace(sa.func.replace(due, "T", " "), "t", " ")


def unflagged(shape: Shape) -> list[sa.ColumnElement[bool]]:
    """True for rows whose flag is false or NULL; nothing if there is no flag."""
    if shape.flag is None:
        return []
    return [_is_unset(shape, raw(shape.flag))]


def raw(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A column whose values are the driver's own."""
    return sa.type_coerce(column, sa.types.NullType())


def _behind(id: sa.ColumnElement[Any], last: Any, *, nulls_first: bool) -> sa.ColumnElement[bool]:
    """True for ids behind the last one of a page. Where a column allows it, that may be NULL, which compares with nothing."""
    if last is not None:
        return id > last if nulls_first else sa.or_(id > last, id.is_(None))
    return id.is_not(None) if nulls_first else sa.false()


def _all_of(shape: Shape, id: sa.ColumnElement[Any], due: sa.ColumnElement[Any]) -> Any:
    columns = [shape.source.c[name] for name in shape.columns]
    return sa.select(*columns, id.label(ID), due.label(DUE))


def _is_unset(shape: Shape, flag: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    # As a literal, or else a database could not see that an index of the pending rows will do.
    false: sa.ColumnElement[Any] = sa.literal_column("0") if shape.numeric_flag else sa.false()
    return sa.or_(flag.is_(None), flag == false)


def _flag(shape: Shape, *, flagged: bool) -> Any:
    if shape.numeric_flag:
        return int(flagged)
    return sa.true() if flagged else sa.false()


def _number_of(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(sa.func.sum(sa.case((condition, 1), else_=0)), 0)
