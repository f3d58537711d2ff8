"""The intake over databases of every kind: the store's own, others through SQLAlchemy, and plain Python.

What is asked of it by name (I1 to I22) is in test_acceptance_intake; here is what can go wrong around it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from stage import eventually
from stored import OWN, is_postgres

from onejob import (
    App,
    Call,
    Intake,
    InvalidOption,
    Lane,
    Query,
    Receipt,
    Rows,
    Table,
    TransactionTimeout,
    WrongCall,
)
from onejob.core.job import Job, NewJob
from onejob.core.judge import Answer
from onejob.intake.sources import Database
from onejob.keepers.rounds import Keeper, make_rounds
from onejob.testing import FakeClock, adrain

CREATE = "create table {} (id integer primary key, phone text, due {}, scheduled boolean)"
NOW = "2027-01-15 08:00:00"
"""Where the clock stands."""
TODAY = dt.datetime(2027, 1, 15, 8, tzinfo=dt.UTC)


class Desk:
    """A task, and a table somewhere with rows for it."""

    def __init__(self, app: App, database: Database | None, sql: Callable[..., list[Any]] | None) -> None:
        self.app = app
        self.database = database
        self._sql = sql
        self.called: list[str] = []
        self.call = app.task(name="call")(self._call)

    async def _call(self, phone: str) -> None:
        self.called.append(phone)

    async def sql(self, statement: str, *parameters: Any) -> list[Any]:
        """Run one statement where the table is."""
        if self._sql is not None:
            return await asyncio.to_thread(self._sql, statement, parameters)
        async with self.app.transaction() as tx:
            return await tx.execute(spoken(self.app.url, statement), parameters)

    async def table(self, name: str = "calls", *rows: tuple[Any, ...], due: str = "text") -> None:
        """Make a table of rows: id and phone, and due time unless now."""
        await self.sql(CREATE.format(name, due))
        for row in rows:
            await self.put(name, *row)

    async def put(self, table: str, id: Any, phone: Any, due: Any = NOW, scheduled: Any = None) -> None:
        flag = None if scheduled is None else bool(scheduled)
        await self.sql(f"insert into {table} values (?, ?, ?, ?)", id, phone, due, flag)

    async def flags(self, table: str = "calls") -> list[Any]:
        """The ids of rows whose flag is set."""
        return [id for (id,) in await self.sql(f"select id from {table} where scheduled order by id")]

    def intake(self, table: str = "calls", name: str = "calls", **settings: Any) -> Intake:
        of_table = {key: settings.pop(key) for key in ("id", "tz", "due_as", "days_back") if key in settings}
        source = Table(table, due="due", database=self.database, **of_table)
        return self.app.intake(name, source, self.call, **settings)

    async def jobs(self) -> list[Job]:
        return (await self.app.ajobs(limit=1_000)).jobs[::-1]


def spoken(url: str, statement: str) -> str:
    """A statement with its parameters written as the store's database has them."""
    if not is_postgres(url):
        return statement
    numbers = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", statement)


def run_in(engine: sa.Engine) -> Callable[..., list[Any]]:
    def run(statement: str, parameters: Sequence[Any]) -> list[Any]:
        with engine.begin() as connection:
            result = connection.exec_driver_sql(statement, tuple(parameters))
            return [tuple(row) for row in result] if result.returns_rows else []

    return run


