"""The scheduled flag (ACCEPTANCE.md, I1 to I22): rows of the user's own tables become jobs, each once.

Most tests run twice: with the tables in the store's own database, where flag and job are one commit, and with the
tables in another database, where the key remembers and the flag follows.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from intake_stage import TABLE, Post, at
from stage import eventually
from stored import OWN, is_postgres

from onejob import App, InvalidOption, Query, Rows, State, Table
from onejob.intake import memory
from onejob.stores.valkey import office
from onejob.testing import FakeClock, adrain

MINUTE, HOUR, DAY = 60, 3600, 86_400
PLACES = [OWN, "other"]


@pytest.fixture
def other_engine(store_url: str, tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    """Another database, of the user's own: a file of SQLite, or a place in PostgreSQL."""
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    if is_postgres(store_url):
        url = store_url.partition("?")[0].replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def own(database_url: str, app: App) -> Post:
    return Post(app)


@pytest.fixture
def other(app: App, other_engine: sqlalchemy.Engine) -> Post:
    return Post(app, other_engine)


@pytest.fixture(params=PLACES)
def post(request: pytest.FixtureRequest, app: App, other_engine: sqlalchemy.Engine) -> Post:
    return Post(app, None if request.param == "own" else other_engine)


# The flag


@pytest.mark.accepts("I1", "I4")
async def test_a_row_is_unscheduled_at_first_and_flagged_once_it_is_a_job(post: Post) -> None:
    await post.create()
    await post.put(1)
    sms = post.intake()
    assert await post.flags() == {1: 0}
    before = await sms.astatus()
    assert (before.total, before.scheduled, before.pending) == (1, 0, 1)
    await sms.arun()
    assert await post.flags() == {1: 1}
    after = await sms.astatus()
    assert (after.total, after.scheduled, after.pending) == (1, 1, 0)


@pytest.mark.accepts("I2")
async def test_null_is_false(post: Post) -> None:
    await post.create()
    await post.put(1, scheduled=None)
    sms = post.intake()
    assert (await sms.astatus()).pending == 1
    assert (await sms.arun()).taken == 1
    assert await post.flags() == {1: 1}


@pytest.mark.accepts("I3")
async def test_what_was_just_handed_over_is_known_without_asking_the_store(
    other: Post, clock: FakeClock
) -> None:
    """Where flag and job share a transaction there is nothing to remember: a row that is seen was never taken."""
    await other.create()
    await other.put(1)
    sms = other.intake()
    await sms.arun()
    await other.flag(1, False)
    with other.watched() as seen:
        assert (await sms.arun()).taken == 0
    assert seen.enqueues == []
    assert seen.by_verb["update"] == 0
    assert await other.flags() == {1: 0}
    clock.advance(61)
    with other.watched() as seen:
        assert (await sms.arun()).taken == 0
    assert seen.enqueues == [1]
    assert await other.flags() == {1: 1}, "what it knew was too old, and the key has decided"
    assert len(await other.jobs()) == 1


@pytest.mark.accepts("I4", "I10")
@pytest.mark.parametrize("place", PLACES)
async def test_the_flag_outlives_a_restart(
    place: str, store_url: str, clock: FakeClock, other_engine: sqlalchemy.Engine
) -> None:
    engine = other_engine if place == "other" else None
    for taken in (3, 0):
        async with App(store_url, clock=clock) as app:
            post = Post(app, engine)
            if taken:
                await post.create()
                await post.put(1, 2, 3)
            assert (await post.intake().arun()).taken == taken
            assert await post.flags() == {1: 1, 2: 1, 3: 1}
            assert len(await post.jobs()) == 3


# Fetching


