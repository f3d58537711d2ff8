"""`claim`: a start for a worker, by queue, priority and due time, never twice and never too late."""

from __future__ import annotations

import asyncio
from collections import Counter

from onejob.core.dedup import Unique
from onejob.core.job import JobId, State, WorkerId
from onejob.core.judge import Outcome
from onejob.core.lane import LanePlan, Rate
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask, JobStore, QueueChange, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    LEASE,
    finish,
    job,
    look,
    put,
    start,
    start_one,
    started_ids,
    state_of,
)


class TestClaim:
    async def test_nothing_due_brings_nothing(self, store: JobStore) -> None:
        claims = await store.claim(Ask(WorkerId("w"), ("q",), 5))
        assert (claims.jobs, claims.next_due) == ([], None)

    async def test_a_claim_is_a_start(self, store: JobStore, clock: FakeClock) -> None:
        made = job(unique=Unique.once(), options=b'{"attempts":2}', max_crashes=7)
        await put(store, made)
        claimed = await start_one(store, worker="anna")
        assert (claimed.id, claimed.queue, claimed.task, claimed.payload) == (made.id, "q", "t", made.payload)
        assert (claimed.options, claimed.max_crashes, claimed.key) == (made.options, 7, "k")
        assert (claimed.attempt, claimed.failures, claimed.crashes, claimed.misses) == (1, 0, 0, 0)
        assert (claimed.chain, claimed.chain_index, claimed.accepted) == (made.id, 0, clock.now)
        seen = await look(store, made.id)
        assert (seen.state, seen.worker, seen.started, seen.attempt) == (State.RUNNING, "anna", clock.now, 1)

    async def test_a_running_job_is_not_claimed_again(self, store: JobStore) -> None:
        await put(store, job())
        await start_one(store)
        assert await started_ids(store, worker="other") == []

    async def test_every_start_has_a_lease_of_its_own(self, store: JobStore) -> None:
        await store.enqueue([job(), job()])
        first, second = await start(store)
        assert first.lease.token != second.lease.token or first.lease.id != second.lease.id
        await finish(store, first, Move.RETRY)
        again = await start_one(store)
        assert again.id == first.id
        assert again.lease != first.lease

    async def test_priority_then_due_time_then_acceptance(self, store: JobStore, clock: FakeClock) -> None:
        late, early, urgent, first, second = (
            job(delay=2_000),
            job(delay=1_000),
            job(delay=2_000, priority=5),
            job(delay=1_500),
            job(delay=1_500),
        )
        await store.enqueue([late, early, urgent, first, second])
        clock.advance(3)
        assert await started_ids(store) == [urgent.id, early.id, first.id, second.id, late.id]

    async def test_claims_of_few_take_the_first_of_all(self, store: JobStore, clock: FakeClock) -> None:
        late, early, urgent, most_urgent = (
            job(delay=2_000),
            job(delay=1_000),
            job(delay=2_000, priority=5),
            job(delay=2_000, priority=6),
        )
        await store.enqueue([late, early, urgent, most_urgent])
        clock.advance(3)
        started = [(await start(store, limit=1))[0].id for _ in range(4)]
        assert started == [most_urgent.id, urgent.id, early.id, late.id]

    async def test_queues_are_visited_in_the_order_given(self, store: JobStore) -> None:
        slow, fast = job(queue="slow", priority=100), job(queue="fast")
        await store.enqueue([slow, fast])
        assert await started_ids(store, queues=("fast", "slow")) == [fast.id, slow.id]

    async def test_other_queues_are_left_alone(self, store: JobStore) -> None:
        made = job(queue="other")
        await put(store, made)
        assert await started_ids(store) == []
        assert await state_of(store, made.id) is State.WAITING

    async def test_the_limit_holds_over_all_queues(self, store: JobStore) -> None:
        await store.enqueue([job(queue=queue) for queue in ("q", "r", "q", "r")])
        assert len(await start(store, limit=3, queues=("q", "r"))) == 3

    async def test_a_delayed_job_starts_when_its_time_has_come(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made = job(delay=1_000)
        await put(store, made)
        clock.tick(999)
        claims = await store.claim(Ask(WorkerId("w"), ("q",), 5))
        assert (claims.jobs, claims.next_due) == ([], 1)
        clock.tick(1)
        assert await started_ids(store) == [made.id]

    async def test_a_follower_does_not_start_before_its_time(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.coalesce()))
        await start_one(store)
        await put(store, job(unique=Unique.coalesce()))
        assert await started_ids(store) == []

    async def test_a_job_past_its_expiry_ends_revoked_instead_of_starting(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made = job(expires=1_000)
        await put(store, made)
        clock.tick(1_000)
        assert await started_ids(store) == []
        assert await state_of(store, made.id) is State.REVOKED

    async def test_a_job_starts_until_just_before_its_expiry(self, store: JobStore, clock: FakeClock) -> None:
        made = job(expires=1_000)
        await put(store, made)
        clock.tick(999)
        assert await started_ids(store) == [made.id]

    async def test_a_started_job_does_not_expire(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job(expires=1_000))
        claimed = await start_one(store)
        clock.advance(5)
        await started_ids(store)
        assert await state_of(store, claimed.id) is State.RUNNING

    async def test_an_expired_job_frees_its_followers(self, store: JobStore, clock: FakeClock) -> None:
        first = job(unique=Unique.coalesce(), expires=1_000)
        await put(store, first)
        await finish(store, await start_one(store), Move.RETRY, delay=500)
        await put(store, job(unique=Unique.coalesce(queued="follow")))
        clock.advance(2)
        await started_ids(store)
        assert await state_of(store, first.id) is State.REVOKED
        assert (await store.counts())["q"].get(State.BLOCKED, 0) == 0

    async def test_concurrent_claims_never_share_a_job(self, store: JobStore) -> None:
        await store.enqueue([job() for _ in range(60)])
        rounds = await asyncio.gather(*(start(store, limit=7, worker=f"w{n}") for n in range(12)))
        times = Counter(claimed.id for claimed_by_one in rounds for claimed in claimed_by_one)
        assert len(times) == 60
        assert set(times.values()) == {1}

    async def test_a_claim_never_looks_at_keys(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.once()))
        second = await put(store, job(unique=Unique.once(), force=True))
        assert second.outcome is Outcome.CREATED
        assert await started_ids(store) == [first.id, second.id]

    async def test_a_worker_is_registered_by_its_claim(self, store: JobStore) -> None:
        await put(store, job())
        await store.claim(Ask(WorkerId("quiet"), ("q",), 1))
        assert await store.expired(10) == []
        assert [(worker.id, worker.running) for worker in await store.workers()] == [("quiet", 1)]


