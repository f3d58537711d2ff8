"""`lane`, `lanes` and `ahead`: what an observer sees of lanes, without changing anything."""

from __future__ import annotations

from onejob.core.dedup import Unique
from onejob.core.job import JobId
from onejob.core.lane import LanePlan, Rate
from onejob.core.lifecycle import Move
from onejob.store import Amendment, JobStore, LaneView
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import AT_ONCE, finish, job, new_id, put, run, start, start_one

LANE = LanePlan("x")
RATED = LanePlan("x", 3, Rate(2, per=10))


async def view_of(store: JobStore, key: str = "x", queue: str = "q") -> LaneView:
    """A lane that must be there."""
    found = await store.lane(queue, key)
    assert found is not None, f"lane {key} of queue {queue} is not in use"
    return found


class TestLaneViews:
    async def test_a_lane_shows_its_limits_its_holders_and_whose_turn_is_next(self, store: JobStore) -> None:
        made = [job(lane=LANE) for _ in range(3)]
        await store.enqueue(made)
        claimed = await start_one(store)
        assert await view_of(store) == LaneView(
            queue="q", plan=LANE, holders=[claimed.id], taken=1, ready=2, head=made[1].id
        )

    async def test_delayed_and_blocked_jobs_are_not_ready(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.coalesce()))
        await start_one(store)
        await store.enqueue([job(lane=LANE, delay=1_000), job(lane=LANE, unique=Unique.coalesce())])
        view = await view_of(store)
        assert (view.holders, view.taken, view.ready, view.head) == ([], 0, 0, None)

    async def test_above_one_the_head_is_the_first_by_priority(self, store: JobStore) -> None:
        lane = LanePlan("x", 2)
        plain, urgent = job(lane=lane), job(lane=lane, priority=9)
        await store.enqueue([plain, urgent])
        assert (await view_of(store)).head == urgent.id
        await put(store, job(lane=LANE))
        assert (await view_of(store)).head == plain.id

    async def test_a_slot_kept_over_a_retry_is_taken(self, store: JobStore, clock: FakeClock) -> None:
        lane = LanePlan("x", hold=True)
        first, second = job(lane=lane), job(lane=lane)
        await store.enqueue([first, second])
        claimed = await start_one(store)
        await finish(store, claimed, Move.RETRY, delay=1_000)
        view = await view_of(store)
        assert (view.holders, view.taken, view.ready, view.head) == ([first.id], 1, 1, second.id)
        clock.tick(1_000)
        await finish(store, await start_one(store), Move.RETRY)
        view = await view_of(store)
        assert (view.holders, view.taken, view.ready, view.head) == ([first.id], 1, 2, first.id)

    async def test_the_rate_that_holds_jobs_up_says_when_it_opens(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.enqueue([job(lane=RATED) for _ in range(3)])
        assert (await view_of(store)).opens_at is None
        begun = clock.now
        await run(store)
        clock.tick(1_000)
        await run(store)
        assert (await view_of(store)).opens_at == begun + 10_000

    async def test_no_rate_holds_up_a_lane_whose_slots_are_taken(self, store: JobStore) -> None:
        lane = LanePlan("x", 1, Rate(5, per=10))
        await store.enqueue([job(lane=lane), job(lane=lane)])
        await start_one(store)
        assert (await view_of(store)).opens_at is None

    async def test_no_rate_holds_up_a_lane_in_which_nobody_waits(self, store: JobStore) -> None:
        await store.enqueue([job(lane=RATED), job(lane=RATED)])
        await start(store)
        assert (await view_of(store)).opens_at is None

    async def test_many_holders_are_counted_and_the_first_are_named(self, store: JobStore) -> None:
        lane = LanePlan("x", 150)
        await store.enqueue([job(lane=lane) for _ in range(150)])
        await start(store, limit=150)
        view = await view_of(store)
        assert (view.taken, len(view.holders)) == (150, 100)

    async def test_a_lane_is_gone_with_its_last_job(self, store: JobStore) -> None:
        made = [job(lane=LANE), job(lane=LANE)]
        await store.enqueue(made)
        await run(store)
        assert await store.lane("q", "x") is not None
        await store.amend([made[1].id], Amendment.REVOKE)
        assert (await store.lane("q", "x"), await store.lanes()) == (None, [])

    async def test_a_lane_with_a_rate_is_gone_when_no_start_counts_any_more(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job(lane=RATED))
        await run(store)
        await store.prune(AT_ONCE, 100)
        clock.tick(9_999)
        assert (await view_of(store)).taken == 0
        clock.tick(1)
        assert (await store.lane("q", "x"), await store.lanes()) == (None, [])

    async def test_a_lane_that_never_was_is_not_there(self, store: JobStore) -> None:
        await put(store, job(lane=LANE))
        assert await store.lane("q", "y") is None
        assert await store.lane("r", "x") is None

    async def test_lanes_are_listed_by_queue_and_key(self, store: JobStore) -> None:
        places = [("q", "b"), ("r", "a"), ("q", "a"), ("q", "B")]
        await store.enqueue([job(queue=queue, lane=LanePlan(key)) for queue, key in places])
        await put(store, job())
        listed = [(view.queue, view.plan.key) for view in await store.lanes()]
        assert listed == sorted(places)
        assert [view.plan.key for view in await store.lanes("q")] == ["B", "a", "b"]
        assert await store.lanes("none") == []
        assert await store.lanes("q", limit=1) == (await store.lanes())[:1]
        assert await store.lanes("q", limit=1) == [await view_of(store, "B")]


class TestAhead:
    async def test_those_with_an_earlier_turn_are_ahead(self, store: JobStore) -> None:
        made = [job(lane=LANE) for _ in range(4)]
        await store.enqueue(made)
        assert [await store.ahead(one.id) for one in made] == [0, 1, 2, 3]
        await run(store)
        assert [await store.ahead(one.id) for one in made[1:]] == [0, 1, 2]

    async def test_above_one_priority_puts_ahead(self, store: JobStore) -> None:
        lane = LanePlan("x", 2)
        plain, urgent, other = job(lane=lane), job(lane=lane, priority=9), job(lane=LanePlan("y"))
        await store.enqueue([plain, urgent, other])
        assert [await store.ahead(one.id) for one in (plain, urgent, other)] == [1, 0, 0]

    async def test_who_kept_a_slot_is_ahead(self, store: JobStore) -> None:
        lane = LanePlan("x", 2, hold=True)
        first = await put(store, job(lane=lane))
        await finish(store, await start_one(store), Move.RETRY)
        urgent = await put(store, job(lane=lane, priority=9))
        assert [await store.ahead(first.id), await store.ahead(urgent.id)] == [0, 1]

    async def test_it_is_counted_up_to_a_limit(self, store: JobStore) -> None:
        made = [job(lane=LANE) for _ in range(30)]
        await store.enqueue(made)
        assert await store.ahead(made[-1].id, limit=5) == 5

    async def test_nobody_is_ahead_of_a_job_that_waits_for_no_turn(self, store: JobStore) -> None:
        plain, delayed, running = job(), job(lane=LANE, delay=1_000), job(lane=LANE)
        await store.enqueue([plain, delayed, running])
        await start(store)
        ids = [plain.id, delayed.id, running.id, new_id(), JobId("no id")]
        assert [await store.ahead(id) for id in ids] == [0] * 5