@pytest.mark.accepts("I5")
async def test_rows_due_within_the_look_ahead_are_taken_and_those_past_due(
    post: Post, clock: FakeClock
) -> None:
    await post.create()
    await post.put(1, due=at(clock, -2 * DAY))
    await post.put(2, due=at(clock))
    await post.put(3, due=at(clock, HOUR))
    await post.put(4, due=at(clock, HOUR + 1))
    await post.put(5, due=None)
    await post.put(6, due=at(clock, -60), scheduled=True)
    sms = post.intake(look_ahead=HOUR)
    assert (await sms.arun()).taken == 3
    assert await post.flags() == {1: 1, 2: 1, 3: 1, 4: 0, 5: 0, 6: 1}
    clock.advance(1)
    assert (await sms.arun()).taken == 1
    assert await post.flags() == {1: 1, 2: 1, 3: 1, 4: 1, 5: 0, 6: 1}


@pytest.mark.accepts("I5", "I22")
async def test_at_most_so_many_rows_are_fetched_at_once(post: Post) -> None:
    await post.create()
    await post.put(*range(1, 26))
    sms = post.intake(per_fetch=10)
    with post.watched() as seen:
        assert (await sms.arun()).taken == 25
    assert seen.enqueues == [10, 10, 5]
    assert seen.by_verb == {"select": 3, "update": 3}


@pytest.mark.accepts("I5")
async def test_the_job_is_due_when_the_row_is(post: Post, clock: FakeClock) -> None:
    await post.create()
    await post.put(1, due=at(clock, 30 * MINUTE))
    await post.put(2, due=at(clock, -30 * MINUTE))
    await post.intake().arun()
    await adrain(post.app)
    assert post.sent == ["m2"]
    clock.advance(30 * MINUTE - 1)
    await adrain(post.app)
    assert post.sent == ["m2"]
    clock.advance(1)
    await adrain(post.app)
    assert post.sent == ["m2", "m1"]


@pytest.mark.accepts("I6", "I11")
async def test_a_row_is_handed_over_remembered_and_flagged(post: Post, clock: FakeClock) -> None:
    await post.create()
    await post.put(7, due="2027-01-15 08:30:00")
    await post.intake().arun()
    [job] = await post.jobs()
    assert (job.task, job.state, job.due) == ("send_sms", State.DELAYED, clock.now + 1_800_000)
    assert job.key == "job-7-2027-01-15T08:30:00"
    assert await post.flags() == {7: 1}
    assert f'key "{job.key}"' in str(await post.app.aexplain(job.id))
    await adrain(post.app, clock=clock)
    ran = await post.app.ajob(job.id)
    assert ran is not None
    assert ran.result == b'"m7 to +7"'


@pytest.mark.accepts("I7")
async def test_a_second_fetch_skips_what_the_first_has_taken(post: Post) -> None:
    await post.create()
    await post.put(1, 2)
    sms = post.intake()
    assert (await sms.arun()).taken == 2
    await post.put(3)
    assert (await sms.arun()).taken == 1
    assert (await sms.arun()).taken == 0
    assert len(await post.jobs()) == 3


# Again


@pytest.mark.accepts("I8", "I9")
@pytest.mark.parametrize("refuses", [None, ValueError("no such number")], ids=["good", "bad"])
async def test_after_the_run_clearing_the_flag_schedules_the_row_again_at_once(
    own: Post, refuses: Exception | None
) -> None:
    await own.create()
    await own.put(1)
    sms = own.intake()
    own.refuses = refuses
    await sms.arun()
    await adrain(own.app)
    assert await own.flags() == {1: 1}, "the flag stays until somebody clears it"
    assert (await sms.arun()).taken == 0
    await own.flag(1, False)
    assert (await sms.arun()).taken == 1
    assert await own.flags() == {1: 1}
    first, second = await own.jobs()
    assert first.state is (State.COMPLETED if refuses is None else State.FAILED)
    assert second.state is State.WAITING
    assert first.key == second.key


@pytest.mark.accepts("I9", "I10")
async def test_while_its_job_lives_a_cleared_flag_is_set_again(post: Post, clock: FakeClock) -> None:
    await post.create()
    await post.put(1)
    sms = post.intake()
    await sms.arun()
    await post.flag(1, False)
    clock.advance(61)
    report = await sms.arun()
    assert (report.taken, report.kept) == (0, 1)
    assert await post.flags() == {1: 1}
    assert len(await post.jobs()) == 1


