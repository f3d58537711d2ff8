"""Revocation: a queued job ends at once, a running one is asked to stop and ends revoked whatever it then does."""

from __future__ import annotations

import pytest

from onejob.core.dedup import Unique
from onejob.core.job import State, WorkerId
from onejob.core.judge import Outcome
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import MOVES, SETTLING, Move
from onejob.store import Amended, Amendment, Ask, JobStore, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    LEASE,
    beat,
    finish,
    job,
    look,
    new_id,
    put,
    run,
    start,
    start_one,
    started_ids,
    state_of,
)

LANE = LanePlan("x")


async def revoke(store: JobStore, id: str) -> Amended:
    """Revoke one job."""
    [answer] = await store.amend([(await look(store, id)).id], Amendment.REVOKE)
    return answer


class TestRevocation:
    async def test_whatever_a_queued_job_waits_for_it_ends_at_once(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job(unique=Unique.coalesce(), lane=LANE))
        await start_one(store)
        waiting, delayed = job(), job(delay=1_000)
        parked, blocked = job(lane=LANE), job(unique=Unique.coalesce())
        await store.enqueue([waiting, delayed, parked, blocked])
        for one in (waiting, delayed, parked, blocked):
            assert await revoke(store, one.id) is Amended.REVOKED
            seen = await look(store, one.id)
            assert (seen.state, seen.ended, seen.follows) == (State.REVOKED, clock.now, None)
        assert await started_ids(store) == []

    async def test_what_has_ended_is_finished_and_what_never_was_is_not_found(self, store: JobStore) -> None:
        for move in (Move.COMPLETE, Move.FAIL):
            made = await put(store, job())
            await run(store, move)
            assert await revoke(store, made.id) is Amended.FINISHED
        assert await store.amend([new_id()], Amendment.REVOKE) == [Amended.NOT_FOUND]

    async def test_twice_is_once(self, store: JobStore) -> None:
        queued, running = job(delay=1_000), job()
        await store.enqueue([queued, running])
        await start_one(store)
        assert [await revoke(store, queued.id), await revoke(store, queued.id)] == ["revoked", "finished"]
        assert [await revoke(store, running.id), await revoke(store, running.id)] == ["flagged", "flagged"]

    async def test_the_next_beat_names_the_jobs_that_should_stop(self, store: JobStore) -> None:
        await store.enqueue([job(), job()])
        flagged, other = await start(store)
        assert await revoke(store, flagged.id) is Amended.FLAGGED
        pulse = await beat(store)
        assert (pulse.aborting, set(pulse.held)) == (frozenset({flagged.id}), {flagged.id, other.id})
        assert (await beat(store, "other")).aborting == frozenset()

    @pytest.mark.parametrize("move", sorted(SETTLING))
    async def test_a_flagged_job_ends_revoked_by_any_move(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        unique = Unique.in_flight()
        await put(store, job(unique=unique, lane=LANE))
        other = await put(store, job(lane=LANE))
        claimed = await start_one(store)
        await revoke(store, claimed.id)
        if MOVES[move].orphaned:
            clock.tick(LEASE)
        assert await finish(store, claimed, move, delay=1_000) is Settled.REVOKED
        assert await state_of(store, claimed.id) is State.REVOKED
        assert await finish(store, claimed, move) is Settled.LOST
        clock.tick(1_000)
        assert await started_ids(store) == [other.id], "it is not retried, and has freed one slot, not two"
        assert (await put(store, job(unique=unique))).outcome is Outcome.CREATED

    async def test_a_flag_outlives_the_worker_that_never_saw_it(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        await revoke(store, claimed.id)
        clock.tick(LEASE)
        [lost] = await store.expired(10)
        assert await finish(store, lost.job, Move.LOSE) is Settled.REVOKED
        assert await started_ids(store, worker="other") == []

    async def test_a_revoked_head_makes_way_and_a_revoked_follower_passes_its_place_on(
        self, store: JobStore
    ) -> None:
        unique = Unique.latest(queued="follow")
        first = await put(store, job(unique=unique, lane=LANE))
        second, third = await put(store, job(unique=unique, lane=LANE)), await put(store, job(unique=unique))
        await revoke(store, second.id)
        assert (await look(store, third.id)).follows == first.id
        await revoke(store, first.id)
        assert await started_ids(store) == [third.id]

    async def test_a_revived_job_is_no_longer_asked_to_stop(self, store: JobStore) -> None:
        await put(store, job(lane=LANE))
        claimed = await start_one(store)
        await revoke(store, claimed.id)
        await finish(store, claimed)
        assert await store.amend([claimed.id], Amendment.RETRY) == [Amended.RETRIED]
        again = await start_one(store)
        assert (again.id, (await beat(store)).aborting) == (claimed.id, frozenset())
        assert await finish(store, again) is Settled.DONE

    async def test_many_are_revoked_in_one_call_each_with_its_answer(self, store: JobStore) -> None:
        made = [job(lane=LANE) for _ in range(50)]
        await store.enqueue(made)
        claimed = await start_one(store)
        answers = await store.amend([one.id for one in made], Amendment.REVOKE)
        assert answers == [Amended.FLAGGED] + [Amended.REVOKED] * 49
        await finish(store, claimed)
        assert await store.lanes() == []
        assert (await store.claim(Ask(WorkerId("w"), ("q",), 5))).next_due is None
