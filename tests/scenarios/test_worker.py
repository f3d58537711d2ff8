"""The worker on a real store: claiming, settling, telling handlers, and going down in good order.

Signals and killed processes are in test_signals.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from onejob.app import App
from onejob.core.errors import Fail, InvalidOption, Snooze, StoreBusy, WrongCall
from onejob.core.job import Job, JobId, State, WorkerId
from onejob.core.lifecycle import Settlement
from onejob.core.retry import Fixed, Retry
from onejob.core.timing import Every
from onejob.current import AbortReason, current_job
from onejob.intake.sources import Rows
from onejob.keepers import Pruner, Rescuer
from onejob.store import Ask, Beat, Retention, SettleReply
from onejob.testing import atick
from onejob.testing.clock import FakeClock
from onejob.worker import Worker, WorkerSetup
from onejob.worker.heartbeat import Heartbeat

PATIENCE = 20.0
LEASE = 30.0
"""Of workers whose store goes by a clock that the test moves: a busy machine ends none."""


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url)


async def until(condition: Callable[[], Awaitable[object] | object]) -> None:
    """Wait, within bounds, for something that happens in its own time."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = condition()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


async def stored(app: App, id: JobId) -> Job:
    job = await app.store.job(id)
    assert job is not None
    return job


async def ended(app: App, *ids: JobId) -> list[Job]:
    async def all_ended() -> bool:
        return all([(await stored(app, id)).state.ended for id in ids])

    await until(all_ended)
    return [await stored(app, id) for id in ids]


async def started(app: App, id: JobId) -> None:
    async def running() -> bool:
        return (await stored(app, id)).state is State.RUNNING

    await until(running)