@pytest.mark.accepts("I8", "I9", "I14")
@pytest.mark.parametrize("refuses", [None, ValueError("no such number")], ids=["good", "bad"])
async def test_elsewhere_the_key_remembers_for_a_day_unless_the_row_is_allowed(
    other: Post, clock: FakeClock, refuses: Exception | None
) -> None:
    await other.create()
    await other.put(1)
    sms = other.intake()
    other.refuses = refuses
    await sms.arun()
    await adrain(other.app)
    clock.advance(HOUR)
    await other.flag(1, False)
    assert (await sms.arun()).kept == 1, "it cannot be told from a crash before the flag was written"
    assert await other.flags() == {1: 1}
    assert str(await sms.aallow(1)) == "allowed"
    assert await other.flags() == {1: 0}
    assert (await sms.arun()).taken == 1
    await adrain(other.app)
    clock.advance(DAY)
    await other.flag(1, None)
    assert (await sms.arun()).taken == 1, "after a day the flag alone decides"
    assert len(await other.jobs()) == 3


# Never twice


@pytest.mark.accepts("I10")
@pytest.mark.parametrize("place", PLACES)
async def test_overlapping_fetches_take_each_row_once(
    place: str, store_url: str, clock: FakeClock, other_engine: sqlalchemy.Engine
) -> None:
    engine = other_engine if place == "other" else None
    posts = [Post(App(store_url, clock=clock), engine) for _ in range(4)]
    await posts[0].create()
    await posts[0].put(*range(1, 301))
    reports = await asyncio.gather(*(post.intake(per_fetch=20).arun() for post in posts))
    assert sum(report.taken for report in reports) == 300
    assert set((await posts[0].flags()).values()) == {1}
    assert sorted(await posts[0].keys()) == sorted(f"job-{id}-2027-01-15T08:00:00" for id in range(1, 301))
    for post in posts:
        await post.app.aclose()


@pytest.mark.accepts("I10")
async def test_a_flag_that_cannot_be_written_takes_the_job_back(own: Post) -> None:
    await own.create()
    await own.put(1, 2)
    await own.stop_flags()
    sms = own.intake()
    with pytest.raises(Exception, match="no flags today"):
        await sms.arun()
    assert await own.jobs() == []
    await own.let_flags()
    assert (await sms.arun()).taken == 2


@pytest.mark.accepts("I10")
async def test_elsewhere_a_crash_before_the_flag_makes_no_second_job(
    store_url: str, clock: FakeClock, other_engine: sqlalchemy.Engine
) -> None:
    """The job is made, its run ends, the flag is not there: another process takes its place."""
    for first in (True, False):
        async with App(store_url, clock=clock) as app:
            post = Post(app, other_engine)
            sms = post.intake()
            if first:
                await post.create()
                await post.put(1, 2)
                await post.stop_flags()
                with pytest.raises(Exception, match="no flags today"):
                    await sms.arun()
                assert await post.flags() == {1: 0, 2: 0}
                await adrain(app)
                await post.let_flags()
            else:
                assert (await sms.arun()).kept == 2
                assert await post.flags() == {1: 1, 2: 1}
            assert len(await post.jobs()) == 2


@pytest.mark.accepts("I5", "I10")
async def test_any_worker_takes_rows_and_runs_their_jobs(
    store_url: str, other_engine: sqlalchemy.Engine
) -> None:
    async with App(store_url) as app:
        post = Post(app, None if app.store.dialect else other_engine)
        await post.create()
        await post.put(1, 2, due="2025-08-06T20:30:00")
        post.intake(every=0.1)
        async with app.worker(), app.worker():
            await eventually(lambda: _sent(post, 2))
            await post.put(3, due="2025-08-06 20:30:00")
            await eventually(lambda: _sent(post, 3))
        assert sorted(post.sent) == ["m1", "m2", "m3"]
        assert await post.flags() == {1: 1, 2: 1, 3: 1}


