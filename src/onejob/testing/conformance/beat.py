"""`beat` and `leave`: a worker's sign of life prolongs its leases and tells it what it still holds."""

from __future__ import annotations

from onejob.core.job import WorkerId
from onejob.core.lifecycle import Move
from onejob.store import Amendment, Beat, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import LEASE, beat, finish, job, look, put, start, start_one


class TestBeat:
    async def test_a_beat_names_the_leases_still_held(self, store: JobStore) -> None:
        await store.enqueue([job(), job(), job()])
        first, second = await start(store, limit=2)
        await start_one(store, worker="other")
        await finish(store, first)
        assert (await beat(store)).held == {second.id: second.lease.token}

    async def test_a_beat_names_the_jobs_that_should_stop(self, store: JobStore) -> None:
        await store.enqueue([job(), job()])
        first, _ = await start(store)
        await store.amend([first.id], Amendment.REVOKE)
        assert (await beat(store)).aborting == frozenset({first.id})

    async def test_a_beat_prolongs_every_lease_of_its_worker(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job())
        await start_one(store)
        for _ in range(5):
            clock.tick(LEASE - 1)
            assert await store.expired(10) == []
            await beat(store)

    async def test_a_beat_after_a_rescue_finds_nothing_held(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job())
        claimed = await start_one(store, worker="zombie")
        clock.tick(LEASE)
        await finish(store, claimed, Move.LOSE)
        assert (await beat(store, "zombie")).held == {}

    async def test_a_beat_writes_the_progress_of_its_own_jobs_only(self, store: JobStore) -> None:
        await store.enqueue([job(), job()])
        [mine] = await start(store, limit=1)
        [theirs] = await start(store, limit=1, worker="other")
        await store.beat(Beat(WorkerId("w"), LEASE, progress={mine.id: b"0.5", theirs.id: b"0.9"}))
        assert (await look(store, mine.id)).progress == b"0.5"
        assert (await look(store, theirs.id)).progress is None

    async def test_a_worker_is_shown_as_it_described_itself(self, store: JobStore, clock: FakeClock) -> None:
        await store.beat(Beat(WorkerId("w"), LEASE, queues=("q", "r"), host="box", pid=12, concurrency=4))
        [seen] = await store.workers()
        assert (seen.id, seen.queues, seen.host, seen.pid, seen.concurrency) == (
            "w",
            ("q", "r"),
            "box",
            12,
            4,
        )
        assert (seen.started, seen.seen, seen.alive, seen.running) == (clock.now, clock.now, True, 0)
        clock.tick(LEASE)
        assert not (await store.workers())[0].alive

    async def test_who_leaves_is_forgotten_and_its_jobs_expire_at_once(self, store: JobStore) -> None:
        await put(store, job())
        claimed = await start_one(store)
        await store.leave(WorkerId("w"))
        assert await store.workers() == []
        assert [found.job.id for found in await store.expired(10)] == [claimed.id]