class Faulty:
    """A real store, some of whose calls fail: before they reach it, or after, so that the reply is lost.

    Every store is asked by two calls at once, whether or not it gains by that.
    """

    exchanges_at_once = 2

    def __init__(self, app: App) -> None:
        self._store = app.store
        self.before: Callable[[Sequence[Settlement], Ask | None], None] = lambda *_: None
        self.after: Callable[[Sequence[Settlement], Ask | None], None] = lambda *_: None
        self.deaf = False
        self.gone = asyncio.Event()
        """Once this is set, no call is answered any more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle(self, done: Sequence[Settlement], ask: Ask | None = None) -> SettleReply:
        await self._answers()
        self.before(done, ask)
        reply = await self._store.settle(done, ask)
        self.after(done, ask)
        return reply

    async def leave(self, worker: WorkerId) -> None:
        await self._answers()
        await self._store.leave(worker)

    async def _answers(self) -> None:
        if self.gone.is_set():
            await asyncio.Event().wait()

    async def beat(self, beat: Beat) -> Any:
        await self._answers()
        if self.deaf:
            raise StoreBusy("no answer")
        return await self._store.beat(beat)

    def worker(self, app: App, **settings: Any) -> Worker:
        return Worker(WorkerSetup(self, app.tasks, app.backoffs), **settings)  # type: ignore[arg-type]


@asynccontextmanager
async def closing(app: App) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await app.aclose()


async def test_coroutines_and_plain_functions_run_and_their_results_are_kept(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.task
    def triple(number: int) -> int:
        return number * 3

    async with closing(app), app.worker():
        receipts = [await double.aenqueue(2), await triple.aenqueue(2)]
        jobs = await ended(app, *(receipt.id for receipt in receipts))
    assert [(job.state, job.result) for job in jobs] == [(State.COMPLETED, b"4"), (State.COMPLETED, b"6")]


async def test_a_claim_is_a_start_so_no_more_are_claimed_than_there_are_slots(app: App) -> None:
    release = asyncio.Event()
    most = running = 0

    @app.task
    async def hold(number: int) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    async with closing(app):
        receipts = await app.aenqueue_many([hold.job(number) for number in range(20)])
        async with app.worker(concurrency=3):
            await until(lambda: running == 3)
            counts = await app.store.counts()
            assert counts["default"] == {State.RUNNING: 3, State.WAITING: 17}
            release.set()
            await ended(app, *(receipt.id for receipt in receipts))
    assert most == 3


async def test_queues_are_served_in_the_order_given_and_no_others(app: App) -> None:
    order: list[str] = []

    def record(queue: str) -> Any:
        @app.task(name=f"in-{queue}", queue=queue)
        async def task() -> None:
            order.append(queue)

        return task

    low, high, other = record("low"), record("high"), record("other")
    async with closing(app):
        receipts = [await low.aenqueue(), await high.aenqueue(), await other.aenqueue()]
        async with app.worker(queues="high,low", concurrency=1):
            await ended(app, receipts[0].id, receipts[1].id)
        assert (await stored(app, receipts[2].id)).state is State.WAITING
    assert order == ["high", "low"]


async def test_a_failed_attempt_is_retried_and_then_completes(app: App) -> None:
    @app.task(retry=Retry(3, backoff=Fixed(0.01)))
    async def flaky() -> int:
        if current_job().failures < 2:
            raise ConnectionError("refused")
        return current_job().attempt

    async with closing(app), app.worker():
        [job] = await ended(app, (await flaky.aenqueue()).id)
    assert (job.state, job.result, job.attempt, job.failures) == (State.COMPLETED, b"3", 3, 2)


@pytest.mark.accepts("G49")
async def test_a_job_whose_attempts_are_spent_has_failed_with_its_error(app: App) -> None:
    @app.task(retry=Retry(2, backoff=Fixed(0.01)))
    async def broken() -> None:
        raise ConnectionError("refused")

    async with closing(app), app.worker():
        [job] = await ended(app, (await broken.aenqueue()).id)
    assert (job.state, job.failures) == (State.FAILED, 2)
    assert job.error is not None
    assert job.error.startswith("ConnectionError: refused")


async def test_fail_ends_at_once_and_snooze_charges_no_retry(app: App) -> None:
    @app.task(retry=Retry(5))
    async def give_up() -> None:
        raise Fail("no such card")

    @app.task
    async def later() -> None:
        if current_job().attempt == 1:
            raise Snooze(0.01)

    async with closing(app), app.worker():
        gone, slept = await ended(app, (await give_up.aenqueue()).id, (await later.aenqueue()).id)
    assert (gone.state, gone.failures, gone.error) == (State.FAILED, 1, "Fail: no such card")
    assert (slept.state, slept.attempt, slept.failures) == (State.COMPLETED, 2, 0)


async def test_a_call_that_can_never_work_is_not_retried(app: App) -> None:
    @app.task(retry=Retry(5))
    async def mistaken() -> None:
        async with current_job().complete() as tx:
            await tx.execute("commit")

    async with closing(app), app.worker():
        [job] = await ended(app, (await mistaken.aenqueue()).id)
    assert (job.state, job.failures) == (State.FAILED, 1)
    assert (job.error or "").startswith("WrongCall: ")


async def test_a_delayed_job_starts_when_due_without_any_hint(app: App) -> None:
    @app.task
    async def tick() -> None:
        return None

    async with closing(app), app.worker(poll=600):
        await asyncio.sleep(0)
        receipt = await tick.using(delay=0.2).aenqueue()
        begun = time.monotonic()
        await ended(app, receipt.id)
    assert time.monotonic() - begun < 10


async def test_a_slow_thread_keeps_its_slot_past_its_timeout_and_then_fails(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    @app.task(timeout=0.02)
    def stuck() -> str:
        release.wait(PATIENCE)
        return "late"

    @app.task
    async def next_one() -> None:
        assert release.is_set(), "it ran beside the timed-out thread"

    async with closing(app), app.worker(concurrency=1):
        first = await stuck.aenqueue()
        await started(app, first.id)
        second = await next_one.aenqueue()
        await until(lambda: "in a thread (timed out)" in caplog.text)
        assert (await stored(app, first.id)).state is State.RUNNING
        assert (await stored(app, second.id)).state is State.WAITING
        release.set()
        late, after = await ended(app, first.id, second.id)
    assert (late.state, late.result) == (State.FAILED, None)
    assert late.error is not None
    assert late.error.startswith("TimedOut after 0.02 s")
    assert after.state is State.COMPLETED


@pytest.mark.parametrize("way", ["coroutine", "thread"])
async def test_a_revoked_running_job_is_told_within_about_a_second(app: App, way: str) -> None:
    @app.task(name="coroutine")
    async def in_loop() -> str:
        return await current_job().aborted

    @app.task(name="thread")
    def in_thread() -> bool:
        return current_job().aborted.wait(PATIENCE)

    async with closing(app), app.worker():
        receipt = await {"coroutine": in_loop, "thread": in_thread}[way].aenqueue()
        await started(app, receipt.id)
        begun = time.monotonic()
        assert await app.arevoke(receipt.id) == "flagged"
        [job] = await ended(app, receipt.id)
    assert job.state is State.REVOKED
    assert time.monotonic() - begun < 5


async def test_a_task_that_asks_for_it_is_cancelled_when_revoked(app: App) -> None:
    cancelled = False

    @app.task(cancel_on_abort=True)
    async def forever() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            cancelled = True

    async with closing(app), app.worker():
        receipt = await forever.aenqueue()
        await started(app, receipt.id)
        await app.arevoke(receipt.id)
        [job] = await ended(app, receipt.id)
    assert cancelled
    assert (job.state, job.failures) == (State.REVOKED, 1)


async def test_progress_is_stored_with_a_heartbeat(app: App) -> None:
    release = asyncio.Event()

    @app.task
    async def work() -> None:
        for done in range(3):
            current_job().progress({"done": done})
        await release.wait()

    async with closing(app), app.worker():
        receipt = await work.aenqueue()

        async def written() -> bool:
            return (await stored(app, receipt.id)).progress == b'{"done":2}'

        await until(written)
        release.set()
        await ended(app, receipt.id)


async def test_a_lost_lease_is_told_to_the_handler_and_its_outcome_refused(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    app = App(store_url, clock=clock)
    reasons: list[AbortReason | None] = []

    @app.task(max_crashes=0)  # lost is ended, so that nobody starts it again meanwhile
    async def zombie() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reasons.append(current_job().aborted.reason)
        return "too late"

    async with closing(app):
        receipt = await zombie.aenqueue()
        async with app.worker(lease=3) as worker:
            await started(app, receipt.id)
            await lose(app, clock, receipt.id)
            await until(lambda: worker.counts["lost"] == 1)
        job = await stored(app, receipt.id)
    assert reasons == [AbortReason.LOST]
    assert (job.state, job.result, job.crashes) == (State.FAILED, None, 1)
    assert "but its lease is lost: the handler is told" in caplog.text
    assert "its outcome (complete) was refused" in caplog.text


async def lose(app: App, clock: FakeClock, id: JobId) -> None:
    """Let the leases end until a rescue, here or by the worker's own rescuer, comes before a heartbeat."""

    async def rescued() -> bool:
        clock.advance(3600)
        await Rescuer(app.store, every=60).tick()
        return (await stored(app, id)).state.ended

    await until(rescued)


