"""Limits of queues and workers: concurrency, rates, pauses (ACCEPTANCE.md, G29 to G36), and what explains them."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage import PATIENCE, Stage, eventually, most_in_any
from stored import with_patience

from onejob import App, InvalidOption, Lane, QueueLimits, Rate, Retry, State, WrongCall
from onejob.diagnosis import diagnose
from onejob.store import Ask, Beat
from onejob.testing import FakeClock, adrain
from onejob.worker.setup import new_worker_id

MakeApp = Callable[..., App]
QUICK = {"poll": 0.02}
"""Workers that look often, because the clock of these tests stands still."""


# Queue limits


@pytest.mark.accepts("G29", "G30", "G36")
async def test_a_limit_holds_over_all_workers_and_zero_removes_it_while_they_run(app: App) -> None:
    stage, queue = Stage(app), app.queue("default")
    assert await queue.aset_concurrency(2) == QueueLimits(concurrency=2)
    await stage.send(*"123456")
    async with app.worker(concurrency=3), app.worker(concurrency=3), app.worker(concurrency=9):
        await stage.shows("1", "2")
        stage.release("1")
        await stage.shows("2", "3")
        await queue.aset_concurrency(3)
        await stage.shows("2", "3", "4")
        await queue.aset_concurrency(1)
        stage.release("2", "3")
        await stage.shows("4")
        await queue.aset_concurrency(0)
        await stage.shows("4", "5", "6")
        stage.release(*"456")
        await stage.until(lambda: not stage.running)
    assert await queue.aconcurrency() is None


@pytest.mark.accepts("G29")
async def test_other_queues_are_not_limited_by_it(app: App) -> None:
    stage = Stage(app)
    await app.queue("default").aset_concurrency(1)
    await stage.send("1", "2")
    await stage.send("3", "4", queue="other")
    async with app.worker(queues=["default", "other", "last"]):
        await stage.shows("1", "3", "4")
        stage.release(*"1234")
        await stage.until(lambda: len(stage.started) == 4 and not stage.running)


CONTENDER = """
import asyncio, sys, time
from pathlib import Path
from onejob import App

app = App(sys.argv[1])
spans = []

@app.task(name="work", queue="narrow")
async def work(number: int) -> None:
    begun = time.monotonic_ns()
    await asyncio.sleep(0.005)
    spans.append((begun, time.monotonic_ns()))

async def main() -> None:
    async with app, app.worker(concurrency=8, lease=60):
        while await app.acount("state:live"):
            await asyncio.sleep(0.05)

