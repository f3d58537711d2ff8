"""The limits of a lane as calls bring them, and a lane beside deduplication: the newest created job's limits stand."""

from __future__ import annotations

from onejob.core.dedup import Unique
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.core.lane import LanePlan, Rate
from onejob.core.lifecycle import Move
from onejob.store import Amended, Amendment, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    finish,
    job,
    look,
    put,
    start,
    start_one,
    started_ids,
    state_of,
)

ONE, TWO = LanePlan("x"), LanePlan("x", 2)
RATED = LanePlan("x", 1, Rate(1, per=10))


async def plan_of(store: JobStore, key: str = "x") -> LanePlan | None:
    """The limits that stand in a lane."""
    view = await store.lane("q", key)
    return None if view is None else view.plan


class TestLaneLimits:
    async def test_the_newest_job_sets_them_and_is_told_what_they_were(self, store: JobStore) -> None:
        plans = [ONE, ONE, TWO, RATED, LanePlan("x", hold=True)]
        answers = await store.enqueue([job(lane=plan) for plan in plans])
        assert [answer.former_lane for answer in answers] == [None, None, ONE, TWO, RATED]
        assert await plan_of(store) == plans[-1]

    async def test_other_lanes_keep_theirs(self, store: JobStore) -> None:
        await store.enqueue([job(lane=TWO), job(lane=TWO, queue="r"), job(lane=LanePlan("y", 2))])
        await put(store, job(lane=ONE))
        other, elsewhere = await store.lane("q", "y"), await store.lane("r", "x")
        assert other is not None
        assert elsewhere is not None
        assert (other.plan.concurrency, elsewhere.plan.concurrency) == (2, 2)

    async def test_a_lane_that_is_widened_lets_more_start_at_once(self, store: JobStore) -> None:
        await store.enqueue([job(lane=ONE) for _ in range(3)])
        assert len(await start(store)) == 1
        await put(store, job(lane=LanePlan("x", 3)))
        assert len(await start(store)) == 2

    async def test_a_lane_that_is_narrowed_stops_nobody_and_lets_nobody_in(self, store: JobStore) -> None:
        await store.enqueue([job(lane=TWO) for _ in range(3)])
        first, second = await start(store)
        last = await put(store, job(lane=ONE))
        await finish(store, first)
        assert await started_ids(store) == []
        await finish(store, second)
        assert len(await start(store)) == 1
        assert (await state_of(store, last.id)).queued

    async def test_a_job_that_might_start_is_held_back_by_the_limits_of_a_later_one(
        self, store: JobStore
    ) -> None:
        await store.enqueue([job(lane=TWO), job(lane=TWO)])
        await put(store, job(lane=ONE))
        assert len(await start(store)) == 1

    async def test_the_order_changes_with_the_limits(self, store: JobStore) -> None:
        first, urgent = job(lane=ONE), job(lane=ONE, priority=9)
        await store.enqueue([first, urgent])
        await put(store, job(lane=LanePlan("x", 2, Rate(1, per=10))))
        assert await started_ids(store) == [urgent.id]

    async def test_a_rate_that_is_taken_away_holds_up_nobody(self, store: JobStore) -> None:
        await store.enqueue([job(lane=RATED), job(lane=RATED)])
        await finish(store, await start_one(store))
        assert await started_ids(store) == []
        await put(store, job(lane=ONE))
        assert len(await start(store)) == 1

    async def test_a_duplicate_changes_no_limits(self, store: JobStore) -> None:
        unique = Unique.latest()
        kept = job(unique=Unique.in_flight(), key="kept", lane=ONE)
        updated = job(unique=unique, lane=ONE)
        await store.enqueue([kept, updated])
        for again in (
            job(unique=Unique.in_flight(), key="kept", lane=TWO),
            job(unique=unique, lane=TWO),
            job(id=updated.id, unique=unique, lane=TWO),
        ):
            assert (await put(store, again)).former_lane is None
        assert await plan_of(store) == ONE

    async def test_a_changed_holder_keeps_its_lane_and_the_answer_says_that_options_differ(
        self, store: JobStore
    ) -> None:
        first = await put(store, job(unique=Unique.latest(), lane=ONE))
        answer = await put(store, job(unique=Unique.latest(), lane=LanePlan("y")))
        assert (answer.outcome, answer.options_differ) == (Outcome.UPDATED, True)
        assert (await look(store, first.id)).lane == "x"
        assert await store.lane("q", "y") is None

    async def test_a_revived_job_finds_limits_even_in_a_lane_that_nobody_used(self, store: JobStore) -> None:
        made = [job(lane=TWO), job(lane=TWO), job(lane=TWO)]
        await store.enqueue(made)
        for claimed in [*await start(store), *await start(store)]:
            await finish(store, claimed, Move.FAIL)
        await finish(store, await start_one(store), Move.FAIL)
        assert await store.lane("q", "x") is None
        answers = await store.amend([one.id for one in made], Amendment.RETRY)
        assert answers == [Amended.RETRIED] * 3
        assert await started_ids(store) == [made[0].id, made[1].id]
        assert await plan_of(store) == TWO