async def test_a_job_is_rescued_until_its_crash_budget_is_spent(store_url: str) -> None:
    clock = FakeClock()
    app = App(store_url, clock=clock)

    @app.task(max_crashes=2)
    async def killer() -> None:
        return None

    async with closing(app):
        receipt = await killer.aenqueue()
        for number in range(3):
            worker = WorkerId(f"w-{number}")
            await app.store.beat(Beat(worker, 1_000))
            claims = await app.store.claim(Ask(worker, ("default",), 1))
            assert [claimed.attempt for claimed in claims.jobs] == [number + 1]
            assert await Rescuer(app.store, every=1).tick() == 0
            clock.advance(1.001)
            assert await Rescuer(app.store, every=1).tick() == 1
        job = await stored(app, receipt.id)
    assert (job.state, job.crashes, job.failures) == (State.FAILED, 3, 0)
    assert job.error is not None
    assert "max_crashes is 2" in job.error


async def test_the_pruner_goes_on_until_nothing_is_left(store_url: str) -> None:
    clock = FakeClock()
    app = App(store_url, clock=clock)

    @app.task
    async def tick(number: int) -> None:
        return None

    async with closing(app):
        for start in range(0, 1_200, 400):
            await app.aenqueue_many([tick.job(number) for number in range(start, start + 400)])
        worker = WorkerId("w-1")
        claims = await app.store.claim(Ask(worker, ("default",), 1_200))
        from onejob.core.lifecycle import Move

        await app.store.settle([Settlement(claimed.lease, Move.COMPLETE) for claimed in claims.jobs])
        clock.advance(61)
        pruned = await Pruner(app.store, Retention(completed=60_000)).tick()
        counts = await app.store.counts()
    assert pruned.jobs == 1_200
    assert not counts.get("default")


