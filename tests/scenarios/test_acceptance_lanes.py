"""Lanes: order, concurrency and rate per key (ACCEPTANCE.md, G8 to G22, and what Q4 says of parked jobs)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import told_tasks
from stage import PATIENCE, READY, Stage, eventually, most_in_any

from onejob import (
    App,
    Fail,
    InvalidOption,
    Lane,
    Outcome,
    Queue,
    Rate,
    Retry,
    Snooze,
    State,
    Unique,
    current_job,
)
from onejob.keepers import Rescuer
from onejob.store import Amended, Ask, Beat
from onejob.testing import FakeClock, adrain
from onejob.worker.setup import new_worker_id

MakeApp = Callable[..., App]
QUICK = {"poll": 0.02}
"""Workers that look often, because the clock of these tests stands still."""


# Order and concurrency


@pytest.mark.accepts("G8", "G12")
async def test_jobs_of_a_lane_start_one_at_a_time_in_order_of_acceptance(app: App) -> None:
    stage = Stage(app, lane=Lane("imports"))
    names = [f"{number:02}" for number in range(10)]
    await stage.send(*names[:5])
    async with app.worker(concurrency=8), app.worker(concurrency=8):
        for name, later in zip(names, names[5:] + [None] * 5, strict=True):
            await stage.shows(name)
            if later is not None:
                await stage.send(later)  # while one runs
                await stage.shows(name)
            stage.release(name)
        await stage.until(lambda: not stage.running)
    assert stage.started == names
    assert stage.most["imports"] == 1


@pytest.mark.accepts("G8", "G12")
async def test_neither_priority_nor_an_earlier_due_time_overtakes_in_an_ordered_lane(
    app: App, clock: FakeClock
) -> None:
    stage = Stage(app, lane=Lane("imports"))
    stage.open = True
    await stage.send("delayed", delay=60)
    clock.advance(10)
    await stage.send("first")
    await stage.send("urgent", priority=9)
    clock.advance(50)
    await adrain(app)
    assert stage.started == ["delayed", "first", "urgent"]


@pytest.mark.accepts("G8")
async def test_a_job_that_is_not_due_yet_holds_up_nobody(app: App, clock: FakeClock) -> None:
    stage = Stage(app, lane=Lane("imports"))
    stage.open = True
    await stage.send("delayed", delay=60)
    await stage.send("first", "second")
    await adrain(app)
    assert stage.started == ["first", "second"]
    clock.advance(60)
    await adrain(app)
    assert stage.started == ["first", "second", "delayed"]


@pytest.mark.accepts("G9")
async def test_other_lanes_and_jobs_without_one_run_meanwhile(app: App) -> None:
    stage = Stage(app, lane=Lane(by="group"))
    await stage.send("a1", "a2", group="a")
    await stage.send("b1", "b2", group="b")
    await stage.send("free", lane=None)
    async with app.worker():
        await stage.shows("a1", "b1", "free")
        stage.release("b1")
        await stage.shows("a1", "b2", "free")
        stage.release("a1", "a2", "b2", "free")
        await stage.until(lambda: len(stage.started) == 5 and not stage.running)
    assert stage.most == {"": 3, "group:a": 1, "group:b": 1}


@pytest.mark.accepts("G9")
async def test_a_lane_belongs_to_its_queue(app: App) -> None:
    stage = Stage(app, lane=Lane("imports"))
    await stage.send("here")
    await stage.send("there", queue="other")
    async with app.worker(queues=["default", "other", "last"]):
        await stage.shows("here", "there")
        stage.release("here", "there")
        await stage.until(lambda: not stage.running)


@pytest.mark.accepts("G10", "G11")
async def test_so_many_run_at_once_over_all_workers_and_the_rest_is_parked(app: App) -> None:
    stage = Stage(app, lane=Lane(by="group", concurrency=3))
    receipts = await stage.send(*"123456")
    async with app.worker(concurrency=2), app.worker(concurrency=2), app.worker(concurrency=2):
        await stage.shows("1", "2", "3")
        assert await stage.states(*receipts) == [State.RUNNING] * 3 + [State.PARKED] * 3
        stage.release("2")
        await stage.shows("1", "3", "4")
        assert await stage.states(*receipts[4:]) == [State.PARKED] * 2
        stage.release(*"13456")
        await stage.until(lambda: len(stage.started) == 6 and not stage.running)
    assert stage.most["group:a"] == 3


@pytest.mark.accepts("G13")
async def test_a_wider_lane_goes_by_priority_instead(app: App) -> None:
    stage = Stage(app, lane=Lane("imports", concurrency=2))
    stage.open = True
    await stage.send("first", "second")
    await stage.send("urgent", priority=9)
    await adrain(app)
    assert stage.started == ["urgent", "first", "second"]


# Rates


@pytest.mark.accepts("G14", "G16")
async def test_a_rate_caps_the_starts_of_a_lane_and_lets_go_on_when_its_window_opens(
    app: App, clock: FakeClock
) -> None:
    stage = Stage(app, lane=Lane(by="group", concurrency=9, rate=Rate(2, per=10)))
    stage.open = True
    receipts = await stage.send("1", "2", "3", "4", "5")
    await stage.send("other", group="b")
    left = (await adrain(app)).left
    assert stage.started == ["1", "2", "other"]
    assert list(left) == [receipt.id for receipt in receipts[2:]]
    assert await stage.states(*receipts[2:]) == [State.PARKED] * 3
    opens_at = clock.now + 10_000
    clock.tick(9_999)
    assert not await adrain(app)
    assert opens_at in {lane.opens_at for lane in await app.alanes()}
    clock.tick(1)
    assert [lane.opens_at for lane in await app.alanes()] == [None], "it has opened, and holds nobody up"
    await adrain(app)
    assert stage.started == ["1", "2", "other", "3", "4"]
    clock.advance(10)
    await adrain(app)
    assert stage.started[5:] == ["5"]


@pytest.mark.accepts("G14", "G18")
async def test_no_window_of_that_length_holds_too_many_starts_retries_included(
    app: App, clock: FakeClock
) -> None:
    chance = random.Random(11)
    starts: list[int] = []

    @app.task(lane=Lane("api", concurrency=3, rate=Rate(3, per=0.01)), retry=Retry(4, 0.003))
    async def call(number: int) -> None:
        starts.append(clock.now)
        clock.tick(chance.choice([0, 0, 0, 0, 1]))
        if chance.random() < 0.4:
            raise ConnectionError

    for number in range(60):
        await call.aenqueue(number)
        clock.tick(chance.choice([0, 1, 8]))
        if chance.random() < 0.1:
            await adrain(app)
    await adrain(app, clock=clock)
    assert len(starts) > 60
    assert most_in_any(0.01, starts) == 3


@pytest.mark.accepts("G18")
async def test_a_retry_waits_for_the_rate_as_anybody(app: App, clock: FakeClock) -> None:
    stage = Stage(app, lane=Lane("api", rate=Rate(1, per=10)), retry=Retry(2, 1.0))
    stage.open = True
    stage.fails["once"] = ConnectionError()
    [receipt] = await stage.send("once")
    await adrain(app)
    del stage.fails["once"]
    clock.advance(1)
    assert not await adrain(app)
    assert await stage.states(receipt) == [State.PARKED]
    clock.advance(9)
    await adrain(app)
    assert await stage.states(receipt) == [State.COMPLETED]


@pytest.mark.accepts("G15")
async def test_both_gates_of_a_lane_apply(app: App, clock: FakeClock) -> None:
    stage = Stage(app, lane=Lane("api", concurrency=2, rate=Rate(3, per=10)))
    await stage.send(*"12345")
    async with app.worker(**QUICK):
        await stage.shows("1", "2")  # the slots are taken, though the rate would let one more start
        stage.release("1", "2")
        await stage.shows("3")  # a slot is free, but the rate is spent
        clock.advance(10)
        await stage.shows("3", "4")
        stage.release("3", "4", "5")
        await stage.until(lambda: len(stage.started) == 5 and not stage.running)


@pytest.mark.accepts("G11", "G16", "G17")
@pytest.mark.parametrize("how", ["slot", "rate"])
async def test_the_next_one_starts_at_once_and_not_with_a_poll(make_app: MakeApp, how: str) -> None:
    app = make_app(clock=None)
    lane = Lane("x") if how == "slot" else Lane("x", concurrency=9, rate=Rate(1, per=0.3))
    stage = Stage(app, lane=lane)
    stage.open = True
    begun = time.monotonic()
    async with app.worker(poll=60):
        await stage.send(*"12345")
        await stage.until(lambda: len(stage.started) == 5)
    assert time.monotonic() - begun < 10, "it waited for a poll"
    assert time.monotonic() - begun >= (1.2 if how == "rate" else 0)


@pytest.mark.accepts("G17")
async def test_a_worker_elsewhere_is_told_of_the_free_slot(tmp_path: Path) -> None:
    one, other = (App(f"sqlite:///{tmp_path}/jobs.db") for _ in range(2))
    here, there = Stage(one, lane=Lane("x")), Stage(other, lane=Lane("x"))
    await here.send("1", "2")
    async with one, other, one.worker(poll=60) as first:
        await here.until(lambda: here.running)
        async with other.worker(poll=60):
            first.stop()
            here.release("1")
            await there.until(lambda: there.running == ["2"])
            there.release("2")


@pytest.mark.accepts("G19")
async def test_a_lane_key_that_is_too_long_stores_nothing(app: App) -> None:
    stage = Stage(app, lane=Lane(by="group"))
    with pytest.raises(InvalidOption, match=r"^Ordering key exceeds maximum length \(300 > 256\)\."):
        await app.aenqueue_many([stage.work.job("fits"), stage.work.job("too long", "x" * 294)])
    with pytest.raises(InvalidOption, match=r"^Ordering key exceeds maximum length \(300 > 256\)\."):
        await stage.send("too long", lane=Lane("x" * 300))
    assert await app.acount() == 0
    assert await app.alanes() == []


# What frees a slot


def let_end(stage: Stage, how: str) -> None:
    """Let the first job of a lane end its attempt in one of all ways."""
    if how in ("fail", "dead letter"):
        stage.fails["1"] = Fail("no")
    elif how == "retry":
        stage.fails["1"] = ConnectionError()
    elif how == "snooze":
        stage.fails["1"] = Snooze(60)
    stage.release("1")


@pytest.mark.accepts("G22")
@pytest.mark.parametrize(
    ("how", "becomes"),
    [
        ("complete", State.COMPLETED),
        ("fail", State.FAILED),
        ("dead letter", State.FAILED),
        ("retry", State.DELAYED),
        ("snooze", State.DELAYED),
        ("revoke", State.REVOKED),
        ("restart", State.REVOKED),
    ],
)
async def test_every_end_of_an_attempt_frees_the_slot_once(
    make_app: MakeApp, clock: FakeClock, how: str, becomes: State
) -> None:
    app = make_app(queues={"default": Queue(dead_letter="dead")} if how == "dead letter" else None)
    stage = Stage(app, lane=Lane("x"), retry=Retry(3, 60.0), unique=Unique.restart(by="name"))
    [first, *_] = await stage.send(*"123")
    async with app.worker(**QUICK):
        await stage.shows("1")
        if how == "revoke":
            assert await app.arevoke(first) is Amended.FLAGGED
        elif how == "restart":
            await stage.send("1")  # the newcomer flags the holder and follows it
        let_end(stage, how)
        await stage.shows("2")
        assert await stage.states(first) == [becomes]
        stage.release("2")
        await stage.shows("3")
        stage.release("3")
        await stage.until(lambda: "3" not in stage.running)
    assert stage.most["x"] == 1


@pytest.mark.accepts("G22")
async def test_a_stalled_job_keeps_its_slot_until_it_is_rescued_and_goes_first_then(
    app: App, clock: FakeClock
) -> None:
    stage = Stage(app, lane=Lane("x"))
    stage.open = True
    receipts = await stage.send("1", "2")
    lost = new_worker_id()
    await app.store.beat(Beat(lost, 30_000, queues=("default",)))
    [claimed] = (await app.store.claim(Ask(lost, ("default",), 9))).jobs
    assert claimed.id == receipts[0].id
    clock.advance(29)
    assert not await adrain(app)
    clock.advance(2)
    assert not await adrain(app), "a silent worker's job still runs, as far as anybody knows"
    await Rescuer(app.store, every=60).tick()
    await adrain(app)
    assert stage.started == ["1", "2"]


@pytest.mark.accepts("G22")
async def test_a_retried_job_lets_others_pass_and_goes_first_when_it_is_due(
    app: App, clock: FakeClock
) -> None:
    stage = Stage(app, lane=Lane("x"), retry=Retry(2, 10.0))
    stage.open = True
    stage.fails["1"] = ConnectionError()
    await stage.send("1", "2")
    await adrain(app)
    del stage.fails["1"]
    await stage.send("3")
    clock.advance(10)
    await adrain(app)
    assert stage.started == ["1", "2", "1", "3"]


@pytest.mark.accepts("G22")
async def test_on_retry_hold_keeps_the_lane_until_the_job_has_ended(app: App, clock: FakeClock) -> None:
    stage = Stage(app, lane=Lane("x", on_retry="hold"), retry=Retry(2, 10.0))
    stage.open = True
    stage.fails["1"] = ConnectionError()
    receipts = await stage.send("1", "2")
    await adrain(app)
    assert await stage.states(*receipts) == [State.DELAYED, State.PARKED]
    clock.advance(10)
    await adrain(app)
    assert stage.started == ["1", "1", "2"]
    assert await stage.states(*receipts) == [State.FAILED, State.COMPLETED]


# Together with queue limits: see also test_acceptance_limits.py


@pytest.mark.accepts("G20")
async def test_the_concurrency_of_lanes_and_of_their_queue_compose(app: App) -> None:
    await app.queue("default").aset_concurrency(3)
    stage = Stage(app, lane=Lane(by="group", concurrency=2))
    await stage.send("a1", "a2", "a3", group="a")
    await stage.send("b1", "b2", "b3", group="b")
    async with app.worker():
        await stage.shows("a1", "a2", "b1")
        stage.release("a1")
        await stage.shows("a2", "a3", "b1")  # a lane's turn came before the other's
        stage.release("a2", "a3")
        await stage.shows("b1", "b2")
        stage.release("b1", "b2", "b3")
        await stage.until(lambda: len(stage.started) == 6 and not stage.running)
    assert stage.most == {"": 3, "group:a": 2, "group:b": 2}


@pytest.mark.accepts("G21")
async def test_the_rates_of_lanes_and_of_their_queue_compose(app: App, clock: FakeClock) -> None:
    await app.queue("default").aset_rate(Rate(3, per=10))
    stage = Stage(app, lane=Lane(by="group", concurrency=9, rate=Rate(2, per=20)))
    stage.open = True
    await stage.send("a1", "a2", "a3", group="a")
    await stage.send("b1", "b2", group="b")
    await adrain(app)
    assert stage.started == ["a1", "a2", "b1"]
    clock.advance(10)
    await adrain(app)
    assert stage.started[3:] == ["b2"], "the queue has room again, lane a has not"
    clock.advance(10)
    await adrain(app)
    assert stage.started[4:] == ["a3"]


# Together with uniqueness


@pytest.mark.accepts("Q4")
async def test_a_parked_job_counts_as_incomplete(app: App) -> None:
    stage = Stage(app, lane=Lane("x"), unique=Unique.in_flight(by="name"))
    first, parked = await stage.send("1", "2")
    head, behind = await stage.states(first, parked)
    assert head in READY
    assert behind is State.PARKED
    [again] = await stage.send("2")
    assert (again.outcome, again.id, again.holder_state) == (Outcome.KEPT, parked.id, State.PARKED)


async def test_an_updated_job_keeps_its_place_in_the_lane(app: App) -> None:
    seen: list[tuple[str, int]] = []

    @app.task(lane=Lane("x"), unique=Unique.latest(by="name"))
    async def sync(name: str, version: int) -> None:
        seen.append((name, version))

    for name, version in [("a", 1), ("b", 1), ("c", 1), ("b", 2)]:
        receipt = await sync.aenqueue(name, version)
    assert receipt.outcome is Outcome.UPDATED
    await adrain(app)
    assert seen == [("a", 1), ("b", 2), ("c", 1)]


async def test_a_follower_joins_the_lane_only_when_it_is_ready(app: App) -> None:
    stage = Stage(app, lane=Lane("x"), unique=Unique.coalesce(by="name"))
    await stage.send("1")
    async with app.worker():
        await stage.shows("1")
        [follower] = await stage.send("1")
        await stage.send("2")
        assert await stage.states(follower) == [State.BLOCKED]
        stage.open = True
        stage.release("1")
        await stage.until(lambda: len(stage.started) == 3 and not stage.running)
    assert stage.started == ["1", "1", "2"], "it was accepted before the other"


async def test_a_debounced_job_waits_out_its_quiet_time_and_holds_up_nobody(
    app: App, clock: FakeClock
) -> None:
    stage = Stage(app, lane=Lane("x"), unique=Unique.debounce(5, by="name"))
    stage.open = True
    await stage.send("1")
    clock.advance(4)
    await stage.send("1", "2")
    clock.advance(4)
    await stage.send("1")
    clock.advance(1)
    await adrain(app)
    assert stage.started == ["2"]
    clock.advance(4)
    await adrain(app)
    assert stage.started == ["2", "1"]


async def test_revoking_the_head_lets_the_next_one_start(app: App) -> None:
    stage = Stage(app, lane=Lane("x"))
    stage.open = True
    first, second, third = await stage.send("1", "2", "3")
    assert await app.arevoke(first) is Amended.REVOKED
    assert await app.arevoke(second) is Amended.REVOKED
    assert (await stage.states(third))[0] in READY
    await adrain(app)
    assert stage.started == ["3"]


# What people are told


async def test_the_newest_job_sets_the_limits_of_its_lane_and_says_so(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(app, lane=Lane("x"))
    [first] = await stage.send("1")
    assert first.former_lane is None
    [second] = await stage.send("2", lane=Lane("x", concurrency=3, rate=Rate(10, per=60)))
    assert second.former_lane is not None
    assert (second.lane, second.former_lane.key, second.former_lane.concurrency) == ("x", "x", 1)
    told = 'lane "x" now takes 3 at a time, 10 per 60 s, where it took 1 at a time'
    assert str(second) == f"created: {second.id}, not unique; {told}"
    [record] = [record for record in caplog.records if record.__dict__.get("event") == "lane.changed"]
    assert (record.levelname, record.__dict__["lane"]) == ("WARNING", "x")
    assert told in record.getMessage()
    [third] = await app.aenqueue_many([stage.work.job("3")])
    assert third.former_lane is not None
    assert "now takes 1 at a time, where it took 3 at a time" in caplog.text
    [view] = await app.alanes()
    assert (view.plan.concurrency, view.plan.rate) == (1, None)


async def test_a_duplicate_does_not_change_the_lane(app: App, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(app, lane=Lane("x"), unique=Unique.in_flight(by="name"))
    await stage.send("1")
    [kept] = await stage.send("1", lane=Lane("x", concurrency=5))
    assert (kept.outcome, kept.former_lane, kept.options_differ) == (Outcome.KEPT, None, False)
    [other] = await stage.send("1", lane=Lane("y"))
    assert (other.outcome, other.options_differ) == (Outcome.KEPT, True)
    assert [view.plan.key for view in await app.alanes()] == ["x"]
    assert "lane.changed" not in [record.__dict__.get("event") for record in caplog.records]


@pytest.mark.parametrize("way", ["coroutine", "thread", "process"])
async def test_a_handler_knows_its_lane_wherever_it_runs(tmp_path: Path, way: str) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    function = told_tasks.lane_in_loop if way == "coroutine" else told_tasks.lane_outside
    task = app.task(name="lane", process=way == "process", lane=Lane(by="user"))(function)
    async with app, app.worker():
        with_lane, without = await task.aenqueue(42), await task.using(lane=None).aenqueue(42)
        assert await with_lane.aresult(timeout=PATIENCE) == "user:42"
        assert await without.aresult(timeout=PATIENCE) is None


async def test_a_handler_knows_its_lane_and_a_filter_finds_it(app: App) -> None:
    seen: list[str | None] = []

    @app.task(lane=Lane(by=lambda user: f"user:{user}"))
    async def note(user: int) -> None:
        seen.append(current_job().lane)

    await app.aenqueue_many([note.job(42), note.job(7), note.using(lane=None).job(42)])
    assert await app.acount("lane:user:42") == 1
    assert await app.acount("lane:user:42,user:7 state:queued") == 2
    assert await app.arevoke_many("lane:user:7") == {Amended.REVOKED: 1}
    await adrain(app)
    assert seen == ["user:42", None]


async def test_lanes_in_use_are_listed_and_gone_when_nothing_is_left(app: App, clock: FakeClock) -> None:
    stage = Stage(app, lane=Lane(by="group", concurrency=2))
    stage.open = True
    await stage.send("a1", "a2", "a3", group="a")
    await stage.send("b1", group="b", queue="other")
    assert [(view.queue, view.plan.key, view.ready, view.taken) for view in await app.alanes()] == [
        ("default", "group:a", 3, 0),
        ("other", "group:b", 1, 0),
    ]
    assert [view.plan.key for view in await app.alanes("other")] == ["group:b"]
    assert len(await app.alanes(limit=1)) == 1
    await adrain(app)
    assert await app.alanes() == []


async def test_a_retry_by_an_operator_goes_back_into_its_lane(app: App) -> None:
    stage = Stage(app, lane=Lane("x", concurrency=2))
    stage.open = True
    stage.fails["1"] = Fail("no")
    [first] = await stage.send("1")
    await adrain(app)
    del stage.fails["1"]
    assert await app.alanes() == []
    assert await app.aretry(first) is Amended.RETRIED
    [view] = await app.alanes()
    assert (view.plan.key, view.plan.concurrency) == ("x", 2)
    await adrain(app)
    assert await stage.states(first) == [State.COMPLETED]


async def test_a_long_lane_is_drained_in_order_beside_another(app: App) -> None:
    stage = Stage(app, lane=Lane(by="group"))
    stage.open = True
    jobs = [stage.work.job(str(number), "big") for number in range(300)]
    await app.aenqueue_many(jobs)
    [small] = await stage.send("small", group="small")
    async with app.worker(**QUICK):
        await small.aresult(timeout=PATIENCE)
        assert len(stage.started) < 300, "the other lane did not wait for the big one"

        async def empty() -> bool:
            return not await app.acount("state:live")

        await eventually(empty)
    assert [name for name in stage.started if name != "small"] == [str(number) for number in range(300)]
