"""`settle`: an attempt ends once, under its lease; followers and keys move in the same commit, or nothing does."""

from __future__ import annotations

import pytest

from onejob.core.dedup import Unique
from onejob.core.job import Claimed, Job, Lease, State, WorkerId
from onejob.core.judge import Outcome
from onejob.core.lifecycle import ENDING, SETTLING, Move, Settlement
from onejob.store import Amendment, Ask, JobStore, Key, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    LEASE,
    beat,
    digest_of,
    finish,
    job,
    look,
    put,
    start,
    start_one,
    started_ids,
    state_of,
)

MOVES = sorted(SETTLING)
COUNTERS = {
    Move.COMPLETE: (1, 0, 0, 0),
    Move.RETRY: (1, 1, 0, 0),
    Move.SNOOZE: (1, 0, 0, 0),
    Move.HAND_BACK: (0, 0, 0, 0),
    Move.MISS: (0, 0, 0, 1),
    Move.FAIL: (1, 1, 0, 0),
    Move.LOSE: (1, 0, 1, 0),
    Move.PERISH: (1, 0, 1, 0),
    Move.CRASH: (1, 0, 1, 0),
    Move.SUCCUMB: (1, 0, 1, 0),
}
ENDS = {
    Move.COMPLETE: State.COMPLETED,
    Move.FAIL: State.FAILED,
    Move.PERISH: State.FAILED,
    Move.SUCCUMB: State.FAILED,
}


def orphan(clock: FakeClock, move: Move) -> None:
    """Let the worker fall silent if the move is for those who have."""
    if move in (Move.LOSE, Move.PERISH):
        clock.tick(LEASE)


async def all_there_is(store: JobStore, claimed: Claimed) -> tuple[Job, Key | None, list[str]]:
    """Everything a settlement could touch."""
    followers = [str(id) for id in await store.followers(claimed.chain)]
    return await look(store, claimed.id), await store.key(digest_of("k")), followers