async def test_outcomes_survive_a_store_that_is_busy_for_a_while(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    @app.task
    async def once() -> int:
        nonlocal runs
        runs += 1
        return 7

    store, failures = Faulty(app), 3

    def busy(done: Sequence[Settlement], ask: Ask | None) -> None:
        nonlocal failures
        if done and failures:
            failures -= 1
            raise StoreBusy("locked")

    store.before = busy
    async with closing(app):
        receipt = await once.aenqueue()
        async with store.worker(app):
            [job] = await ended(app, receipt.id)
    assert (runs, failures, job.state, job.result) == (1, 0, State.COMPLETED, b"7")
    assert "1 outcome is kept and tried again" in caplog.text


async def test_one_outcome_that_the_store_cannot_take_does_not_hold_up_the_others(app: App) -> None:
    @app.task
    async def echo(text: str) -> str:
        return text

    store = Faulty(app)

    def choke(done: Sequence[Settlement], ask: Ask | None) -> None:
        if any(settlement.result == b'"poison"' for settlement in done):
            raise ValueError("cannot bind")

    store.before = choke
    async with closing(app):
        texts = ["a", "b", "poison", "c", "d"]
        receipts = await app.aenqueue_many([echo.job(text) for text in texts])
        async with store.worker(app):
            jobs = await ended(app, *(receipt.id for receipt in receipts))
    assert [job.state is State.COMPLETED for job in jobs] == [True, True, False, True, True]
    assert jobs[2].error == "StoreRefused: its outcome could not be stored: ValueError: cannot bind"


async def test_a_lost_reply_neither_loses_a_job_nor_runs_one_twice(app: App) -> None:
    runs: dict[int, int] = {}

    @app.task
    async def count(number: int) -> None:
        runs[number] = runs.get(number, 0) + 1

    store, cuts = Faulty(app), 4

    def cut(done: Sequence[Settlement], ask: Ask | None) -> None:
        nonlocal cuts
        if cuts:
            cuts -= 1
            raise ConnectionError("connection reset")

    store.after = cut
    async with closing(app):
        receipts = await app.aenqueue_many([count.job(number) for number in range(40)])
        async with store.worker(app, concurrency=4, lease=3):
            jobs = await ended(app, *(receipt.id for receipt in receipts))
    assert runs == dict.fromkeys(range(40), 1)
    assert {(job.state, job.attempt, job.crashes) for job in jobs} == {(State.COMPLETED, 1, 0)}


async def test_neither_do_replies_that_are_lost_while_two_calls_are_under_way(app: App) -> None:
    runs: dict[int, int] = {}
    under_way = most = calls = 0

    @app.task
    async def count(number: int) -> None:
        runs[number] = runs.get(number, 0) + 1

    store = Faulty(app)

    def begin(done: Sequence[Settlement], ask: Ask | None) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)

    def cut(done: Sequence[Settlement], ask: Ask | None) -> None:
        nonlocal under_way, calls
        under_way -= 1
        calls += 1
        if calls in (4, 9, 10, 15):
            raise ConnectionError("connection reset")

    async def all_completed() -> bool:
        return (await app.store.counts())["default"] == {State.COMPLETED: 1_000}

    store.before, store.after = begin, cut
    async with closing(app):
        await app.aenqueue_many([count.job(number) for number in range(1_000)])
        async with store.worker(app, concurrency=100, lease=30, heartbeat=0.1):
            await until(all_completed)
    assert runs == dict.fromkeys(range(1_000), 1)
    assert most == 2


