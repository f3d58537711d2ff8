"""The published test kit: the clock, `drain`, the assertions and the plugin's fixtures."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from onejob import App, Every, InvalidOption, Queue, Retry, Snooze, State, Unique, WrongCall
from onejob.core.lifecycle import Move
from onejob.testing import (
    FakeClock,
    aassert_absorbed,
    aassert_enqueued,
    aassert_not_enqueued,
    adrain,
    assert_absorbed,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    tick,
)
from onejob.testing.plugin import MakeApp


@pytest.fixture
def app(onejob_app: MakeApp) -> App:
    return onejob_app()


def test_a_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(1_000)
    assert [clock(), clock()] == [1_000, 1_000]
    assert clock.advance(2.5) == 3_500
    assert clock.advance(timedelta(minutes=1)) == 63_500
    assert clock.tick() == 63_501
    assert clock.advance(-1) == 62_501


async def test_drain_runs_what_is_due_in_the_order_of_a_worker(app: App) -> None:
    seen: list[int] = []

    @app.task
    async def note(number: int) -> None:
        seen.append(number)

    await note.aenqueue(1)
    await note.using(priority=5).aenqueue(2)
    await note.using(queue="other").aenqueue(3)
    await note.using(delay=60).aenqueue(4)
    ran = await adrain(app)
    assert seen == [2, 1, 3]
    assert [one.move for one in ran] == [Move.COMPLETE] * 3


def test_drain_in_sync_code_runs_functions_and_what_they_enqueue(app: App) -> None:
    seen: list[int] = []

    @app.task
    def count(number: int) -> None:
        seen.append(number)
        if number:
            count.enqueue(number - 1)

    count.enqueue(3)
    drain(app)
    assert seen == [3, 2, 1, 0]


async def test_drain_with_a_clock_goes_through_delays_backoffs_and_snoozes(
    app: App, onejob_clock: FakeClock
) -> None:
    begun, seen = onejob_clock.now, list[tuple[str, int]]()

    @app.task(retry=Retry(attempts=3, backoff=10))
    async def flaky(name: str) -> None:
        seen.append((name, (onejob_clock.now - begun) // 1000))
        if len(seen) == 1:
            raise Snooze(5)
        if len(seen) == 2:
            raise ConnectionError

    await flaky.using(delay=100).aenqueue("a")
    ran = await adrain(app, clock=onejob_clock)
    assert seen == [("a", 100), ("a", 105), ("a", 115)]
    assert [one.move for one in ran] == [Move.SNOOZE, Move.RETRY, Move.COMPLETE]
    assert "ConnectionError" in (ran[1].error or "")


async def test_drain_stops_a_job_that_enqueues_itself_for_ever(app: App) -> None:
    @app.task
    async def again() -> None:
        await again.aenqueue()

    await again.aenqueue()
    with pytest.raises(AssertionError, match=r"drain has run 20 attempts .* enqueue itself"):
        await adrain(app, limit=20)


async def test_drain_leaves_no_worker_behind(app: App) -> None:
    await adrain(app)
    assert await app.store.workers() == []


def test_an_enqueued_call_is_found_by_some_of_its_arguments(app: App) -> None:
    @app.task
    def charge(order: int, currency: str = "EUR") -> None: ...

    receipt = charge.enqueue(7)
    assert assert_enqueued(app, charge, order=7).id == receipt.id
    assert assert_enqueued(app, charge, currency="EUR").state is State.WAITING
    assert_not_enqueued(app, charge, order=8)
    with pytest.raises(
        AssertionError, match=r"No job of task .*charge.* has order=8. There are:\n.*order=7, currency='EUR'"
    ):
        assert_enqueued(app, charge, order=8)
    with pytest.raises(AssertionError, match=r"was enqueued with order=7: job "):
        assert_not_enqueued(app, charge, order=7)


async def test_collected_items_are_seen_together(app: App) -> None:
    @app.task(unique=Unique.collect(into="items", by=()))
    async def index(items: list[int]) -> None: ...

    await index.aenqueue([1])
    await index.aenqueue([2, 3])
    await aassert_enqueued(app, index, items=[1, 2, 3])
    await aassert_not_enqueued(app, index, items=[1])


def test_absorbed_duplicates_are_counted(app: App) -> None:
    @app.task(unique=Unique.once(by="order"))
    def charge(order: int, note: str = "") -> None: ...

    @app.task
    def plain() -> None: ...

    with pytest.raises(AssertionError, match="is not on record"):
        assert_absorbed(app, charge.job(1))
    charge.enqueue(1)
    with pytest.raises(AssertionError, match="was to absorb at least one duplicate, but absorbed 0"):
        assert_absorbed(app, charge.job(1))
    charge.enqueue(1)
    charge.enqueue(1, note="other")
    assert_absorbed(app, charge.job(1), times=2, differing=1)
    with pytest.raises(
        AssertionError, match="was to absorb 3 duplicates, but absorbed 2, 1 with other arguments"
    ):
        assert_absorbed(app, charge.job(1), times=3)
    with pytest.raises(AssertionError, match="can absorb nothing: the task has no unique"):
        assert_absorbed(app, plain.job())


async def test_sync_helpers_name_their_async_twins_inside_a_loop(app: App) -> None:
    @app.task(unique=Unique.once())
    async def charge() -> None: ...

    await charge.aenqueue()
    await charge.aenqueue()
    await aassert_absorbed(app, charge.job(), times=1)
    for misplaced, twin in [
        (lambda: drain(app), "await adrain"),
        (lambda: assert_enqueued(app, charge), "await aassert_enqueued"),
        (lambda: assert_absorbed(app, charge.job()), "await aassert_absorbed"),
    ]:
        with pytest.raises(WrongCall, match=twin):
            misplaced()


def test_every_name_of_the_kit_is_there_whatever_was_imported_first() -> None:
    code = (
        "import onejob.testing.draining, onejob.testing as kit\n"
        "assert all(callable(getattr(kit, name)) for name in kit.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_plugin_imports_neither_worker_nor_store_by_itself() -> None:
    code = (
        "import sys, onejob\n"
        "known = set(sys.modules)\n"
        "import onejob.testing.plugin\n"
        "new = {name for name in set(sys.modules) - known if name.startswith('onejob')}\n"
        "assert new == {'onejob.testing', 'onejob.testing.plugin'}, new\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_fake_clock_starts_at_and_is_set_to_any_moment() -> None:
    start = datetime(2027, 1, 15, 9, tzinfo=timezone(timedelta(hours=1)))
    clock = FakeClock(start)
    assert clock() == 1_800_000_000_000
    assert clock.set(start + timedelta(minutes=1)) == clock() == 1_800_000_060_000
    assert clock.set(5) == 5


@pytest.mark.parametrize("moment", [datetime(2027, 1, 15), 1.5, "2027-01-15", None, True])  # noqa: DTZ001 - refused
def test_a_fake_clock_takes_no_moment_without_a_zone(moment: Any) -> None:
    with pytest.raises(InvalidOption, match="a datetime with a time zone"):
        FakeClock(moment)
    with pytest.raises(InvalidOption, match="a datetime with a time zone"):
        FakeClock().set(moment)


def test_drain_serves_a_queue_of_dead_letters_that_a_schedule_names(
    onejob_app: MakeApp, onejob_clock: FakeClock
) -> None:
    app = onejob_app(queues={"default": Queue(dead_letter="graves")})

    @app.task(retry=1)
    def fail() -> None:
        raise ConnectionError

    @app.task
    def bury() -> None: ...

    fail.enqueue()
    assert len(drain(app)) == 1
    app.schedule("burial", Every(60), bury.using(queue="graves").job())
    tick(app)
    onejob_clock.advance(60)
    tick(app)
    assert bury.name in [ran.task for ran in drain(app)]