async def _sent(post: Post, number: int) -> bool:
    return len(post.sent) >= number


# Keys


@pytest.mark.accepts("I11")
async def test_the_key_is_made_of_the_rows_id_and_time(post: Post, clock: FakeClock) -> None:
    await post.create()
    await post.put(1, due="2027-01-15T08:30:00")
    await post.put(2, due="2027-01-15 08:30:00.250")
    await post.put(3, due="2027-01-15T09:30:00+01:00")
    sms = post.intake()
    await sms.arun()
    assert sorted(await post.keys()) == [
        "job-1-2027-01-15T08:30:00",
        "job-2-2027-01-15T08:30:00.250",
        "job-3-2027-01-15T08:30:00",
    ]
    holder = await post.app.arelease("job-1-2027-01-15T08:30:00", task="send_sms")
    assert holder == next(job.id for job in await post.jobs() if job.key == "job-1-2027-01-15T08:30:00")


@pytest.mark.accepts("I11")
async def test_a_row_with_a_new_time_is_another_job(post: Post, clock: FakeClock) -> None:
    await post.create()
    await post.put(1, due=at(clock, MINUTE))
    sms = post.intake()
    await sms.arun()
    await post.sql(f"update {TABLE} set scheduled_time = :at, scheduled = false", at=at(clock, 2 * MINUTE))
    assert (await sms.arun()).taken == 1
    assert len(set(await post.keys())) == 2


@pytest.mark.accepts("I12")
async def test_a_key_of_ones_own(post: Post) -> None:
    await post.create()
    await post.put(1, 2, phone="+49")
    await post.put(3)
    sms = post.intake(key=lambda row: f"custom-{row['phone']}")
    report = await sms.arun()
    assert (report.taken, report.kept) == (2, 1)
    assert sorted(await post.keys()) == ["custom-+3", "custom-+49"]
    assert await post.flags() == {1: 1, 2: 1, 3: 1}


# By hand


@pytest.mark.accepts("I13", "I19")
async def test_a_row_flagged_by_hand_is_left_alone(post: Post) -> None:
    await post.create()
    await post.put(1, scheduled=True)
    sms = post.intake()
    assert (await sms.arun()).taken == 0
    assert await post.jobs() == []
    told = await sms.aexplain_row(1)
    assert told.reason == "flagged"
    assert "by hand" in str(told)


@pytest.mark.accepts("I14")
async def test_a_row_can_be_allowed_again(post: Post) -> None:
    await post.create()
    await post.put(1)
    sms = post.intake()
    await sms.arun()
    assert str(await sms.aallow(1)) == "queued", "its job has not ended"
    assert await post.flags() == {1: 1}
    await adrain(post.app)
    assert str(await sms.aallow(1)) == "allowed"
    assert await post.flags() == {1: 0}
    assert (await sms.arun()).taken == 1
    assert str(await sms.aallow(1)) == "queued"
    assert str(await sms.aallow(1, force=True)) == "allowed"
    assert (await sms.arun()).taken == 1
    assert str(await sms.aallow(99)) == "not_found"
    await adrain(post.app)
    assert post.sent == ["m1", "m1", "m1"]


@pytest.mark.accepts("I14")
async def test_a_row_of_a_day_is_allowed_wherever_it_is(post: Post, clock: FakeClock) -> None:
    await post.create("sms_20270114", "sms_20270115")
    await post.put(1, table="sms_20270114")
    await post.put(2, table="sms_20270115")
    sms = post.intake(pattern="sms_{day:%Y%m%d}")
    await sms.arun()
    await adrain(post.app)
    assert str(await sms.aallow(1)) == "allowed"
    assert str(await sms.aallow(2, table="sms_20270114")) == "not_found"
    assert await post.flags("sms_20270114") == {1: 0}
    assert await post.flags("sms_20270115") == {2: 1}


