"""What `complete()` promises without a database: a job's end and the next step of its chain are one, or there is neither."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from stage import Gate
from test_continuations import in_worker, states, stored

from onejob import App, JobRevoked, LeaseLost, Retry, State, TransactionTimeout, current_job
from onejob.core.lifecycle import Move
from onejob.keepers import Rescuer
from onejob.store import Amended, Settled, SettleReply
from onejob.testing import FakeClock, adrain


@pytest.fixture
def app(valkey_url: str, clock: FakeClock) -> Iterator[App]:
    with App(valkey_url, clock=clock) as app:
        yield app


async def test_whatever_the_block_raises_undoes_it_and_is_a_failed_attempt(app: App) -> None:
    @app.task(retry=Retry(2, backoff=0.0))
    async def charge() -> None:
        async with current_job().complete():
            current_job().continue_with(ship)
            if current_job().attempt == 1:
                raise ConnectionError("no answer")

    @app.task
    async def ship() -> None: ...

    receipt = await charge.aenqueue()
    assert [one.move for one in await adrain(app)] == [Move.RETRY, Move.COMPLETE, Move.COMPLETE]
    assert await states(app, receipt) == [State.COMPLETED] * 2


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_stalled_run_whose_lease_was_lost_ends_nothing(
    app: App, clock: FakeClock, in_thread: bool
) -> None:
    raised: list[LeaseLost] = []

    async def stall() -> None:
        clock.advance(10_000)
        assert await Rescuer(app.store, 1).tick() == 1

    @app.task(name="charge")
    async def charge() -> None:
        job = current_job()
        if job.attempt == 1:
            await stall()
        try:
            async with job.complete():
                job.continue_with(ship)
        except LeaseLost as error:
            raised.append(error)
            raise

    @app.task(name="charge_in_thread")
    def charge_in_thread() -> None:
        job = current_job()
        if job.attempt == 1:
            app.client.background.call(stall())
        try:
            with job.complete():
                job.continue_with(ship)
        except LeaseLost as error:
            raised.append(error)
            raise

    @app.task
    async def ship() -> None: ...

    receipt = await (charge_in_thread if in_thread else charge).aenqueue()
    assert [one.settled for one in await adrain(app)] == [Settled.LOST, Settled.DONE, Settled.DONE]
    assert await states(app, receipt) == [State.COMPLETED] * 2
    assert len(raised) == 1


async def test_a_revoked_job_ends_revoked_and_does_not_go_on(app: App, gate: Gate) -> None:
    @app.task(retry=5)
    async def charge() -> None:
        await gate.pass_through()
        async with current_job().complete():
            current_job().continue_with(charge)

    receipt = await charge.aenqueue()
    async with app.worker():
        await asyncio.wait_for(gate.entered.wait(), 20)
        assert await app.arevoke(receipt) is Amended.FLAGGED
        gate.opened.set()
        with pytest.raises(JobRevoked):
            await receipt.aresult(timeout=20)
    assert await states(app, receipt) == [State.REVOKED]


async def test_a_block_that_takes_too_long_ends_nothing(app: App) -> None:
    @app.task
    async def charge() -> None:
        async with current_job().complete(timeout=0.02):
            current_job().continue_with(charge)
            await asyncio.sleep(0.1)

    receipt = await charge.aenqueue()
    await in_worker(app, receipt)
    job = await stored(app, receipt)
    assert await states(app, receipt) == [State.FAILED]
    assert (job.error or "").startswith(TransactionTimeout.__name__)


async def test_a_refused_continuation_fails_the_job_for_good(app: App) -> None:
    @app.task(retry=5)
    async def charge() -> None:
        async with current_job().complete():
            current_job().continue_with(charge.using(blockers=[current_job()]))

    receipt = await charge.aenqueue()
    [ran] = await adrain(app)
    assert ran.move is Move.FAIL
    assert (ran.error or "").startswith("BlockerCycle: these would wait for each other for ever: ")
    assert await states(app, receipt) == [State.FAILED]


async def test_a_shutdown_inside_the_block_hands_the_job_back(app: App, gate: Gate) -> None:
    @app.task
    async def charge() -> None:
        async with current_job().complete(timeout=10):
            if not gate.opened.is_set():
                await gate.pass_through()

    receipt = await charge.aenqueue()
    async with app.worker(drain=0) as worker:
        await asyncio.wait_for(gate.entered.wait(), 20)
    assert worker.counts == {"hand_back": 1}
    assert await states(app, receipt) == [State.WAITING]
    gate.opened.set()
    await adrain(app)
    assert await states(app, receipt) == [State.COMPLETED]


@pytest.mark.parametrize("why", ["shutdown", "timeout"])
async def test_a_cancellation_while_it_is_written_leaves_no_doubt(
    app: App, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """What has been sent cannot be called back: the job is completed, and is not run again."""
    written, go = asyncio.Event(), asyncio.Event()
    right = app.store.settle

    async def settle_slowly(*arguments: Any, **options: Any) -> SettleReply:
        reply = await right(*arguments, **options)
        if not written.is_set() and any(done.move is Move.COMPLETE for done in arguments[0]):
            written.set()
            await go.wait()
        return reply

    @app.task(retry=5, timeout=1 if why == "timeout" else None)
    async def charge() -> None:
        async with current_job().complete("paid"):
            current_job().continue_with(ship)
        raise AssertionError("it was cancelled")

    @app.task(queue="ships")
    async def ship() -> str:
        return "shipped"

    receipt = await charge.aenqueue()
    monkeypatch.setattr(app.store, "settle", settle_slowly)
    async with app.worker(queues=["default"], drain=0) as worker:
        await asyncio.wait_for(written.wait(), 20)
        if why == "shutdown":
            worker.stop()
        asyncio.get_running_loop().call_later(1.5, go.set)
    assert worker.counts == {"complete": 1}
    await adrain(app)
    assert await receipt.aresult() == "shipped"
    assert (await stored(app, receipt)).attempt == 1
