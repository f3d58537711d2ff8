"""Rates of lanes and queues: exact over any window, counted per start, and opened by time alone."""

from __future__ import annotations

import pytest

from onejob.core.job import WorkerId
from onejob.core.lane import LanePlan, QueueChange, Rate
from onejob.core.lifecycle import SETTLING, Move
from onejob.store import Ask, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    AT_ONCE,
    beat,
    finish,
    job,
    put,
    run,
    start,
    start_one,
    started_ids,
)

RATE = Rate(2, per=10)
LANE = LanePlan("x", concurrency=100, rate=RATE)
OVER = ["lane", "queue"]
"""What a rate may stand over."""


async def set_up(store: JobStore, over: str, jobs: int) -> None:
    """Jobs that start two at a time in ten seconds, by their lane's rate or their queue's."""
    if over == "queue":
        await store.set_queue("q", QueueChange(rate=RATE))
    await store.enqueue([job(lane=LANE if over == "lane" else None) for _ in range(jobs)])


async def next_due(store: JobStore) -> int | None:
    """What a claim that brings nothing says of when to come again."""
    claims = await store.claim(Ask(WorkerId("w"), ("q",), 10))
    assert claims.jobs == []
    return claims.next_due


@pytest.mark.parametrize("over", OVER)
class TestRates:
    async def test_no_more_start_than_the_rate_allows(self, store: JobStore, over: str) -> None:
        await set_up(store, over, 5)
        assert len(await start(store)) == 2
        assert await started_ids(store, worker="other") == []

    async def test_a_start_counts_for_the_whole_window_and_not_longer(
        self, store: JobStore, clock: FakeClock, over: str
    ) -> None:
        await set_up(store, over, 5)
        await start(store)
        clock.tick(9_999)
        assert await started_ids(store) == []
        clock.tick(1)
        assert len(await started_ids(store)) == 2

    async def test_two_bursts_never_meet_at_the_edge_of_a_window(
        self, store: JobStore, clock: FakeClock, over: str
    ) -> None:
        await set_up(store, over, 6)
        begun = clock.now
        starts: list[int] = []
        for _ in range(300):
            starts += [clock.now - begun for _ in await start(store, limit=1)]
            clock.tick(100 if len(starts) % 2 == 0 else 4_900)
            await beat(store)
        assert len(starts) == 6
        assert all(later - earlier >= 10_000 for earlier, later in zip(starts, starts[2:], strict=False))

    @pytest.mark.parametrize("move", sorted(SETTLING))
    async def test_every_start_counts_whatever_became_of_it(
        self, store: JobStore, clock: FakeClock, over: str, move: Move
    ) -> None:
        await set_up(store, over, 3)
        for claimed in await start(store, lease=1):
            clock.tick(1 if move in (Move.LOSE, Move.PERISH) else 0)
            await finish(store, claimed, move)
        assert await started_ids(store) == []

    async def test_a_job_that_is_deleted_has_still_started(
        self, store: JobStore, clock: FakeClock, over: str
    ) -> None:
        await set_up(store, over, 4)
        for _ in range(2):
            await run(store)
        await store.prune(AT_ONCE, 100)
        assert await started_ids(store) == []
        clock.tick(10_000)
        assert len(await started_ids(store)) == 2

    async def test_a_claim_says_when_the_window_opens(
        self, store: JobStore, clock: FakeClock, over: str
    ) -> None:
        await set_up(store, over, 3)
        await start_one(store)
        clock.tick(3_000)
        await start_one(store)
        clock.tick(1_000)
        due = await next_due(store)
        assert due is not None
        assert 0 < due <= 6_000
        clock.tick(6_000)
        assert len(await started_ids(store)) == 1

    async def test_a_clock_that_is_set_back_closes_nothing_for_longer_than_a_window(
        self, store: JobStore, clock: FakeClock, over: str
    ) -> None:
        await set_up(store, over, 3)
        await start(store)
        clock.advance(-3_600)
        assert await started_ids(store) == []
        clock.tick(10_000)
        assert len(await started_ids(store)) == 1

    async def test_a_job_that_is_handed_back_and_starts_again_in_the_same_instant_has_started_twice(
        self, store: JobStore, over: str
    ) -> None:
        await set_up(store, over, 1)
        for _ in range(2):
            await finish(store, await start_one(store), Move.HAND_BACK)
        assert await started_ids(store) == []

    async def test_a_clock_that_is_set_back_counts_each_start_of_a_job_that_was_handed_back(
        self, store: JobStore, clock: FakeClock, over: str
    ) -> None:
        await set_up(store, over, 1)
        for _ in range(2):
            await finish(store, await start_one(store), Move.HAND_BACK)
            clock.tick()
        clock.advance(-3_600)
        assert await started_ids(store) == []
        clock.tick(10_000)
        assert len(await started_ids(store)) == 1