async def test_a_worker_that_cannot_beat_tells_its_handlers_and_claims_nothing_more(app: App) -> None:
    reasons: list[AbortReason | None] = []

    @app.task
    async def wait_for_it() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(current_job().aborted.reason)

    store = Faulty(app)
    async with closing(app):
        first = await wait_for_it.aenqueue()
        async with store.worker(app, lease=0.9, drain=0) as worker:
            await started(app, first.id)
            store.deaf = True
            await until(lambda: not worker.health().fresh)
            await until(lambda: worker.counts["hand_back"] + worker.counts["lost"] >= 1)
            assert set(reasons) == {AbortReason.LOST}
            second = await wait_for_it.aenqueue()
            await asyncio.sleep(0.05)
            assert (await stored(app, second.id)).state is State.WAITING
            store.deaf = False
            await started(app, second.id)


async def test_a_task_unknown_here_is_handed_back_for_another_worker(store_url: str) -> None:
    clock = FakeClock()
    new, old = App(store_url, clock=clock), App(store_url, clock=clock)

    @new.task(name="brand-new")
    async def brand_new() -> None:
        return None

    @old.task(name="old-hand")
    async def old_hand() -> None:
        return None

    async with closing(new), closing(old):
        receipt = await brand_new.aenqueue()
        async with old.worker() as worker:
            await until(lambda: worker.counts["miss"] == 1)
        job = await stored(new, receipt.id)
        assert (job.state, job.attempt, job.misses, job.due - clock.now) == (State.DELAYED, 0, 1, 15_000)
        clock.advance(15)
        async with new.worker():
            [job] = await ended(new, receipt.id)
    assert (job.state, job.attempt) == (State.COMPLETED, 1)


async def test_a_stopping_worker_takes_no_more_and_lets_the_running_ones_end(app: App) -> None:
    release = asyncio.Event()

    @app.task
    async def hold() -> int:
        await release.wait()
        return 1

    async with closing(app):
        first = await hold.aenqueue()
        async with app.worker(concurrency=1) as worker:
            await started(app, first.id)
            second = await hold.aenqueue()
            worker.stop()
            await asyncio.sleep(0)
            release.set()
        jobs = [await stored(app, first.id), await stored(app, second.id)]
        assert await app.store.workers() == []
    assert [(job.state, job.attempt) for job in jobs] == [(State.COMPLETED, 1), (State.WAITING, 0)]


@pytest.mark.parametrize("how", ["drain time is up", "second stop"])
async def test_what_does_not_end_in_time_is_handed_back_uncharged(app: App, how: str) -> None:
    @app.task
    async def forever() -> None:
        await asyncio.Event().wait()

    async with closing(app):
        receipt = await forever.aenqueue()
        async with app.worker(drain=0 if how == "drain time is up" else 600) as worker:
            await started(app, receipt.id)
            if how == "second stop":
                worker.stop()
        job = await stored(app, receipt.id)
    assert worker.counts["hand_back"] == 1
    assert (job.state, job.attempt, job.failures, job.crashes) == (State.WAITING, 0, 0, 0)


