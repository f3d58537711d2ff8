"""One job per subject and task, automatically (ACCEPTANCE.md, F1 to F16)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from stage import Gate

import onejob
from onejob import App, Fail, Outcome, State, Unique
from onejob.testing import FakeClock, adrain


@pytest.mark.accepts("F1", "F5")
async def test_at_most_one_is_queued_per_subject_and_task(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None: ...

    @app.task(unique=Unique.in_flight(by="subject"))
    async def audit(subject: str) -> None: ...

    first = await sync.aenqueue("anna")
    assert (await sync.aenqueue("anna")).id == first.id
    assert (await audit.aenqueue("anna")).outcome is Outcome.CREATED
    assert len(await adrain(app)) == 2


@pytest.mark.accepts("F1", "F6")
async def test_a_call_is_dropped_while_one_runs(app: App, gate: Gate) -> None:
    runs: list[str] = []

    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None:
        runs.append(subject)
        await gate.pass_through()

    first = await sync.aenqueue("anna")
    async with gate.held(app):
        dropped = await sync.aenqueue("anna")
        assert (dropped.id, dropped.holder_state) == (first.id, State.RUNNING)
    assert runs == ["anna"]


@pytest.mark.accepts("F2")
async def test_other_subjects_run_beside_each_other(app: App) -> None:
    together = asyncio.Barrier(3)

    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None:
        await asyncio.wait_for(together.wait(), 20)

    receipts = [await sync.aenqueue(subject) for subject in ("anna", "ben", "cleo")]
    async with app.worker(concurrency=3):
        await asyncio.gather(*(receipt.aresult(timeout=20) for receipt in receipts))


@pytest.mark.accepts("F3", "F10")
async def test_without_a_subject_there_is_one_per_task(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str | None = None) -> None: ...

    first = await sync.aenqueue()
    assert [(await sync.aenqueue(missing)).id for missing in (None, "")] == [first.id, first.id]
    assert len(await adrain(app)) == 1


@pytest.mark.accepts("F4")
async def test_the_apps_policy_holds_for_every_task(make_app: Callable[..., App]) -> None:
    app = make_app(unique=Unique.in_flight())

    @app.task
    async def sync(subject: str) -> None: ...

    @app.task
    def report(day: int) -> None: ...

    @app.task(unique=None)
    async def log(line: str) -> None: ...

    assert (await sync.aenqueue("anna")).id == (await sync.aenqueue("anna")).id
    assert (await report.aenqueue(1)).id == (await report.aenqueue(1)).id
    assert (await log.aenqueue("x")).id != (await log.aenqueue("x")).id


@pytest.mark.accepts("F7")
async def test_a_job_is_created_when_only_finished_ones_exist(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None:
        if subject == "ben":
            raise Fail("no")

    for subject in ("anna", "ben", "cleo"):
        first = await sync.aenqueue(subject)
        if subject == "cleo":
            await app.arevoke(first)
        await adrain(app)
        assert (await sync.aenqueue(subject)).outcome is Outcome.CREATED


@pytest.mark.accepts("F8")
async def test_jobs_with_and_without_a_subject_do_not_collide(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str | None = None) -> None: ...

    receipts = [await sync.aenqueue(), await sync.aenqueue("anna"), await sync.aenqueue("None")]
    assert [receipt.outcome for receipt in receipts] == [Outcome.CREATED] * 3


@pytest.mark.accepts("F9")
async def test_there_is_no_window(app: App, clock: FakeClock) -> None:
    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None: ...

    first = await sync.aenqueue("anna")
    clock.advance(365 * 24 * 3600)
    assert (await sync.aenqueue("anna")).id == first.id


@pytest.mark.accepts("F11")
async def test_a_hundred_triggers_in_a_busy_period_leave_one(app: App, gate: Gate) -> None:
    runs: list[str] = []

    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None:
        runs.append(subject)
        await gate.pass_through()

    await sync.aenqueue("anna")
    async with gate.held(app):
        receipts = await asyncio.gather(*(sync.aenqueue("anna") for _ in range(100)))
        assert len({receipt.id for receipt in receipts}) == 1
    assert runs == ["anna"]
    assert (await app.acounts())["default"] == {State.COMPLETED: 1}


@pytest.mark.accepts("F12")
@pytest.mark.parametrize(
    "policy", [Unique.in_flight(by="subject"), Unique.latest(by="subject"), Unique.restart(by="subject")]
)
async def test_two_never_run_at_once(app: App, policy: Unique) -> None:
    inside, most, runs = 0, 0, 0

    @app.task(unique=policy)
    async def sync(subject: str, number: int) -> None:
        nonlocal inside, most, runs
        inside, runs = inside + 1, runs + 1
        most = max(most, inside)
        for _ in range(5):
            await asyncio.sleep(0)
        if number % 3 == 0:
            await sync.aenqueue(subject, number + 1)
        inside -= 1

    async with app.worker(concurrency=10):
        for number in itertools.count():
            if number >= 60 and runs > 1:
                break
            await sync.aenqueue("anna", number)
            if number % 4 == 0:
                await asyncio.sleep(0.002)
        last = await sync.aenqueue("anna", 100)
        for _ in range(2_000):
            counts = (await app.acounts())["default"]
            if set(counts) <= {State.COMPLETED, State.REVOKED}:
                break
            await asyncio.sleep(0.005)
    assert last.id
    assert most == 1


@pytest.mark.accepts("F14")
async def test_a_stale_queued_job_does_not_swallow_a_fresh_request(app: App) -> None:
    seen: list[int] = []

    @app.task(unique=Unique.latest(by="subject"))
    async def sync(subject: str, version: int) -> None:
        seen.append(version)

    await sync.aenqueue("anna", 1)
    await sync.aenqueue("anna", 2)
    await adrain(app)
    assert seen == [2]


@pytest.mark.accepts("F14")
async def test_a_request_during_a_run_is_seen_by_a_run_that_starts_afterwards(app: App, gate: Gate) -> None:
    seen: list[int] = []

    @app.task(unique=Unique.latest(by="subject"))
    async def sync(subject: str, version: int) -> None:
        seen.append(version)
        if version == 1:
            await gate.pass_through()

    await sync.aenqueue("anna", 1)
    async with gate.held(app):
        follower = await sync.aenqueue("anna", 2)
        assert (await sync.aenqueue("anna", 3)).id == follower.id
        assert seen == [1]
    assert seen == [1, 3]


@pytest.mark.accepts("F14")
async def test_an_expired_job_does_not_swallow_a_fresh_request(app: App, clock: FakeClock) -> None:
    seen: list[int] = []

    @app.task(unique=Unique.in_flight(by="subject"), expires=60)
    async def sync(subject: str, version: int) -> None:
        seen.append(version)

    await sync.aenqueue("anna", 1)
    clock.advance(60)
    assert (await sync.aenqueue("anna", 2)).outcome is Outcome.CREATED
    await adrain(app)
    assert seen == [2]


@pytest.mark.accepts("F15")
async def test_every_way_of_enqueueing_is_the_same_path(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None: ...

    first = await sync.aenqueue("anna")
    ids = [
        (await sync.using(priority=3).aenqueue("anna")).id,
        (await asyncio.to_thread(sync.enqueue, "anna")).id,
        *(receipt.id for receipt in await app.aenqueue_many([sync.job("anna"), sync.job(subject="anna")])),
        *(receipt.id for receipt in await asyncio.to_thread(app.enqueue_many, [sync.job("anna")])),
    ]
    assert set(ids) == {first.id}


@pytest.mark.accepts("F15")
@pytest.mark.usefixtures("database_url")
async def test_in_a_transaction_it_is_the_same_path(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None: ...

    first = await sync.aenqueue("anna")
    async with app.transaction():
        assert (await sync.aenqueue("anna")).id == first.id
        second = await sync.aenqueue("bert")
        assert (await sync.aenqueue("bert")).id == second.id


@pytest.mark.accepts("F15")
async def test_a_call_from_inside_the_running_job_follows_it(app: App) -> None:
    runs: list[str] = []

    @app.task(unique=Unique.in_flight(by="subject"))
    async def sync(subject: str) -> None:
        runs.append(onejob.current_job().id)
        if len(runs) < 3:
            receipt = await sync.aenqueue(subject)
            assert receipt.outcome is Outcome.CREATED

    await sync.aenqueue("anna")
    await adrain(app)
    assert len(set(runs)) == 3


@pytest.mark.accepts("F16")
async def test_force_runs_in_any_case_and_takes_the_key(app: App) -> None:
    @app.task(unique=Unique.once(by="subject"))
    async def sync(subject: str) -> None: ...

    first = await sync.aenqueue("anna")
    forced = await sync.using(force=True).aenqueue("anna")
    assert (forced.outcome, forced.holder) == (Outcome.CREATED, first.id)
    assert (await sync.aenqueue("anna")).id == forced.id
    assert len(await adrain(app)) == 2
