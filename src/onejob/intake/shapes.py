"""The shape of a table or query: which of its columns mean what, checked against the database as it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, assert_never, cast
from uuid import UUID

import msgspec
import sqlalchemy as sa

from onejob.core.errors import InvalidOption
from onejob.intake.due import DueKind
from onejob.intake.sources import Query, Table
from onejob.keys import near

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.sql.selectable import FromClause
    from sqlalchemy.types import TypeEngine

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
_FLAG: Final = "onejob_flag"
_AS_IT_IS: Final[TypeEngine[Any]] = sa.types.NullType()


class Family(Enum):
    """What kind of values a column has, as far as it matters here."""

    TIME = "times"
    ZONED = "times with a zone"
    TEXT = "texts"
    NUMBER = "numbers"
    BOOLEAN = "booleans"
    UUID = "UUIDs"
    OTHER = "values of another kind"


class Description(msgspec.Struct, frozen=True):
    """What a database says about one of its tables."""

    columns: dict[str, Family]
    unique: frozenset[str]
    """Columns that no two rows share."""
    leading: frozenset[str]
    """Columns that an index starts with."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A table or query that rows are taken from."""

    name: str
    """What people call it."""
    columns: tuple[str, ...]
    source: FromClause
    id: sa.ColumnElement[Any]
    due: sa.ColumnElement[Any]
    kind: DueKind
    id_family: Family
    flag: sa.ColumnElement[Any] | None = None
    target: Any = None
    """The table in which the flag is set, and its columns."""
    target_id: sa.ColumnElement[Any] | None = None
    target_flag: sa.ColumnElement[Any] | None = None
    numeric_flag: bool = False
    lockable: bool = False
    """Its rows can be locked while they are taken."""
    needs_index: bool = False

    def id_value(self, id: Any) -> Any:
        """An id as the column has it, where it is written as text; None if no row can have it."""
        read = _FROM_TEXT.get(self.id_family)
        if read is None or not isinstance(id, str):
            return id
        try:
            return read(id)
        except ValueError:
            return None


def table_shape(source: Table, name: str, described: Description, dialect: str) -> Shape:
    """The shape of a table; raises `InvalidOption` for a column that is not there or not fit."""
    columns = described.columns
    for column in (source.id, source.due, source.flag):
        if column not in columns:
            hint = near(column, tuple(columns))
            raise InvalidOption(f"Table {name!r} has no column {column!r}: {hint}")
    if source.id not in described.unique:
        raise InvalidOption(
            f"Column {source.id!r} of table {name!r} is not unique, and an id must be: name the primary key with "
            "id=…, or make a unique index on it."
        )
    if columns[source.flag] is Family.TEXT:
        raise InvalidOption(
            f"Column {source.flag!r} of table {name!r} holds texts, and any text would count as set: a flag is a boolean, "
            "or 0 and 1."
        )
    kind = _due_kind(source, f"Column {source.due!r} of table {name!r}", columns[source.due], dialect)
    table = sa.table(name, *(sa.column(column, _AS_IT_IS) for column in columns))
    return Shape(
        name=name,
        columns=tuple(columns),
        source=table,
        id=table.c[source.id],
        due=table.c[source.due],
        kind=kind,
        id_family=columns[source.id],
        flag=table.c[source.flag],
        target=table,
        target_id=table.c[source.id],
        target_flag=table.c[source.flag],
        numeric_flag=columns[source.flag] is Family.NUMBER,
        lockable=True,
        needs_index=described.leading.isdisjoint((source.flag, source.due)),
    )


def query_shape(source: Query, name: str, dialect: str) -> Shape:
    """The shape of a query; raises `InvalidOption` for a column that is not in it."""
    asked, flag = cast("Any", source.select), source.flag
    columns = tuple(cast("list[str]", asked.subquery().c.keys()))
    for column in (source.id, source.due):
        if column not in columns:
            hint = near(column, columns)
            raise InvalidOption(f"The query of intake {name!r} has no column {column!r}: {hint}")
    target: Any = None if flag is None else getattr(flag, "table")  # noqa: B009 - not every column has one
    if flag is not None:
        asked = asked.add_columns(flag.label(_FLAG))
        if source.id not in target.c:
            raise InvalidOption(
                f"Table {target.name!r}, whose flag the intake {name!r} sets, has no column {source.id!r}: name the id "
                "in the query as it is named there."
            )
    rows = asked.subquery("onejob_rows")
    what = f"Column {source.due!r} of the query of intake {name!r}"
    kind = _due_kind(source, what, family_of(rows.c[source.due].type), dialect)
    return Shape(
        name=name,
        columns=columns,
        source=rows,
        id=rows.c[source.id],
        due=rows.c[source.due],
        kind=kind,
        id_family=family_of(rows.c[source.id].type),
        flag=None if flag is None else rows.c[_FLAG],
        target=target,
        target_id=None if target is None else target.c[source.id],
        target_flag=flag,
        numeric_flag=flag is not None and family_of(flag.type) is Family.NUMBER,
    )


def family_of(kind: TypeEngine[Any]) -> Family:
    """What kind of values a column of a SQLAlchemy type has."""
    match kind:
        case sa.DateTime():
            return Family.ZONED if kind.timezone else Family.TIME
        case sa.Date():
            return Family.TIME
        case sa.Boolean():
            return Family.BOOLEAN
        case sa.String():
            return Family.TEXT
        case sa.Uuid():
            return Family.UUID
        case sa.Integer() | sa.Numeric() | sa.Float():
            return Family.NUMBER
        case _:
            return Family.OTHER


def family_named(declared: str) -> Family:
    """The same of a type as SQLite has it: any words at all."""
    words = declared.upper()
    for family, signs in _SIGNS:
        if any(sign in words for sign in signs):
            return family
    return Family.OTHER


def family_in_postgresql(declared: str) -> Family:
    """The same of a type as PostgreSQL writes it out."""
    if declared.startswith("timestamp") and declared.endswith("with time zone"):
        return Family.ZONED
    return Family.UUID if declared == "uuid" else family_named(declared)


_FROM_TEXT: Final[dict[Family, Callable[[str], Any]]] = {Family.NUMBER: int, Family.UUID: UUID}
_SIGNS: Final[Sequence[tuple[Family, tuple[str, ...]]]] = (
    (Family.TIME, ("DATE", "TIME")),
    (Family.BOOLEAN, ("BOOL",)),
    (Family.NUMBER, ("INT", "REAL", "FLOA", "DOUB", "NUM", "DEC")),
    (Family.TEXT, ("CHAR", "CLOB", "TEXT")),
)


def _due_kind(source: Table | Query, what: str, family: Family, dialect: str) -> DueKind:
    holds_numbers = family is Family.NUMBER or (dialect == SQLITE and family in (Family.TIME, Family.OTHER))
    if source.due_as is not None:
        if not holds_numbers:
            raise InvalidOption(f"{what} holds {family.value}: leave due_as={source.due_as!r} out.")
        return DueKind(source.due_as)
    if family is Family.NUMBER:
        raise InvalidOption(
            f'{what} holds numbers: say due_as="seconds" or due_as="milliseconds", counted from 1970.'
        )
    if dialect == SQLITE:
        return DueKind.TEXT
    match family:
        case Family.TEXT:
            return DueKind.TEXT
        case Family.ZONED:
            return DueKind.AWARE
        case Family.TIME | Family.OTHER:
            return DueKind.NAIVE
        case Family.BOOLEAN | Family.UUID:
            raise InvalidOption(f"{what} holds {family.value}, which are no times: name another with due=….")
        case _:
            assert_never(family)
