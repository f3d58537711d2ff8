"""`continue_with`: how a chain goes on, in coroutines, threads and processes, and what ends it."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import step_tasks
from stage import Gate, eventually

from onejob import (
    App,
    Ended,
    Ending,
    Fail,
    InvalidOption,
    JobFailed,
    JobRevoked,
    Lane,
    Queue,
    Receipt,
    ResultGone,
    ResultTimeout,
    Retry,
    Snooze,
    State,
    Unique,
    WrongCall,
    current_job,
)
from onejob.core.chain import continuation_id
from onejob.core.errors import ArgumentsInvalid
from onejob.core.job import Job, JobId, NewJob
from onejob.core.lifecycle import Move
from onejob.current import CurrentJob
from onejob.store import Amended, Settled
from onejob.testing import FakeClock, aassert_enqueued, adrain, drain
from onejob.worker import Worker


async def stored(app: App, job: str | Receipt[Any]) -> Job:
    found = await app.ajob(job)
    assert found is not None
    return found


async def states(app: App, receipt: Receipt[Any]) -> list[State]:
    return [job.state for job in await app.achain(receipt)]


async def in_worker(app: App, receipt: Receipt[Any], **options: Any) -> Worker:
    """Serve until the receipt's chain has ended."""
    async with app.worker(**options) as worker:

        async def ended() -> bool:
            last = await app.store.last(receipt.id)
            return last is not None and last.state.ended and not worker.health().running

        await eventually(ended)
    return worker


async def test_a_thread_goes_on_as_a_coroutine_does(app: App) -> None:
    @app.task
    def first(n: int) -> str:
        current_job().continue_with(second, n + 1)
        return "first"

    @app.task
    async def second(n: int) -> str:
        current_job().continue_with(third, n=n + 1)
        return "second"

    @app.task
    def third(n: int) -> int:
        return n + 1

    receipt = await first.aenqueue(1)
    await in_worker(app, receipt)
    assert await receipt.aresult() == 4
    assert [job.result for job in await app.achain(receipt)] == [b'"first"', b'"second"', b"4"]


async def test_a_process_goes_on_too(caplog: pytest.LogCaptureFixture) -> None:
    app = step_tasks.app
    async with app, app.worker(children=1):
        receipt = await step_tasks.halve.aenqueue(9)
        assert await receipt.aresult(timeout=60) == 1
        chain = await app.achain(receipt)
        assert [(job.payload, job.priority, job.lane) for job in chain[1:]] == [
            (b'{"number":4}', 3, "halves"),
            (b'{"number":2}', 3, "halves"),
            (b'{"number":1}', 3, "halves"),
        ]
        assert chain[1].id == continuation_id(chain[0].chain, 1)
        for number, twice, said in (
            (5, True, "WrongCall: continue_with can only be called once"),
            (13, False, ""),
        ):
            wrong = await step_tasks.halve.aenqueue(number, twice)
            with pytest.raises(JobFailed, match=said or "unlucky"):
                await wrong.aresult(timeout=60)
            assert len(await app.achain(wrong)) == 1, "a run that raised does not go on"


async def test_outputs_of_blockers_reach_a_process_typed() -> None:
    app = step_tasks.app

    @app.task(name="local")
    async def local(text: str) -> str:
        return text

    big = "x" * 900_000
    async with app, app.worker(children=1):
        parts: list[Receipt[Any]] = [await step_tasks.measure.aenqueue(n) for n in range(2)]
        parts += [await local.aenqueue(big) for _ in range(3)]
        receipt = await step_tasks.total.using(blockers=parts).aenqueue()
        assert await receipt.aresult(timeout=60) == ["Part", 0, 1, *[len(big)] * 3]


async def test_complete_is_refused_in_a_process() -> None:
    app = step_tasks.app
    async with app, app.worker(children=1):
        receipt = await step_tasks.completes.aenqueue()
        with pytest.raises(JobFailed, match=r"WrongCall: complete\(\) does not work in a process of its own"):
            await receipt.aresult(timeout=60)