PLACES = [OWN, "engine", "async engine", "url", "async url"]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[sa.Engine]:
    """The user's own way to another database."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'rows.db'}")
    yield engine
    engine.dispose()


def desk_at(place: str, app: App, outside: sa.Engine) -> Desk:
    async_url = str(outside.url).replace("sqlite:", "sqlite+aiosqlite:")
    databases: dict[str, Any] = {
        "own": None,
        "engine": outside,
        "async engine": create_async_engine(async_url, poolclass=sa.NullPool),
        "url": str(outside.url),
        "async url": async_url,
    }
    return Desk(app, databases[place], None if place == "own" else run_in(outside))


@pytest.fixture(params=PLACES)
def desk(request: pytest.FixtureRequest, app: App, outside: sa.Engine) -> Desk:
    return desk_at(request.param, app, outside)


@pytest.fixture
def own(database_url: str, app: App, outside: sa.Engine) -> Desk:
    return desk_at("own", app, outside)


@pytest.fixture
def other(app: App, outside: sa.Engine) -> Desk:
    return desk_at("engine", app, outside)


@pytest.fixture(params=[OWN, "engine"])
def either(request: pytest.FixtureRequest, app: App, outside: sa.Engine) -> Desk:
    return desk_at(request.param, app, outside)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.__dict__.get("event") == name]


# Every place


async def test_rows_of_any_database_become_jobs_once(desk: Desk) -> None:
    await desk.table("calls", (1, "+1"), (2, "+2"), (3, "+3", "2027-01-15 08:30:00"), (4, "+4", "2027-01-16"))
    calls = desk.intake()
    report = await calls.arun()
    assert (report.taken, report.kept, report.failed) == (3, 0, 0)
    assert await desk.flags() == [1, 2, 3]
    assert (await calls.arun()).taken == 0
    status = await calls.astatus()
    assert (status.total, status.scheduled, status.pending, status.due) == (4, 3, 1, 0)
    assert status.last is not None
    assert status.last.taken == 0
    assert str((await calls.aexplain_row("3")).reason) == "flagged"
    await adrain(desk.app)
    assert sorted(desk.called) == ["+1", "+2"]
    assert str(await calls.aallow(1)) == "allowed"
    assert (await calls.arun()).taken == 1
    await desk.app.aclose()


@pytest.mark.parametrize("place", PLACES)
def test_everything_has_a_sync_form(place: str, make_app: Callable[..., App], outside: sa.Engine) -> None:
    app = make_app()
    desk = desk_at(place, app, outside)
    if place == "own":
        with app.transaction() as tx:
            tx.execute(CREATE.format("calls", "text"))
            tx.execute(spoken(app.url, "insert into calls values (1, '+1', ?, false)"), (NOW,))
    else:
        run_in(outside)(CREATE.format("calls", "text"), ())
        run_in(outside)("insert into calls values (1, '+1', ?, 0)", (NOW,))
    calls = desk.intake()
    seen: list[tuple[int, int]] = []
    report = calls.run(on_page=lambda progress: seen.append((progress.done, progress.about)))
    assert report.taken == 1
    assert seen == [(1, 1)]
    assert calls.status().scheduled == 1
    assert calls.explain_row(1).reason == "flagged"
    assert calls.allow(1) == "queued"
    assert calls.allow(1, force=True) == "allowed"
    assert calls.explain_row(1).as_dict()["reason"] == "pending"


async def test_a_sync_call_in_an_event_loop_is_refused(other: Desk) -> None:
    calls = other.intake()
    for call in (calls.run, calls.status, lambda: calls.explain_row(1), lambda: calls.allow(1)):
        with pytest.raises(WrongCall, match=r"await intake\.a"):
            call()


@pytest.mark.parametrize("declared", ["datetime", "timestamp", ""])
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_in_sqlite_times_are_texts_however_they_are_declared(either: Desk, declared: str) -> None:
    await _every_form_is_compared_as_a_time(either, declared)


async def test_texts_of_every_form_are_compared_as_times(either: Desk) -> None:
    await _every_form_is_compared_as_a_time(either, "text")


async def _every_form_is_compared_as_a_time(either: Desk, declared: str) -> None:
    await either.table("calls", due=declared)
    horizon = TODAY + dt.timedelta(hours=1)
    early, late = horizon - dt.timedelta(minutes=1), horizon + dt.timedelta(minutes=1)
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    forms: list[Callable[[dt.datetime], str]] = [
        lambda when: when.strftime("%Y-%m-%d %H:%M:%S"),
        lambda when: when.strftime("%Y-%m-%dT%H:%M:%S"),
        lambda when: when.strftime("%Y-%m-%dT%H:%M:%S.000000"),
        lambda when: when.strftime("%Y-%m-%dT%H:%M:%SZ"),
        lambda when: when.isoformat(),
        lambda when: when.astimezone(zone).isoformat(),
        lambda when: when.astimezone(dt.timezone(-dt.timedelta(hours=9))).isoformat(sep=" "),
        lambda when: when.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S%z"),
        lambda when: when.astimezone(dt.timezone(dt.timedelta(hours=2))).strftime("%Y-%m-%d %H:%M:%S+02"),
        lambda when: when.astimezone(dt.timezone(-dt.timedelta(hours=3))).strftime("%Y-%m-%d %H:%M:%S-03"),
        lambda when: when.strftime("%Y-%m-%dt%H:%M:%S"),
        lambda when: when.strftime("%Y%m%dT%H%M%S"),
        lambda when: when.astimezone(zone).strftime("%Y%m%dT%H%M%S%z"),
        lambda when: when.strftime("%G-W%V-%uT%H:%M:%S"),
    ]
    for number, form in enumerate(forms):
        await either.put("calls", number, f"+{number}", form(early))
        await either.put("calls", 100 + number, f"+{100 + number}", form(late))
    calls = either.intake(look_ahead=3600, per_fetch=3)
    report = await calls.arun()
    assert (report.taken, report.failed) == (len(forms), 0)
    assert await either.flags() == list(range(len(forms)))
    assert {job.due for job in await either.jobs()} == {round(early.timestamp() * 1000)}


@pytest.mark.parametrize("tz", ["America/New_York", "Asia/Tokyo"])
async def test_times_without_a_zone_are_those_of_the_table(either: Desk, tz: str) -> None:
    from zoneinfo import ZoneInfo

    there = TODAY.astimezone(ZoneInfo(tz)).replace(tzinfo=None)
    await either.table("calls", (1, "+1", str(there)), (2, "+2", str(there + dt.timedelta(seconds=3601))))
    await either.put("calls", 3, "+3", "2027-01-15T08:59:00Z")
    assert (await either.intake(tz=tz).arun()).taken == 2
    assert await either.flags() == [1, 3]
    first, second = await either.jobs()
    assert [first.due, second.due] == [1_800_000_000_000, 1_800_003_540_000]
    assert first.key == f"job-1-{TODAY.astimezone(ZoneInfo(tz)).isoformat()}"


@pytest.mark.parametrize(("due_as", "factor"), [("seconds", 1), ("milliseconds", 1000)])
async def test_due_times_may_be_numbers(either: Desk, due_as: str, factor: int) -> None:
    now = 1_800_000_000
    await either.table("calls", (1, "+1", now * factor), (2, "+2", (now + 3601) * factor), due="bigint")
    unclear = either.intake(name="unclear")
    with pytest.raises(InvalidOption, match="Column 'due' of table 'calls' holds numbers"):
        await unclear.arun()
    calls = either.intake(due_as=due_as, key=lambda row: f"call-{row['id']}")
    assert (await calls.arun()).taken == 1
    assert (await calls.astatus()).pending == 1
    assert str((await calls.aexplain_row(2)).reason) == "not_yet"


async def test_ids_may_be_texts(either: Desk) -> None:
    await either.sql("create table calls (id text primary key, phone text, due text, scheduled boolean)")
    for id in ("b", "a", "c' or 1=1"):
        await either.put("calls", id, f"+{id}")
    calls = either.intake(per_fetch=1)
    assert (await calls.arun()).taken == 3
    assert await either.flags() == ["a", "b", "c' or 1=1"]
    assert (await calls.aexplain_row("c' or 1=1")).key == "job-c' or 1=1-2027-01-15T08:00:00"


@pytest.mark.parametrize("per_fetch", [1, 2, 3, 4])
async def test_rows_without_an_id_hold_up_no_other(either: Desk, per_fetch: int) -> None:
    await either.sql("create table calls (id text unique, phone text, due text, scheduled boolean)")
    for id in (None, None, None, "a", "b"):
        await either.put("calls", id, "+1")
    await either.put("calls", "c", "+1", "2027-01-15 08:01:00")
    report = await either.intake(per_fetch=per_fetch).arun()
    assert report.taken == 3
    assert report.failures[0].reason == "it has no id"
    assert await either.flags() == ["a", "b", "c"]


async def test_names_of_tables_and_columns_may_be_anything(either: Desk) -> None:
    await either.sql(
        'create table "order" ("select" integer primary key, phone text, "due at" text, "where" integer)'
    )
    await either.sql("insert into \"order\" values (1, '+1', ?, 0)", NOW)
    source = Table("order", id="select", due="due at", flag="where", database=either.database)
    calls = either.app.intake("calls", source, either.call)
    [table] = (await calls.astatus()).tables
    assert table.index is not None
    await either.sql(table.index)
    assert (await calls.astatus()).tables[0].index is None
    assert (await calls.arun()).taken == 1
    assert (await calls.arun()).taken == 0


# Date-named tables


async def test_rows_of_two_days_with_the_same_id_and_time_are_two_jobs(either: Desk) -> None:
    for day in ("20270114", "20270115"):
        await either.table(f"calls_{day}", (1, f"+{day}"))
    calls = either.intake("calls_{day:%Y%m%d}")
    assert (await calls.arun()).taken == 2
    assert [job.key for job in await either.jobs()] == [
        "job-1-2027-01-15T08:00:00-calls_20270114",
        "job-1-2027-01-15T08:00:00",
    ]
    with pytest.raises(
        InvalidOption, match=r"row 1 in several tables \(calls_20270114, calls_20270115\).*table=…"
    ):
        await calls.aexplain_row(1)
    assert (await calls.aexplain_row(1, table="calls_20270114")).table == "calls_20270114"
    with pytest.raises(InvalidOption, match=r"does not look into table 'calls_20270113'.*calls_20270114"):
        await calls.aallow(1, table="calls_20270113")


async def test_a_table_that_comes_later_is_found(either: Desk, clock: FakeClock) -> None:
    await either.table("calls_20270115", (1, "+1"))
    calls = either.intake("calls_{day:%Y%m%d}", look_ahead=86_400)
    assert (await calls.atick()).taken == 1
    await either.table("calls_20270116", (1, "+2", "2027-01-16 07:00:00"))
    assert (await calls.atick()).taken == 0, "which tables there are is asked once a minute"
    clock.advance(60)
    assert (await calls.atick()).taken == 1
    await either.table("calls_20270114", (1, "+3", "2027-01-14"))
    assert (await calls.arun()).taken == 1, "but whoever asks by hand is answered at once"


async def test_one_bad_table_does_not_stop_the_others(either: Desk) -> None:
    await either.sql(
        "create table calls_20270114 (id integer primary key, phone text, dew text, scheduled boolean)"
    )
    await either.table("calls_20270115", (1, "+1"))
    calls = either.intake("calls_{day:%Y%m%d}")
    with pytest.raises(InvalidOption, match="Table 'calls_20270114' has no column 'due': did you mean 'dew'"):
        await calls.arun()
    assert await either.flags("calls_20270115") == [1]
    assert len(await either.jobs()) == 1


# Bad rows


async def test_bad_rows_are_told_once_and_pass_nobody_by(
    either: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [(1, None), (3, "x" * 1_100_000), (4, "+4", "soon"), (5, "+5", "2026-99-01")]
    good = [(id, f"+{id}") for id in (2, *range(6, 16))]
    await either.table("calls", *bad, *good)
    calls = either.intake(per_fetch=2, arguments=lambda row: {"phone": row["phone"].strip()})
    for taken in (11, 0):
        report = await calls.arun()
        assert (report.taken, report.failed) == (taken, 4)
    assert {failure.id for failure in report.failures} == {"1", "3", "4", "5"}
    told = events(caplog, "intake.bad_row")
    assert len(told) == 4
    assert any(
        "row 1 of calls cannot become a job: arguments=… raised AttributeError" in text for text in told
    )
    assert any("row 3 of calls cannot become a job: Job data exceeds maximum size" in text for text in told)
    assert (await calls.astatus()).failed == 4
    assert str(await calls.aexplain_row(4)).startswith(
        "Row 4 of calls cannot become a job: its due time 'soon'"
    )
    await either.sql("update calls set phone = '+1' where id = 1")
    assert (await calls.arun()).taken == 1


async def test_a_hook_may_refuse_a_row_and_another_hears_of_the_rest(either: Desk) -> None:
    heard: list[str] = []

    @either.app.before_enqueue
    async def refuse(call: Call[Any]) -> None:
        if call.arguments["phone"] == "+2":
            raise ValueError("not that one")
        await either.call.using(queue="notes", unique=None).aenqueue("note")

    @either.app.after_enqueue
    def hear(receipt: Receipt[Any]) -> None:
        heard.append(str(receipt.key))

    await either.table("calls", (1, "+1"), (2, "+2"), (3, "+3"))
    report = await either.intake().arun()
    assert (report.taken, report.failed) == (2, 1)
    assert "a before_enqueue hook refused it with ValueError: not that one" in report.failures[0].reason
    assert heard == ["job-1-2027-01-15T08:00:00", "job-3-2027-01-15T08:00:00"]
    assert await either.flags() == [1, 3]
    assert await either.app.acount("queue:notes") == 2


async def test_a_changed_lane_is_told(either: Desk, caplog: pytest.LogCaptureFixture) -> None:
    await either.call.using(lane=Lane("line", concurrency=3)).aenqueue("+0")
    await either.table("calls", (1, "+1"))
    source = Table("calls", due="due", database=either.database)
    calls = either.app.intake(
        "calls", source, either.call.using(lane=Lane("line", concurrency=2), priority=5)
    )
    await calls.arun()
    assert len(events(caplog, "lane.changed")) == 1
    assert [job.priority for job in await either.jobs()] == [0, 5]


# What is not as it should be


async def test_a_table_or_column_that_is_not_there_is_named(desk: Desk) -> None:
    await desk.table("calls")
    with pytest.raises(InvalidOption, match="no table 'cals' in the database: did you mean 'calls'"):
        await desk.intake("cals", "first").arun()
    await desk.sql("create table people (id integer primary key, fone text, due text, scheduled boolean)")
    wrong = desk.intake("people", "second", key=lambda row: "")
    for asked in (wrong.arun, wrong.astatus, lambda: wrong.aexplain_row(1), lambda: wrong.aallow(1)):
        with pytest.raises(
            InvalidOption, match=r"'people' has no column 'phone' for the parameter.*did you mean 'fone'"
        ):
            await asked()


async def test_ids_that_rows_share_are_refused(either: Desk) -> None:
    await either.sql(
        "create table calls (id integer, phone text, due text, scheduled boolean, primary key (id, due))"
    )
    calls = either.intake()
    with pytest.raises(InvalidOption, match="Column 'id' of table 'calls' is not unique"):
        await calls.arun()
    await either.sql("create unique index set_ones on calls (id) where scheduled")
    with pytest.raises(InvalidOption, match="not unique"):
        await calls.arun()
    await either.sql("create unique index one on calls (id)")
    assert (await calls.arun()).taken == 0


async def test_a_table_that_goes_is_told_and_found_again(either: Desk) -> None:
    await either.table("calls", (1, "+1"))
    calls = either.intake()
    assert (await calls.atick()).taken == 1
    await either.sql("drop table calls")
    with pytest.raises(Exception, match=r"no such table|does not exist"):
        await calls.atick()
    with pytest.raises(InvalidOption, match="no table 'calls' in the database"):
        await calls.atick()
    await either.table("calls", (2, "+2"))
    assert (await calls.arun()).taken == 1


async def test_what_is_wrong_is_logged_once_and_the_worker_goes_on(
    either: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onejob")
    await either.table("others")
    calls = either.intake(every=0.1)
    ticks = count_ticks(calls)
    async with either.app.worker():
        await eventually(lambda: _seen(caplog, "intake.failed", 1))
        await (await either.call.aenqueue("+0")).aresult(timeout=10)
        await eventually(lambda: _ticked(ticks, 4))
        assert len(events(caplog, "intake.failed")) == 1, "though it failed again and again"
        await either.table("calls", (1, "+1"))
        await eventually(lambda: _seen(caplog, "intake.recovered", 1))
        await eventually(lambda: _called(either, "+1"))
    [told] = events(caplog, "intake.failed")
    assert "intake calls failed, and will try again: InvalidOption: There is no table 'calls'" in told


def count_ticks(calls: Intake) -> list[None]:
    """A list that grows with every tick of the keeper."""
    ticks: list[None] = []
    tick = calls.atick

    async def counted(*arguments: Any) -> Any:
        try:
            return await tick(*arguments)
        finally:
            ticks.append(None)

    calls.atick = counted  # type: ignore[method-assign]
    return ticks


async def _ticked(ticks: list[None], times: int) -> bool:
    return len(ticks) >= times


async def _seen(caplog: pytest.LogCaptureFixture, name: str, times: int) -> bool:
    return len(events(caplog, name)) >= times


async def _called(desk: Desk, phone: str) -> bool:
    return phone in desk.called


async def test_a_worker_stops_though_somebodys_database_does_not_answer(
    other: Desk, outside: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.worker.worker.GRACE", 0.1)
    await other.table("calls")
    other.intake(every=0.1)
    asked, given_up = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        asked.set()
        given_up.wait()
        raise ConnectionError("nobody there")

    outside.dispose()
    sa.event.listen(outside, "do_connect", hang)
    worker = other.app.worker()
    running = asyncio.create_task(worker.run())
    try:
        assert await asyncio.to_thread(asked.wait, 10)
        worker.stop()
        await asyncio.wait({running}, timeout=10)
        assert running.done()
        assert worker.held_up, "its process would wait for the thread"
    finally:
        given_up.set()
        await running


async def test_a_worker_that_stops_flags_the_rows_whose_jobs_it_has_made(
    other: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.table("calls", (1, "+1"))
    other.intake(every=0.1)
    made, stopping = asyncio.Event(), asyncio.Event()
    enqueue = other.app.store.enqueue

    async def rounds_that_tell(keepers: Sequence[Keeper]) -> None:
        rounds = asyncio.create_task(make_rounds(keepers))
        try:
            await asyncio.shield(rounds)
        except asyncio.CancelledError:
            stopping.set()
            rounds.cancel()
            await rounds

    async def enqueue_and_wait(jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        answers = await enqueue(jobs, now=now)
        made.set()
        await stopping.wait()
        return answers

    monkeypatch.setattr("onejob.worker.worker.make_rounds", rounds_that_tell)
    monkeypatch.setattr(other.app.store, "enqueue", enqueue_and_wait)
    async with other.app.worker() as worker:
        await asyncio.wait_for(made.wait(), 10)
        await eventually(lambda: _called(other, "+1"))
    assert stopping.is_set()
    assert not worker.held_up
    assert await other.flags() == [1]


async def test_a_worker_that_stops_does_not_wait_for_a_page_of_which_no_job_is_made(other: Desk) -> None:
    asked = asyncio.Event()

    @other.app.before_enqueue
    async def think_for_ever(call: Call) -> None:
        asked.set()
        await asyncio.Event().wait()

    await other.table("calls", (1, "+1"))
    other.intake(every=0.1)
    async with other.app.worker() as worker:
        await asyncio.wait_for(asked.wait(), 10)
    assert not worker.held_up
    assert await other.flags() == []
    assert await other.jobs() == []


async def test_inside_a_transaction_of_the_app_it_is_refused(either: Desk) -> None:
    await either.table("calls", (1, "+1"))
    calls = either.intake()
    async with either.app.transaction():
        with pytest.raises(WrongCall, match="transactions do not nest"):
            await calls.arun()


def test_a_store_without_sql_asks_for_a_database_where_the_intake_is_declared() -> None:
    desk = Desk(App("valkey://nowhere"), None, None)
    with pytest.raises(
        InvalidOption, match="store has no tables of yours: say where they are with database=…"
    ):
        desk.intake()


async def test_a_url_that_nobody_can_open_is_told_without_its_password(app: App) -> None:
    desk = Desk(app, "nosuch://me:secret@host/db", None)
    with pytest.raises(InvalidOption, match=r"database=nosuch://… cannot be opened") as caught:
        await desk.intake().arun()
    assert "secret" not in str(caught.value)


async def test_a_page_that_takes_too_long_is_taken_back_and_says_what_helps(
    own: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onejob.intake.own.TIMEOUT", 0.05)
    await own.table("calls", (1, "+1"))

    def slow(row: Any) -> dict[str, Any]:
        time.sleep(0.2)
        return {"phone": row["phone"]}

    calls = own.intake(arguments=slow)
    with pytest.raises(
        TransactionTimeout, match=r"A page of rows held the store's writer.*lower per_fetch=…"
    ):
        await calls.arun()
    assert await own.jobs() == []
    assert await own.flags() == []


@pytest.mark.parametrize(
    ("place", "ended"), [(OWN, False), ("engine", False), ("engine", True)]
)  # in the store's own database, a key knows no job that has ended
async def test_whoever_allows_a_row_too_late_leaves_its_next_job_the_key(
    place: str, ended: bool, app: App, outside: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, store, release = desk_at(place, app, outside), app.store, app.store.release
    await desk.table("calls", (1, "+1"))
    calls = desk.intake()
    await calls.arun()
    if ended:
        await adrain(app)
    overtook: list[int] = []

    async def overtaken(*arguments: Any, **options: Any) -> Any:
        """Somebody else allows the row, and it is taken, after we have looked and before we act."""
        monkeypatch.setattr(store, "release", release)
        assert await calls.aallow(1, force=not ended) == "allowed"
        overtook.append((await calls.arun()).taken)
        return await release(*arguments, **options)

    monkeypatch.setattr(store, "release", overtaken)
    assert await calls.aallow(1, force=not ended) == "allowed"
    assert overtook == [1]
    report = await calls.arun()
    assert (report.taken, report.kept) == (0, 1)
    assert len(await desk.jobs()) == 2


async def test_keys_that_begin_alike_are_told_apart(either: Desk) -> None:
    await either.table("calls", (1, "+1"), (2, "+2"))
    calls = either.intake(key=lambda row: "x" * 500 + str(row["id"]))
    await calls.arun()
    told = [await calls.aexplain_row(id) for id in (1, 2)]
    assert [one.job for one in told] == [job.id for job in await either.jobs()]


async def test_a_run_that_is_cancelled_leaves_nothing_half_done(either: Desk) -> None:
    await either.table("calls", *((id, f"+{id}") for id in range(200)))
    calls = either.intake(per_fetch=10)
    reached = asyncio.Event()
    running = asyncio.create_task(calls.arun(on_page=lambda progress: progress.done >= 50 and reached.set()))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await calls.arun()).taken > 0
    assert await either.flags() == list(range(200))
    assert len(await either.jobs()) == 200


# Queries


class Tables:
    """A user's own tables, with types."""

    def __init__(self) -> None:
        meta = sa.MetaData()
        self.people = sa.Table(
            "people", meta, sa.Column("id", sa.Integer, primary_key=True), sa.Column("phone", sa.Text)
        )
        self.plans = sa.Table(
            "plans",
            meta,
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("person", sa.Integer),
            sa.Column("due", sa.DateTime),
            sa.Column("done", sa.Boolean),
        )
        self.meta = meta

    def select(self) -> sa.Select[Any]:
        plans, people = self.plans, self.people
        joined = plans.join(people, plans.c.person == people.c.id)
        made: Any = sa.select(plans.c.id, plans.c.due, people.c.phone).select_from(joined)
        return made.where(plans.c.due > dt.datetime(2026, 12, 31))  # noqa: DTZ001 - as the column has it


