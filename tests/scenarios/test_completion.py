"""`current_job().complete()`: the user's own rows, the job's end and its continuation in one commit, or nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import apsw
import pytest
from stage import Gate, eventually
from stored import is_postgres
from test_continuations import in_worker, states, stored

from onejob import (
    App,
    Ended,
    Ending,
    InvalidOption,
    JobFailed,
    JobRevoked,
    LeaseLost,
    Queue,
    Receipt,
    Retry,
    Snooze,
    State,
    StoreFull,
    TransactionTimeout,
    Unique,
    WrongCall,
    current_job,
)
from onejob.core.lifecycle import Move
from onejob.current import CurrentJob
from onejob.keepers import Rescuer
from onejob.store import Amended, Settled
from onejob.stores.sqlite import transaction
from onejob.testing import FakeClock, adrain, drain


async def table(app: App) -> None:
    async with app.transaction() as tx:
        await tx.execute("create table if not exists paid (number integer)")


async def rows(app: App) -> list[int]:
    async with app.transaction() as tx:
        return [row[0] for row in await tx.execute("select number from paid order by number")]


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == name]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.usefixtures("database_url")
async def test_rows_end_and_continuation_are_one_commit(app: App, in_thread: bool) -> None:
    await table(app)
    between: list[tuple[State, int]] = []

    async def look() -> None:
        job = current_job()
        seen = await app.store.job(job.id)  # by another connection: what is committed
        assert seen is not None
        between.append((seen.state, len(await app.achain(job.id))))

    @app.task(name="charge")
    async def charge(number: int) -> None:
        async with current_job().complete() as tx:
            await tx.execute("insert into paid values (:number)", {"number": number})
            current_job().continue_with(ship, number)
            other = await note.aenqueue(number)
            assert await app.ajob(other) is None, "enqueued, but not yet committed"
            await look()
            tx.output = "charged"
        await look()

    @app.task(name="charge_in_thread")
    def charge_in_thread(number: int) -> None:
        with current_job().complete(output="charged") as tx:
            tx.execute("insert into paid values (:number)", {"number": number})
            assert tx.execute("select number from paid") == [(number,)]
            current_job().continue_with(ship, number)
            note.enqueue(number)
            app.client.background.call(look())
        app.client.background.call(look())

    @app.task(queue="ships")
    async def ship(number: int) -> str:
        return f"shipped {number}"

    @app.task
    async def note(number: int) -> None: ...

    receipt = await (charge_in_thread if in_thread else charge).aenqueue(7)
    worker = await in_worker(app, receipt)
    assert await receipt.aresult() == "shipped 7"
    assert (await stored(app, receipt)).result == b'"charged"'
    assert await rows(app) == [7]
    assert (await app.acount(f"task:{note.name}")) == 1
    assert worker.counts["complete"] == 3
    if not in_thread:  # a thread's own look runs outside of its context
        assert between == [(State.RUNNING, 1), (State.COMPLETED, 2)]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.usefixtures("database_url")
async def test_whatever_the_block_raises_undoes_it_all_and_is_a_failed_attempt(
    app: App, in_thread: bool
) -> None:
    await table(app)
    attempts: list[int] = []

    def trouble() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise ConnectionError("no answer")

    @app.task(name="charge", retry=Retry(2, backoff=0.0))
    async def charge() -> None:
        async with current_job().complete() as tx:
            await tx.execute("insert into paid values (:number)", {"number": len(attempts)})
            current_job().continue_with(ship)
            await note.aenqueue()
            trouble()

    @app.task(name="charge_in_thread", retry=Retry(2, backoff=0.0))
    def charge_in_thread() -> None:
        with current_job().complete() as tx:
            tx.execute("insert into paid values (:number)", {"number": len(attempts)})
            current_job().continue_with(ship)
            note.enqueue()
            trouble()

    @app.task(name="ship")
    async def ship() -> None: ...

    @app.task(name="note")
    async def note() -> None: ...

    receipt = await (charge_in_thread if in_thread else charge).aenqueue()
    ran = await adrain(app, queues=["default"])
    first, second = ran[0], ran[1]
    assert (first.move, second.move) == (Move.RETRY, Move.COMPLETE)
    assert first.error is not None
    assert first.error.startswith("ConnectionError: no answer")
    assert sorted(one.task for one in ran[2:]) == ["note", "ship"], "nothing of the first try is left"
    assert await rows(app) == [1]
    assert (await stored(app, receipt)).failures == 1


@pytest.mark.usefixtures("database_url")
async def test_a_handler_may_catch_what_its_block_raised_and_try_again(app: App) -> None:
    await table(app)

    @app.task
    async def charge() -> None:
        job = current_job()
        try:
            async with job.complete() as tx:
                await tx.execute("insert into paid values (1)")
                job.continue_with(ship, 1)
                raise ConnectionError
        except ConnectionError:
            pass
        async with job.complete(2) as tx:
            await tx.execute("insert into paid values (2)")
            job.continue_with(ship, 2)

    @app.task
    async def ship(number: int) -> int:
        return number

    receipt = await charge.aenqueue()
    await adrain(app)
    assert await rows(app) == [2]
    assert await receipt.aresult() == 2


@pytest.mark.parametrize("how", ["busy", "idle", "thread"])
@pytest.mark.usefixtures("database_url")
async def test_a_block_that_takes_too_long_is_undone(app: App, how: str) -> None:
    await table(app)

    @app.task(name="busy")
    async def busy() -> None:
        async with current_job().complete(timeout=0.02) as tx:
            await tx.execute("insert into paid values (1)")
            while True:
                await tx.execute("select 1")

    @app.task(name="idle")
    async def idle() -> None:
        loop = asyncio.get_running_loop()
        async with current_job().complete(timeout=0.02) as tx:
            await tx.execute("insert into paid values (1)")
            began = loop.time()
            while loop.time() < began + 0.1:  # noqa: ASYNC110 - it is time that must pass
                await asyncio.sleep(0)

    @app.task(name="thread")
    def thread() -> None:
        with current_job().complete(timeout=0.02) as tx:
            tx.execute("insert into paid values (1)")
            while True:
                tx.execute("select 1")

    receipt = await app.task_named(how).aenqueue()
    await adrain(app)
    job = await stored(app, receipt)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.startswith(f"{TransactionTimeout.__name__}: The transaction ")
    assert await rows(app) == []


async def test_its_timeout_must_fit_into_the_workers_lease(app: App) -> None:
    said: list[str] = []

    @app.task
    async def charge() -> None:
        job = current_job()
        for timeout in (1.1, 0, -1, "x"):
            try:
                job.complete(timeout=timeout)  # pyright: ignore[reportArgumentType]
            except InvalidOption as error:
                said.append(str(error))
        async with job.complete(timeout=1):
            pass

    receipt = await charge.aenqueue()
    async with app.worker(lease=2):
        await receipt.aresult(timeout=20)
    assert len(said) == 4
    assert said[0].startswith("complete(timeout=1.1) is more than 1 s, half of this worker's lease of 2 s")


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.usefixtures("database_url")
async def test_a_stalled_run_whose_lease_was_lost_writes_nothing(
    app: App, clock: FakeClock, in_thread: bool
) -> None:
    await table(app)
    raised: list[BaseException] = []
    aborted: list[bool] = []

    async def stall() -> None:
        clock.advance(10_000)
        assert await Rescuer(app.store, 1).tick() == 1

    @app.task(name="charge")
    async def charge() -> None:
        job = current_job()
        if job.attempt == 1:
            await stall()
        try:
            async with job.complete() as tx:
                await tx.execute("insert into paid values (:number)", {"number": job.attempt})
                await ship.aenqueue()
                job.continue_with(ship)
        except LeaseLost as error:
            raised.append(error)
            aborted.append(bool(job.aborted))
            raise

    @app.task(name="charge_in_thread")
    def charge_in_thread() -> None:
        job = current_job()
        if job.attempt == 1:
            app.client.background.call(stall())
        try:
            with job.complete() as tx:
                tx.execute("insert into paid values (:number)", {"number": job.attempt})
                ship.enqueue()
                job.continue_with(ship)
        except LeaseLost as error:
            raised.append(error)
            aborted.append(bool(job.aborted))
            raise

    @app.task(name="ship")
    async def ship() -> None: ...

    receipt = await (charge_in_thread if in_thread else charge).aenqueue()
    ran = await adrain(app)
    assert [(one.task == "ship", one.settled) for one in ran] == [
        (False, Settled.LOST),
        (False, Settled.DONE),
        (True, Settled.DONE),
        (True, Settled.DONE),
    ]
    assert await rows(app) == [2]
    assert await states(app, receipt) == [State.COMPLETED] * 2
    assert len(raised) == 1
    assert "its lease has ended and the job goes on without this run" in str(raised[0])
    assert aborted == [True]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.usefixtures("database_url")
async def test_a_revoked_job_writes_nothing_and_ends_revoked(app: App, gate: Gate, known: bool) -> None:
    """Whether the handler's worker has heard of it by then or not."""
    await table(app)
    raised: list[BaseException] = []

    @app.task(retry=5)
    async def charge() -> None:
        await gate.pass_through()
        job = current_job()
        if known:
            await job.aborted
        try:
            async with job.complete() as tx:
                await tx.execute("insert into paid values (1)")
                job.continue_with(charge)
        except JobRevoked as error:
            raised.append(error)
            raise

    receipt = await charge.aenqueue()
    async with app.worker():
        await asyncio.wait_for(gate.entered.wait(), 20)
        assert await app.arevoke(receipt) is Amended.FLAGGED
        gate.opened.set()
        with pytest.raises(JobRevoked):
            await receipt.aresult(timeout=20)
    assert await rows(app) == []
    assert await states(app, receipt) == [State.REVOKED]
    assert str(raised[0]).startswith(f"Job {receipt.id} cannot complete: it has been revoked")