@pytest.mark.parametrize("error", [ValueError("no"), Fail("no"), Snooze(60)])
async def test_it_counts_only_if_the_run_completes(app: App, error: Exception) -> None:
    @app.task
    async def first() -> None:
        current_job().continue_with(second)
        raise error

    @app.task
    async def second() -> None: ...

    receipt = await first.aenqueue()
    await adrain(app)
    assert len(await app.achain(receipt)) == 1


async def test_a_result_that_cannot_be_stored_does_not_go_on(app: App) -> None:
    @app.task
    async def first() -> object:
        current_job().continue_with(second)
        return object()

    @app.task
    async def second() -> None: ...

    receipt = await first.aenqueue()
    await adrain(app)
    assert await states(app, receipt) == [State.FAILED]


async def test_a_timed_out_thread_does_not_go_on(app: App) -> None:
    @app.task(timeout=0.05)
    def first() -> None:
        current_job().continue_with(second)
        assert current_job().aborted.wait(20)

    @app.task
    async def second() -> None: ...

    receipt = await first.aenqueue()
    await in_worker(app, receipt)
    assert await states(app, receipt) == [State.FAILED]


async def test_what_it_takes_is_checked_where_it_is_called(app: App) -> None:
    raised: list[BaseException] = []

    @app.task
    async def second(order: int) -> None: ...

    @app.task
    async def first() -> None:
        job = current_job()
        for wrong in (
            lambda: job.continue_with(second, "one"),  # pyright: ignore[reportArgumentType]
            lambda: job.continue_with(second),  # pyright: ignore[reportCallIssue]
            lambda: job.continue_with("second", 1),  # pyright: ignore[reportArgumentType]
            lambda: job.continue_with(second.using(unique=Unique.once()), 1),
        ):
            try:
                wrong()
            except Exception as error:
                raised.append(error)
        job.continue_with(second.using(unique=None), 1)

    receipt = await first.aenqueue()
    await adrain(app)
    assert [type(error) for error in raised] == [
        ArgumentsInvalid,
        ArgumentsInvalid,
        InvalidOption,
        InvalidOption,
    ]
    assert str(raised[2]) == (
        "continue_with(…) takes a task, or task.using(…), and then its arguments, not 'second'."
    )
    assert await states(app, receipt) == [State.COMPLETED] * 2, "none of the refused calls counted"


async def test_the_policy_of_its_task_is_not_even_asked(app: App) -> None:
    asked: list[int] = []

    def key(order: int) -> str:
        asked.append(order)
        raise LookupError

    @app.task(unique=Unique.once(by=key))
    async def second(order: int) -> int:
        return order

    @app.task
    async def first() -> None:
        current_job().continue_with(second, 7)

    receipt = await first.aenqueue()
    await adrain(app)
    assert await receipt.aresult() == 7
    assert asked == []


async def test_options_come_from_the_continuations_own_task_and_call(
    make_app: Callable[..., App], clock: FakeClock
) -> None:
    app = make_app(queues={"slow": Queue(compression="gzip")})

    @app.task(queue="fast", priority=9, lane=Lane("fast"), retry=2)
    async def first() -> None:
        at = dt.datetime.fromtimestamp(clock() / 1000 + 600, dt.UTC)
        clock.advance(100)
        current_job().continue_with(second.using(at=at, priority=-1), "x" * 5_000)

    @app.task(queue="slow", retry=Retry(2, backoff=7.0), lane=Lane("slow"), unique=Unique.debounce(60))
    async def third(text: str) -> None: ...

    @app.task(queue="slow", retry=Retry(2, backoff=7.0), lane=Lane("slow"))
    async def second(text: str) -> None:
        current_job().continue_with(third, text)
        if current_job().attempt == 1:
            raise ConnectionError

    receipt = await first.aenqueue()
    start = clock()
    await adrain(app)
    _, next_one = await app.achain(receipt)
    assert (next_one.queue, next_one.priority, next_one.lane, next_one.state) == (
        "slow",
        -1,
        "slow",
        State.DELAYED,
    )
    assert next_one.due == start + 600_000, "the instant that was named, however long its predecessor ran"
    assert len(next_one.payload) < 500, "compressed as its queue says"
    ran = await adrain(app, clock=clock)
    assert [(one.task, one.move) for one in ran] == [
        (second.name, Move.RETRY),
        (second.name, Move.COMPLETE),
        (third.name, Move.COMPLETE),
    ]
    assert clock() == start + 607_000, "third's own debounce has no say: it was due at once"