asyncio.run(main())
print(spans)
"""


@pytest.mark.accepts("G29", "G31")
def test_processes_that_claim_at_the_same_time_never_pass_the_limit_together(
    store_url: str, tmp_path: Path
) -> None:
    url = with_patience(store_url, 60)
    (tmp_path / "contender.py").write_text(CONTENDER)
    command = [sys.executable, str(tmp_path / "contender.py"), url]
    with App(url) as app:
        task = app.task(name="work", queue="narrow")(_takes_a_number)
        app.queue("narrow").set_concurrency(3)
        app.enqueue_many([task.job(number) for number in range(150)])
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        told = [worker.communicate(timeout=100)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0, 0]
        assert app.counts() == {"narrow": {State.COMPLETED: 150}}
    spans: list[tuple[int, int]] = [span for text in told for span in ast.literal_eval(text)]
    assert len(spans) == 150
    # One clock for all processes of a machine: how many ran when each began.
    assert max(sum(begun <= at < ended for begun, ended in spans) for at, _ in spans) == 3


@pytest.mark.accepts("G32", "G33", "G34", "G36")
async def test_a_rate_is_set_read_and_removed_while_workers_run(app: App, clock: FakeClock) -> None:
    stage, queue = Stage(app), app.queue("default")
    stage.open = True
    assert await queue.arate() is None
    await queue.aset_rate(Rate(2, per=10))
    assert await queue.arate() == Rate(2, per=10)
    async with app.worker(**QUICK), app.worker(**QUICK):
        await stage.send(*"12345")
        await stage.until(lambda: len(stage.started) == 2)
        await stage.fence()
        assert sorted(stage.started) == ["1", "2"]  # by two workers, whose handlers may begin in either order
        clock.advance(10)
        await stage.until(lambda: len(stage.started) == 4)
        await stage.fence()
        assert len(stage.started) == 4
        assert await queue.aremove_rate() == QueueLimits()
        assert await queue.arate() is None
        await stage.until(lambda: len(stage.started) == 5)


@pytest.mark.accepts("G32")
async def test_no_window_of_a_queue_holds_too_many_starts_retries_included(
    app: App, clock: FakeClock
) -> None:
    starts: list[int] = []

    @app.task(retry=Retry(3, 0.005))
    async def call(number: int) -> None:
        starts.append(clock.now)
        clock.tick(number * 97 % 11)
        if number % 3 == 0:
            raise ConnectionError

    await app.queue("default").aset_rate(Rate(4, per=0.03))
    await app.aenqueue_many([call.using(delay=number % 7 / 100).job(number) for number in range(60)])
    await adrain(app, clock=clock)
    assert len(starts) > 90
    assert most_in_any(0.03, starts) == 4


@pytest.mark.accepts("G32")
async def test_nobody_waits_longer_than_the_rate_asks_for(make_app: MakeApp) -> None:
    app = make_app(clock=None)
    stage = Stage(app)
    stage.open = True
    await app.queue("default").aset_rate(Rate(2, per=0.4))
    begun = time.monotonic()
    async with app.worker(poll=60):
        await stage.send(*"12345")
        await stage.until(lambda: len(stage.started) == 5)
    assert 0.8 <= time.monotonic() - begun < 10


async def test_a_paused_queue_starts_nothing_and_what_runs_goes_on(app: App) -> None:
    stage, queue = Stage(app), app.queue("default")
    await stage.send("1")
    async with app.worker():
        await stage.shows("1")
        assert (await queue.apause()).paused
        [second] = await stage.send("2")
        stage.release("1")
        await stage.shows()
        assert await stage.states(second) == [State.WAITING]
        assert not (await queue.aresume()).paused
        await stage.shows("2")
        stage.release("2")
        await stage.until(lambda: not stage.running)


async def test_one_setting_leaves_the_others_as_they_are(app: App) -> None:
    queue = app.queue("mail")
    assert await queue.alimits() == QueueLimits()
    await queue.aset_concurrency(20)
    await queue.aset_rate(Rate(500, per=60))
    await queue.apause()
    assert await queue.alimits() == QueueLimits(20, Rate(500, per=60), paused=True)
    assert await app.alimits() == {"mail": QueueLimits(20, Rate(500, per=60), paused=True)}
    await queue.aresume()
    await queue.aset_concurrency(0)
    assert await app.alimits() == {"mail": QueueLimits(rate=Rate(500, per=60))}
    await queue.aremove_rate()
    assert await app.alimits() == {}


@pytest.mark.accepts("G33")
def test_sync_code_has_the_same(app: App) -> None:
    queue = app.queue("mail")
    queue.set_concurrency(20)
    queue.set_rate(Rate(500, per=60))
    queue.pause()
    assert (queue.concurrency(), queue.rate()) == (20, Rate(500, per=60))
    assert app.limits() == {"mail": queue.limits()} == {"mail": QueueLimits(20, Rate(500, 60), paused=True)}
    queue.resume()
    queue.remove_rate()
    queue.set_concurrency(0)
    assert (queue.concurrency(), queue.rate(), app.limits(), app.lanes()) == (None, None, {}, [])


async def test_sync_methods_name_their_twins_inside_a_loop(app: App) -> None:
    queue = app.queue("mail")
    for misplaced, twin in [
        (lambda: queue.set_concurrency(1), r"await queue\.aset_concurrency"),
        (queue.concurrency, r"await queue\.alimits"),
        (queue.pause, r"await queue\.apause"),
        (app.lanes, r"await app\.alanes"),
        (app.limits, r"await app\.alimits"),
    ]:
        with pytest.raises(WrongCall, match=twin):
            misplaced()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda app: app.queue("no queue"), "Queue name 'no queue' is not valid"),
        (lambda app: app.queue("a").set_concurrency(-1), "from 0 to 10000, not -1"),
        (lambda app: app.queue("a").set_concurrency(True), "whole number"),
        (lambda app: app.queue("a").set_concurrency(10_001), "from 0 to 10000"),
        (lambda app: app.queue("a").set_rate(None), r"remove_rate\(\) takes the limit away"),
        (lambda app: app.queue("a").set_rate(5), r"must be Rate\(max, per=seconds\)"),
        (lambda app: app.worker(rate=5), r"rate must be Rate\(max, per=seconds\) or None, not 5"),
        (lambda app: app.lanes(limit=0), "limit must be a whole number"),
    ],
)
def test_senseless_limits_are_refused(app: App, ask: Callable[[App], object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        ask(app)
    assert app.limits() == {}


# A worker's own rate


async def starts_of(app: App, count: int, per: float, **worker: Any) -> list[int]:
    """Run so many jobs; when each started, by the store's clock."""
    stage = Stage(app)
    stage.open = True
    receipts = await stage.send(*map(str, range(count)))
    async with app.worker(**worker):
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(receipt.aresult() for receipt in receipts))
    return [(await stage.job(receipt)).started or 0 for receipt in receipts]