class TestSettle:
    @pytest.mark.parametrize("move", MOVES)
    async def test_each_move_counts_what_it_should(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        orphan(clock, move)
        assert await finish(store, claimed, move) is Settled.DONE
        seen = await look(store, claimed.id)
        assert (seen.attempt, seen.failures, seen.crashes, seen.misses) == COUNTERS[move]
        assert seen.state is ENDS.get(move, State.WAITING)
        assert seen.ended == (clock.now if move in ENDS else None)

    @pytest.mark.parametrize("move", [Move.RETRY, Move.SNOOZE, Move.MISS, Move.CRASH])
    async def test_a_delay_counts_from_the_stores_now(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        clock.advance(3)
        await finish(store, claimed, move, delay=2_000)
        seen = await look(store, claimed.id)
        assert (seen.state, seen.due) == (State.DELAYED, clock.now + 2_000)
        assert await started_ids(store) == []
        clock.advance(2)
        assert await started_ids(store) == [claimed.id]

    async def test_results_and_errors_are_kept(self, store: JobStore) -> None:
        await store.enqueue([job(), job()])
        good, bad = await start(store)
        await finish(store, good, Move.COMPLETE, result=b"42")
        await finish(store, bad, Move.FAIL, error="ValueError: no")
        assert (await look(store, good.id)).result == b"42"
        assert (await look(store, bad.id)).error == "ValueError: no"

    @pytest.mark.parametrize("move", MOVES)
    @pytest.mark.parametrize("late", ["settled", "reclaimed", "deleted", "invented"])
    async def test_a_lease_that_is_no_longer_the_jobs_changes_nothing(
        self, store: JobStore, clock: FakeClock, move: Move, late: str
    ) -> None:
        await put(store, job(unique=Unique.coalesce()))
        claimed = await start_one(store, worker="zombie")
        await put(store, job(unique=Unique.coalesce(), payload=b"{}"))
        token = claimed.lease.token
        match late:
            case "settled":
                await finish(store, claimed, Move.RETRY, delay=9_000)
            case "reclaimed":
                clock.tick(LEASE)
                await finish(store, claimed, Move.LOSE)
                assert (await start_one(store, worker="heir")).id == claimed.id
            case "deleted":
                await finish(store, claimed)
                await store.amend([claimed.id], Amendment.DELETE)
            case _:
                token = bytes(len(token))
        orphan(clock, move)
        if late == "deleted":
            assert await finish(store, claimed, move) is Settled.LOST
            assert await store.job(claimed.id) is None
            return
        before = await all_there_is(store, claimed)
        reply = await store.settle([Settlement(Lease(claimed.id, token), move, result=b"stolen")])
        assert reply.settled == [Settled.LOST]
        assert await all_there_is(store, claimed) == before

    @pytest.mark.parametrize("move", [Move.LOSE, Move.PERISH])
    async def test_a_late_heartbeat_wins_over_a_rescue(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        clock.tick(LEASE)
        [found] = await store.expired(10)
        await beat(store)
        assert await finish(store, found.job, move) is Settled.LOST
        assert await finish(store, claimed) is Settled.DONE

    @pytest.mark.parametrize("move", MOVES)
    async def test_a_flagged_job_ends_revoked_by_any_move(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        await store.amend([claimed.id], Amendment.REVOKE)
        orphan(clock, move)
        assert await finish(store, claimed, move, result=b"1") is Settled.REVOKED
        seen = await look(store, claimed.id)
        assert (seen.state, seen.result) == (State.REVOKED, None)

    @pytest.mark.parametrize("move", MOVES)
    async def test_followers_start_when_the_job_has_ended_and_not_before(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        await put(store, job(unique=Unique.coalesce()))
        claimed = await start_one(store)
        follower = await put(store, job(unique=Unique.coalesce()))
        assert await store.followers(claimed.chain) == [follower.id]
        orphan(clock, move)
        await finish(store, claimed, move)
        expected = State.WAITING if move in ENDING else State.BLOCKED
        assert await state_of(store, follower.id) is expected

    async def test_a_released_follower_still_waits_for_its_own_time(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.debounce(10)
        await put(store, job(unique=unique))
        clock.advance(10)
        claimed = await start_one(store)
        follower = await put(store, job(unique=unique))
        await finish(store, claimed)
        seen = await look(store, follower.id)
        assert (seen.state, seen.due) == (State.DELAYED, clock.now + 10_000)

    async def test_ending_frees_or_remembers_the_key_as_its_holder_said(self, store: JobStore) -> None:
        for unique, move, outcome in [
            (Unique.once(), Move.COMPLETE, Outcome.KEPT),
            (Unique.once(), Move.FAIL, Outcome.CREATED),
            (Unique.once(failed="keep"), Move.FAIL, Outcome.KEPT),
            (Unique.in_flight(), Move.COMPLETE, Outcome.CREATED),
        ]:
            await put(store, job(unique=unique, force=True))
            await finish(store, await start_one(store), move)
            assert (await put(store, job(unique=unique))).outcome is outcome
            for claimed in await start(store):
                await finish(store, claimed)

    async def test_a_job_that_lost_its_key_ends_without_touching_it(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.in_flight()))
        old = await start_one(store)
        new = await put(store, job(unique=Unique.in_flight(), force=True))
        await finish(store, old)
        answer = await put(store, job(unique=Unique.in_flight()))
        assert (answer.outcome, answer.id) == (Outcome.KEPT, new.id)

    async def test_one_commit_ends_many_and_claims_the_next(self, store: JobStore) -> None:
        await store.enqueue([job() for _ in range(5)])
        running = await start(store, limit=3)
        done = [Settlement(claimed.lease, Move.COMPLETE) for claimed in running]
        stranger = Settlement(Lease(running[0].id, b"x" * 16), Move.FAIL)
        reply = await store.settle([*done, stranger], Ask(WorkerId("w"), ("q",), 10))
        assert reply.settled == [Settled.DONE] * 3 + [Settled.LOST]
        assert len(reply.claims.jobs) == 2

    async def test_a_settlement_can_be_claimed_again_in_the_same_commit(self, store: JobStore) -> None:
        await put(store, job())
        claimed = await start_one(store)
        reply = await store.settle([Settlement(claimed.lease, Move.RETRY)], Ask(WorkerId("w"), ("q",), 1))
        assert [again.attempt for again in reply.claims.jobs] == [2]

    async def test_settling_twice_is_done_once(self, store: JobStore) -> None:
        await put(store, job())
        claimed = await start_one(store)
        reply = await store.settle([Settlement(claimed.lease, Move.RETRY)] * 2)
        assert reply.settled == [Settled.DONE, Settled.LOST]
        assert (await look(store, claimed.id)).failures == 1

    async def test_a_stale_lease_beside_the_right_one_in_one_batch_is_the_one_refused(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job(unique=Unique.coalesce()))
        stale = await start_one(store, worker="zombie")
        clock.tick(LEASE)
        await finish(store, stale, Move.LOSE)
        owned = await start_one(store)
        follower = await put(store, job(unique=Unique.coalesce()))
        reply = await store.settle(
            [Settlement(stale.lease, Move.RETRY), Settlement(owned.lease, Move.COMPLETE)]
        )
        assert reply.settled == [Settled.LOST, Settled.DONE]
        assert await state_of(store, owned.id) is State.COMPLETED
        assert await started_ids(store) == [follower.id]

    async def test_a_refused_rescue_beside_the_completion_in_one_batch(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.coalesce()))
        claimed = await start_one(store)
        follower = await put(store, job(unique=Unique.coalesce()))
        lease = claimed.lease
        reply = await store.settle([Settlement(lease, Move.LOSE), Settlement(lease, Move.COMPLETE)])
        assert reply.settled == [Settled.LOST, Settled.DONE]
        assert await started_ids(store) == [follower.id]