async def test_a_handler_may_start_other_chains_and_itself_again(app: App) -> None:
    """Rule 9: for a caller inside the running chain, its own key is followed."""
    runs: Counter[str] = Counter()

    @app.task(unique=Unique.once(by="name", completed="run"))
    async def tick(name: str, left: int) -> None:
        runs["tick"] += 1
        current_job().continue_with(tock, name, left)

    @app.task
    async def tock(name: str, left: int) -> None:
        runs["tock"] += 1
        await other.aenqueue()
        if left:
            again = await tick.aenqueue(name, left - 1)
            assert not again.deduplicated
            assert (await stored(app, again)).state is State.BLOCKED, "it waits for this very chain to end"

    @app.task
    async def other() -> None:
        runs["other"] += 1

    receipt = await tick.aenqueue("a", 2)
    ran = await adrain(app)
    assert runs == {"tick": 3, "tock": 3, "other": 3}
    assert [one.settled for one in ran] == [Settled.DONE] * 9
    assert len(await app.achain(receipt)) == 2


async def test_the_chains_key_is_running_from_its_first_start_to_its_last_end(app: App, gate: Gate) -> None:
    @app.task(unique=Unique.latest(by="order"))
    async def first(order: int, v: int) -> None:
        current_job().continue_with(second.using(delay=60), order)

    @app.task
    async def second(order: int) -> None: ...

    receipt = await first.aenqueue(1, 1)
    await adrain(app)
    assert await states(app, receipt) == [State.COMPLETED, State.DELAYED]
    follower = await first.aenqueue(1, 2)
    assert not follower.deduplicated, "a delayed second step is no queued holder to be updated"
    assert (await stored(app, follower)).follows == receipt.id


async def test_a_failure_at_any_place_ends_the_chain_and_is_named(app: App) -> None:
    @app.task(name="first", unique=Unique.in_flight(by=()))
    async def first() -> None:
        current_job().continue_with(second)

    @app.task(name="second", queue="elsewhere")
    async def second() -> None:
        current_job().continue_with(first)
        raise Fail("no stock")

    receipt = await first.aenqueue()
    await adrain(app)
    failed = (await app.achain(receipt))[-1]
    with pytest.raises(JobFailed) as raised:
        await receipt.aresult(timeout=5)
    assert str(raised.value) == (
        f"Job {failed.id} of task 'second', step 1 of chain {receipt.id}, failed: Fail: no stock"
    )
    assert raised.value.id == failed.id
    assert not (await first.aenqueue()).deduplicated, "the key is free"


async def test_a_result_is_typed_by_the_task_that_made_it(app: App) -> None:
    @app.task
    async def first() -> int:
        current_job().continue_with(second)
        return 1

    @app.task
    async def second() -> dt.date:
        return dt.date(2030, 1, 2)

    receipt = await first.aenqueue()
    await adrain(app)
    assert await receipt.aresult() == dt.date(2030, 1, 2)


async def test_a_result_that_does_not_come_says_how_far_the_chain_is(app: App, gate: Gate) -> None:
    @app.task
    async def first() -> None:
        current_job().continue_with(second)

    @app.task(name="second")
    async def second() -> None:
        await gate.pass_through()

    receipt = await first.aenqueue()
    async with gate.held(app):
        with pytest.raises(
            ResultTimeout, match=r"its chain is at step 1, job .* of task 'second', which is running"
        ):
            await receipt.aresult(timeout=0.01)