# Status


@pytest.mark.accepts("I15", "I16")
async def test_a_report_counts_total_scheduled_and_pending(post: Post, clock: FakeClock) -> None:
    await post.create()
    await post.put(1, 2)
    await post.put(3, scheduled=None, due=at(clock, DAY))
    await post.put(4, scheduled=True)
    await post.put(5, due=None)
    sms = post.intake()
    with post.watched() as seen:
        status = await sms.astatus()
    assert (status.total, status.scheduled, status.pending, status.due) == (5, 1, 4, 2)
    assert seen.by_verb == {"count": 1}
    await sms.arun()
    status = await sms.astatus()
    assert (status.total, status.scheduled, status.pending, status.due) == (5, 3, 2, 0)


@pytest.mark.accepts("I16")
async def test_date_named_tables_are_reported_one_by_one(post: Post, clock: FakeClock) -> None:
    """Today is the 15th; the look-ahead reaches into the 16th; the 7th is more than a week ago."""
    clock.advance(15.5 * HOUR)
    days = ("20270107", "20270108", "20270115", "20270116", "20270117")
    await post.create(*(f"sms_schedules_{day}" for day in days), "sms_schedules_old", "others_20270115")
    for number, day in enumerate(days):
        await post.put(number, due=at(clock), table=f"sms_schedules_{day}")
    await post.put(10, due=at(clock), scheduled=True, table="sms_schedules_20270115")
    sms = post.intake(pattern="sms_schedules_{day:%Y%m%d}")
    status = await sms.astatus()
    assert [(table.name, table.total, table.scheduled, table.pending) for table in status.tables] == [
        ("sms_schedules_20270108", 1, 0, 1),
        ("sms_schedules_20270115", 2, 1, 1),
        ("sms_schedules_20270116", 1, 0, 1),
    ]
    assert (status.total, status.scheduled, status.pending) == (4, 1, 3)
    assert (await sms.arun()).taken == 3
    assert {name: (await post.flags(f"sms_schedules_{name}"))[place] for place, name in enumerate(days)} == {
        "20270107": 0,
        "20270108": 1,
        "20270115": 1,
        "20270116": 1,
        "20270117": 0,
    }


@pytest.mark.accepts("I17", "I18")
async def test_what_is_scheduled_and_executed_is_logged(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    await post.create()
    await post.put(1, due="2027-01-15 08:00:00")
    sms = post.intake()
    with caplog.at_level(logging.DEBUG, logger="onejob"):
        await sms.arun()
        [job] = await post.jobs()
        async with post.app.worker():
            await eventually(lambda: _sent(post, 1))
            await eventually(lambda: _logged(caplog, "job.completed"))
    [scheduled] = events(caplog, "intake.scheduled")
    assert scheduled.levelno == logging.DEBUG
    text = scheduled.getMessage()
    assert text.startswith(f"row 1 of {TABLE} became job {job.id} (key job-1-2027-01-15T08:00:00), due ")
    assert text.endswith("marked as scheduled")
    [executed] = events(caplog, "job.completed")
    assert (executed.__dict__["job"], executed.__dict__["key"]) == (job.id, "job-1-2027-01-15T08:00:00")


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.__dict__.get("event") == name]


async def _logged(caplog: pytest.LogCaptureFixture, name: str) -> bool:
    return bool(events(caplog, name))


