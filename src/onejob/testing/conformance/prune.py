"""`prune`: what has been kept long enough goes; what a key must remember stays in the key."""

from __future__ import annotations

from onejob.core.dedup import Unique
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import Move
from onejob.store import Amendment, JobStore, Retention
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    AT_ONCE,
    DAY,
    LEASE,
    digest_of,
    finish,
    job,
    put,
    run,
    start_one,
    started_ids,
    state_of,
    total,
)


class TestPrune:
    async def test_ended_jobs_go_when_their_retention_has_passed(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        for move in (Move.COMPLETE, Move.FAIL):
            await put(store, job())
            await run(store, move)
        revoked = await put(store, job())
        await store.amend([revoked.id], Amendment.REVOKE)
        keep = Retention(completed=1_000, failed=2_000, revoked=3_000)
        for left in (2, 1, 0):
            clock.tick(999)
            assert (await store.prune(keep, 100)).jobs == 0
            clock.tick(1)
            assert (await store.prune(keep, 100)).jobs == 1
            assert await total(store) == left

    async def test_live_jobs_stay(self, store: JobStore, clock: FakeClock) -> None:
        await store.enqueue([job(), job(), job(delay=40 * DAY)])
        await start_one(store)
        clock.advance(30 * 24 * 3600)
        assert (await store.prune(AT_ONCE, 100)).jobs == 0
        assert await total(store) == 3

    async def test_the_limit_holds_and_says_that_there_is_more(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        for _ in range(5):
            await put(store, job())
            await run(store)
        clock.tick(1)
        first = await store.prune(AT_ONCE, 3)
        assert (first.jobs, first.more) == (3, True)
        second = await store.prune(AT_ONCE, 3)
        assert (second.jobs, second.more) == (2, False)

    async def test_memory_of_a_window_outlives_its_job_and_ends_by_itself(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.throttle(10)
        first = await put(store, job(unique=unique))
        await run(store)
        clock.tick(1)
        await store.prune(AT_ONCE, 100)
        assert await store.job(first.id) is None
        clock.tick(9_998)
        same = await put(store, job(unique=unique))
        assert (same.outcome, same.id, same.payload_differs) == (Outcome.KEPT, first.id, False)
        assert (await put(store, job(unique=unique, payload=b"[]"))).payload_differs
        clock.tick(1)
        assert (await put(store, job(unique=unique))).outcome is Outcome.CREATED

    async def test_forgotten_keys_are_swept(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job(unique=Unique.once(within=5)))
        await put(store, job(unique=Unique.once(), key="for ever"))
        await run(store)
        await run(store)
        clock.advance(5)
        await store.prune(AT_ONCE, 100)
        assert [key.text for key in await store.keys()] == ["for ever"]

    async def test_keys_of_live_holders_stay_past_their_window(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = await put(store, job(unique=Unique.once(within=5)))
        clock.advance(60)
        await store.prune(AT_ONCE, 100)
        key = await store.key(digest_of("k"))
        assert key is not None
        assert key.holder.id == first.id

    async def test_jobs_past_their_expiry_end_and_free_their_followers(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = await put(store, job(unique=Unique.coalesce(), expires=1_000, delay=500))
        follower = await put(store, job(unique=Unique.coalesce(queued="follow")))
        clock.tick(1_000)
        assert (await store.prune(Retention(), 100)).expired == 1
        assert await state_of(store, first.id) is State.REVOKED
        assert await state_of(store, follower.id) is State.WAITING

    async def test_a_job_whose_key_was_taken_by_another_goes_quietly(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job(unique=Unique.once()))
        await run(store)
        second = await put(store, job(unique=Unique.once(), force=True))
        clock.tick(1)
        assert (await store.prune(AT_ONCE, 100)).jobs == 1
        assert (await put(store, job(unique=Unique.once()))).id == second.id

    async def test_dead_workers_are_forgotten_once_they_hold_nothing(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        clock.tick(LEASE + 30 * DAY)
        await store.prune(Retention(), 100)
        assert [found.job.id for found in await store.expired(10)] == [claimed.id]
        await finish(store, claimed, Move.LOSE)
        await store.prune(Retention(), 100)
        assert await store.workers() == []

    async def test_pruning_twice_is_pruning_once(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job(unique=Unique.in_flight()))
        await run(store)
        clock.tick(1)
        await store.prune(AT_ONCE, 100)
        again = await store.prune(AT_ONCE, 100)
        assert (again.jobs, again.keys, again.expired, again.more) == (0, 0, 0, False)
        assert await started_ids(store) == []