async def _fill(desk: Desk) -> None:
    await desk.sql("create table people (id integer primary key, phone text)")
    await desk.sql("create table plans (id integer primary key, person integer, due timestamp, done boolean)")
    await desk.sql("insert into people values (7, '+7')")
    for id, due in (
        (1, "2026-01-01"),
        (2, NOW),
        (3, "2027-01-15T08:59:59"),
        (4, "2027-01-15 09:00:01"),
        (5, NOW),
    ):
        written = f"{due}.000000" if " " in due else due
        await desk.sql(f"insert into plans values ({id}, 7, '{written}', null)")


async def test_a_query_over_several_tables_is_a_source(own: Desk) -> None:
    await _fill(own)
    tables = Tables()
    source = Query(tables.select(), id="id", due="due", flag=tables.plans.c.done)
    calls = own.app.intake("calls", source, own.call, per_fetch=1)
    assert (await calls.arun()).taken == 3
    assert await own.sql("select id from plans where done order by id") == [(2,), (3,), (5,)]
    status = await calls.astatus()
    assert (status.total, status.scheduled, status.pending) == (4, 3, 1)
    assert status.tables[0].index is None
    assert str((await calls.aexplain_row(2)).reason) == "flagged"
    assert str((await calls.aexplain_row(1)).reason) == "not_found"
    await adrain(own.app)
    assert str(await calls.aallow(2)) == "allowed"
    assert (await calls.arun()).taken == 1