@pytest.mark.accepts("I19")
async def test_it_says_why_a_row_is_or_is_not_scheduled(post: Post, clock: FakeClock) -> None:
    await post.create()
    await post.put(1, due=at(clock))
    await post.put(2, due=at(clock, 2 * HOUR))
    await post.put(3, due=None)
    await post.put(4, due=at(clock), phone=None)
    sms = post.intake(look_ahead=HOUR, every=30)

    async def why(id: int) -> tuple[str, str]:
        told = await sms.aexplain_row(id)
        return str(told.reason), str(told)

    reason, text = await why(1)
    assert reason == "pending"
    assert "within 30 s" in text
    reason, text = await why(2)
    assert reason == "not_yet"
    assert "2027-01-15T09:00:00" in text
    assert (await why(3))[0] == "no_due_time"
    reason, text = await why(4)
    assert reason == "bad_row"
    assert "to" in text
    assert (await why(5))[0] == "not_found"
    await sms.arun()
    [job] = await post.jobs()
    reason, text = await why(1)
    assert reason == "flagged"
    assert job.id in text
    assert "waiting" in text
    await adrain(post.app)
    assert "completed" in (await why(1))[1]


@pytest.mark.accepts("I19")
async def test_elsewhere_it_says_that_a_key_remembers_and_until_when(other: Post, clock: FakeClock) -> None:
    await other.create()
    await other.put(1)
    sms = other.intake()
    await sms.arun()
    [job] = await other.jobs()
    await adrain(other.app)
    await other.flag(1, False)
    assert (await sms.aexplain_row(1)).reason == "just_taken"
    clock.advance(61)
    told = await sms.aexplain_row(1)
    assert told.reason == "remembered"
    assert job.id in str(told)
    assert "2027-01-16T08:00:00" in str(told)


# Cost


