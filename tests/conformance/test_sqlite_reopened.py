"""What lanes, limits and revocations stand on is in the file: it survives the end of every process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onejob.core.job import State
from onejob.core.lane import LanePlan, QueueChange, QueueLimits, Rate
from onejob.core.lifecycle import Move
from onejob.store import Amendment, JobStore, Settled
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import clock  # noqa: F401 - a fixture
from onejob.testing.conformance.steps import beat, finish, job, put, start_one, started_ids, state_of

Open = Callable[[], JobStore]


@pytest.fixture
def opened(tmp_path: Path, clock: FakeClock) -> Open:  # noqa: F811
    return lambda: open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock)


async def test_a_slot_is_still_taken_and_still_freed(opened: Open) -> None:
    store = opened()
    made = [job(lane=LanePlan("x")) for _ in range(2)]
    await store.enqueue(made)
    claimed = await start_one(store)
    await store.close()
    store = opened()
    assert await started_ids(store) == []
    assert await finish(store, claimed) is Settled.DONE
    assert await started_ids(store) == [made[1].id]
    await store.close()


async def test_a_slot_that_was_kept_over_a_retry_is_still_kept(opened: Open, clock: FakeClock) -> None:  # noqa: F811
    store = opened()
    made = [job(lane=LanePlan("x", hold=True)) for _ in range(2)]
    await store.enqueue(made)
    await finish(store, await start_one(store), Move.RETRY, delay=1_000)
    await store.close()
    store = opened()
    assert await started_ids(store) == []
    clock.tick(1_000)
    assert await started_ids(store) == [made[0].id]
    await store.close()


async def test_starts_still_count_and_no_longer_than_before(opened: Open, clock: FakeClock) -> None:  # noqa: F811
    store = opened()
    await store.set_queue("r", QueueChange(rate=Rate(1, per=10)))
    lane = LanePlan("x", 5, Rate(1, per=10))
    made = [job(lane=lane), job(lane=lane), job(queue="r"), job(queue="r")]
    await store.enqueue(made)
    assert await started_ids(store, queues=("q", "r")) == [made[0].id, made[2].id]
    await store.close()
    store = opened()
    clock.tick(9_999)
    assert await started_ids(store, queues=("q", "r")) == []
    clock.tick(1)
    assert await started_ids(store, queues=("q", "r")) == [made[1].id, made[3].id]
    await store.close()


async def test_limits_and_a_pause_still_stand(opened: Open) -> None:
    store = opened()
    await store.set_queue("q", QueueChange(concurrency=2, rate=Rate(5, per=60), paused=True))
    await store.close()
    store = opened()
    assert await store.limits() == {"q": QueueLimits(2, Rate(5, per=60), paused=True)}
    await put(store, job())
    assert await started_ids(store) == []
    await store.close()


async def test_a_flagged_job_is_still_asked_to_stop_and_ends_revoked(opened: Open) -> None:
    store = opened()
    await put(store, job())
    claimed = await start_one(store)
    await store.amend([claimed.id], Amendment.REVOKE)
    await store.close()
    store = opened()
    assert (await beat(store)).aborting == {claimed.id}
    assert await finish(store, claimed, Move.RETRY) is Settled.REVOKED
    assert await state_of(store, claimed.id) is State.REVOKED
    await store.close()
