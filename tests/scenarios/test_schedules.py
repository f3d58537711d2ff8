"""Schedules through the public API: declared, put, changed, paused, run, missed, removed; restarts and changes of clocks."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from diary import Diary, set_to, utc
from stage import PATIENCE, eventually

from onejob import (
    App,
    Call,
    Cron,
    CurrentJob,
    DuplicateJob,
    Ended,
    Every,
    InvalidOption,
    Lane,
    Outcome,
    Queue,
    State,
    StoreBusy,
    Unique,
    UnknownSchedule,
    WrongCall,
    current_job,
)
from onejob.keepers import Scheduler, scheduler
from onejob.testing import FakeClock, adrain, atick, drain, tick

MakeApp = Callable[..., App]
Open = Callable[[], App]


@pytest.fixture
def open_again(store_url: str, clock: FakeClock) -> Open:
    """Apps on one store, as after a restart or in another process."""
    return lambda: App(store_url, clock=clock)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", None) == name]


# Declared in code, and put at run time


def test_a_declaration_is_stored_by_the_first_tick_and_not_before(app: App) -> None:
    diary = Diary(app)
    app.schedule("daily", Cron("0 8 * * *"), diary.report.job())
    assert list(app.declared_schedules) == ["daily"]
    assert app.schedules.list() == []
    tick(app)
    [view] = app.schedules.list()
    assert (view.id, view.declared, view.paused) == ("daily", True, False)
    assert not app.schedules.put("other", Every(5), diary.report.job()).declared


async def test_one_that_is_declared_while_a_worker_runs_is_put_too(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LONGEST_REST", 0.02)
    app = make_app(clock=None)
    diary = Diary(app)
    async with app, app.worker():
        app.schedule("late", Every(0.1), diary.report.job())
        await eventually(lambda: app.acount("schedule:late state:completed"))


def test_what_is_put_over_a_declaration_lasts_until_the_next_start(open_again: Open) -> None:
    with open_again() as app:
        diary = Diary(app)
        app.schedule("report", Every(60), diary.report.job())
        tick(app)
        app.schedules.put("report", Every(30), diary.report.job())
        assert [view.timing for view in app.schedules.list()] == [Every(30)]
    with open_again() as app:
        app.schedule("report", Every(60), Diary(app).report.job())
        tick(app)
        [view] = app.schedules.list()
        assert (view.timing, view.declared) == (Every(60), True)


def test_options_of_the_call_go_with_every_job(make_app: MakeApp, clock: FakeClock) -> None:
    app = make_app(queues={"reports": Queue(compression="gzip")})

    @app.task(retry=3)
    def report(text: str) -> None:
        assert text == "x" * 5000

    settings: dict[str, Any] = {"queue": "reports", "priority": 5, "delay": 30, "lane": Lane("one")}
    app.schedules.put("report", Every(60), report.using(**settings, expires=90).job("x" * 5000))
    clock.advance(60)
    assert tick(app) == 1
    [job] = app.jobs().jobs
    assert (job.queue, job.priority, job.lane, job.state) == ("reports", 5, "one", State.DELAYED)
    assert (job.due - clock.now, (job.expires or 0) - clock.now) == (30_000, 90_000)
    assert len(job.payload) < 200
    [ran] = drain(app, clock=clock)
    assert ran.error is None


def test_a_job_that_was_not_made_by_a_schedule_has_neither_schedule_nor_slot(app: App) -> None:
    diary = Diary(app)
    diary.report.enqueue("by hand")
    drain(app)
    assert diary.runs == [(None, None, "by hand")]


def test_hooks_around_enqueues_are_for_calls_and_those_around_runs_for_all(
    app: App, clock: FakeClock
) -> None:
    asked: list[str] = []
    ended: list[str] = []

    @app.before_enqueue
    def ask(call: Call[Any]) -> None:
        asked.append(call.task)

    @app.on_end
    def end(job: CurrentJob, _: Ended) -> None:
        ended.append(job.task)

    diary = Diary(app)
    app.schedules.put("often", Every(60), diary.report.job())
    clock.advance(60)
    assert tick(app) == 1
    app.schedules.run("often")
    drain(app)
    assert (asked, ended) == ([], ["report", "report"])


# List, get, remove


def test_get_is_one_or_none_and_remove_says_whether_there_was_one(app: App) -> None:
    diary = Diary(app)
    put = app.schedules.put("a", Every(5), diary.report.job())
    assert app.schedules.get("a") == put
    assert app.schedules.get("b") is None
    assert app.schedules.remove("a")
    assert not app.schedules.remove("a")
    assert app.schedules.get("a") is None


@pytest.mark.parametrize("verb", ["pause", "resume", "run"])
def test_an_unknown_id_is_refused_with_a_near_one(app: App, verb: str) -> None:
    diary = Diary(app)
    with pytest.raises(UnknownSchedule, match="There is no schedule 'daily-report': there are none"):
        getattr(app.schedules, verb)("daily-report")
    app.schedules.put("daily-report", Every(5), diary.report.job())
    with pytest.raises(UnknownSchedule, match=r"no schedule 'dayly-report': did you mean 'daily-report'\?"):
        getattr(app.schedules, verb)("dayly-report")


async def test_every_verb_has_a_twin_for_async_code(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    schedules = app.schedules
    put = await schedules.aput("a", Every(5), diary.report.job(), catch_up="none")
    assert put.catch_up == "none"
    assert await schedules.aget("a") == put
    assert await schedules.alist() == [put]
    assert (await schedules.apause("a")).next_run is None
    assert (await schedules.aresume("a")).next_run is not None
    await schedules.arun("a")
    clock.advance(5)
    assert await atick(app) == 1
    assert len(await adrain(app)) == 2
    assert await schedules.aremove("a")
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: schedules.put("a", Every(5), diary.report.job()), "aput"),
        (schedules.list, "alist"),
        (lambda: schedules.get("a"), "aget"),
        (lambda: schedules.remove("a"), "aremove"),
        (lambda: schedules.pause("a"), "apause"),
        (lambda: schedules.resume("a"), "aresume"),
        (lambda: schedules.run("a"), "arun"),
        (lambda: tick(app), "atick"),
    ]
    for call, instead in calls:
        with pytest.raises(WrongCall, match=instead):
            call()


def test_upcoming_slots_go_on_through_a_change_of_clocks(app: App, clock: FakeClock) -> None:
    set_to(clock, utc(2027, 3, 26, 12))
    view = app.schedules.put("a", Cron("30 2 * * *", tz="Europe/Paris"), Diary(app).report.job())
    assert view.upcoming(0) == []
    assert view.upcoming(3) == [utc(2027, 3, 27, 1, 30), utc(2027, 3, 28, 1), utc(2027, 3, 29, 0, 30)]
    for wrong in (-1, 1_001, 2.5, True):
        with pytest.raises(InvalidOption, match="upcoming"):
            view.upcoming(wrong)  # type: ignore[arg-type]


# Pause, resume, run now


def test_slots_of_a_pause_are_let_go(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    app.schedules.put("often", Every(60), diary.report.job())
    paused = app.schedules.pause("often")
    assert (paused.paused, paused.next_run) == (True, None)
    assert app.schedules.pause("often") == paused
    clock.advance(150)
    assert diary.fired() == []
    resumed = app.schedules.resume("often")
    assert (resumed.paused, resumed.next - resumed.since) == (False, 180_000), "and its phase stays"
    assert app.schedules.resume("often") == resumed
    assert diary.fired() == []
    clock.advance(30)
    assert len(diary.fired()) == 1


def test_a_pause_that_ends_before_the_next_slot_loses_nothing(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    before = app.schedules.put("often", Every(60), diary.report.job())
    app.schedules.pause("often")
    clock.advance(59)
    assert app.schedules.resume("often").next == before.next
    clock.advance(1)
    assert len(diary.fired()) == 1


def test_a_pause_survives_restarts_and_deploys(open_again: Open, clock: FakeClock) -> None:
    with open_again() as app:
        app.schedule("often", Every(60), Diary(app).report.job("old"))
        tick(app)
        app.schedules.pause("often")
    clock.advance(600)
    with open_again() as app:
        diary = Diary(app)
        app.schedule("often", Every(50), diary.report.job("new"))
        assert diary.fired() == []
        [view] = app.schedules.list()
        assert (view.paused, view.timing) == (True, Every(50))
        app.schedules.resume("often")
        clock.advance(50)
        assert len(diary.fired()) == 1
        assert diary.runs[0][2] == "new"


def test_run_now_makes_a_job_besides_the_slots(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    before = app.schedules.put("daily", Cron("0 8 * * *"), diary.report.job("now"))
    ids = {app.schedules.run("daily"), app.schedules.run("daily")}
    assert len(ids) == 2
    assert app.schedules.get("daily") == before
    drain(app)
    assert diary.runs == [("daily", None, "now")] * 2
    app.schedules.pause("daily")
    app.schedules.run("daily")
    assert app.count("schedule:daily") == 3


# Restarts, changes, missed slots


def test_an_interval_keeps_its_phase_across_restarts(open_again: Open, clock: FakeClock) -> None:
    start = clock.now
    slots: list[int] = []
    for pause in (10, 300, 290, 301, 700):
        with open_again() as app:
            diary = Diary(app)
            app.schedule("often", Every(300), diary.report.job())
            slots += [int(slot.timestamp() * 1000) - start for slot in diary.fired() if slot is not None]
            clock.advance(pause)
    # Starts after 0, 10, 310, 600 and 901 seconds.
    assert slots == [300_000, 600_000, 900_000]


def test_a_changed_interval_keeps_counting_from_when_it_was_first_put(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    first = app.schedules.put("often", Every(300), diary.report.job())
    clock.advance(700)
    changed = app.schedules.put("often", Every(200), diary.report.job())
    assert (changed.since, changed.next) == (first.since, first.since + 800_000)
    assert diary.fired() == [], "the slots of the old timing are let go"


def test_a_changed_pattern_does_not_fire_a_slot_twice(app: App, clock: FakeClock) -> None:
    set_to(clock, utc(2027, 1, 15, 7, 59))
    diary = Diary(app)
    app.schedules.put("report", Cron("0 8 * * *"), diary.report.job())
    set_to(clock, utc(2027, 1, 15, 8))
    assert diary.fired() == [utc(2027, 1, 15, 8)]
    changed = app.schedules.put("report", Cron("0 8,20 * * *"), diary.report.job())
    assert changed.next_run == utc(2027, 1, 15, 20)
    assert diary.fired() == []
    set_to(clock, utc(2027, 1, 15, 7, 30))
    changed = app.schedules.put("report", Cron("0 8,21 * * *"), diary.report.job())
    assert changed.next_run == utc(2027, 1, 15, 21), "though the clock was set back"
    set_to(clock, utc(2027, 1, 15, 8))
    assert diary.fired() == []
    assert app.schedules.remove("report")
    set_to(clock, utc(2027, 1, 15, 7, 59))
    app.schedules.put("report", Cron("0 8 * * *"), diary.report.job())
    set_to(clock, utc(2027, 1, 15, 8))
    assert diary.fired() == [], "nor if it was removed in between: its job is known by schedule and slot"


def test_missed_slots_become_one_job_for_the_last_of_them(app: App, clock: FakeClock) -> None:
    set_to(clock, utc(2027, 1, 15, 12))
    diary = Diary(app)
    app.schedules.put("daily", Cron("0 8 * * *"), diary.report.job())
    set_to(clock, utc(2027, 1, 19, 9))
    assert diary.fired() == [utc(2027, 1, 19, 8)]
    [view] = app.schedules.list()
    assert (view.fired, view.next_run) == (1, utc(2027, 1, 20, 8))


def test_or_none_if_nobody_was_there_within_a_minute(
    app: App, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    set_to(clock, utc(2027, 1, 15, 12))
    diary = Diary(app)
    app.schedules.put("daily", Cron("0 8 * * *"), diary.report.job(), catch_up="none")
    set_to(clock, utc(2027, 1, 16, 8, 0, 59))
    assert diary.fired() == [utc(2027, 1, 16, 8)]
    set_to(clock, utc(2027, 1, 17, 8, 1))
    with caplog.at_level(logging.INFO, "onejob"):
        assert diary.fired() == []
    [missed] = events(caplog, "schedule.missed")
    assert "schedule daily: the slot of 2027-01-17 08:00:00 UTC was missed" in missed.getMessage()
    [view] = app.schedules.list()
    assert (view.last_run, view.next_run) == (utc(2027, 1, 16, 8), utc(2027, 1, 18, 8))


def test_a_clock_that_is_set_back_fires_nothing_again(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    app.schedules.put("often", Every(60), diary.report.job())
    clock.advance(180)
    assert len(diary.fired()) == 1
    clock.advance(-150)
    for _ in range(15):
        assert diary.fired() == []
        clock.advance(10)
    clock.advance(60)
    assert len(diary.fired()) == 1


@pytest.mark.parametrize(
    "store_url", ["sqlite"], indirect=True
)  # which slots there are is no matter of the store's
@pytest.mark.parametrize(
    ("pattern", "day", "slots"),
    [
        ("30 2 * * *", utc(2027, 3, 28), [utc(2027, 3, 28, 1)]),
        ("30 2 * * *", utc(2027, 10, 31), [utc(2027, 10, 31, 0, 30)]),
        ("*/30 2 * * *", utc(2027, 3, 28), []),
        ("*/30 2 * * *", utc(2027, 10, 31), [utc(2027, 10, 31, h, m) for h in (0, 1) for m in (0, 30)]),
        ("0 * * * *", utc(2027, 3, 28), [utc(2027, 3, 28, hour) for hour in range(5)]),
        ("0 * * * *", utc(2027, 10, 31), [utc(2027, 10, 31, hour) for hour in range(5)]),
    ],
)
def test_changes_of_clocks(
    app: App, clock: FakeClock, pattern: str, day: dt.datetime, slots: list[dt.datetime]
) -> None:
    """Paris, from midnight UTC: the gap leaves out 02:00 to 03:00 in March, the fold repeats it in October."""
    set_to(clock, day - dt.timedelta(minutes=5))
    diary = Diary(app)
    app.schedules.put("a", Cron(pattern, tz="Europe/Paris"), diary.report.job())
    found: list[dt.datetime | None] = []
    while clock.now <= (day + dt.timedelta(hours=4, minutes=55)).timestamp() * 1000:
        found += diary.fired()
        clock.advance(300)
    assert found == slots


# Uniqueness


def test_a_policy_given_with_using_applies_and_a_kept_call_spends_the_slot(
    app: App, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary(app)
    app.schedules.put("often", Every(60), diary.report.using(unique=Unique.in_flight()).job())
    clock.advance(60)
    assert tick(app) == 1
    first = app.schedules.list()[0]
    clock.advance(60)
    caplog.clear()
    with caplog.at_level(logging.INFO, "onejob"):
        assert tick(app) == 0
    [record] = events(caplog, "schedule.fired")
    assert f"became kept: job {first.job}" in record.getMessage()
    [view] = app.schedules.list()
    assert (view.job, view.outcome) == (first.job, Outcome.KEPT)
    assert (view.last, view.next) == (first.next, first.next + 60_000)
    assert app.schedules.run("often") == first.job
    assert tick(app) == 0
    assert app.count() == 1
    drain(app)
    clock.advance(60)
    assert tick(app) == 1


def test_a_policy_that_raises_spends_the_slot_and_refuses_to_run_now(app: App, clock: FakeClock) -> None:
    diary = Diary(app)
    strict = diary.report.using(unique=Unique.in_flight(queued="raise"))
    app.schedules.put("often", Every(60), strict.job())
    clock.advance(60)
    assert tick(app) == 1
    clock.advance(60)
    assert tick(app) == 0
    assert app.schedules.list()[0].outcome is Outcome.REJECTED
    holder = app.jobs().jobs[0].id
    with pytest.raises(DuplicateJob, match=f"Schedule 'often' made no job: {holder}") as refused:
        app.schedules.run("often")
    assert refused.value.holder == holder


def test_a_collecting_task_gets_a_job_per_slot(app: App, clock: FakeClock) -> None:
    seen: list[list[int]] = []

    @app.task(unique=Unique.collect(into="items"))
    def gather(items: list[int]) -> None:
        seen.append(items)

    app.schedules.put("often", Every(60), gather.job(items=[1, 2]))
    for _ in range(2):
        clock.advance(60)
        assert tick(app) == 1
    drain(app)
    assert seen == [[1, 2], [1, 2]]


# Several apps, several workers


def test_a_declaration_that_vanished_is_reported_and_still_fires(
    open_again: Open, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with open_again() as app:
        diary = Diary(app)
        app.schedule("stays", Every(60), diary.report.job())
        app.schedule("goes", Every(60), diary.report.job())
        app.schedules.put("by-hand", Every(3600), diary.report.job())
        tick(app)
    assert events(caplog, "schedule.vanished") == []
    clock.advance(60)
    with open_again() as app:
        diary = Diary(app)
        app.schedule("stays", Every(60), diary.report.job())
        assert len(diary.fired()) == 2
        [record] = events(caplog, "schedule.vanished")
        assert "schedule goes (task report) is no longer declared in the code" in record.getMessage()
        assert "onejob schedules remove goes" in record.getMessage()
        assert [view.id for view in app.schedules.list()] == ["by-hand", "goes", "stays"]
        caplog.clear()
        app.schedules.remove("goes")
        tick(app)
        assert events(caplog, "schedule.vanished") == []


def test_two_apps_on_one_store_fire_each_others_slots_and_leave_them_alone(
    open_again: Open, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with open_again() as one, open_again() as other:
        diary = Diary(one)
        one.schedule("ones", Every(60), diary.report.job())

        @other.task(queue="others")
        def work() -> None: ...

        other.schedule("others", Every(60), work.job())
        assert tick(one) == tick(other) == 0
        clock.advance(60)
        assert tick(other) == 2
        assert tick(one) == 0
        assert [job.queue for job in one.jobs().jobs] == ["others", "default"]
        assert events(caplog, "schedule.vanished") == [], "nobody here knows the other's tasks"
        assert [view.declared for view in one.schedules.list()] == [True, True]


async def test_a_worker_fires_an_interval_at_its_slots(make_app: MakeApp) -> None:
    app = make_app(clock=None)
    seen: list[tuple[dt.datetime, dt.datetime]] = []

    @app.task
    async def beat() -> None:
        slot = current_job().slot
        assert slot is not None
        seen.append((slot, dt.datetime.now(dt.UTC)))

    async def enough() -> bool:
        return len(seen) >= 5

    app.schedule("beat", Every(0.2), beat.job())
    async with app, app.worker(), app.worker():
        await eventually(enough)
        [view] = await app.schedules.alist()
    slots = [slot for slot, _ in seen]
    first = dt.datetime.fromtimestamp(view.since / 1000, dt.UTC)
    assert len(set(slots)) == len(slots)
    assert all((slot - first) % dt.timedelta(seconds=0.2) < dt.timedelta(milliseconds=1) for slot in slots)
    assert all(slot <= started for slot, started in seen), "never before its time"


async def test_a_put_wakes_a_worker_that_sleeps(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    rest, asleep = Scheduler.rest, asyncio.Event()

    async def watched(self: Scheduler) -> None:
        if self._next >= scheduler.LONGEST_REST:
            asleep.set()
        await rest(self)

    monkeypatch.setattr(scheduler, "LONGEST_REST", 3600.0)
    monkeypatch.setattr(Scheduler, "rest", watched)
    app = make_app(clock=None)
    sender = make_app(clock=None)  # who puts may be another process
    diary = Diary(app)
    report = Diary(sender).report
    async with app, app.worker():
        for id in ("first", "second"):
            await asyncio.wait_for(asleep.wait(), PATIENCE)
            await sender.schedules.aput(id, Every(0.1), report.job())
            await eventually(lambda id=id: app.acount(f"schedule:{id} state:completed"))
            asleep.clear()
            await sender.schedules.aremove(id)
    assert {schedule for schedule, _, _ in diary.runs} == {"first", "second"}


async def test_a_tick_that_fails_is_repeated_but_not_at_once(
    app: App, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.schedules.aput("often", Every(0.1), Diary(app).report.job())
    ticking, rests = Scheduler(app.store, {}), list[float]()

    async def fails(*_: object, **__: object) -> None:
        raise StoreBusy("locked")

    async def rested(_: object, timeout: float, **__: object) -> bool:
        rests.append(timeout)
        return False

    assert await ticking.tick() == 0
    clock.advance(1)
    with monkeypatch.context() as patch:
        patch.setattr(app.store, "fire", fails)
        patch.setattr(app.store, "wait", rested)
        for _ in range(3):
            with pytest.raises(StoreBusy):
                await ticking.tick()
            await ticking.rest()
    assert min(rests) >= scheduler.REST_AFTER_FAILURE
    assert await ticking.tick() == 1


def test_firings_are_logged_with_their_fields(
    app: App, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    view = app.schedules.put("often", Every(60), Diary(app).report.job())
    clock.advance(62)
    with caplog.at_level(logging.INFO, "onejob"):
        tick(app)
    [record] = events(caplog, "schedule.fired")
    job = app.jobs().jobs[0].id
    assert (
        record.__dict__.items()
        >= {
            "schedule": "often",
            "slot": view.next,
            "late": 2000,
            "job": job,
            "outcome": "created",
        }.items()
    )
    assert f"schedule often: the slot of 2027-01-15 08:01:00 UTC became job {job}" in record.getMessage()


def test_what_is_put_or_changed_is_logged_with_its_next_slot(
    app: App, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    report, nightly = Diary(app).report, Cron("30 2 * * *", tz="Europe/Berlin")
    app.schedule("nightly", nightly, report.job())
    with caplog.at_level(logging.INFO, "onejob"):
        tick(app)
        tick(app)
        app.schedules.put("nightly", Every(60), report.job())
        app.schedules.pause("nightly")
        app.schedules.put("nightly", nightly, report.job())
    assert [record.getMessage() for record in events(caplog, "schedule.put")] == [
        "schedule nightly: 30 2 * * * Europe/Berlin, next 2027-01-16 01:30:00 UTC",
        "schedule nightly: every 60 s, next 2027-01-15 08:01:00 UTC",
        "schedule nightly: 30 2 * * * Europe/Berlin, paused",
    ]


# What cannot be read


async def test_a_schedule_that_cannot_be_read_here_is_told_and_holds_up_no_other(
    app: App, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary(app)
    await app.schedules.aput("lost", Cron("* * * * *", tz="Europe/Paris"), diary.report.job())
    await app.schedules.aput("fine", Cron("* * * * *"), diary.report.job())
    [stored] = await app.store.schedules(["lost"])
    elsewhere = stored.definition.replace(b"Europe/Paris", b"Mars/Olympus")
    moved = msgspec.structs.replace(stored, definition=elsewhere, revision=stored.revision + 1)
    assert await app.store.put_schedules([moved]) == [True]
    clock.advance(60)
    ticking = Scheduler(app.store, app.declared_schedules, app.tasks)
    assert await ticking.tick() == 1
    clock.advance(60)
    assert await ticking.tick() == 1
    [record] = events(caplog, "schedule.unreadable")
    assert "schedule lost is due and cannot be read here: There is no time zone" in record.getMessage()
    [_, lost] = await app.schedules.alist()
    assert lost.timing is None
    assert "Mars/Olympus" in (lost.problem or "")
    assert lost.upcoming(3) == []
    with pytest.raises(InvalidOption, match=r"'lost' cannot be read here: .*; put it again"):
        await app.schedules.arun("lost")
    assert (await app.schedules.apause("lost")).paused
    with pytest.raises(InvalidOption, match="'lost' cannot be read here"):
        await app.schedules.aresume("lost")
    [stored] = await app.store.schedules(["lost"])
    cut = msgspec.structs.replace(stored, definition=stored.definition[:9], revision=stored.revision + 1)
    assert await app.store.put_schedules([cut]) == [True]
    mended = await app.schedules.aput("lost", Every(60), diary.report.job())
    assert (mended.problem, mended.paused, mended.timing) == (None, True, Every(60))
    assert await app.schedules.aremove("lost")


@pytest.mark.parametrize(
    ("written", "newer"),
    [
        (b'"task":"report"', b'"task":"report","colour":"red"'),
        (b'"type":"every"', b'"type":"every","colour":"red"'),
        (b64encode(b'{"timeout":30000}'), b64encode(b'{"timeout":30000,"colour":"red"}')),
    ],
    ids=["template", "timing", "options"],
)
async def test_what_a_newer_version_put_is_left_to_its_workers(
    app: App, clock: FakeClock, written: bytes, newer: bytes
) -> None:
    diary = Diary(app)
    await app.schedules.aput("theirs", Every(60), diary.report.using(timeout=30).job())
    await app.schedules.aput("ours", Every(60), diary.report.job())
    [stored] = await app.store.schedules(["theirs"])
    assert written in stored.definition
    changed = stored.definition.replace(written, newer)
    moved = msgspec.structs.replace(stored, definition=changed, revision=stored.revision + 1)
    assert await app.store.put_schedules([moved]) == [True]
    clock.advance(60)
    assert await atick(app) == 1
    _, theirs = await app.schedules.alist()
    assert "colour" in (theirs.problem or "")
    assert await app.acount("schedule:ours") == 1


@pytest.mark.usefixtures("database_url")
async def test_a_run_by_hand_is_part_of_the_transaction_around_it(app: App) -> None:
    await app.schedules.aput("daily", Every(60), Diary(app).report.job())

    async def rolled_back() -> None:
        async with app.transaction(timeout=2):
            await app.schedules.arun("daily")
            raise KeyError

    with pytest.raises(KeyError):
        await rolled_back()
    assert await app.acount("schedule:daily") == 0
    async with app.transaction(timeout=2):
        await app.schedules.arun("daily")
    assert await app.acount("schedule:daily") == 1


async def test_inside_a_transaction_schedules_are_not_changed(app: App) -> None:
    job = Diary(app).report.job()
    await app.schedules.aput("daily", Every(60), job)
    async with app.transaction(timeout=2):
        for change in (
            app.schedules.aput("daily", Every(61), job),
            app.schedules.apause("daily"),
            app.schedules.aresume("daily"),
            app.schedules.aremove("daily"),
        ):
            with pytest.raises(WrongCall, match="before or after the block"):
                await change
        assert len(await app.schedules.alist()) == 1


async def test_what_was_put_is_returned_even_if_it_is_removed_at_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = app.store.put_schedules

    async def put_and_removed(schedules: Any, **more: Any) -> list[bool]:
        written = await put(schedules, **more)
        await app.store.drop_schedule("daily")
        return written

    monkeypatch.setattr(app.store, "put_schedules", put_and_removed)
    assert (await app.schedules.aput("daily", Every(60), Diary(app).report.job())).id == "daily"
