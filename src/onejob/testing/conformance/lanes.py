"""Lanes: a job starts only into a free slot, in the order of its lane, and every ending frees the slot once."""

from __future__ import annotations

import pytest

from onejob.core.dedup import Unique
from onejob.core.job import Claimed, State, WorkerId
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import ENDING, SETTLING, Lost, Move, Settlement, after_attempt
from onejob.store import Amended, Amendment, Ask, JobStore, Settled
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

LANE = LanePlan("x")
HELD = LanePlan("x", hold=True)
AGAIN = sorted(SETTLING - ENDING.keys())
"""The moves after which a job runs again."""
READY = (State.PARKED, State.WAITING)


async def settle(store: JobStore, claimed: Claimed, clock: FakeClock, move: Move, delay: int = 0) -> None:
    """End an attempt by a move that may need a silent worker."""
    if move in (Move.LOSE, Move.PERISH):
        clock.tick(LEASE)
    assert await finish(store, claimed, move, delay=delay) is Settled.DONE


class TestLanes:
    async def test_one_of_a_lane_runs_at_a_time_in_order_of_acceptance(self, store: JobStore) -> None:
        made = [job(lane=LANE) for _ in range(3)]
        await store.enqueue(made)
        for expected in made:
            [claimed] = await start(store)
            assert (claimed.id, claimed.lane) == (expected.id, "x")
            assert await started_ids(store, worker="other") == []
            await finish(store, claimed)
        assert await started_ids(store) == []

    async def test_a_ready_job_that_may_not_start_is_queued_and_keeps_its_due_time(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first, second = job(lane=LANE), job(lane=LANE)
        await store.enqueue([first, second])
        await start(store)
        seen = await look(store, second.id)
        assert seen.state in READY
        assert (seen.lane, seen.due, seen.attempt) == ("x", clock.now, 0)

    async def test_other_lanes_and_jobs_without_one_are_not_held_up(self, store: JobStore) -> None:
        made = [job(lane=LANE), job(lane=LANE), job(lane=LanePlan("y")), job(), job()]
        await store.enqueue(made)
        assert await started_ids(store) == [made[0].id, made[2].id, made[3].id, made[4].id]

    async def test_the_oldest_goes_first_however_many_become_due_at_once(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        oldest = job(lane=LANE, delay=10_000)
        await store.enqueue([oldest])
        await store.enqueue([job(lane=LANE, delay=5_000) for _ in range(1_000)])
        await store.enqueue([job(delay=5_000) for _ in range(1_000)])
        clock.tick(20_000)
        [first] = [claimed for claimed in await start(store, limit=3_000) if claimed.lane is not None]
        assert first.id == oldest.id

    async def test_a_lane_belongs_to_its_queue(self, store: JobStore) -> None:
        made = [job(lane=LANE), job(lane=LANE, queue="r")]
        await store.enqueue(made)
        assert await started_ids(store, queues=("q", "r")) == [one.id for one in made]

    async def test_keys_differ_by_case_and_by_every_character(self, store: JobStore) -> None:
        keys = ("x", "X", "x ", "ẋ", "x\n", "é", "e\u0301", "x" * 256)
        made = [job(lane=LanePlan(key)) for key in keys]
        await store.enqueue(made)
        started = await start(store)
        assert [claimed.lane for claimed in started] == list(keys)

    async def test_as_many_run_at_once_as_the_lane_lets(self, store: JobStore) -> None:
        await store.enqueue([job(lane=LanePlan("x", 3)) for _ in range(5)])
        first, second = await start(store, limit=2), await start(store, worker="other")
        assert (len(first), len(second)) == (2, 1)
        await finish(store, first[0])
        assert len(await start(store)) == 1

    async def test_at_one_neither_priority_nor_due_time_overtakes(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made = [job(lane=LANE, delay=2), job(lane=LANE, delay=1), job(lane=LANE, priority=9)]
        await store.enqueue(made)
        clock.tick(2)
        await self.starts_one_by_one(store, [one.id for one in made])

    async def test_above_one_priority_decides_then_due_time_then_acceptance(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        lane = LanePlan("x", 2)
        late, early, urgent, next_one = (
            job(lane=lane, delay=2),
            job(lane=lane, delay=1),
            job(lane=lane, delay=2, priority=9),
            job(lane=lane, delay=2),
        )
        await store.enqueue([late, early, urgent, next_one])
        clock.tick(2)
        first, second = await start(store)
        assert [first.id, second.id] == [urgent.id, early.id]
        await finish(store, second)
        assert await started_ids(store) == [late.id]

    async def test_among_lanes_the_queues_own_order_decides(self, store: JobStore) -> None:
        low, plain, high = job(lane=LANE), job(priority=3), job(lane=LanePlan("y"), priority=5)
        await store.enqueue([low, plain, high])
        assert await started_ids(store) == [high.id, plain.id, low.id]

    async def test_a_delayed_job_holds_up_nobody_and_keeps_its_place(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made = [job(lane=LANE, delay=1_000), job(lane=LANE), job(lane=LANE)]
        await store.enqueue(made)
        second = await start_one(store)
        clock.tick(1_000)
        assert second.id == made[1].id
        await finish(store, second)
        await self.starts_one_by_one(store, [made[0].id, made[2].id])

    async def test_a_blocked_job_holds_up_nobody_and_keeps_its_place(self, store: JobStore) -> None:
        unique = Unique.coalesce()
        await put(store, job(unique=unique))
        followed = await start_one(store)
        blocked, free = job(unique=unique, lane=LANE), job(lane=LANE)
        await store.enqueue([blocked, free])
        running = await start_one(store)
        assert running.id == free.id
        third = await put(store, job(lane=LANE))
        await finish(store, followed)
        await finish(store, running)
        await self.starts_one_by_one(store, [blocked.id, third.id])

    async def starts_one_by_one(self, store: JobStore, ids: list[str]) -> None:
        for id in ids:
            [claimed] = await start(store)
            assert claimed.id == id
            await finish(store, claimed)


class TestSlots:
    @pytest.mark.parametrize("move", sorted(SETTLING))
    async def test_every_settlement_frees_the_slot(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        first, second = job(lane=LANE), job(lane=LANE)
        await store.enqueue([first, second])
        claimed = await start_one(store)
        await settle(store, claimed, clock, move, delay=1_000 if move in AGAIN else 0)
        in_place = move in (Move.HAND_BACK, Move.LOSE)
        assert await started_ids(store) == [first.id if in_place else second.id]

    async def test_a_settlement_that_comes_too_late_frees_nothing(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.enqueue([job(lane=LANE), job(lane=LANE)])
        late = await start_one(store)
        clock.tick(LEASE)
        await finish(store, late, Move.LOSE)
        again = await start_one(store, worker="other")
        assert (again.id, await finish(store, late)) == (late.id, Settled.LOST)
        assert await started_ids(store) == []

    async def test_a_job_is_settled_and_the_next_starts_in_one_commit(self, store: JobStore) -> None:
        made = [job(lane=LANE), job(lane=LANE)]
        await store.enqueue(made)
        claimed = await start_one(store)
        ask = Ask(WorkerId("w"), ("q",), 5)
        reply = await store.settle([Settlement(claimed.lease, Move.COMPLETE)], ask)
        assert [one.id for one in reply.claims.jobs] == [made[1].id]

    async def test_a_lost_worker_keeps_the_slot_until_its_job_is_rescued(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made = [job(lane=LANE, max_crashes=0), job(lane=LANE)]
        await store.enqueue(made)
        await start_one(store)
        clock.tick(LEASE)
        assert await started_ids(store, worker="other") == []
        [lost] = await store.expired(10)
        await store.settle([after_attempt(lost.job, Lost(lost.worker))])
        assert await started_ids(store, worker="other") == [made[1].id]

    async def test_a_dead_letter_frees_the_slot_and_stands_in_no_lane(self, store: JobStore) -> None:
        made = [job(lane=LANE), job(lane=LANE)]
        await store.enqueue(made)
        claimed = await start_one(store)
        await store.settle([Settlement(claimed.lease, Move.FAIL, error="no", dead_letter="dead")])
        [letter] = await store.dead("q", 0, 10)
        assert (letter.origin, letter.lane) == (claimed.id, None)
        assert await started_ids(store) == [made[1].id]

    @pytest.mark.parametrize("amendment", [Amendment.REVOKE, Amendment.DELETE])
    async def test_a_head_that_is_taken_away_makes_way(self, store: JobStore, amendment: Amendment) -> None:
        made = [job(lane=LANE) for _ in range(3)]
        await store.enqueue(made)
        await store.amend([made[0].id], amendment)
        assert await started_ids(store) == [made[1].id]

    async def test_a_flagged_job_keeps_its_slot_until_it_is_settled(self, store: JobStore) -> None:
        made = [job(lane=LANE), job(lane=LANE)]
        await store.enqueue(made)
        claimed = await start_one(store)
        await store.amend([claimed.id], Amendment.REVOKE)
        assert await started_ids(store) == []
        assert await finish(store, claimed, Move.RETRY) is Settled.REVOKED
        assert await started_ids(store) == [made[1].id]

    async def test_a_head_that_has_expired_makes_way(self, store: JobStore, clock: FakeClock) -> None:
        made = [job(lane=LANE, expires=1_000), job(lane=LANE)]
        await store.enqueue(made)
        clock.tick(1_000)
        assert await started_ids(store) == [made[1].id]
        assert await state_of(store, made[0].id) is State.REVOKED

    async def test_a_restart_frees_the_slot_only_when_the_old_job_has_ended(self, store: JobStore) -> None:
        unique = Unique.restart()
        await put(store, job(unique=unique, lane=LANE))
        other = await put(store, job(lane=LANE))
        claimed = await start_one(store)
        instead = await put(store, job(unique=unique, lane=LANE))
        assert await started_ids(store) == []
        await finish(store, claimed)
        [next_one] = await start(store)
        assert next_one.id == other.id
        await finish(store, next_one)
        assert await started_ids(store) == [instead.id]

    async def test_a_restart_of_a_queued_head_goes_to_the_end_of_the_lane(self, store: JobStore) -> None:
        unique = Unique.restart()
        await put(store, job(unique=unique, lane=LANE))
        other = await put(store, job(lane=LANE))
        await put(store, job(unique=unique, lane=LANE))
        assert await started_ids(store) == [other.id]

    async def test_a_revived_job_waits_for_its_turn_in_its_old_place(self, store: JobStore) -> None:
        made = [job(lane=LANE) for _ in range(3)]
        await store.enqueue(made)
        await finish(store, await start_one(store), Move.FAIL)
        running = await start_one(store)
        assert await store.amend([made[0].id], Amendment.RETRY) == [Amended.RETRIED]
        assert await started_ids(store) == []
        await finish(store, running)
        assert await started_ids(store) == [made[0].id]


class TestRetriesInLanes:
    @pytest.mark.parametrize("move", AGAIN)
    async def test_under_hold_a_job_keeps_its_slot_until_it_has_ended(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        first, second = job(lane=HELD), job(lane=HELD)
        await store.enqueue([first, second])
        claimed = await start_one(store)
        in_place = move in (Move.HAND_BACK, Move.LOSE)
        await settle(store, claimed, clock, move, delay=0 if in_place else 1_000)
        if not in_place:
            assert await started_ids(store) == []
            clock.tick(1_000)
        again = await start_one(store)
        assert again.id == first.id
        await finish(store, again)
        assert await started_ids(store) == [second.id]

    async def test_who_kept_a_slot_goes_first_whatever_the_priority(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        lane = LanePlan("x", 2, hold=True)
        first = await put(store, job(lane=lane))
        claimed = await start_one(store)
        await finish(store, claimed, Move.RETRY, delay=1_000)
        urgent = [job(lane=lane, priority=9), job(lane=lane, priority=9)]
        await store.enqueue(urgent)
        assert await started_ids(store) == [urgent[0].id]
        clock.tick(1_000)
        assert await started_ids(store) == [first.id]

    @pytest.mark.parametrize("amendment", [Amendment.REVOKE, Amendment.DELETE])
    async def test_a_slot_that_was_kept_is_freed_when_its_job_is_taken_away(
        self, store: JobStore, amendment: Amendment
    ) -> None:
        first, second = job(lane=HELD), job(lane=HELD)
        await store.enqueue([first, second])
        await finish(store, await start_one(store), Move.RETRY, delay=1_000)
        await store.amend([first.id], amendment)
        assert await started_ids(store) == [second.id]

    async def test_a_slot_that_was_kept_is_freed_when_its_job_expires(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first, second = job(lane=HELD, expires=1_000), job(lane=HELD)
        await store.enqueue([first, second])
        await finish(store, await start_one(store), Move.RETRY, delay=5_000)
        clock.tick(1_000)
        assert await started_ids(store) == [second.id]

    async def test_without_hold_others_pass_and_the_retried_job_goes_first_when_due(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made = [job(lane=LANE) for _ in range(3)]
        await store.enqueue(made)
        await finish(store, await start_one(store), Move.RETRY, delay=1_000)
        second = await start_one(store)
        clock.tick(1_000)
        await finish(store, second)
        assert second.id == made[1].id
        assert await started_ids(store) == [made[0].id]
