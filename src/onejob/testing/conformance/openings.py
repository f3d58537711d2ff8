"""`wait` for lanes and limits: who waits for work hears at once of a slot that opens and a limit that is lifted."""

from __future__ import annotations

import pytest

from onejob.core.job import WorkerId
from onejob.core.lane import LanePlan, QueueChange, Rate
from onejob.core.lifecycle import SETTLING, Move
from onejob.core.options import MAX_BULK
from onejob.store import Amendment, Ask, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import LEASE, finish, job, start_one, started_ids

PATIENCE = 20.0
LANE = LanePlan("x")


async def heard(store: JobStore, since: int) -> bool:
    """True if there has been a hint of work since that mark."""
    return await store.wait(frozenset({"work:q"}), PATIENCE, since=since)


class TestOpenings:
    @pytest.mark.parametrize("move", sorted(SETTLING))
    async def test_a_slot_that_a_settlement_frees(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        await store.enqueue([job(lane=LANE), job(lane=LANE)])
        claimed = await start_one(store)
        if move in (Move.LOSE, Move.PERISH):
            clock.tick(LEASE)
        mark = store.mark()
        await finish(store, claimed, move)
        assert await heard(store, mark)
        assert len(await started_ids(store)) == 1

    async def test_a_slot_that_a_flagged_job_frees(self, store: JobStore) -> None:
        await store.enqueue([job(lane=LANE), job(lane=LANE)])
        claimed = await start_one(store)
        await store.amend([claimed.id], Amendment.REVOKE)
        mark = store.mark()
        await finish(store, claimed)
        assert await heard(store, mark)

    @pytest.mark.parametrize("amendment", [Amendment.REVOKE, Amendment.DELETE])
    async def test_a_slot_that_was_kept_over_a_retry(self, store: JobStore, amendment: Amendment) -> None:
        lane = LanePlan("x", hold=True)
        await store.enqueue([job(lane=lane), job(lane=lane)])
        claimed = await start_one(store)
        await finish(store, claimed, Move.RETRY, delay=1_000)
        mark = store.mark()
        await store.amend([claimed.id], amendment)
        assert await heard(store, mark)

    async def test_room_in_a_queue_that_lets_only_so_many_run(self, store: JobStore) -> None:
        await store.set_queue("q", QueueChange(concurrency=1))
        await store.enqueue([job(), job()])
        claimed = await start_one(store)
        mark = store.mark()
        await finish(store, claimed)
        assert await heard(store, mark)

    @pytest.mark.parametrize(
        ("limits", "lifted"),
        [
            (QueueChange(paused=True), QueueChange(paused=False)),
            (QueueChange(concurrency=1), QueueChange(concurrency=2)),
            (QueueChange(concurrency=1), QueueChange(concurrency=0)),
            (QueueChange(rate=Rate(1, per=60)), QueueChange(rate=Rate(2, per=60))),
            (QueueChange(rate=Rate(1, per=60)), QueueChange(remove_rate=True)),
        ],
        ids=["resumed", "raised", "removed", "rate raised", "rate removed"],
    )
    async def test_a_limit_that_is_lifted(
        self, store: JobStore, limits: QueueChange, lifted: QueueChange
    ) -> None:
        await store.set_queue("q", limits)
        await store.enqueue([job(), job()])
        await started_ids(store)
        mark = store.mark()
        await store.set_queue("q", lifted)
        assert await heard(store, mark)
        assert len(await started_ids(store)) > 0

    async def test_a_slot_that_one_of_a_crowd_of_expired_jobs_stood_before(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.enqueue([job(expires=1) for _ in range(MAX_BULK)])
        await store.enqueue([job(lane=LANE, expires=2), job(lane=LANE)])
        clock.tick(2)
        ask = Ask(WorkerId("w"), ("q",), 10)
        while not (claims := await store.claim(ask)).jobs:
            assert claims.next_due == 0, "who is told of nothing else to wait for comes again at once"