async def test_elsewhere_a_query_gives_rows_as_its_types_say(other: Desk) -> None:
    await _fill(other)
    await other.sql("update plans set due = replace(due, 'T', ' ')")
    tables = Tables()
    seen: list[Any] = []

    def arguments(row: Any) -> dict[str, Any]:
        seen.append(row["due"])
        return {"phone": row["phone"]}

    source = Query(tables.select(), id="id", due="due", flag=tables.plans.c.done, database=other.database)
    calls = other.app.intake("calls", source, other.call, arguments=arguments, per_fetch=2)
    assert (await calls.arun()).taken == 3
    assert {type(due) for due in seen} == {dt.datetime}
    assert await other.sql("select id from plans where done order by id") == [(2,), (3,), (5,)]


async def test_without_a_flag_the_key_remembers_for_thirty_days(either: Desk, clock: FakeClock) -> None:
    await _fill(either)
    tables = Tables()
    source = Query(tables.select(), id="id", due="due", database=either.database)
    calls = either.app.intake("calls", source, either.call)
    taken = (await calls.arun()).taken
    assert taken == 3
    await adrain(either.app)
    for _ in range(29):
        clock.advance(86_400)
        report = await calls.arun()
        assert report.taken == (1 if report.at.day == 16 and report.at.month == 1 else 0)
        await adrain(either.app)
    clock.advance(3 * 86_400)
    report = await calls.arun()
    assert (report.taken, report.kept, report.failed) == (0, 0, 4), "too old to be known, and so left alone"
    assert len(either.called) == 4
    [table] = (await calls.astatus()).tables
    assert (table.total, table.scheduled, table.pending) == (4, None, None)