async def test_a_job_cancelled_before_its_first_step_is_handed_back_and_runs_later(app: App) -> None:
    runs: list[int] = []

    @app.task
    async def count(number: int) -> None:
        runs.append(number)

    store, cancelled = Faulty(app), 0

    def cancel_what_is_started_next(done: Sequence[Settlement], ask: Ask | None) -> None:
        known = asyncio.all_tasks()

        def cancel() -> None:
            nonlocal cancelled
            cancelled = sum(task.cancel() for task in asyncio.all_tasks() - known)

        loop = asyncio.get_running_loop()
        if not cancelled:
            loop.call_soon(loop.call_soon, cancel)  # once they have been made, and before their first step

    store.after = cancel_what_is_started_next
    async with closing(app):
        receipts = await app.aenqueue_many([count.job(number) for number in range(3)])
        async with store.worker(app) as worker:
            jobs = await ended(app, *(receipt.id for receipt in receipts))
    assert cancelled == worker.counts["hand_back"] == 3
    assert sorted(runs) == [0, 1, 2]
    assert {(job.state, job.attempt) for job in jobs} == {(State.COMPLETED, 1)}


async def test_a_cancelled_worker_hands_back_before_it_goes(app: App) -> None:
    @app.task
    async def forever() -> None:
        await asyncio.Event().wait()

    async with closing(app):
        receipt = await forever.aenqueue()
        running = asyncio.ensure_future(app.worker().run())
        await started(app, receipt.id)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        job = await stored(app, receipt.id)
        assert await app.store.workers() == []
    assert (job.state, job.attempt) == (State.WAITING, 0)


async def test_a_store_that_is_gone_does_not_keep_a_worker_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("onejob.worker.worker.GRACE", 0.05)
    monkeypatch.setattr("onejob.worker.worker.LAST_WORDS", 0.05)
    caplog.set_level(logging.INFO)
    app = App("memory:")
    store = Faulty(app)

    @app.task(name="quick")
    async def quick() -> None:
        store.gone.set()

    async with closing(app):
        receipt = await quick.aenqueue()
        async with asyncio.timeout(PATIENCE), store.worker(app, drain=0.05) as worker:
            await store.gone.wait()
    assert [attempt.claimed.id for attempt in worker.unsettled] == [receipt.id]
    assert "could not sign off, the lease will run out: the store did not answer in time" in caplog.text
    assert caplog.messages[-1].endswith(
        f"1 ended but could not be stored and will run again: job {receipt.id} (task quick)"
    )