@pytest.mark.accepts("G35")
@pytest.mark.parametrize(
    ("own", "queues", "most", "at_least"),
    [
        (Rate(3, per=0.5), None, 3, 1.0),
        (Rate(3, per=0.5), Rate(100, per=0.5), 3, 1.0),
        (Rate(100, per=0.5), Rate(3, per=0.5), 3, 1.0),
    ],
)
async def test_of_a_workers_rate_and_its_queues_the_stricter_wins(
    make_app: MakeApp, own: Rate, queues: Rate | None, most: int, at_least: float
) -> None:
    app = make_app(clock=None)
    if queues is not None:
        await app.queue("default").aset_rate(queues)
    begun = time.monotonic()
    starts = await starts_of(app, 9, 0.5, rate=own, concurrency=20, poll=60)
    assert at_least <= time.monotonic() - begun < 10, "it neither hurried nor waited for a poll"
    assert most_in_any(0.5, starts) <= most


@pytest.mark.accepts("G35")
async def test_a_workers_rate_is_its_own(make_app: MakeApp) -> None:
    app = make_app(clock=None)
    stage = Stage(app)
    stage.open = True
    await stage.send(*"12345678")
    slow = {"rate": Rate(2, per=300), "poll": 0.02}
    async with app.worker(**slow), app.worker(**slow), app.worker(**slow):
        await stage.until(lambda: len(stage.started) == 6)
        await asyncio.sleep(0.1)  # that nothing more happens needs a moment in which it could
    assert len(stage.started) == 6


@pytest.mark.accepts("G35")
async def test_a_worker_that_waits_for_its_rate_still_settles_and_stops(make_app: MakeApp) -> None:
    app = make_app(clock=None)
    stage = Stage(app)
    await stage.send("1", "2", "3")
    begun = time.monotonic()
    async with app.worker(rate=Rate(2, per=300), poll=60) as worker:
        await stage.until(lambda: len(stage.running) == 2)
        stage.release("1", "2")
        await stage.until(lambda: not stage.running)

        async def settled() -> bool:
            return worker.counts["complete"] == 2

        await eventually(settled)
    assert time.monotonic() - begun < PATIENCE
    assert await app.acount("state:waiting") == 1


# Priority and order


async def test_strict_priority_then_due_time_then_acceptance(app: App, clock: FakeClock) -> None:
    stage = Stage(app)
    stage.open = True
    await stage.send("late", delay=5)
    await stage.send("soon", delay=1)
    await stage.send("plain", "plainer", delay=3)
    await stage.send("urgent", priority=1, delay=5)
    await stage.send("lazy", priority=-1)
    clock.advance(9)
    await adrain(app)
    assert stage.started == ["urgent", "soon", "plain", "plainer", "late", "lazy"]


async def test_a_worker_visits_its_queues_in_the_order_given(app: App) -> None:
    stage = Stage(app)
    stage.open = True
    await stage.send("later", queue="slow", priority=9)
    await stage.send("sooner", queue="fast")
    async with app.worker(queues=["fast", "slow"], concurrency=1):
        await stage.until(lambda: len(stage.started) == 2)
    assert stage.started == ["sooner", "later"]


# What people are told


async def test_why_a_job_of_a_lane_waits(app: App, clock: FakeClock) -> None:
    stage = Stage(app, lane=Lane("x"))
    receipts = await stage.send("1", "2", "3", "4")
    async with app.worker():
        await stage.shows("1")
        clock.advance(12)
        about = await app.aexplain(receipts[3])
        assert f"parked behind job {receipts[0].id} (running)" in str(about)
        assert "2 jobs of its lane are ahead of it." in about.reasons
        assert 'Its lane "x" takes 1 at a time: 1 of 1 slots in use, 3 jobs are ready.' in about.reasons
        facts = about.as_dict()
        assert facts["lane"] == "x"
        assert facts["ahead"] == 2
        assert facts["lane_holders"] == (receipts[0].id,)
        assert "1 job of its lane is ahead of it." in (await app.aexplain(receipts[2])).reasons
        assert (await app.aexplain(receipts[0])).ahead is None
        stage.release(*"1234")
        await stage.until(lambda: len(stage.started) == 4 and not stage.running)