class TestStock:
    """What a claim starts beyond its limit."""

    async def test_plain_jobs_start_for_the_stock_in_order(self, store: JobStore) -> None:
        made = [job(priority=number % 2) for number in range(6)]
        await store.enqueue(made)
        claims = await store.claim(Ask(WorkerId("w"), ("q",), 2, stock=3))
        assert [one.id for one in claims.jobs] == [made[n].id for n in (1, 3, 5, 0, 2)]
        assert {one.attempt for one in claims.jobs} == {1}

    async def test_without_a_free_slot_they_start_all_the_same(self, store: JobStore) -> None:
        made = [job() for _ in range(4)]
        await store.enqueue(made)
        first = await store.claim(Ask(WorkerId("w"), ("q",), 1))
        reply = await store.settle(
            [Settlement(first.jobs[0].lease, Move.COMPLETE)], Ask(WorkerId("w"), ("q",), 0, stock=2)
        )
        assert [one.id for one in reply.claims.jobs] == [made[1].id, made[2].id]

    async def test_a_job_of_a_lane_and_what_is_behind_it_do_not(self, store: JobStore) -> None:
        lane = LanePlan("lane", concurrency=9)
        made = [job(), job(), job(), job(lane=lane), job()]
        await store.enqueue(made)
        assert await _stocked(store, 1, 0) == [made[0].id]
        assert await _stocked(store, 1, 9) == [made[1].id, made[2].id]
        assert await _stocked(store, 0, 9) == []
        assert await _stocked(store, 1, 9) == [made[3].id]
        assert await _stocked(store, 0, 9) == [made[4].id]

    async def test_a_job_that_was_lost_with_its_worker_and_what_is_behind_it_do_not(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        lost, made = job(), [job(), job()]
        await put(store, lost)
        claimed = await start_one(store, worker="dead")
        clock.tick(LEASE + 1)
        assert await finish(store, claimed, Move.LOSE) is Settled.DONE
        await store.enqueue(made)
        assert await _stocked(store, 0, 9) == []
        assert await _stocked(store, 1, 9) == [lost.id]
        assert await _stocked(store, 0, 9) == [one.id for one in made]

    async def test_a_job_that_must_not_be_lost_and_what_is_behind_it_do_not(self, store: JobStore) -> None:
        made = [job(), job(max_crashes=0), job()]
        await store.enqueue(made)
        assert await _stocked(store, 0, 9) == [made[0].id]
        assert await _stocked(store, 1, 0) == [made[1].id]

    async def test_nothing_of_a_queue_with_limits_does(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=3))
        await store.set_queue("r", QueueChange(rate=Rate(3, 60)))
        made = [job(), job(queue="r"), job(), job(queue="r")]
        await store.enqueue(made)
        assert await _stocked(store, 1, 9, "q", "r") == [made[0].id]
        assert await _stocked(store, 0, 9, "q", "r") == []
        assert await _stocked(store, 3, 0, "q", "r") == [made[2].id, made[1].id, made[3].id]

    async def test_queues_are_visited_in_order(self, store: JobStore) -> None:
        made = [job(queue="r"), job(), job(queue="r"), job()]
        await store.enqueue(made)
        assert await _stocked(store, 1, 2, "q", "r") == [made[1].id, made[3].id, made[0].id]


async def _stocked(store: JobStore, limit: int, stock: int, *queues: str) -> list[JobId]:
    claims = await store.claim(Ask(WorkerId("w"), queues or ("q",), limit, stock))
    return [one.id for one in claims.jobs]
