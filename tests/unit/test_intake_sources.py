"""What may be written as a source of rows, and what is refused where it is written."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from onejob import App, InvalidOption, Query, Rows, Table, Unique
from onejob.intake.files import refuse_missing_file

MESSAGES = sa.table("messages", sa.column("id"), sa.column("due"), sa.column("scheduled"))


async def rows(until: dt.datetime) -> AsyncIterator[dict[str, Any]]:
    for row in ():
        yield row


def wrong(settings: dict[str, Any], pattern: str) -> Any:
    return pytest.param(settings, pattern, id=pattern[:40])


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        wrong({"name": ""}, "takes the name of a table of 1 to 200 characters, not ''"),
        wrong({"name": 7}, "not 7"),
        wrong({"name": "sms_{day}"}, "is no pattern of days: write the day as in sms_{day:%Y%m%d}"),
        wrong({"name": "sms_{date:%Y}"}, "is no pattern of days"),
        wrong({"name": "sms_{day:x}"}, "is no pattern of days"),
        wrong({"name": "sms_{day!r:%Y}"}, "is no pattern of days"),
        wrong({"name": "sms_{day.year:d}"}, "is no pattern of days"),
        wrong({"name": "sms_{"}, "is no pattern of days"),
        wrong({"name": "sms_{}"}, "is no pattern of days"),
        wrong({"id": ""}, r"Table\(id=…\) must be the name of a column, not ''"),
        wrong({"due": None}, r"Table\(due=…\) must be the name of a column, not None"),
        wrong({"flag": "due"}, "names a column twice"),
        wrong({"database": 5}, "must be a SQLAlchemy URL, Engine or AsyncEngine, or None"),
        wrong({"database": "rows.db"}, "not 'rows.db'"),
        wrong({"tz": "Europe/Pariss"}, "did you mean 'Europe/Paris'"),
        wrong({"days_back": -1}, r"Table\(days_back=…\) must be a whole number from 0 to 366"),
        wrong({"due_as": "minutes"}, 'must be "seconds" or "milliseconds" since 1970.*not \'minutes\''),
    ],
)
def test_a_table_is_checked_where_it_is_written(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises(InvalidOption, match=pattern):
        Table(**{"name": "sms", "due": "due", **settings})


def test_a_password_in_a_wrong_url_is_not_shown() -> None:
    with pytest.raises(InvalidOption) as caught:
        Table("sms", due="due", database="me:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        wrong({"select": "select 1"}, r"takes a SQLAlchemy select\(…\), not 'select 1'"),
        wrong({"id": 1}, r"Query\(id=…\)"),
        wrong({"flag": "scheduled"}, r"must be a column of a table, as in messages.c.scheduled"),
        wrong({"flag": sa.column("loose")}, "must be a column of a table"),
        wrong(
            {"select": sa.union(sa.select(MESSAGES), sa.select(MESSAGES)), "flag": MESSAGES.c.scheduled},
            r"select\(union.subquery\(\)\)",
        ),
    ],
)
def test_a_query_is_checked_where_it_is_written(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises(InvalidOption, match=pattern):
        Query(**{"select": sa.select(MESSAGES), "id": "id", "due": "due", **settings})


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        wrong({"function": lambda until: []}, "takes an async generator function of the horizon"),
        wrong({"flagged": print}, "must be an async function of a list of ids"),
        wrong({"tz": None}, "must be the name of a time zone"),
    ],
)
def test_rows_are_checked_where_they_are_written(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises(InvalidOption, match=pattern):
        Rows(**{"function": rows, "id": "id", "due": "due", **settings})


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        wrong({"name": "no spaces"}, "Intake name 'no spaces' is not valid"),
        wrong({"source": "sms"}, r"takes its rows from Table\(…\), Query\(…\) or Rows\(…\), not 'sms'"),
        wrong({"task": print}, r"makes jobs of a task: give one, or task.using\(…\)"),
        wrong({"arguments": 5}, r"intake\(arguments=…\) must be a plain function of a row"),
        wrong({"key": rows}, r"intake\(key=…\) must be a plain function"),
        wrong({"look_ahead": -1}, "look_ahead must be at least 0 seconds"),
        wrong({"per_fetch": 1001}, "per_fetch must be a whole number from 1 to 1000"),
        wrong({"every": 0}, "every must be at least 0.1 seconds"),
    ],
)
def test_an_intake_is_checked_where_it_is_declared(settings: dict[str, Any], pattern: str) -> None:
    app = App("memory:")

    @app.task
    def send(id: int) -> None: ...

    given = {"name": "sms", "source": Rows(rows, id="id", due="due"), "task": send, **settings}
    if "key" in settings:
        given["key"] = settings["key"] = _coroutine
    with pytest.raises(InvalidOption, match=pattern):
        app.intake(**given)
    assert not app.intakes


async def _coroutine(row: object) -> str:
    return ""


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"unique": Unique.once()}, r"cannot take unique=….*the key of a row is the intake's"),
        ({"force": True}, r"cannot take force=…"),
        ({"delay": 5}, r"cannot take delay=….*due when its row is"),
        ({"at": dt.datetime(2027, 1, 1, tzinfo=dt.UTC)}, r"cannot take at=…"),
        ({"blockers": ["0190b5a6-0000-7000-8000-000000000000"]}, r"cannot take blockers=…"),
    ],
)
def test_what_makes_no_sense_for_rows_is_refused(options: dict[str, Any], pattern: str) -> None:
    app = App("memory:")

    @app.task(unique=Unique.once())
    def send(id: int) -> None: ...

    with pytest.raises(InvalidOption, match=pattern):
        app.intake("sms", Rows(rows, id="id", due="due"), send.using(**options))
    made = app.intake("sms", Rows(rows, id="id", due="due"), send.using(priority=3, queue="bulk"))
    assert app.intakes == {"sms": made}
    assert (made.task, made.queue) == (send.name, "bulk")


def test_two_intakes_cannot_share_a_name_or_their_keys() -> None:
    app = App("memory:")

    @app.task
    def send(id: int) -> None: ...

    source = Rows(rows, id="id", due="due")
    app.intake("sms", source, send)
    with pytest.raises(InvalidOption, match="'sms' is declared twice"):
        app.intake("sms", source, send, key=lambda row: "other")
    with pytest.raises(InvalidOption, match=r"'more' and 'sms' would make the same keys.*key=…"):
        app.intake("more", source, send)
    app.intake("more", source, send, key=lambda row: "other")
    app.intake("elsewhere", source, send.using(queue="bulk"))
    assert list(app.intakes) == ["sms", "more", "elsewhere"]


def test_without_sqlalchemy_tables_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory:")

    @app.task
    def send(id: int) -> None: ...

    monkeypatch.setitem(__import__("sys").modules, "sqlalchemy", None)
    with pytest.raises(InvalidOption, match=r'pip install "onejob\[intake\]"'):
        app.intake("sms", Table("sms", due="due"), send)
    app.intake("sms", Rows(rows, id="id", due="due"), send)


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite+aiosqlite:///{}", "sqlite:///file:{}?uri=true"])
def test_a_file_that_is_not_there_is_not_made(url: str, tmp_path: Path) -> None:
    app, file = App("memory:"), tmp_path / "nosuch.db"

    @app.task
    def send(id: int) -> None: ...

    rows = app.intake("sms", Table("sms", due="due", database=url.format(file)), send)
    with app:
        for asked in (rows.run, rows.status, lambda: rows.explain_row(1), lambda: rows.allow(1)):
            with pytest.raises(
                InvalidOption, match=r"There is no file '.*nosuch\.db', which database=… names"
            ):
                asked()
        assert not file.exists()
        file.touch()
        with pytest.raises(InvalidOption, match="There is no table 'sms' in the database: there are none"):
            rows.run()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:nosuch.db?mode=rwc&uri=true",
        "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
        "postgresql://localhost/nosuch.db",
    ],
)
def test_a_database_that_is_no_file_or_opened_as_the_user_says_needs_no_file(url: str) -> None:
    refuse_missing_file(sa.make_url(url))


@pytest.mark.parametrize(
    "database",
    [
        "sqlite:///{file}",
        "sqlite+aiosqlite:///{file}?timeout=5",
        "sqlite:///{folder}/../{name}/jobs.db",
        "sqlite:///file:{file}?uri=true",
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_the_stores_own_file_is_refused_by_another_way(database: str, exists: bool, tmp_path: Any) -> None:
    file = tmp_path / "jobs.db"
    if exists:
        file.touch()
    app = App(f"sqlite:///{file}")

    @app.task
    def send(id: int) -> None: ...

    url = database.format(file=file, folder=tmp_path, name=tmp_path.name)
    with pytest.raises(InvalidOption, match=r"the store's own file.*leave database=… out"):
        app.intake("sms", Table("sms", due="due", database=url), send)
    with pytest.raises(InvalidOption, match="the store's own file"):
        app.intake("sms", Table("sms", due="due", database=sa.create_engine(f"sqlite:///{file}")), send)
    other = tmp_path / "rows.db"
    app.intake("sms", Table("sms", due="due", database=f"sqlite:///{other}"), send)
