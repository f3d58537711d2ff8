"""Schedules as the source documents ask for them (ACCEPTANCE.md, G1 to G7), and that windows do not touch them (N9)."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable

import pytest
from diary import Diary, set_to, utc
from stage import Gate
from stored import with_patience

from onejob import APP_WINDOW, App, Cron, Every, State, Unique
from onejob.testing import FakeClock, adrain, atick, tick

MakeApp = Callable[..., App]


@pytest.mark.accepts("G1")
def test_a_cron_schedule_fires_at_its_time_of_day_in_utc_unless_it_says_otherwise(
    app: App, clock: FakeClock
) -> None:
    set_to(clock, utc(2027, 1, 15, 12))
    diary = Diary(app)
    app.schedule("daily-report", Cron("0 8 * * *"), diary.report.job(kind="daily"))
    app.schedule("in-paris", Cron("0 8 * * *", tz="Europe/Paris"), diary.report.job(kind="paris"))
    assert diary.fired() == []
    set_to(clock, utc(2027, 1, 16, 6, 59, 59))
    assert diary.fired() == []
    set_to(clock, utc(2027, 1, 16, 7))
    assert diary.fired() == [utc(2027, 1, 16, 7)]
    set_to(clock, utc(2027, 1, 16, 8, 0, 3))
    assert diary.fired() == [utc(2027, 1, 16, 8)], "the slot is the nominal time, however late the tick"
    assert diary.runs == [
        ("in-paris", utc(2027, 1, 16, 7), "paris"),
        ("daily-report", utc(2027, 1, 16, 8), "daily"),
    ]


@pytest.mark.accepts("G2")
def test_an_interval_fires_every_so_many_seconds_from_when_it_was_put(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    put = clock.now
    app.schedules.put("poll", Every(300), diary.report.job())
    found: list[dt.datetime | None] = []
    for _ in range(20):
        clock.advance(60)
        found += diary.fired()
    assert found == [dt.datetime.fromtimestamp(put / 1000 + n * 300, dt.UTC) for n in (1, 2, 3, 4)]


@pytest.mark.accepts("G3")
def test_putting_an_id_again_changes_that_schedule(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    first = app.schedules.put("report", Every(300), diary.report.job(kind="daily"))
    clock.advance(100)
    same = app.schedules.put("report", Every(300), diary.report.job(kind="weekly"))
    assert (same.next, same.since) == (first.next, first.since), "the same timing stays as it is"
    assert [view.id for view in app.schedules.list()] == ["report"]
    clock.advance(200)
    diary.fired()
    assert [kind for _, _, kind in diary.runs] == ["weekly"]
    set_to(clock, utc(2027, 2, 1, 9))
    changed = app.schedules.put("report", Cron("0 10 * * *"), diary.report.job(kind="weekly"))
    assert changed.next_run == utc(2027, 2, 1, 10)
    assert [view.timing for view in app.schedules.list()] == [Cron("0 10 * * *")]


@pytest.mark.accepts("G4")
def test_schedules_are_listed_with_their_next_and_last_runs(app: App, clock: FakeClock) -> None:
    set_to(clock, utc(2027, 1, 15, 12))
    diary = Diary(app)
    assert app.schedules.list() == []
    app.schedules.put("b-often", Every(60), diary.report.job())
    app.schedules.put("a-daily", Cron("30 6 * * *"), diary.report.using(queue="reports").job())
    set_to(clock, utc(2027, 1, 15, 12, 1))
    diary.fired()
    daily, often = app.schedules.list()
    assert (daily.id, daily.task, daily.queue) == ("a-daily", "report", "reports")
    assert (daily.next_run, daily.last_run, daily.fired) == (utc(2027, 1, 16, 6, 30), None, 0)
    assert (often.next_run, often.last_run) == (utc(2027, 1, 15, 12, 2), utc(2027, 1, 15, 12, 1))
    assert (often.id, often.fired, often.outcome) == ("b-often", 1, "created")
    made = app.job(often.job or "")
    assert made is not None
    assert made.state is State.COMPLETED
    assert often.upcoming(3) == [utc(2027, 1, 15, 12, minute) for minute in (2, 3, 4)]


@pytest.mark.accepts("G5")
async def test_removing_a_schedule_does_not_touch_its_jobs_in_flight(
    app: App, clock: FakeClock, gate: Gate
) -> None:
    @app.task
    async def slow() -> str:
        await gate.pass_through()
        return "done"

    await app.schedules.aput("slow", Every(60), slow.job())
    clock.advance(60)
    assert await atick(app) == 1
    running = (await app.schedules.alist())[0].job
    async with gate.held(app):
        clock.advance(60)
        assert await atick(app) == 1
        queued = (await app.schedules.alist())[0].job
        assert await app.schedules.aremove("slow")
        assert await app.schedules.alist() == []
        states = {job.id: job.state for job in (await app.ajobs("schedule:slow")).jobs}
        assert states == {running: State.RUNNING, queued: State.WAITING}
    assert await app.acount("schedule:slow state:completed") == 2
    clock.advance(3600)
    assert await atick(app) == 0
    assert not await app.schedules.aremove("slow")


@pytest.mark.accepts("G6")
def test_the_next_run_survives_restarts(store_url: str, clock: FakeClock) -> None:

    def started() -> Diary:
        diary = Diary(App(store_url, clock=clock))
        diary.app.schedule("daily", Cron("0 8 * * *"), diary.report.job(kind="daily"))
        diary.app.schedule("often", Every(300), diary.report.job(kind="often"))
        return diary

    set_to(clock, utc(2027, 1, 15, 12))
    with (diary := started()).app:
        assert diary.fired() == []
        due = {view.id: view.next for view in diary.app.schedules.list()}
    clock.advance(299)
    with (diary := started()).app:
        assert diary.fired() == []
        assert {view.id: view.next for view in diary.app.schedules.list()} == due
    clock.advance(1)
    with (diary := started()).app:
        assert diary.fired() == [utc(2027, 1, 15, 12, 5)]
    set_to(clock, utc(2027, 1, 16, 8, 2))
    with (diary := started()).app:
        assert sorted(map(str, diary.fired())) == [
            str(utc(2027, 1, 16, 8)),
            str(utc(2027, 1, 16, 8)),
        ], "what came while nothing ran is made up for, once per schedule"
        assert [view.next_run for view in diary.app.schedules.list()] == [
            utc(2027, 1, 17, 8),
            utc(2027, 1, 16, 8, 5),
        ]


@pytest.mark.accepts("G7")
async def test_a_due_entry_becomes_one_job_and_the_next_is_registered_however_many_tick(
    store_url: str, clock: FakeClock
) -> None:
    url, rounds, apps = with_patience(store_url, 60), 10, list[App]()
    for _ in range(4):
        app = App(url, clock=clock)
        apps.append(app)
        app.schedule("often", Every(60), Diary(app).report.job())
    start = clock.now
    for _ in range(rounds):
        assert sum(await asyncio.gather(*(atick(app) for app in apps))) == (clock.now > start)
        [view] = await apps[0].schedules.alist()
        assert view.next == clock.now + 60_000
        clock.advance(60)
    page = await apps[0].ajobs("schedule:often")
    assert len(page.jobs) == len({job.id for job in page.jobs}) == rounds - 1
    for app in apps:
        await app.aclose()


@pytest.mark.accepts("G7")
def test_a_tick_between_slots_does_nothing(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    app.schedules.put("often", Every(60), diary.report.job())
    assert tick(app) == 0
    clock.advance(60)
    assert tick(app) == 1
    revision = app.schedules.get("often")
    assert tick(app) == tick(app) == 0
    assert app.schedules.get("often") == revision
    assert app.count() == 1


@pytest.mark.accepts("N9")
def test_recurring_jobs_are_never_deduplicated_by_a_window(make_app: MakeApp, clock: FakeClock) -> None:
    app = make_app(window=5)

    @app.task(unique=Unique.latest(by=("entity_id",), within=APP_WINDOW))
    def send_webhook(entity_id: str) -> None: ...

    app.schedule("often", Every(1), send_webhook.job(entity_id="task-1"))
    assert tick(app) == 0
    by_hand = send_webhook.enqueue("task-1")
    for _ in range(4):
        clock.advance(1)
        assert tick(app) == 1, "each slot is a job of its own"
        again = send_webhook.enqueue("task-1")
        assert again.deduplicated
        assert again.id == by_hand.id, "and no holder of the key"
    assert app.count("schedule:often") == 4
    assert app.count() == 5


@pytest.mark.accepts("N9")
async def test_nor_by_the_policy_of_an_app(make_app: MakeApp, clock: FakeClock) -> None:
    app = make_app(unique=Unique.once())

    @app.task
    def refresh() -> None: ...

    await app.schedules.aput("often", Every(1), refresh.job())
    for _ in range(3):
        clock.advance(1)
        assert await atick(app) == 1
    assert len(await adrain(app)) == 3
    assert not (await refresh.aenqueue()).deduplicated
