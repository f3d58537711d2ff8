"""`expired`: who was left behind by a worker that stopped beating; reading it changes nothing."""

from __future__ import annotations

from onejob.core.job import State
from onejob.core.lifecycle import Lost, Move, after_attempt
from onejob.store import JobStore, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import LEASE, beat, finish, job, look, put, start, start_one, state_of


class TestExpired:
    async def test_a_lease_ends_when_its_time_is_up_and_not_before(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        clock.tick(LEASE - 1)
        assert await store.expired(10) == []
        clock.tick(1)
        [found] = await store.expired(10)
        assert (found.job.lease, found.worker) == (claimed.lease, "w")
        assert (found.job.payload, found.job.attempt) == (claimed.payload, 1)

    async def test_reading_claims_nothing(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job())
        claimed = await start_one(store)
        clock.tick(LEASE)
        assert await store.expired(10) == await store.expired(10)
        assert await state_of(store, claimed.id) is State.RUNNING
        assert await finish(store, claimed) is Settled.DONE, "nobody was faster"

    async def test_the_limit_holds(self, store: JobStore, clock: FakeClock) -> None:
        await store.enqueue([job() for _ in range(5)])
        await start(store)
        clock.tick(LEASE)
        assert len(await store.expired(3)) == 3

    async def test_workers_that_beat_are_left_alone(self, store: JobStore, clock: FakeClock) -> None:
        await store.enqueue([job(), job()])
        dead = await start_one(store, worker="dead")
        await start_one(store, worker="living")
        clock.tick(LEASE)
        await beat(store, "living")
        assert [found.job.id for found in await store.expired(10)] == [dead.id]

    async def test_a_lost_job_runs_again_and_charges_the_crash_budget_only(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job(max_crashes=1))
        await start_one(store, worker="first")
        clock.tick(LEASE)
        await self.rescue(store)
        again = await start_one(store, worker="second")
        assert (again.attempt, again.failures, again.crashes) == (2, 0, 1)
        clock.tick(LEASE)
        await self.rescue(store)
        seen = await look(store, again.id)
        assert (seen.state, seen.crashes, seen.failures) == (State.FAILED, 2, 0)

    async def test_a_scan_applied_too_late_changes_nothing(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job())
        claimed = await start_one(store)
        clock.tick(LEASE)
        [found] = await store.expired(10)
        await finish(store, claimed)
        assert await finish(store, found.job, Move.LOSE) is Settled.LOST
        assert await state_of(store, claimed.id) is State.COMPLETED

    async def rescue(self, store: JobStore) -> None:
        lost = await store.expired(10)
        done = [after_attempt(found.job, Lost(found.worker)) for found in lost]
        reply = await store.settle(done)
        assert reply.settled == [Settled.DONE] * len(lost)
        assert lost