# Plain Python


@dataclass
class Message:
    number: Any
    when: Any
    phone: Any


async def test_objects_that_a_function_yields_become_jobs(app: App, clock: FakeClock) -> None:
    desk = Desk(app, None, None)
    told: list[list[Any]] = []
    horizons: list[dt.datetime] = []

    async def messages(until: dt.datetime) -> AsyncIterator[Any]:
        horizons.append(until)
        for number in range(5):
            yield Message(number, TODAY, f"+{number}")
        yield Message(5, TODAY + dt.timedelta(days=9), "+later")
        yield Message(6, None, "+never")
        yield Message([7], NOW, None)
        yield "nonsense"

    async def flagged(ids: Sequence[Any]) -> None:
        told.append(list(ids))

    source = Rows(messages, id="number", due="when", flagged=flagged)
    calls = app.intake("calls", source, desk.call, per_fetch=3)
    report = await calls.arun()
    assert (report.taken, report.failed) == (5, 2)
    assert told == [[0, 1, 2], [3, 4]]
    assert horizons == [TODAY + dt.timedelta(hours=1)]
    assert (await calls.arun()).skipped == 5, "yielded again, and known"
    clock.advance(61)
    assert (await calls.arun()).kept == 5
    assert told[2:] == [[0, 1, 2], [3, 4]], "told again, as if it had crashed before"
    assert [(table.name, table.total) for table in (await calls.astatus()).tables] == [("calls", None)]
    assert str((await calls.aexplain_row(99)).reason) == "not_found"
    assert str((await calls.aexplain_row(6)).reason) == "no_due_time"
    assert str((await calls.aexplain_row("5")).reason) == "not_yet"
    await adrain(app)
    clock.advance(61)
    assert str((await calls.aexplain_row(4)).reason) == "remembered"
    assert str(await calls.aallow(4)) == "allowed"
    assert (await calls.arun()).taken == 1