async def test_a_waiting_caller_hears_of_the_end_of_a_chain_in_another_queue(app: App) -> None:
    """Waits on the queue of the first job only; the hint must come there, or this would take a second."""

    @app.task(queue="one")
    async def first() -> None:
        current_job().continue_with(second)

    @app.task(queue="two")
    async def second() -> str:
        return "done"

    loop = asyncio.get_running_loop()
    async with app.worker():
        began = loop.time()
        for _ in range(10):
            assert await (await first.aenqueue()).aresult(timeout=20) == "done"
        assert loop.time() - began < 9, "ten lost hints would cost ten seconds"


async def test_revoking_and_retrying_a_chain_acts_on_its_last_job(app: App) -> None:
    good = False

    @app.task
    async def first() -> None:
        current_job().continue_with(second.using(delay=60))

    @app.task
    async def second() -> str:
        if not good:
            raise ConnectionError
        return "good"

    receipt = await first.aenqueue()
    await adrain(app)
    assert await app.arevoke(receipt) is Amended.REVOKED
    assert await states(app, receipt) == [State.COMPLETED, State.REVOKED]
    with pytest.raises(JobRevoked, match="step 1 of chain"):
        await receipt.aresult()
    assert await app.aretry(receipt) is Amended.RETRIED
    await adrain(app)
    assert await states(app, receipt) == [State.COMPLETED, State.FAILED]
    good = True
    assert await app.aretry(receipt.id) is Amended.RETRIED
    await adrain(app)
    assert await receipt.aresult() == "good"
    assert await app.adelete(receipt) is Amended.DELETED
    assert await app.achain(receipt) == []
    with pytest.raises(ResultGone):
        await receipt.aresult()


async def test_bulk_operations_ask_about_each_chain_once(app: App) -> None:
    @app.task(name="step")
    async def step(left: int) -> None:
        if left:
            current_job().continue_with(step, left - 1)

    for _ in range(3):
        await step.aenqueue(3)
    await adrain(app)
    assert await app.acount("task:step") == 12
    assert await app.adelete_many("task:step") == {Amended.DELETED: 3}
    assert await app.acount() == 0


async def test_a_flagged_job_that_completes_ends_revoked_and_does_not_go_on(app: App, gate: Gate) -> None:
    @app.task
    async def first() -> None:
        current_job().continue_with(second)
        await gate.pass_through()

    @app.task
    async def second() -> None: ...

    receipt = await first.aenqueue()
    async with gate.held(app):
        assert await app.arevoke(receipt) is Amended.FLAGGED
    assert await states(app, receipt) == [State.REVOKED]


async def test_it_comes_too_late_once_the_handler_has_returned(app: App) -> None:
    kept: list[CurrentJob] = []

    @app.task
    async def first() -> None:
        kept.append(current_job())

    await first.aenqueue()
    await adrain(app)
    with pytest.raises(WrongCall, match="has ended, so its chain cannot go on"):
        kept[0].continue_with(first)
    with pytest.raises(WrongCall, match="has ended already"):
        async with kept[0].complete():
            raise AssertionError