@pytest.mark.usefixtures("database_url")
async def test_a_timed_out_thread_cannot_complete(app: App) -> None:
    await table(app)

    @app.task(timeout=0.02)
    def charge() -> None:
        assert current_job().aborted.wait(20)
        with current_job().complete() as tx:
            tx.execute("insert into paid values (1)")

    receipt = await charge.aenqueue()
    await in_worker(app, receipt)
    assert await rows(app) == []
    assert ((await stored(app, receipt)).error or "").startswith("TimedOut after 0.02 s")


async def test_a_commit_that_fails_is_a_failed_attempt(
    sqlite_url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(sqlite_url, clock=clock)
    await table(app)
    failing = True

    def commit(session: Any) -> None:
        if failing:
            raise apsw.FullError("disk full")
        session.connection.execute("commit")

    @app.task(retry=Retry(2, backoff=0.0))
    async def charge() -> None:
        nonlocal failing
        failing = current_job().attempt == 1
        current_job().continue_with(ship)
        async with current_job().complete() as tx:
            await tx.execute("insert into paid values (:number)", {"number": current_job().attempt})

    @app.task
    async def ship() -> None: ...

    receipt = await charge.aenqueue()
    monkeypatch.setattr(transaction, "_commit", commit)
    first, *rest = await adrain(app)
    monkeypatch.undo()
    assert (first.move, first.settled) == (Move.RETRY, Settled.DONE)
    assert (first.error or "").startswith(StoreFull.__name__)
    assert [one.move for one in rest] == [Move.COMPLETE] * 2
    assert await rows(app) == [2]
    assert await states(app, receipt) == [State.COMPLETED] * 2
    await app.aclose()


async def test_a_commit_that_the_server_refuses_is_a_failed_attempt(
    postgres_url: str, clock: FakeClock
) -> None:
    async with App(postgres_url, clock=clock) as app:
        async with app.transaction() as tx:
            await tx.execute("create table paid (number integer unique deferrable initially deferred)")

        @app.task(retry=Retry(2, backoff=0.0))
        async def charge() -> None:
            number = current_job().attempt
            current_job().continue_with(ship)
            async with current_job().complete() as tx:
                for _ in range(3 - number):
                    await tx.execute("insert into paid values (:number)", {"number": number})

        @app.task
        async def ship() -> None: ...

        receipt = await charge.aenqueue()
        first, *rest = await adrain(app)
        assert (first.move, first.settled) == (Move.RETRY, Settled.DONE)
        assert "duplicate key value" in (first.error or "")
        assert [one.move for one in rest] == [Move.COMPLETE] * 2
        assert await rows(app) == [2]
        assert await states(app, receipt) == [State.COMPLETED] * 2


@pytest.mark.parametrize("in_thread", [False, True])
async def test_it_is_the_last_act(app: App, in_thread: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A value returned later is ignored, an error raised later is not charged; both are told."""
    ended: list[Ended] = []
    raised: list[str] = []

    @app.on_end
    def told(job: CurrentJob, how: Ended) -> None:
        ended.append(how)

    def afterwards(error: Exception | None) -> str:
        for wrong in (
            lambda: current_job().continue_with(note),
            lambda: current_job().complete().__enter__(),
        ):
            try:
                wrong()
            except WrongCall as refused:
                raised.append(str(refused))
        if error is not None:
            raise error
        return "too late"

    @app.task(name="charge", retry=5)
    async def charge(fails: bool) -> str:
        async with current_job().complete("in time"):
            pass
        return await asyncio.to_thread(afterwards, ValueError("too late") if fails else None)

    @app.task(name="charge_in_thread", retry=5)
    def charge_in_thread(fails: bool) -> str:
        with current_job().complete("in time"):
            pass
        return afterwards(ValueError("too late") if fails else None)

    @app.task
    async def note() -> None: ...

    sender = charge_in_thread if in_thread else charge
    for fails, event in ((False, "result.ignored"), (True, "handler.raised_late")):
        receipt = await sender.aenqueue(fails)
        worker = await in_worker(app, receipt)
        assert await receipt.aresult() == "in time"
        assert (await stored(app, receipt)).failures == 0
        assert worker.counts == {"complete": 1}
        assert len(events(caplog, event)) == 1
    assert [(one.how, one.exception) for one in ended] == [(Ending.COMPLETED, None)] * 2
    assert all("has ended" in text for text in raised)
    assert len(raised) == 4


async def test_a_snooze_after_it_comes_too_late(app: App) -> None:
    @app.task
    async def charge() -> None:
        async with current_job().complete():
            pass
        raise Snooze(60)

    receipt = await charge.aenqueue()
    await adrain(app)
    assert await states(app, receipt) == [State.COMPLETED]


async def test_a_worker_leaves_a_handler_alone_that_has_completed_and_is_not_yet_back(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds no lease any more, which is no reason to call it lost."""
    go = asyncio.Event()
    seen: list[bool] = []

    @app.task(timeout=60)
    async def charge() -> str:
        async with current_job().complete("done") as tx:
            pass
        await go.wait()
        seen.append(bool(current_job().aborted))
        return tx.output

    receipt = await charge.aenqueue()
    async with app.worker(concurrency=1, lease=30, heartbeat=0.1) as worker:
        assert await receipt.aresult(timeout=20) == "done"
        ages: list[float] = []

        async def beaten() -> bool:
            ages.append(worker.health().beat_age or 0)
            return sum(later < earlier for earlier, later in pairwise(ages)) >= 3

        await eventually(beaten)
        go.set()
        after = await charge.aenqueue()
        assert await after.aresult(timeout=20) == "done", "its slot is free again"
    assert seen == [False, False]
    assert not events(caplog, "lease.lost")
    assert not events(caplog, "result.ignored")
    assert worker.counts == {"complete": 2}


def hold_commits(
    app: App, monkeypatch: pytest.MonkeyPatch, committing: threading.Event, go: threading.Event
) -> None:
    """Commits say that they are about to be, and wait."""
    if is_postgres(app.url):
        from onejob.stores.postgres.transaction import PostgresTransaction

        right = PostgresTransaction._commit

        async def commit_later(self: PostgresTransaction) -> None:
            committing.set()
            assert await asyncio.to_thread(go.wait, 20)
            await right(self)

        monkeypatch.setattr(PostgresTransaction, "_commit", commit_later)
        return

    def commit(session: Any) -> None:
        committing.set()
        assert go.wait(20)
        session.connection.execute("commit")

    monkeypatch.setattr(transaction, "_commit", commit)


@pytest.mark.parametrize("why", ["shutdown", "timeout"])
@pytest.mark.usefixtures("database_url")
async def test_a_cancellation_in_the_middle_of_the_commit_leaves_no_doubt(
    app: App, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A commit cannot be called back: the job is completed, and is not run again."""
    await table(app)
    committing, go = threading.Event(), threading.Event()

    @app.task(retry=5, timeout=0.3 if why == "timeout" else None)
    async def charge() -> None:
        async with current_job().complete("paid") as tx:
            await tx.execute("insert into paid values (1)")
            current_job().continue_with(ship)
        raise AssertionError("it was cancelled")

    @app.task
    async def ship() -> str:
        return "shipped"

    receipt = await charge.aenqueue()
    hold_commits(app, monkeypatch, committing, go)
    async with app.worker(drain=0) as worker:
        assert await asyncio.to_thread(committing.wait, 20)
        if why == "shutdown":
            worker.stop()
        asyncio.get_running_loop().call_later(0.5, go.set)
    assert worker.counts["complete"] >= 1
    assert set(worker.counts) == {"complete"}
    monkeypatch.undo()
    await adrain(app)
    assert await rows(app) == [1]
    assert await receipt.aresult() == "shipped"


@pytest.mark.usefixtures("database_url")
async def test_a_shutdown_before_the_commit_hands_the_job_back(app: App, gate: Gate) -> None:
    await table(app)

    @app.task
    async def charge() -> None:
        async with current_job().complete(timeout=10) as tx:
            await tx.execute("insert into paid values (1)")
            if current_job().attempt == 1 and not gate.opened.is_set():
                await gate.pass_through()

    receipt = await charge.aenqueue()
    async with app.worker(drain=0) as worker:
        await asyncio.wait_for(gate.entered.wait(), 20)
    assert worker.counts == {"hand_back": 1}
    assert await rows(app) == []
    gate.opened.set()
    await adrain(app)
    assert await rows(app) == [1]
    assert await states(app, receipt) == [State.COMPLETED]


@pytest.mark.usefixtures("database_url")
async def test_a_refused_continuation_undoes_the_block_and_fails_the_job_for_good(app: App) -> None:
    await table(app)

    @app.task(retry=5)
    async def charge() -> None:
        async with current_job().complete() as tx:
            await tx.execute("insert into paid values (1)")
            current_job().continue_with(charge.using(blockers=[current_job()]))

    receipt = await charge.aenqueue()
    [ran] = await adrain(app)
    assert ran.move is Move.FAIL
    assert (ran.error or "").startswith("BlockerCycle: these would wait for each other for ever: ")
    assert await rows(app) == []
    assert await states(app, receipt) == [State.FAILED]


@pytest.mark.usefixtures("database_url")
async def test_an_output_that_cannot_be_stored_undoes_the_block(app: App) -> None:
    await table(app)

    @app.task
    async def charge() -> None:
        async with current_job().complete() as tx:
            await tx.execute("insert into paid values (1)")
            tx.output = object()

    receipt = await charge.aenqueue()
    await adrain(app)
    assert await rows(app) == []
    with pytest.raises(JobFailed, match="result"):
        await receipt.aresult()


async def test_an_output_is_compressed_as_its_queue_says(make_app: Callable[..., App]) -> None:
    app = make_app(queues={"default": Queue(compression="gzip")})

    @app.task
    async def charge() -> str:
        async with current_job().complete() as tx:
            tx.output = "x" * 10_000
        return tx.output

    receipt = await charge.aenqueue()
    await adrain(app)
    assert len((await stored(app, receipt)).result or b"") < 1_000
    assert await receipt.aresult() == "x" * 10_000


@pytest.mark.usefixtures("database_url")
async def test_its_own_key_can_be_taken_again_in_the_same_commit(app: App) -> None:
    """Self-rescheduling: the newcomer follows the chain, and the chain ends with that very commit."""
    runs: list[int] = []

    @app.task(unique=Unique.in_flight(by=()))
    async def tick(left: int) -> None:
        runs.append(left)
        async with current_job().complete():
            if left:
                again = await tick.aenqueue(left - 1)
                assert not again.deduplicated

    await tick.aenqueue(3)
    await adrain(app)
    assert runs == [3, 2, 1, 0]
    assert await app.acounts() == {"default": {State.COMPLETED: 4}}


async def test_it_does_not_nest_and_is_entered_once(app: App) -> None:
    said: list[str] = []

    @app.task
    async def charge() -> None:
        job = current_job()
        try:
            async with app.transaction(), job.complete():
                raise AssertionError
        except WrongCall as error:
            said.append(str(error))
        once = job.complete()
        try:
            async with once:
                raise ConnectionError
        except ConnectionError:
            pass
        for block in (once, job.complete()):
            try:
                if block is once:
                    async with block:
                        raise AssertionError
                else:
                    with block:
                        raise AssertionError
            except WrongCall as error:
                said.append(str(error))

    await charge.aenqueue()
    [ran] = await adrain(app)
    assert ran.move is Move.COMPLETE
    assert [
        "do not nest" in said[0],
        "once" in said[1],
        "async with current_job().complete()" in said[2],
    ] == [True] * 3


def test_drain_completes_in_threads_from_sync_code() -> None:
    with App("memory:") as app:

        @app.task
        def charge() -> int:
            with current_job().complete(5) as tx:
                tx.execute("create table paid (number integer)")
            return tx.output

        receipt = charge.enqueue()
        drain(app)
        assert receipt.result() == 5


async def test_without_a_worker_there_is_nothing_to_complete(app: App) -> None:
    from onejob.current import bind

    kept: list[CurrentJob] = []

    @app.task
    async def charge() -> None:
        kept.append(current_job())

    await charge.aenqueue()
    await adrain(app)
    lone = CurrentJob(kept[0]._claimed)  # as an on_end hook of a rescued job gets it
    bind(lone)
    with pytest.raises(WrongCall, match="needs the worker that runs the job"):
        current_job().complete()


@pytest.mark.usefixtures("database_url")
async def test_many_at_once_each_complete_once(app: App) -> None:
    await table(app)

    @app.task
    async def charge(number: int) -> None:
        async with current_job().complete(number) as tx:
            await tx.execute("insert into paid values (:number)", {"number": number})
            current_job().continue_with(ship, number)

    @app.task
    def ship(number: int) -> int:
        with current_job().complete(number) as tx:
            tx.execute("insert into paid values (:number)", {"number": -number})
        return tx.output

    receipts: list[Receipt[Any]] = await app.aenqueue_many([charge.job(n) for n in range(1, 51)])
    async with app.worker(concurrency=20) as worker:
        assert [await receipt.aresult(timeout=60) for receipt in receipts] == list(range(1, 51))
    assert sorted(await rows(app)) == [n for n in range(-50, 51) if n]
    assert worker.counts == {"complete": 100}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("database_url")
async def test_a_statement_that_nobody_awaits_undoes_the_block(app: App) -> None:
    await table(app)
    wrong: list[str] = []

    @app.task
    async def pay(number: int) -> None:
        try:
            async with current_job().complete() as tx:
                await tx.execute("insert into paid values (:number)", {"number": number})
                tx.execute("insert into paid values (99)")
        except WrongCall as error:
            wrong.append(str(error))
        async with current_job().complete() as tx:
            await asyncio.gather(
                *(tx.execute("insert into paid values (:number)", {"number": n}) for n in (7, 8))
            )

    receipt = await pay.aenqueue(1)
    await adrain(app)
    assert wrong == [
        "tx.execute('insert into paid values (99)') was called in a transaction and never awaited, so it was not run: "
        "write `await tx.execute(…)`. Nothing of the transaction is stored."
    ]
    assert sorted(await rows(app)) == [7, 8]
    assert (await stored(app, receipt)).state is State.COMPLETED


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("database_url")
async def test_a_transaction_with_a_statement_that_nobody_awaits_stores_nothing(app: App) -> None:
    await table(app)

    async def pay(number: int, error: Exception | None) -> None:
        async with app.transaction() as tx:
            await tx.execute("insert into paid values (:number)", {"number": number})
            tx.execute("insert into paid values (99)")
            if error is not None:
                raise error

    with pytest.raises(WrongCall, match=r"insert into paid values \(99\)"):
        await pay(1, None)
    with pytest.raises(ZeroDivisionError):
        await pay(2, ZeroDivisionError())
    assert await rows(app) == []
