"""`fire`: a slot that has come is spent once, whoever fires, and its job is made in the same commit."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from onejob.core.dedup import Unique
from onejob.core.job import Job, JobId, State
from onejob.core.judge import Outcome
from onejob.core.lane import LanePlan
from onejob.core.options import JobOptions, decode_options, encode_options
from onejob.core.schedule import Definition, firing, pause, put, slot_id
from onejob.core.timing import Every
from onejob.store import JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import steps
from onejob.testing.conformance.schedules import PATIENCE, RACERS, TEN, come_due, one, schedule, template
from onejob.testing.conformance.steps import AT_ONCE, look, start_one, started_ids, total


class TestFire:
    @pytest.mark.accepts("G7")
    async def test_a_slot_becomes_a_job_and_the_next_is_registered(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        newcomer = steps.job(
            payload=b'{"n":1}', priority=5, options=encode_options(JobOptions(attempts=4, timeout=900))
        )
        await store.put_schedules([schedule(clock, job=newcomer)])
        due = await come_due(store, clock)
        clock.tick(3)
        [fired] = await store.fire([due])
        assert fired.won
        assert fired.answer is not None
        assert (fired.answer.id, fired.answer.outcome) == (slot_id("s", due.slot), Outcome.CREATED)
        after = await one(store)
        assert (after.last, after.job, after.outcome) == (due.slot, fired.answer.id, Outcome.CREATED)
        assert (after.fired, after.next, after.revision) == (1, due.slot + TEN, 2)
        assert after.updated == clock.now
        made = await look(store, fired.answer.id)
        assert (made.state, made.task, made.payload, made.priority) == (State.WAITING, "t", b'{"n":1}', 5)
        assert made.accepted == clock.now
        assert decode_options(made.options) == JobOptions(
            attempts=4, timeout=900, schedule="s", slot=due.slot
        )
        claimed = await start_one(store)
        assert decode_options(claimed.options).slot == due.slot
        assert (await store.due(10)).schedules == []

    async def test_who_comes_second_changes_nothing(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        due = await come_due(store, clock)
        assert [(await store.fire([due]))[0].won for _ in range(3)] == [True, False, False]
        [lost] = await store.fire([due])
        assert lost.answer is None
        assert (await one(store)).fired == await total(store) == 1

    async def test_the_same_firing_twice_in_a_batch_wins_once(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.put_schedules([schedule(clock)])
        due = await come_due(store, clock)
        assert [fired.won for fired in await store.fire([due, due])] == [True, False]
        assert await store.fire([]) == []

    async def test_of_many_who_fire_at_once_one_wins_each_slot(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.put_schedules([schedule(clock, id) for id in "abc"])
        for _ in range(5):
            clock.tick(TEN)
            due = await store.due(10)
            firings = [firing(found, clock.now) for found in due.schedules]
            won = await asyncio.gather(*(store.fire(firings) for _ in range(RACERS)))
            assert [sum(fired.won for fired in column) for column in zip(*won, strict=True)] == [1, 1, 1]
        assert await total(store) == 15
        assert [found.fired for found in await store.schedules()] == [5, 5, 5]

    async def test_an_old_firing_is_not_replayed_after_the_job_is_gone(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.put_schedules([schedule(clock)])
        due = await come_due(store, clock)
        await store.fire([due])
        await steps.run(store)
        clock.tick()
        await store.prune(AT_ONCE, 100)
        assert not (await store.fire([due]))[0].won
        assert await total(store) == 0

    async def test_a_slot_whose_job_is_there_already_is_spent(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        record = schedule(clock)
        await store.put_schedules([record])
        first = await come_due(store, clock)
        await store.fire([first])
        await store.drop_schedule("s")
        clock.now = record.since
        await store.put_schedules([record])
        again = await come_due(store, clock)
        assert again.slot == first.slot
        [fired] = await store.fire([again])
        assert fired.won
        assert await total(store) == 1, "one job for a slot, whatever became of the schedule"

    async def test_a_missed_slot_is_spent_without_a_job(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock, timing=Every(3600), catch_up="none")])
        slot = (await one(store)).next
        clock.now = slot + 60_000
        [fired] = await store.fire([await come_due(store, clock)])
        assert (fired.won, fired.answer) == (True, None)
        after = await one(store)
        assert (after.last, after.job, after.outcome, after.fired) == (None, None, None, 0)
        assert (after.next, after.revision) == (slot + 3_600_000, 2)
        assert await total(store) == 0

    async def test_a_slot_fires_under_another_name_for_another_queue(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.put_schedules(
            [schedule(clock, "s1", job=steps.job(queue="q")), schedule(clock, "s2", job=steps.job(queue="r"))]
        )
        clock.tick(TEN)
        due = await store.due(10)
        fired = await store.fire([firing(found, clock.now) for found in due.schedules])
        assert [one.won for one in fired] == [True, True]
        assert await started_ids(store, queues=("r",)) == [slot_id("s2", clock.now)]

    async def test_new_work_is_heard(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        due = await come_due(store, clock)
        mark = store.mark()
        await store.fire([due])
        assert await store.wait(frozenset({"work:q"}), PATIENCE, since=mark) is True


class TestFireAgainstChanges:
    async def test_a_pause_comes_before_a_firing(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        due = await come_due(store, clock)
        paused = pause(await one(store), paused=True, now=clock.now)
        assert paused is not None
        await store.put_schedules([paused])
        assert not (await store.fire([due]))[0].won
        assert not (await store.fire([msgspec.structs.replace(due, revision=2)]))[0].won, "paused is paused"
        assert await store.schedules() == [paused]
        assert await total(store) == 0

    async def test_what_was_changed_since_is_fired_as_it_is_now(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.put_schedules([schedule(clock)])
        stale = await come_due(store, clock)
        found = await one(store)
        new = Definition(Every(10), template(steps.job(payload=b'"new"')))
        record = put(found, "s", new, declared=False, now=clock.now)
        assert record is not None
        await store.put_schedules([record])
        assert not (await store.fire([stale]))[0].won
        [fired] = await store.fire([await come_due(store, clock)])
        assert fired.answer is not None
        assert (await look(store, fired.answer.id)).payload == b'"new"'

    async def test_a_firing_comes_before_a_change_that_was_read_earlier(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.put_schedules([schedule(clock)])
        before = await one(store)
        await store.fire([await come_due(store, clock)])
        paused = pause(before, paused=True, now=clock.now)
        assert paused is not None
        assert await store.put_schedules([paused]) == [False], "it would bring the slot back"
        assert (await one(store)).fired == 1

    async def test_one_that_was_removed_does_not_fire(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        due = await come_due(store, clock)
        await store.drop_schedule("s")
        assert not (await store.fire([due]))[0].won
        assert await total(store) == 0
        await store.put_schedules([schedule(clock, timing=Every(3))])
        anew = await one(store)
        assert not (await store.fire([due]))[0].won, "who was put anew is another"
        assert await one(store) == anew

    @pytest.mark.accepts("G5")
    async def test_removing_touches_no_job(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        made: list[Job] = []
        for _ in range(2):
            [fired] = await store.fire([await come_due(store, clock)])
            assert fired.answer is not None
            made.append(await look(store, fired.answer.id))
        claimed = await start_one(store)
        before = [await look(store, job.id) for job in made]
        await store.drop_schedule("s")
        assert [await look(store, job.id) for job in made] == before
        assert claimed.id == made[0].id
        assert (await look(store, claimed.id)).state is State.RUNNING

    async def test_of_firing_and_removing_at_once_there_is_a_job_only_if_the_firing_won(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        for number in range(RACERS):
            await store.put_schedules([schedule(clock)])
            due = await come_due(store, clock)
            firing_it, removing_it = store.fire([due]), store.drop_schedule("s")
            if number % 2:
                [fired], removed = await asyncio.gather(firing_it, removing_it)
            else:
                removed, [fired] = await asyncio.gather(removing_it, firing_it)
            assert removed is True
            assert (await store.job(slot_id("s", due.slot)) is not None) is fired.won
            assert await store.schedules() == []


class TestSlotsAndPolicies:
    @pytest.mark.accepts("N9")
    async def test_without_a_policy_every_slot_is_a_job_of_its_own(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await store.put_schedules([schedule(clock)])
        for number in range(1, 4):
            await store.fire([await come_due(store, clock)])
            assert await total(store) == number

    @pytest.mark.parametrize(
        ("unique", "outcome"),
        [(Unique.in_flight(), Outcome.KEPT), (Unique.in_flight(queued="raise"), Outcome.REJECTED)],
        ids=["kept", "rejected"],
    )
    async def test_a_call_that_is_not_taken_spends_its_slot(
        self, store: JobStore, clock: FakeClock, unique: Unique, outcome: Outcome
    ) -> None:
        holder = await steps.put(store, steps.job(unique=unique))
        await store.put_schedules([schedule(clock, job=steps.job(unique=unique))])
        due = await come_due(store, clock)
        [fired] = await store.fire([due])
        assert fired.won
        assert fired.answer is not None
        assert (fired.answer.outcome, fired.answer.id) == (outcome, holder.id)
        after = await one(store)
        assert (after.last, after.outcome, after.job) == (due.slot, outcome, holder.id)
        assert (after.fired, after.next) == (1, due.slot + TEN)
        assert (await store.due(10)).schedules == []
        await steps.run(store)
        assert not (await store.fire([due]))[0].won, "nobody makes up for it later"
        assert await total(store) == 1
        [later] = await store.fire([await come_due(store, clock)])
        assert later.answer is not None
        assert later.answer.outcome is Outcome.CREATED

    async def test_a_call_that_changes_its_holder_spends_its_slot(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await steps.put(store, steps.job(unique=Unique.latest(), payload=b'"old"'))
        await store.put_schedules([schedule(clock, job=steps.job(unique=Unique.latest(), payload=b'"new"'))])
        [fired] = await store.fire([await come_due(store, clock)])
        assert fired.answer is not None
        assert fired.answer.outcome is Outcome.UPDATED
        assert (await look(store, fired.answer.id)).payload == b'"new"'
        assert (await one(store)).outcome is Outcome.UPDATED

    async def test_slots_take_their_turn_in_a_lane(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock, job=steps.job(lane=LanePlan("x")))])
        slots: list[JobId] = []
        for _ in range(2):
            due = await come_due(store, clock)
            await store.fire([due])
            slots.append(slot_id("s", due.slot))
        assert await started_ids(store) == slots[:1]
        lane = await store.lane("q", "x")
        assert lane is not None
        assert (lane.holders, lane.head) == ([slots[0]], slots[1])

    async def test_delay_and_expiry_count_from_the_firing(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock, job=steps.job(delay=500, expires=2_000))])
        due = await come_due(store, clock)
        clock.tick(100)
        await store.fire([due])
        made = await look(store, slot_id("s", due.slot))
        assert (made.state, made.due, made.expires) == (State.DELAYED, clock.now + 500, clock.now + 2_000)
