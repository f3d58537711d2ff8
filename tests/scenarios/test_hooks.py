"""Hooks and the lifespan: what they are told, when, in which context, and that what goes wrong in them stays there."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

import onejob.hooks
from onejob import (
    App,
    Call,
    CurrentJob,
    DuplicateJob,
    Ended,
    Ending,
    Fail,
    Fixed,
    InvalidOption,
    Receipt,
    Retry,
    Snooze,
    Unique,
    current_job,
)
from onejob.core.lifecycle import SETTLING
from onejob.keepers import Rescuer
from onejob.store import Ask, Beat
from onejob.testing import FakeClock, adrain, drain
from onejob.worker.observer import ENDINGS, Observer

PATIENCE = 20.0


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


def add(app: App, name: str = "add", **settings: Any) -> Any:
    @app.task(name=name, queue="sums", **settings)
    def add(a: int, b: int = 2) -> int:
        return a + b

    return add


class TestBeforeEnqueue:
    def test_it_sees_the_call_and_may_refuse_it(self, app: App) -> None:
        seen: list[tuple[str, str, str | None, dict[str, object]]] = []

        @app.before_enqueue
        def look(call: Call[Any]) -> None:
            seen.append((call.task, call.queue, call.key, call.arguments))
            if call.arguments["a"] == 0:
                raise PermissionError("no zeros")

        task = add(app, unique=Unique.once(by="a"))
        task.enqueue(1)
        with pytest.raises(PermissionError, match="no zeros"):
            task.enqueue(0)
        assert seen == [
            ("add", "sums", "1", {"a": 1, "b": 2}),
            ("add", "sums", "0", {"a": 0, "b": 2}),
        ]
        assert [job.key for job in app.jobs().jobs] == ["1"]

    def test_of_many_calls_none_is_stored_if_one_is_refused(self, app: App) -> None:
        @app.before_enqueue
        async def refuse(call: Call[Any]) -> None:
            if call.arguments["a"] == 3:
                raise PermissionError

        task = add(app)
        with pytest.raises(PermissionError):
            app.enqueue_many([task.job(number) for number in range(5)])
        assert not app.jobs().jobs

    def test_plain_hooks_of_a_sync_call_run_in_the_callers_thread_and_coroutines_on_the_private_loop(
        self, app: App
    ) -> None:
        threads: dict[str, str] = {}

        @app.before_enqueue
        def plain(call: Call[Any]) -> None:
            threads["plain"] = threading.current_thread().name

        @app.before_enqueue
        async def coroutine(call: Call[Any]) -> None:
            await asyncio.sleep(0)
            threads["coroutine"] = threading.current_thread().name

        add(app).enqueue(1)
        assert threads == {"plain": threading.current_thread().name, "coroutine": "onejob-loop"}

    async def test_both_kinds_work_for_async_calls(self, app: App) -> None:
        seen: list[str] = []

        @app.before_enqueue
        def plain(call: Call[Any]) -> None:
            seen.append("plain")

        @app.before_enqueue
        async def coroutine(call: Call[Any]) -> None:
            await asyncio.sleep(0)
            seen.append("coroutine")

        task = add(app)
        await task.aenqueue(1)
        await app.aenqueue_many([task.job(2)])
        assert seen == ["plain", "coroutine"] * 2


class TestAfterEnqueue:
    def test_it_sees_every_receipt_also_of_a_refused_duplicate(self, app: App) -> None:
        seen: list[str] = []

        @app.after_enqueue
        def look(receipt: Receipt[Any]) -> None:
            seen.append(str(receipt.outcome))

        task = add(app, unique=Unique.in_flight(queued="raise"))
        task.enqueue(1)
        with pytest.raises(DuplicateJob):
            task.enqueue(1)
        app.enqueue_many([task.job(2), task.job(2)])
        assert seen == ["created", "rejected", "created", "rejected"]

    @pytest.mark.parametrize("error", [ValueError("bad\nluck"), SystemExit(3)])
    async def test_what_it_raises_is_logged_and_changes_nothing(
        self, app: App, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        @app.after_enqueue
        async def broken(receipt: Receipt[Any]) -> None:
            raise error

        receipt = await add(app).aenqueue(1)
        assert (await app.ajob(receipt.id)) is not None
        [record] = [record for record in caplog.records if getattr(record, "event", "") == "hook.failed"]
        assert type(error).__name__ in record.getMessage()
        assert "\n" not in record.getMessage()
        assert record.hook.endswith("broken")

    def test_the_same_for_a_sync_call(self, app: App, caplog: pytest.LogCaptureFixture) -> None:
        @app.after_enqueue
        def broken(receipt: Receipt[Any]) -> None:
            raise ValueError("plain")

        @app.after_enqueue
        async def broken_too(receipt: Receipt[Any]) -> None:
            raise ValueError("coroutine")

        assert add(app).enqueue(1).id
        assert "ValueError: plain" in caplog.text
        assert "ValueError: coroutine" in caplog.text

    async def test_one_that_never_returns_is_given_up(
        self, app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onejob.hooks, "PATIENCE", 0.01)

        @app.after_enqueue
        async def hang(receipt: Receipt[Any]) -> None:
            await asyncio.Event().wait()

        assert (await add(app).aenqueue(1)).id
        assert "gave no answer for 0.01 s" in caplog.text

    async def test_cancelling_the_caller_is_not_taken_for_an_error_of_the_hook(self, app: App) -> None:
        entered = asyncio.Event()

        @app.after_enqueue
        async def wait(receipt: Receipt[Any]) -> None:
            entered.set()
            await asyncio.Event().wait()

        calling = asyncio.create_task(add(app).aenqueue(1))
        await entered.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    def test_what_a_hook_enqueues_is_not_shown_to_hooks_again(self, app: App) -> None:
        seen: list[str] = []
        task, audit = add(app), add(app, "audit")

        @app.after_enqueue
        def note(receipt: Receipt[Any]) -> None:
            seen.append(receipt.task)
            audit.enqueue(1)

        task.enqueue(1)
        task.enqueue(2)
        assert seen == ["add", "add"]
        assert app.count("task:audit") == 2


class TestAroundRuns:
    async def test_start_and_end_see_the_job_and_what_the_store_recorded(self, app: App) -> None:
        told: list[tuple[str, str, object]] = []

        @app.on_start
        def start(job: CurrentJob) -> None:
            told.append(("start", job.task, job.attempt))

        @app.on_end
        async def end(job: CurrentJob, ended: Ended) -> None:
            assert current_job() is job
            stored = await app.ajob(job.id)
            assert stored is not None
            told.append(("end", f"{ended.how}, {stored.state}", ended.retry_in))

        @app.task(name="once-more", retry=Retry(2, Fixed(5)))
        def once_more() -> None:
            if current_job().attempt == 1:
                raise ValueError("first")

        await once_more.aenqueue()
        await adrain(app)
        assert told == [("start", "once-more", 1), ("end", "retrying, delayed", 5.0)]

    @pytest.mark.parametrize(
        ("error", "how", "kept"),
        [
            (None, Ending.COMPLETED, False),
            (ValueError("out of stock"), Ending.FAILED, True),
            (Fail("out of stock"), Ending.FAILED, True),
            (Snooze(3), Ending.SNOOZED, True),
        ],
    )
    async def test_each_end_is_told_with_its_error(
        self, app: App, error: BaseException | None, how: Ending, kept: bool
    ) -> None:
        told: list[Ended] = []

        @app.on_end
        def end(job: CurrentJob, ended: Ended) -> None:
            told.append(ended)

        @app.task(name="subject")
        async def subject() -> None:
            if error is not None:
                raise error

        await subject.aenqueue()
        await adrain(app)
        [ended] = told
        assert ended.how is how
        assert ended.exception is (error if kept else None)
        assert (ended.error or "").count("out of stock") == (how is Ending.FAILED)
        assert ended.seconds is not None
        assert ended.seconds >= 0

    async def test_every_settling_move_has_a_name_for_its_end(self) -> None:
        assert set(ENDINGS) == SETTLING

    async def test_a_revoked_run_is_told_as_revoked(self, app: App) -> None:
        told: list[Ending] = []

        @app.on_end
        def end(job: CurrentJob, ended: Ended) -> None:
            told.append(ended.how)

        @app.task(name="subject")
        async def subject() -> None:
            await app.arevoke(current_job().id)

        await subject.aenqueue()
        await adrain(app)
        assert told == [Ending.REVOKED]

    async def test_a_rescued_job_is_told_by_the_rescuer(self, app: App, clock: FakeClock) -> None:
        told: list[tuple[str, Ending, float | None]] = []

        @app.on_end
        def end(job: CurrentJob, ended: Ended) -> None:
            told.append((job.id, ended.how, ended.seconds))

        receipt = await add(app, max_crashes=0).aenqueue(1)
        store = app.store
        await store.beat(Beat("w-dead", 1_000, queues=("sums",), concurrency=1))
        await store.claim(Ask("w-dead", ("sums",), 1))
        clock.advance(2)
        observer = Observer.of(app.hooks, 10)
        assert observer is not None
        assert await Rescuer(store, 1.0, observer.rescued).tick() == 1
        await observer.finish()
        assert told == [(receipt.id, Ending.FAILED, None)]

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), asyncio.CancelledError()])
    async def test_what_they_raise_changes_no_outcome(
        self, app: App, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        @app.on_start
        async def start(job: CurrentJob) -> None:
            raise error

        @app.on_end
        async def end(job: CurrentJob, ended: Ended) -> None:
            raise error

        receipt = await add(app).aenqueue(1)
        await adrain(app)
        assert await receipt.aresult(timeout=1) == 3
        troubles = [record.event for record in caplog.records if record.levelno >= logging.WARNING]
        assert troubles == ["hook.failed"] * 2

    async def test_what_a_start_hook_puts_into_the_context_is_there_for_the_handler(self, app: App) -> None:
        trace: ContextVar[str] = ContextVar("trace", default="none")

        @app.on_start
        async def start(job: CurrentJob) -> None:
            trace.set(job.id)

        @app.task(name="coroutine")
        async def coroutine() -> str:
            return trace.get()

        @app.task(name="thread")
        def thread() -> str:
            return trace.get()

        receipts = [await coroutine.aenqueue(), await thread.aenqueue()]
        await adrain(app)
        assert [await receipt.aresult() for receipt in receipts] == [receipt.id for receipt in receipts]

    async def test_a_job_whose_payload_cannot_be_read_ends_without_having_started(self, app: App) -> None:
        told: list[str] = []

        @app.on_start
        def start(job: CurrentJob) -> None:
            told.append("start")

        @app.on_end
        def end(job: CurrentJob, ended: Ended) -> None:
            told.append(f"{ended.how} {ended.seconds}")

        add(app, "subject")
        other = App("memory:")
        wrong = other.task(name="subject", queue="sums")(lambda: None).job()
        call = app.task_named("subject").job(1)
        await app.aenqueue_many([type(call)(call.planner, wrong.payload, call.plan)])
        await adrain(app)
        assert told == ["failed None"]

    def test_sync_tests_can_drain_with_hooks(self, app: App) -> None:
        told: list[str] = []
        app.on_start(lambda job: told.append("start"))
        app.on_end(lambda job, ended: told.append("end"))
        add(app).enqueue(1)
        drain(app)
        assert told == ["start", "end"]


class TestInAWorker:
    @pytest.fixture
    def app(self, store_url: str) -> App:
        return App(store_url)

    async def test_start_and_end_are_told_and_the_last_end_before_the_worker_is_gone(self, app: App) -> None:
        told: list[str] = []

        @app.on_start
        def start(job: CurrentJob) -> None:
            told.append("start")

        @app.on_end
        async def end(job: CurrentJob, ended: Ended) -> None:
            await asyncio.sleep(0.05)
            told.append(ended.how)

        task = add(app)
        async with app:
            async with app.worker():
                await (await task.aenqueue(1)).aresult(timeout=PATIENCE)
            assert told == ["start", "completed"]

    async def test_slow_end_hooks_hold_back_claims_instead_of_piling_up(self, app: App) -> None:
        at_once = most = 0

        @app.on_end
        async def end(job: CurrentJob, ended: Ended) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)
            at_once -= 1

        task = add(app)
        async with app:
            receipts = await app.aenqueue_many([task.job(number) for number in range(60)])
            async with app.worker(concurrency=4):
                for receipt in receipts:
                    await receipt.aresult(timeout=PATIENCE)
        assert most <= 8, "as many again may end before the first has been told"

    async def test_a_handed_back_job_is_told_only_if_it_had_begun(self, app: App) -> None:
        told: list[Ending] = []
        began = asyncio.Event()

        @app.on_end
        def end(job: CurrentJob, ended: Ended) -> None:
            told.append(ended.how)

        @app.task(name="wait")
        async def wait() -> None:
            began.set()
            await asyncio.Event().wait()

        async with app, app.worker(drain=0):
            await wait.aenqueue()
            await asyncio.wait_for(began.wait(), PATIENCE)
        assert told == [Ending.HANDED_BACK]

    async def test_the_lifespan_is_entered_before_the_first_job_and_left_after_the_last(
        self, app: App
    ) -> None:
        told: list[str] = []

        @app.lifespan
        async def pool() -> AsyncGenerator[dict[str, int], None]:
            told.append("open")
            try:
                yield {"connections": 3}
            finally:
                told.append("close")

        @app.on_end
        async def end(job: CurrentJob, ended: Ended) -> None:
            await asyncio.sleep(0.02)
            told.append(f"end with {job.lifespan['connections']}")

        @app.task(name="coroutine")
        async def coroutine() -> int:
            told.append("run")
            return current_job().lifespan["connections"]

        @app.task(name="thread")
        def thread() -> int:
            return current_job().lifespan["connections"] + 1

        async with app:
            async with app.worker():
                assert await (await coroutine.aenqueue()).aresult(timeout=PATIENCE) == 3
            assert told == ["open", "run", "end with 3", "close"]
            async with app.worker():
                assert await (await thread.aenqueue()).aresult(timeout=PATIENCE) == 4
        assert told.count("open") == told.count("close") == 2

    async def test_a_lifespan_that_cannot_start_keeps_the_worker_from_starting(self, app: App) -> None:
        @app.lifespan
        @asynccontextmanager
        async def broken() -> AsyncIterator[None]:
            raise ConnectionError("no database")
            yield

        async with app:
            with pytest.raises(ConnectionError, match="no database"):
                async with app.worker():
                    raise AssertionError("it has started")
            assert [worker for worker in await app.store.workers() if worker.alive] == []

    async def test_a_worker_told_to_stop_while_its_lifespan_starts_ends_in_peace(self, app: App) -> None:
        told: list[str] = []
        entered = asyncio.Event()

        @app.lifespan
        async def slow() -> AsyncGenerator[None, None]:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                told.append("given up")
            yield

        async with app:
            worker = app.worker()
            running = asyncio.create_task(worker.run(ready=lambda: told.append("ready")))
            await entered.wait()
            assert not worker.health().alive
            worker.stop()
            await asyncio.wait_for(running, PATIENCE)
        assert told == ["given up"]

    async def test_an_error_at_the_end_of_a_lifespan_is_raised_once_everything_is_settled(
        self, app: App
    ) -> None:
        @app.lifespan
        async def rude() -> AsyncGenerator[None, None]:
            yield
            raise ValueError("at the end")

        task = add(app)
        async with app:
            receipt = await task.aenqueue(1)
            with pytest.raises(ValueError, match="at the end"):
                async with app.worker():
                    await receipt.aresult(timeout=PATIENCE)
            assert await app.store.workers() == []


async def test_drain_runs_the_lifespan_too(app: App) -> None:
    told: list[str] = []

    @app.lifespan
    async def pool() -> AsyncGenerator[str, None]:
        yield "pool"
        told.append("closed")

    @app.task
    async def subject() -> str:
        return current_job().lifespan

    receipt = await subject.aenqueue()
    await adrain(app)
    assert await receipt.aresult() == "pool"
    assert told == ["closed"]


async def test_without_a_lifespan_there_is_nothing_to_share(app: App) -> None:
    @app.task
    async def subject() -> bool:
        return current_job().lifespan is None

    receipt = await subject.aenqueue()
    await adrain(app)
    assert await receipt.aresult() is True


@pytest.mark.parametrize(
    ("hook", "given", "said"),
    [
        ("before_enqueue", 3, "takes a function of \\(call\\), not 3"),
        ("after_enqueue", lambda: None, "cannot be called so"),
        ("on_start", lambda job, ended: None, "missing a required argument"),
        ("on_end", lambda job: None, "takes a function of \\(job, ended\\)"),
        ("lifespan", lambda app: None, "takes a function of \\(\\)"),
    ],
)
def test_what_cannot_be_a_hook_is_refused_where_it_is_written(
    app: App, hook: str, given: Any, said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        getattr(app, hook)(given)


def test_a_second_lifespan_is_refused(app: App) -> None:
    async def one() -> AsyncGenerator[None, None]:
        yield

    app.lifespan(one)
    with pytest.raises(InvalidOption, match="has a lifespan already"):
        app.lifespan(one)


async def test_a_lifespan_that_is_no_context_manager_says_so(app: App) -> None:
    async def coroutine() -> None:
        return None

    app.lifespan(coroutine)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="must be an async generator function"):
        await adrain(app)


def test_hooks_are_returned_unchanged(app: App) -> None:
    def hook(job: CurrentJob) -> Awaitable[None] | None:
        return None

    assert app.on_start(hook) is hook
