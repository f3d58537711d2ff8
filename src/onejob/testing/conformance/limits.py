"""`set_queue` and `limits`: what holds for a whole queue, over all workers, from the very next claim on."""

from __future__ import annotations

import asyncio

import pytest

from onejob.core.job import State, WorkerId
from onejob.core.lane import LanePlan, QueueChange, QueueLimits, Rate
from onejob.core.lifecycle import SETTLING, Move, Settlement
from onejob.store import Amendment, Ask, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    LEASE,
    finish,
    job,
    put,
    start,
    start_one,
    started_ids,
    state_of,
)

RATE = Rate(5, per=60)


class TestQueueLimits:
    async def test_a_queue_has_no_limits_until_some_are_set(self, store: JobStore) -> None:
        await put(store, job())
        assert await store.limits() == {}

    async def test_each_setting_leaves_the_others_as_they_are(self, store: JobStore) -> None:
        assert await store.set_queue("q", QueueChange(concurrency=3)) == QueueLimits(3)
        assert await store.set_queue("q", QueueChange(rate=RATE)) == QueueLimits(3, RATE)
        assert await store.set_queue("q", QueueChange(paused=True)) == QueueLimits(3, RATE, paused=True)
        assert await store.set_queue("q", QueueChange()) == QueueLimits(3, RATE, paused=True)
        assert await store.limits() == {"q": QueueLimits(3, RATE, paused=True)}
        assert await store.set_queue("q", QueueChange(concurrency=0)) == QueueLimits(None, RATE, paused=True)
        assert await store.set_queue("q", QueueChange(remove_rate=True)) == QueueLimits(paused=True)
        assert await store.set_queue("q", QueueChange(paused=False)) == QueueLimits()
        assert await store.limits() == {}

    async def test_a_queue_without_jobs_may_have_limits(self, store: JobStore) -> None:
        await store.set_queue("yet-to-come", QueueChange(paused=True))
        assert await store.limits() == {"yet-to-come": QueueLimits(paused=True)}

    async def test_no_more_run_than_may_over_all_workers(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=3))
        await store.enqueue([job() for _ in range(5)])
        first = await start(store, limit=2)
        assert len(await start(store, worker="other")) == 1
        assert await started_ids(store, worker="third") == []
        await finish(store, first[0])
        assert len(await start(store, worker="third")) == 1

    async def test_claims_at_the_same_time_never_pass_the_limit_together(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=3))
        await store.enqueue([job() for _ in range(40)])
        rounds = await asyncio.gather(*(start(store, limit=2, worker=f"w{n}") for n in range(12)))
        assert sum(map(len, rounds)) == 3

    async def test_other_queues_are_not_limited(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=1))
        made = [job(), job(), job(queue="r"), job(queue="r")]
        await store.enqueue(made)
        assert await started_ids(store, queues=("q", "r")) == [made[0].id, made[2].id, made[3].id]

    @pytest.mark.parametrize("move", sorted(SETTLING))
    async def test_every_settlement_makes_room(self, store: JobStore, clock: FakeClock, move: Move) -> None:
        await store.set_queue("q", QueueChange(concurrency=1))
        await store.enqueue([job(), job()])
        claimed = await start_one(store)
        if move in (Move.LOSE, Move.PERISH):
            clock.tick(LEASE)
        await finish(store, claimed, move)
        assert len(await start(store)) == 1

    async def test_what_is_settled_makes_room_for_the_claim_in_the_same_commit(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=1))
        await store.enqueue([job(), job(), job()])
        claimed = await start_one(store)
        ask = Ask(WorkerId("w"), ("q",), 5)
        reply = await store.settle([Settlement(claimed.lease, Move.COMPLETE)], ask)
        assert len(reply.claims.jobs) == 1

    async def test_a_limit_that_is_lowered_stops_nobody_and_lets_nobody_in(self, store: JobStore) -> None:
        await store.enqueue([job() for _ in range(4)])
        running = await start(store, limit=3)
        await store.set_queue("q", QueueChange(concurrency=2))
        for claimed in running[:2]:
            assert await started_ids(store) == []
            await finish(store, claimed)
        assert len(await start(store)) == 1

    async def test_a_limit_that_is_removed_lets_everybody_in(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=1))
        await store.enqueue([job() for _ in range(4)])
        assert len(await start(store)) == 1
        await store.set_queue("q", QueueChange(concurrency=0))
        assert len(await start(store)) == 3

    async def test_the_limits_of_lane_and_queue_both_hold(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=2))
        lane = LanePlan("x")
        made = [job(lane=lane), job(lane=lane), job(), job()]
        await store.enqueue(made)
        assert await started_ids(store) == [made[0].id, made[2].id]

    async def test_a_slot_that_a_job_keeps_over_a_retry_is_none_of_the_queues(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=1))
        await put(store, job(lane=LanePlan("x", hold=True)))
        await finish(store, await start_one(store), Move.RETRY, delay=1_000)
        other = await put(store, job())
        assert await started_ids(store) == [other.id]


class TestPause:
    async def test_nothing_of_a_paused_queue_starts(self, store: JobStore, clock: FakeClock) -> None:
        made = [job(), job(lane=LanePlan("x")), job(delay=1_000), job(queue="r")]
        await store.enqueue(made)
        await store.set_queue("q", QueueChange(paused=True))
        clock.tick(1_000)
        assert await started_ids(store, queues=("q", "r")) == [made[3].id]
        await store.set_queue("q", QueueChange(paused=False))
        assert await started_ids(store, queues=("q", "r")) == [one.id for one in made[:3]]

    async def test_what_runs_goes_on_and_its_settlement_brings_nothing_new(self, store: JobStore) -> None:
        await store.enqueue([job(lane=LanePlan("x")), job(lane=LanePlan("x")), job()])
        claimed = await start_one(store)
        await store.set_queue("q", QueueChange(paused=True))
        ask = Ask(WorkerId("w"), ("q",), 5)
        reply = await store.settle([Settlement(claimed.lease, Move.COMPLETE)], ask)
        assert reply.claims.jobs == []
        assert await state_of(store, claimed.id) is State.COMPLETED

    async def test_a_paused_queue_still_takes_jobs(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(paused=True))
        made = await put(store, job())
        assert (await state_of(store, made.id)).queued

    async def test_an_operator_still_revokes_and_expired_jobs_still_end(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        revoked, expired = await put(store, job()), await put(store, job(expires=1_000))
        await store.set_queue("q", QueueChange(paused=True))
        await store.amend([revoked.id], Amendment.REVOKE)
        clock.tick(1_000)
        await started_ids(store)
        assert await state_of(store, revoked.id) is State.REVOKED
        assert await state_of(store, expired.id) is State.REVOKED