async def test_a_thread_that_outlives_its_worker_keeps_its_lease_until_it_returns(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    app = App(store_url, clock=clock)
    began, release = threading.Event(), threading.Event()
    runs = 0

    @app.task
    def stubborn() -> str:
        nonlocal runs
        runs += 1
        began.set()
        release.wait(PATIENCE)
        return "finished"

    async def beaten() -> bool:
        """Since the clock was moved last."""
        return any(worker.id == first.id and worker.seen == clock() for worker in await app.store.workers())

    async with closing(app):
        receipt = await stubborn.aenqueue()
        async with app.worker(lease=LEASE, heartbeat=0.1, drain=0) as first:
            assert await asyncio.to_thread(began.wait, PATIENCE)
        assert [attempt.claimed.id for attempt in first.stuck] == [receipt.id]
        async with app.worker(lease=LEASE, heartbeat=0.1):
            for _ in range(3):
                clock.advance(LEASE / 2)
                await until(beaten)
                assert await Rescuer(app.store, every=1).tick() == 0
            assert (await stored(app, receipt.id)).state is State.RUNNING
            release.set()
            [job] = await ended(app, receipt.id)
    assert "cannot be stopped; its lease is kept until it returns or this process ends" in caplog.text
    assert "0 completed, 1 still at work, which cannot be stopped" in caplog.text
    assert (runs, job.state, job.result, job.crashes) == (1, State.COMPLETED, b'"finished"', 0)


async def test_a_handler_that_blocks_the_loop_is_named_and_keeps_its_lease(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    app = App(store_url, clock=clock)

    def block_until(condition: Callable[[], bool]) -> None:
        """The very thing that a worker must survive."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.005)

    def beaten_since(instant: float) -> bool:
        return (age := worker.health().beat_age) is not None and time.monotonic() - age > instant

    @app.task(name="blocker")
    async def blocker() -> int:
        for _ in range(3):
            clock.advance(LEASE / 2)
            moved = time.monotonic()
            block_until(lambda: beaten_since(moved))  # noqa: B023 - it is over before the next round
        block_until(lambda: f"by task blocker (job {current_job().id})" in caplog.text)
        return await Rescuer(app.store, every=1).tick()

    async with closing(app), app.worker(lease=LEASE, heartbeat=0.1, block_warning=0.2) as worker:
        [job] = await ended(app, (await blocker.aenqueue()).id)
    assert (job.state, job.attempt, job.crashes, job.result) == (State.COMPLETED, 1, 0, b"0")


async def test_handlers_do_not_see_each_others_context(app: App) -> None:
    from contextvars import ContextVar

    seen: list[str] = []
    leak: ContextVar[str] = ContextVar("leak", default="clean")

    @app.task
    async def stain(number: int) -> None:
        seen.append(leak.get())
        leak.set("stained")

    async with closing(app), app.worker():
        receipts = await app.aenqueue_many([stain.job(number) for number in range(5)])
        await ended(app, *(receipt.id for receipt in receipts))
    assert seen == ["clean"] * 5


async def test_a_worker_runs_only_once(app: App) -> None:
    async with closing(app):
        worker = app.worker()
        async with worker:
            pass
        with pytest.raises(WrongCall, match="A worker runs once"):
            await worker.run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lease": 2, "heartbeat": 1}, "lease must be at least three heartbeats"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"queues": []}, "queues must name at least one queue"),
        ({"queues": "a b"}, "name 'a b' is not valid"),
        ({"drain": -1}, "drain must be at least 0 seconds"),
    ],
)
def test_senseless_settings_are_refused_where_they_are_made(app: App, settings: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        app.worker(**settings)


async def test_a_worker_may_stop_before_its_heartbeat_has_begun(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Heartbeat._run

    def run_late(heartbeat: Heartbeat) -> None:
        heartbeat._stopping.wait()
        run(heartbeat)

    monkeypatch.setattr(Heartbeat, "_run", run_late)
    async with closing(app):
        async with app.worker():
            pass
        assert await app.store.workers() == []


async def test_a_worker_serves_the_queues_of_schedules_and_intakes_too(app: App) -> None:
    ran: list[str] = []

    @app.task
    async def note(text: str) -> None:
        ran.append(text)

    async def rows(until: datetime) -> AsyncIterator[dict[str, object]]:
        yield {"id": 1, "at": until, "text": "row"}

    app.schedule("often", Every(60), note.using(queue="timed").job("slot"))
    source = Rows(rows, id="id", due="at")
    app.intake("rows", source, note.using(queue="tabled"), look_ahead=0)
    await atick(app)
    async with app.worker():
        [worker] = await app.store.workers()
        assert worker.queues == ("default", "timed", "tabled")
        await app.schedules.arun("often")
        await until(lambda: {"slot", "row"} <= set(ran))
    async with app.worker(queues="default"):
        [worker] = await app.store.workers()
        assert worker.queues == ("default",)


def test_a_plain_function_in_a_thread_cannot_ask_to_be_cancelled(app: App) -> None:
    with pytest.raises(InvalidOption, match=r"'deaf' has cancel_on_abort=True.*`async def`.*process=True"):

        @app.task(name="deaf", cancel_on_abort=True)
        def deaf() -> None: ...

    assert "deaf" not in app.tasks
