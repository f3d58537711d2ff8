"""Schedules are in the file: their slots, what was spent of them and their pauses survive the end of every process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from onejob.core.schedule import firing, pause
from onejob.core.timing import Cron, Every
from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import clock  # noqa: F401 - a fixture
from onejob.testing.conformance.schedules import TEN, come_due, one, schedule
from onejob.testing.conformance.steps import total

Open = Callable[[], JobStore]


@pytest.fixture
def opened(tmp_path: Path, clock: FakeClock) -> Open:  # noqa: F811
    return lambda: open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)


@pytest.mark.accepts("G6")
async def test_the_next_slot_survives_a_restart(opened: Open, clock: FakeClock) -> None:  # noqa: F811
    store = opened()
    crons = schedule(clock, "cron", Cron("0 8 * * *", "Europe/Paris"))
    await store.put_schedules([schedule(clock), crons])
    await store.fire([await come_due(store, clock)])
    before = await store.schedules()
    await store.close()
    store = opened()
    assert await store.schedules() == before
    assert (await store.due(10)).next_at == (await one(store)).next
    await store.close()


async def test_an_interval_keeps_its_phase_over_a_long_silence(opened: Open, clock: FakeClock) -> None:  # noqa: F811
    store = opened()
    await store.put_schedules([schedule(clock)])
    begun = clock.now
    await store.close()
    clock.tick(12 * TEN + 3_456)
    store = opened()
    [found] = (await store.due(10)).schedules
    await store.fire([firing(found, clock.now)])
    after = await one(store)
    assert (after.last, after.next) == (begun + 12 * TEN, begun + 13 * TEN)
    assert await total(store) == 1
    await store.close()


async def test_a_firing_that_was_read_before_the_restart_is_refused_after_another(
    opened: Open,
    clock: FakeClock,  # noqa: F811
) -> None:
    store = opened()
    await store.put_schedules([schedule(clock)])
    due = await come_due(store, clock)
    await store.fire([due])
    await store.close()
    store = opened()
    assert not (await store.fire([due]))[0].won
    await store.close()


async def test_a_pause_survives_a_restart(opened: Open, clock: FakeClock) -> None:  # noqa: F811
    store = opened()
    record = schedule(clock)
    paused = pause(record, paused=True, now=clock.now)
    assert paused is not None
    await store.put_schedules([record])
    await store.put_schedules([paused])
    await store.close()
    store = opened()
    clock.tick(TEN)
    assert (await store.due(10)).schedules == []
    assert await store.schedules() == [paused]
    await store.close()


async def test_of_two_who_opened_the_file_one_wins_each_slot(opened: Open, clock: FakeClock) -> None:  # noqa: F811
    stores = [opened(), opened()]
    await stores[0].put_schedules([schedule(clock, f"s{number}", Every(number + 1)) for number in range(5)])
    for _ in range(20):
        clock.tick(1_000)
        due = [(await store.due(10)).schedules for store in stores]
        assert due[0] == due[1]
        firings = [firing(found, clock.now) for found in due[0]]
        won = await asyncio.gather(*(store.fire(firings) for store in stores))
        assert all(first.won != second.won for first, second in zip(*won, strict=True)), (
            "one of the two, and not both"
        )
    assert [found.fired for found in await stores[1].schedules()] == [20, 10, 6, 5, 4]
    assert await total(stores[1]) == 45
    for store in stores:
        await store.close()