async def test_why_a_job_waits_for_the_rate_of_its_lane(app: App, clock: FakeClock) -> None:
    stage = Stage(app, lane=Lane("x", concurrency=5, rate=Rate(1, per=60)))
    stage.open = True
    _, parked = await stage.send("1", "2")
    left = (await adrain(app)).left
    clock.advance(48)
    about = await app.aexplain(parked)
    assert "The rate window of its lane opens in 12 s (1 per 60 s)." in about.reasons
    assert about.opens_in == 12
    assert "The rate window of its lane opens in 60 s (1 per 60 s)." in left[parked.id]
    clock.advance(12)
    assert (await app.aexplain(parked)).opens_in is None
    assert [ran.id for ran in await adrain(app)] == [parked.id]


async def test_drain_with_a_clock_waits_out_rates_and_says_what_is_still_held_up(
    app: App, clock: FakeClock
) -> None:
    stage = Stage(app, lane=Lane("x", rate=Rate(1, per=60)))
    stage.open = True
    await stage.send("1", "2", "3")
    [paused] = await stage.send("4", queue="mail", lane=None)
    await app.queue("mail").apause()
    began = clock.now
    ran = await adrain(app, clock=clock)
    assert (len(ran), clock.now - began) == (3, 120_000)
    assert list(ran.left) == [paused.id]
    assert "Queue paused: nothing of 'mail' starts until somebody resumes it" in ran.left[paused.id]


async def test_why_a_job_waits_for_its_queue(app: App, clock: FakeClock) -> None:
    stage = Stage(app)
    queue = app.queue("default")
    await queue.aset_concurrency(1)
    _, waiting = await stage.send("1", "2")
    async with app.worker():
        await stage.shows("1")
        about = await app.aexplain(waiting)
        assert "The queue limit of 1 is full: so many jobs of 'default' are running." in about.reasons
        assert (about.queue_limit, about.queue_paused) == (1, False)
        await queue.apause()
        await queue.aset_rate(Rate(5, per=60))
        about = await app.aexplain(waiting)
        assert any(reason.startswith("Queue paused: ") for reason in about.reasons)
        assert "Queue 'default' starts at most 5 per 60 s, all its jobs together." in about.reasons
        assert about.as_dict()["queue_paused"] is True
        stage.release("1")


async def test_a_call_is_told_how_its_lane_stands(app: App) -> None:
    stage = Stage(app, lane=Lane(by="group"))
    assert 'Its lane "group:a" is empty.' in (await stage.work.aexplain("1")).reasons
    await stage.send("1", "2")
    about = await stage.work.using(lane=Lane(by="group", concurrency=4)).aexplain("1")
    assert about.lane == "group:a"
    assert about.reasons[-1] == (
        'Its lane "group:a" takes 1 at a time: 0 of 1 slots in use, 2 jobs are ready; a job made now lets it take '
        "4 at a time."
    )


async def test_the_doctor_finds_a_paused_queue_and_a_full_limit(app: App, clock: FakeClock) -> None:
    stage = Stage(app)
    await stage.send("1", "2")
    await stage.send("3", queue="mail")
    await app.queue("mail").apause()
    await app.queue("default").aset_concurrency(1)
    worker = new_worker_id()
    await app.store.beat(Beat(worker, 3_600_000, queues=("default", "mail")))
    await app.store.claim(Ask(worker, ("default", "mail"), 9))
    clock.advance(90)
    found = {finding.name: finding for finding in await diagnose(app.store)}
    found.pop("second_library", None)  # a plugin of pytest may have imported sqlite3
    found.pop("not_durable", None)  # which the server of the tests is not
    assert set(found) == {"paused", "slow"}
    assert found["paused"].what == "Queue 'mail' is paused, and jobs have been waiting in it for 90 s."
    assert found["paused"].remedy.endswith("onejob resume mail")
    assert "the queue's limit of 1 at a time is full" in found["slow"].what
    await app.queue("default").aset_concurrency(0)
    await app.queue("default").aset_rate(Rate(1, per=600))
    [slow] = [finding for finding in await diagnose(app.store) if finding.name == "slow"]
    assert "the queue starts at most 1 per 600 s" in slow.what


def _takes_a_number(number: int) -> None: ...