async def test_a_continuation_that_would_wait_for_its_own_chain_fails_the_job_for_good(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    endings: list[tuple[str, Ending, str | None]] = []

    @app.on_end
    def told(job: CurrentJob, ended: Ended) -> None:
        endings.append((job.task, ended.how, ended.error))

    @app.task(name="first", retry=5, dead_letter="dead")
    async def first() -> None:
        child = await second.using(blockers=[current_job()]).aenqueue()
        current_job().continue_with(second.using(blockers=[child]))

    @app.task(name="second")
    async def second() -> None: ...

    receipt = await first.aenqueue()
    worker = await in_worker(app, receipt, queues=["default"])
    job = await stored(app, receipt)
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.startswith("BlockerCycle: these would wait for each other for ever: ")
    assert job.error.count(receipt.id) == 2, "it is printed from end to end"
    assert (job.attempt, job.failures) == (1, 1)
    assert [letter.origin for letter in await app.adead()] == [receipt.id]
    assert endings == [("first", Ending.FAILED, job.error)]
    assert worker.counts == {"fail": 1}
    [record] = [record for record in caplog.records if getattr(record, "event", "") == "job.failed"]
    assert "BlockerCycle" in record.getMessage()


async def test_a_continuation_with_an_unknown_blocker_fails_the_job_for_good(app: App) -> None:
    @app.task(retry=5)
    async def first() -> None:
        current_job().continue_with(second.using(blockers=["0198f000-0000-7000-8000-000000000000"]))

    @app.task
    async def second() -> None: ...

    receipt = await first.aenqueue()
    [ran] = await adrain(app)
    assert (ran.move, ran.settled) == (Move.FAIL, Settled.DONE)
    assert ran.error is not None
    assert ran.error.startswith("UnknownBlocker: Job 0198f000-")
    assert await states(app, receipt) == [State.FAILED]


@pytest.mark.parametrize("by_itself", [False, True])
async def test_another_job_at_the_next_place_stands_and_is_logged(
    app: App, by_itself: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Cannot happen by any run of ours; a restored backup or a meddling hand could make it so."""
    endings: list[Ending] = []

    @app.on_end
    def told(job: CurrentJob, ended: Ended) -> None:
        endings.append(ended.how)

    @app.task(name="first")
    async def first() -> None:
        job = current_job()
        intruder = NewJob(continuation_id(job.chain, 1), "far", "intruder", b"{}")
        await app.store.enqueue([intruder])
        job.continue_with(second)
        if by_itself:
            async with job.complete():
                pass

    @app.task(name="second")
    async def second() -> None: ...

    receipt = await first.aenqueue()
    worker = await in_worker(app, receipt)
    assert (await stored(app, receipt)).state is State.COMPLETED
    there = await stored(app, continuation_id((await stored(app, receipt)).chain, 1))
    assert (there.task, there.queue) == ("intruder", "far")
    [record] = [record for record in caplog.records if getattr(record, "event", "") == "job.diverged"]
    assert record.levelno == logging.ERROR
    assert (
        "had gone on already with a job of task 'intruder', not 'second'; that one stands"
        in record.getMessage()
    )
    assert worker.counts == {"complete": 1}
    assert endings == [Ending.COMPLETED]


def test_everything_has_a_sync_form() -> None:
    with App("memory:") as app:

        @app.task
        def first(n: int) -> None:
            current_job().continue_with(second, n)

        @app.task
        def second(n: int) -> int:
            return n * 2

        receipt = first.enqueue(4)
        drain(app)
        assert receipt.result() == 8
        assert [job.chain_index for job in app.chain(receipt)] == [0, 1]
        assert app.chain("0198f000-0000-7000-8000-000000000000") == []
        assert app.delete(receipt, cascade=True) is Amended.DELETED


async def test_the_test_kit_sees_continuations(app: App) -> None:
    @app.task
    async def first() -> None:
        current_job().continue_with(second.using(delay=60), 7)

    @app.task
    async def second(n: int) -> None: ...

    receipt = await first.aenqueue()
    assert [ran.id for ran in await adrain(app)] == [receipt.id]
    made = await aassert_enqueued(app, second, n=7)
    assert (made.chain, made.chain_index) == (receipt.id, 1)


async def test_explain_tells_the_place_in_the_chain_and_whose_the_key_is(app: App) -> None:
    @app.task(name="first", unique=Unique.in_flight(by="order"))
    async def first(order: int) -> None:
        current_job().continue_with(second.using(delay=60), order)

    @app.task(name="second")
    async def second(order: int) -> None: ...

    receipt = await first.aenqueue(7)
    assert "chain" not in str(await app.aexplain(receipt)), "a lone job needs no such word"
    await adrain(app)
    told = await app.aexplain(receipt)
    next_id = (await app.achain(receipt))[1].id
    assert (told.chain, told.chain_index, told.chain_state) == (receipt.id, 0, State.DELAYED)
    assert (
        f"It is step 0 of chain {receipt.id}, which has come to step 1: job {next_id} of task 'second', delayed."
        in told.reasons
    )
    told = await app.aexplain(next_id)
    assert (told.chain, told.chain_index, told.key, told.holder) == (receipt.id, 1, "7", receipt.id)
    assert f"It is step 1 of chain {receipt.id}, and its last: the chain is delayed." in told.reasons
    assert JobId(told.as_dict()["chain"]) == receipt.id