class TestDuplicatesInLanes:
    async def test_a_parked_holder_is_updated_in_its_place(self, store: JobStore) -> None:
        unique = Unique.latest()
        running = await put(store, job(lane=ONE))
        claimed = await start_one(store)
        parked = await put(store, job(unique=unique, lane=ONE))
        behind = await put(store, job(lane=ONE))
        answer = await put(store, job(unique=unique, lane=ONE, payload=b'{"v":2}'))
        assert (answer.id, answer.outcome) == (parked.id, Outcome.UPDATED)
        assert claimed.id == running.id
        await finish(store, claimed)
        [next_one] = await start(store)
        assert (next_one.id, next_one.payload) == (parked.id, b'{"v":2}')
        await finish(store, next_one)
        assert await started_ids(store) == [behind.id]

    async def test_a_parked_holder_keeps_duplicates_out(self, store: JobStore) -> None:
        await put(store, job(lane=ONE))
        await start_one(store)
        parked = await put(store, job(unique=Unique.in_flight(), lane=ONE))
        answer = await put(store, job(unique=Unique.in_flight(), lane=ONE))
        assert (answer.id, answer.outcome) == (parked.id, Outcome.KEPT)
        assert answer.state in (State.PARKED, State.WAITING)

    async def test_a_postponed_head_lets_others_pass_and_comes_first_when_due(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.debounce(5)
        first = await put(store, job(unique=unique, lane=ONE))
        made = [job(lane=ONE), job(lane=ONE)]
        await store.enqueue(made)
        clock.advance(5)
        answer = await put(store, job(unique=unique, lane=ONE))
        assert answer.outcome is Outcome.POSTPONED
        running = await start_one(store)
        assert running.id == made[0].id
        clock.advance(5)
        await finish(store, running)
        assert await started_ids(store) == [first.id]

    async def test_a_follower_joins_the_lane_when_its_turn_to_follow_has_come(self, store: JobStore) -> None:
        unique = Unique.coalesce()
        await put(store, job(unique=unique, lane=ONE))
        claimed = await start_one(store)
        follower = await put(store, job(unique=unique, lane=ONE))
        other = await put(store, job(lane=ONE))
        await finish(store, claimed, Move.RETRY, delay=1_000)
        running = await start_one(store)
        assert running.id == other.id
        await finish(store, running)
        await store.amend([claimed.id], Amendment.REVOKE)
        assert await started_ids(store) == [follower.id]

    async def test_a_full_collection_is_hurried_into_its_turn(self, store: JobStore) -> None:
        unique = Unique.collect(wait=60, max_items=2)
        first = await put(store, job(unique=unique, lane=ONE, items=1))
        other = await put(store, job(lane=ONE))
        answer = await put(store, job(unique=unique, lane=ONE, items=1))
        assert (answer.id, answer.outcome) == (first.id, Outcome.COLLECTED)
        [running] = await start(store)
        assert running.id == first.id
        assert (await state_of(store, other.id)).queued