async def test_an_object_that_cannot_be_read_holds_up_no_other(app: App) -> None:
    class Broken:
        id = 1

        @property
        def due(self) -> dt.datetime:
            raise ValueError("no such zone")

    async def messages(until: dt.datetime) -> AsyncIterator[Any]:
        yield Broken()
        yield {"id": 2, "due": until, "phone": "+2"}

    desk = Desk(app, None, None)
    report = await app.intake("calls", Rows(messages, id="id", due="due"), desk.call).arun()
    assert (report.taken, report.failed) == (1, 1)
    assert "cannot be read: ValueError: no such zone" in report.failures[0].reason


async def test_a_function_that_fails_keeps_what_it_has_yielded(app: App) -> None:
    desk = Desk(app, None, None)

    async def messages(until: dt.datetime) -> AsyncIterator[Any]:
        for number in range(3):
            yield {"id": number, "due": until, "phone": f"+{number}"}
        raise RuntimeError("the line is dead")

    calls = app.intake("calls", Rows(messages, id="id", due="due"), desk.call, per_fetch=2)
    with pytest.raises(RuntimeError, match="the line is dead"):
        await calls.arun()
    assert len(await desk.jobs()) == 2
    last = (await calls.astatus()).last
    assert last is not None
    assert last.taken == 2


