"""The statements of an intake, as several databases get them, and what is refused of their columns."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from onejob import InvalidOption, Query, Table
from onejob.intake import statements
from onejob.intake.due import DueKind, DueTimes
from onejob.intake.own import compiled
from onejob.intake.shapes import Description, Family, Shape, family_named, family_of, query_shape, table_shape

NOW = 1_800_000_000_000
TIMES = DueTimes()
SOURCE = Table("sms", due="due")


def shape(due: Family = Family.TIME, dialect: str = "sqlite", **changes: Any) -> Shape:
    columns = {"id": Family.NUMBER, "due": due, "scheduled": Family.BOOLEAN, "text": Family.TEXT}
    described = Description(
        changes.pop("columns", columns), frozenset({"id"}), changes.pop("leading", frozenset("id"))
    )
    return table_shape(changes.pop("source", SOURCE), "sms", described, dialect)


def text(statement: Any, dialect: sa.Dialect) -> str:
    return " ".join(str(statement.compile(dialect=dialect)).split())


def test_a_page_is_one_statement_that_locks_what_others_skip() -> None:
    wanted = shape(Family.ZONED, "postgresql")
    page = statements.page(wanted, TIMES, NOW, (dt.datetime(2027, 1, 1, tzinfo=dt.UTC), 5), 100, locked=True)
    asked = text(page, postgresql.dialect())
    assert "sms.scheduled IS NULL OR sms.scheduled = false" in asked
    assert "ORDER BY sms.due, sms.id" in asked
    assert asked.endswith("FOR UPDATE SKIP LOCKED")
    assert re.search(r"sms.due >= .+ AND \(sms.due > .+ OR sms.id > \S+\) AND sms.due <= .+ ORDER", asked)


def test_a_page_that_ends_with_a_null_goes_on_behind_it() -> None:
    first, last = (
        text(
            statements.page(shape(), TIMES, NOW, ("2027-01-01", None), 9, locked=False, nulls_first=first),
            sqlite.dialect(),
        )
        for first in (True, False)
    )
    assert "sms.due > ? OR sms.id IS NOT NULL" in first
    assert "IS NOT NULL" not in last, "there they come after all ids"


def test_without_locks_nothing_is_locked() -> None:
    page = statements.page(shape(), TIMES, NOW, None, 100, locked=False)
    assert "FOR UPDATE" not in text(page, sqlite.dialect())


@pytest.mark.parametrize(
    ("dialect", "numeric", "expected"),
    [
        (postgresql.dialect(), False, "SET scheduled=true"),
        (postgresql.dialect(), True, "SET scheduled=%(scheduled)s"),
        (mysql.dialect(), False, "SET scheduled=true"),
        (sqlite.dialect(), False, "SET scheduled=1"),
    ],
)
def test_the_flag_is_set_as_the_database_has_it(dialect: sa.Dialect, numeric: bool, expected: str) -> None:
    columns = {
        "id": Family.NUMBER,
        "due": Family.TIME,
        "scheduled": Family.NUMBER if numeric else Family.BOOLEAN,
    }
    assert expected in text(statements.mark(shape(columns=columns), [1, 2], flagged=True), dialect)


def test_a_statement_is_compiled_with_its_values_for_another_connection() -> None:
    made, values = compiled(
        statements.mark(shape(), [1, 2], flagged=False), sqlite.dialect(paramstyle="named")
    )
    assert "IN (:param_1_1, :param_1_2)" in made
    assert values == {"param_1_1": 1, "param_1_2": 2}


def test_values_of_a_users_own_query_are_written_as_sqlalchemy_would() -> None:
    made_at = sa.column("made_at", sa.DateTime())
    rows = sa.table("rows", sa.column("id"), sa.column("due"), made_at)
    select = sa.select(rows).where(made_at < dt.datetime(2027, 1, 2, 3, 4))  # noqa: DTZ001 - as its column has it
    wanted = query_shape(Query(select, id="id", due="due"), "sms", "sqlite")
    _, values = compiled(
        statements.page(wanted, TIMES, NOW, None, 5, locked=False), sqlite.dialect(paramstyle="named")
    )
    assert "2027-01-02 03:04:00.000000" in values.values()


@pytest.mark.parametrize(
    ("dialect", "numeric", "expected"),
    [
        (sqlite.dialect(), False, "(due, id) WHERE scheduled IS NULL OR scheduled = 0"),
        (postgresql.dialect(), False, "(due, id) WHERE scheduled IS NULL OR scheduled = false"),
        (postgresql.dialect(), True, "(due, id) WHERE scheduled IS NULL OR scheduled = 0"),
        (mysql.dialect(), False, "(scheduled, due)"),
    ],
)
def test_the_index_is_of_the_pending_rows_where_that_can_be(
    dialect: sa.Dialect, numeric: bool, expected: str
) -> None:
    flag = Family.NUMBER if numeric else Family.BOOLEAN
    wanted = shape(columns={"id": Family.NUMBER, "due": Family.TIME, "scheduled": flag})
    assert statements.index(wanted, dialect) == f"CREATE INDEX sms_scheduled_due ON sms {expected}"
    pending = expected.partition(" WHERE ")[2].replace("scheduled", "sms.scheduled")
    page = statements.page(wanted, TIMES, NOW, None, 5, locked=False)
    assert pending in text(page, dialect), "a database must see that the index will do"


def test_no_index_is_needed_where_one_begins_with_the_flag_or_the_due_time() -> None:
    for there in ("scheduled", "due"):
        assert statements.index(shape(leading=frozenset({there})), sqlite.dialect()) is None


@pytest.mark.parametrize(
    ("family", "dialect", "kind"),
    [
        (Family.TIME, "sqlite", DueKind.TEXT),
        (Family.OTHER, "sqlite", DueKind.TEXT),
        (Family.TIME, "postgresql", DueKind.NAIVE),
        (Family.ZONED, "postgresql", DueKind.AWARE),
        (Family.TEXT, "postgresql", DueKind.TEXT),
        (Family.OTHER, "mysql", DueKind.NAIVE),
    ],
)
def test_times_are_compared_as_the_column_has_them(family: Family, dialect: str, kind: DueKind) -> None:
    assert shape(family, dialect).kind is kind


def test_numbers_need_to_be_told_apart() -> None:
    with pytest.raises(
        InvalidOption, match="Column 'due' of table 'sms' holds numbers: say due_as=\"seconds\""
    ):
        shape(Family.NUMBER)
    counted = Table("sms", due="due", due_as="milliseconds")
    assert shape(Family.NUMBER, source=counted).kind is DueKind.MILLISECONDS
    assert shape(Family.TIME, source=counted).kind is DueKind.MILLISECONDS, "SQLite holds what it is given"
    with pytest.raises(InvalidOption, match="holds texts: leave due_as='milliseconds' out"):
        shape(Family.TEXT, source=counted)
    with pytest.raises(InvalidOption, match="holds times: leave due_as"):
        shape(Family.TIME, "postgresql", source=counted)
    with pytest.raises(InvalidOption, match="holds booleans"):
        shape(Family.BOOLEAN, "postgresql")


def test_an_id_that_rows_share_is_refused() -> None:
    described = Description(
        {"id": Family.NUMBER, "due": Family.TIME, "scheduled": Family.BOOLEAN}, frozenset(), frozenset()
    )
    with pytest.raises(
        InvalidOption, match=r"Column 'id' of table 'sms' is not unique.*name the primary key"
    ):
        table_shape(SOURCE, "sms", described, "sqlite")


def test_an_id_may_be_written_as_text_where_the_column_has_numbers() -> None:
    assert shape().id_value("17") == 17
    assert shape().id_value("x") is None, "no row can have that"
    assert (
        shape(columns={"id": Family.TEXT, "due": Family.TIME, "scheduled": Family.BOOLEAN}).id_value("17")
        == "17"
    )


def test_an_id_that_is_a_uuid_may_be_written_as_text() -> None:
    columns = {"id": family_of(postgresql.UUID()), "due": Family.TIME, "scheduled": Family.BOOLEAN}
    made = shape(columns=columns)
    assert made.id_value(str(UUID(int=7))) == UUID(int=7)
    assert made.id_value(UUID(int=7)) == UUID(int=7)
    assert made.id_value("7") is None


def test_a_query_names_columns_that_it_has() -> None:
    rows = sa.table("rows", sa.column("id"), sa.column("due_at"), sa.column("done"))
    with pytest.raises(
        InvalidOption, match="query of intake 'sms' has no column 'due': did you mean 'due_at'"
    ):
        query_shape(Query(sa.select(rows), id="id", due="due"), "sms", "sqlite")
    other = sa.table("others", sa.column("key"), sa.column("done"))
    with pytest.raises(InvalidOption, match=r"Table 'others', whose flag.*has no column 'id'"):
        query_shape(Query(sa.select(rows), id="id", due="due_at", flag=other.c.done), "sms", "sqlite")


@pytest.mark.parametrize(
    ("declared", "family"),
    [
        ("INTEGER", Family.NUMBER),
        ("BIGINT", Family.NUMBER),
        ("DOUBLE PRECISION", Family.NUMBER),
        ("NUMERIC(10, 2)", Family.NUMBER),
        ("varchar(20)", Family.TEXT),
        ("TIMESTAMP", Family.TIME),
        ("datetime", Family.TIME),
        ("boolean", Family.BOOLEAN),
        ("", Family.OTHER),
        ("BLOB", Family.OTHER),
    ],
)
def test_families_of_declared_types(declared: str, family: Family) -> None:
    assert family_named(declared) is family


def test_families_of_sqlalchemys_types() -> None:
    assert family_of(postgresql.TIMESTAMP(timezone=True)) is Family.ZONED
    assert family_of(postgresql.TIMESTAMP()) is Family.TIME
    assert family_of(mysql.TINYINT()) is Family.NUMBER
    assert family_of(sa.Double()) is Family.NUMBER
    assert family_of(sa.Date()) is Family.TIME
    assert family_of(sa.Unicode()) is Family.TEXT
    assert family_of(sa.LargeBinary()) is Family.OTHER