@pytest.mark.accepts("I20")
@pytest.mark.parametrize("place", PLACES)
async def test_memory_does_not_grow_with_the_rows_that_were_taken(
    place: str,
    store_url: str,
    clock: FakeClock,
    other_engine: sqlalchemy.Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds of new rows, all within the minute for which a process remembers what it handed over, if it is not too much."""
    monkeypatch.setattr(memory, "HandedOver", partial(memory.HandedOver, 2_000))
    monkeypatch.setattr(office, "REMEMBERED", 2_000)
    async with App(store_url, clock=clock) as app:
        post = Post(app, other_engine if place == "other" else None)
        await post.create()
        sms = post.intake()
        sizes: list[int] = []
        taken = 0
        for number in (2_000, 1_000, 1_000):
            await post.put(*range(taken, taken + number))
            assert (await sms.arun()).taken == number
            taken += number
            gc.collect()
            sizes.append(sys.getallocatedblocks())
    assert sizes[-1] - sizes[-2] < 1_000, "to remember a row takes several blocks of memory"


@pytest.mark.accepts("I21")
async def test_the_index_that_it_needs_is_suggested_until_it_is_there(post: Post) -> None:
    await post.create()
    sms = post.intake()
    [table] = (await sms.astatus()).tables
    assert table.index is not None
    assert table.index.lower().startswith("create index")
    assert TABLE in table.index
    await post.sql(table.index)
    [table] = (await sms.astatus()).tables
    assert table.index is None


@pytest.mark.accepts("I21")
async def test_with_that_index_a_page_walks_through_pending_rows_that_may_be_due_only(own: Post) -> None:
    await own.create()
    await own.put(*range(50))
    sms = own.intake(per_fetch=20)
    [table] = (await sms.astatus()).tables
    assert table.index is not None
    await own.sql(table.index)
    with own.watched() as seen:
        await sms.arun()
    asked = zip(seen.texts, seen.values, strict=True)
    first, second, _ = (one for one in asked if one[0].lower().startswith("select"))
    for page, values in (first, second):
        looks = [step for step in await _plan(own.app, page, values) if TABLE in step]
        assert looks
        for step in looks:
            assert USES_THE_INDEX.match(step), step


USES_THE_INDEX = re.compile(
    rf"SEARCH {TABLE} USING INDEX sms_\w+|.*Index (Only )?Scan using sms_\w+ on {TABLE}"
)


async def _plan(app: App, statement: str, values: dict[str, Any]) -> list[str]:
    """How the store's own database would go about it, if the table were large."""
    async with app.transaction() as tx:
        if is_postgres(app.url):
            await tx.execute("set local enable_seqscan = off")
            await tx.execute("set local enable_bitmapscan = off")
            return [row[0] for row in await tx.execute(f"explain {statement}", values)]
        return [row[3] for row in await tx.execute(f"explain query plan {statement}", values)]


@pytest.mark.accepts("I22")
async def test_ten_times_the_rows_take_no_more_statements(post: Post) -> None:
    await post.create()
    sms = post.intake(per_fetch=1000)
    await sms.arun()
    asked: list[dict[str, int]] = []
    for number in (30, 300):
        await post.put(*range(number * 10, number * 11))
        with post.watched() as seen:
            assert (await sms.arun()).taken == number
        asked.append(dict(seen.by_verb))
        assert seen.enqueues == [number]
    assert asked == [{"select": 1, "update": 1}] * 2


# What is wrong


async def test_a_row_that_cannot_become_arguments_does_not_stop_the_others(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    await post.create()
    await post.put(1, phone=None)
    await post.put(2, due="tomorrow, perhaps")
    await post.put(3, 4)
    sms = post.intake(per_fetch=2)
    for taken in (2, 0):
        report = await sms.arun()
        assert (report.taken, report.failed) == (taken, 2)
    assert await post.flags() == {1: 0, 2: 0, 3: 1, 4: 1}
    told = events(caplog, "intake.bad_row")
    assert len(told) == 2, "each is told once"
    assert "row 1" in caplog.text
    assert (await sms.astatus()).failed == 2


async def test_a_table_or_column_that_is_not_there_is_named_with_a_near_one(post: Post) -> None:
    await post.create("sms_schedule", TABLE)
    sms = post.intake(pattern="sms_schedulez")
    with pytest.raises(InvalidOption, match=r"'sms_schedulez'.*did you mean 'sms_schedule'"):
        await sms.arun()
    source = Table(TABLE, id="id", due="schedule_time", database=post.engine)
    other = post.app.intake("other", source, post.send.using(queue="other"), arguments=dict)
    for call in (other.arun, other.astatus, lambda: other.aexplain_row(1)):
        with pytest.raises(InvalidOption, match=r"'schedule_time'.*did you mean 'scheduled_time'"):
            await call()


# Other sources


async def test_a_query_is_a_source(other: Post, clock: FakeClock) -> None:
    await other.create()
    await other.put(1, 2)
    await other.put(3, due=at(clock, DAY))
    due = sqlalchemy.column("scheduled_time", sqlalchemy.Text)
    table = sqlalchemy.table(
        TABLE, *map(sqlalchemy.column, ("id", "phone", "message")), due, sqlalchemy.column("scheduled")
    )
    select = sqlalchemy.select(table).where(table.c.phone != "+2")
    source = Query(select, id="id", due="scheduled_time", flag=table.c.scheduled, database=other.engine)
    sms = other.app.intake(
        "sms", source, other.send, arguments=lambda row: {"to": row["phone"], "text": row["message"]}
    )
    assert (await sms.arun()).taken == 1
    assert await other.flags() == {1: 1, 2: 0, 3: 0}


async def test_rows_may_come_from_plain_python(app: App, clock: FakeClock) -> None:
    flagged: list[object] = []
    sent: list[str] = []

    @app.task(name="send_sms")
    async def send_sms(to: str, text: str) -> None:
        sent.append(text)

    async def rows(horizon: datetime) -> AsyncIterator[dict[str, Any]]:
        for id in (1, 2, 3):
            if id not in flagged:
                yield {"id": id, "at": horizon, "to": f"+{id}", "text": f"m{id}"}

    async def mark(ids: list[object]) -> None:
        flagged.extend(ids)

    sms = app.intake("sms", Rows(rows, id="id", due="at", flagged=mark), send_sms, look_ahead=0)
    assert (await sms.arun()).taken == 3
    assert flagged == [1, 2, 3]
    assert (await sms.arun()).taken == 0
    await adrain(app)
    assert sent == ["m1", "m2", "m3"]