# Long runs


async def test_a_long_run_says_how_far_it_is(
    either: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "onejob.keepers")
    monkeypatch.setattr("onejob.intake.taking.PROGRESS_EVERY", 0)
    await either.table("calls", *((id, f"+{id}") for id in range(25)))
    await either.intake(per_fetch=10).arun()
    assert events(caplog, "intake.progress") == [
        "intake calls: 10 of about 25 rows",
        "intake calls: 20 of about 25 rows",
        "intake calls: 25 of about 25 rows",
    ]
    assert events(caplog, "intake.page") == [
        f"intake calls: {number} rows of calls became jobs" for number in (10, 10, 5)
    ]


@pytest.mark.parametrize("flag", [True, False])
async def test_rows_that_stay_are_counted_once_in_how_far_a_run_is(
    own: Desk, flag: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "onejob.keepers")
    monkeypatch.setattr("onejob.intake.taking.PROGRESS_EVERY", 0)
    await own.table("calls", *((id, None if id < 4 else f"+{id}") for id in range(25)))
    columns = (sa.column(name) for name in ("id", "phone", "scheduled"))
    calls = sa.table("calls", *columns, sa.column("due", sa.Text))
    asked = sa.select(calls.c.id, calls.c.phone, calls.c.due)
    source = Query(asked, id="id", due="due", flag=calls.c.scheduled if flag else None)
    report = await own.app.intake("calls", source, own.call, per_fetch=10).arun()
    assert (report.taken, report.failed) == (21, 4)
    assert events(caplog, "intake.progress") == [
        f"intake calls: {done} of about 25 rows" for done in (10, 20, 25)
    ]