class TestGates:
    async def test_slots_and_rate_of_a_lane_both_apply(self, store: JobStore, clock: FakeClock) -> None:
        lane = LanePlan("x", 1, Rate(2, per=10))
        await store.enqueue([job(lane=lane) for _ in range(4)])
        first = await start_one(store)
        assert await started_ids(store) == [], "the slot is taken"
        await finish(store, first)
        await run(store)
        assert await started_ids(store) == [], "the rate is used up"
        clock.tick(10_000)
        assert len(await started_ids(store)) == 1

    async def test_the_rates_of_lane_and_queue_both_apply(self, store: JobStore, clock: FakeClock) -> None:
        await store.set_queue("q", QueueChange(rate=Rate(3, per=10)))
        lane = LanePlan("x", 100, Rate(2, per=60))
        made = [job(lane=lane), job(lane=lane), job(lane=lane), job(), job()]
        await store.enqueue(made)
        assert await started_ids(store) == [made[0].id, made[1].id, made[3].id]
        clock.tick(10_000)
        assert await started_ids(store) == [made[4].id]

    async def test_limits_that_change_during_a_pause_keep_no_lane_closed(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made = [job(lane=LanePlan("x", 2, Rate(1, per=10))) for _ in range(2)]
        await store.enqueue(made)
        assert await started_ids(store) == [made[0].id]
        await store.set_queue("q", QueueChange(paused=True))
        await put(store, job(lane=LanePlan("x", 3, Rate(1, per=10))))
        assert await started_ids(store) == []
        await store.set_queue("q", QueueChange(paused=False))
        clock.tick(10_000)
        assert await started_ids(store) == [made[1].id]

    async def test_a_job_held_up_by_its_lanes_rate_holds_up_nobody_else(self, store: JobStore) -> None:
        lane = LanePlan("x", 100, Rate(1, per=10))
        made = [job(lane=lane, priority=9), job(lane=lane, priority=9), job(), job(lane=LanePlan("y"))]
        await store.enqueue(made)
        assert await started_ids(store) == [made[0].id, made[2].id, made[3].id]

    async def test_who_kept_a_slot_needs_the_rates_leave_and_goes_first(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        lane = LanePlan("x", 2, Rate(1, per=10), hold=True)
        first = await put(store, job(lane=lane))
        await finish(store, await start_one(store), Move.RETRY)
        await put(store, job(lane=lane, priority=9))
        assert await started_ids(store) == []
        clock.tick(10_000)
        assert await started_ids(store) == [first.id]

    async def test_of_several_who_kept_a_slot_the_order_of_the_lane_decides(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        lane = LanePlan("x", 2, hold=True)
        plain, urgent = job(lane=lane), job(lane=lane, priority=9)
        await store.enqueue([plain, urgent])
        for claimed in await start(store):
            await finish(store, claimed, Move.RETRY, delay=1_000)
        await put(store, job(lane=LanePlan("x", 2, Rate(1, per=10), hold=True)))
        clock.tick(1_000)
        assert await started_ids(store) == [urgent.id]

    async def test_a_rate_counts_the_starts_since_there_is_one(self, store: JobStore) -> None:
        await store.enqueue([job() for _ in range(6)])
        await start(store, limit=3)
        await store.set_queue("q", QueueChange(rate=Rate(2, per=10)))
        assert len(await start(store)) == 2
        await store.set_queue("q", QueueChange(rate=Rate(3, per=10)))
        assert len(await start(store)) == 1
