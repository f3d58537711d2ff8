"""`put_schedules`, `drop_schedule`, `due`: records are compared and set, and those whose slot has come are found."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from onejob.core.job import NewJob
from onejob.core.judge import Outcome
from onejob.core.schedule import CatchUp, Definition, Firing, Schedule, Template, firing, pause, put
from onejob.core.timing import Cron, Every, Timing
from onejob.store import JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import steps
from onejob.testing.conformance.steps import total

PATIENCE = 20.0
TEN = 10_000
RACERS = 20


def template(job: NewJob) -> Template:
    """A job in all but its id, as a schedule keeps it."""
    kept = {name: getattr(job, name) for name in Template.__struct_fields__}
    return Template(**kept)


def schedule(
    clock: FakeClock,
    id: str = "s",
    timing: Timing | None = None,
    job: NewJob | None = None,
    catch_up: CatchUp = "one",
) -> Schedule:
    """A new record, first due in ten seconds unless its timing says otherwise."""
    made = Definition(timing or Every(10), template(job or steps.job()), catch_up)
    record = put(None, id, made, declared=False, now=clock.now)
    assert record is not None
    return record


async def one(store: JobStore, id: str = "s") -> Schedule:
    """A schedule that must be there."""
    [found] = await store.schedules([id])
    return found


async def come_due(store: JobStore, clock: FakeClock, id: str = "s") -> Firing:
    """Let its next slot come, and say what to do about it."""
    found = await one(store, id)
    clock.now = max(clock.now, found.next)
    return firing(found, clock.now)


def changed(found: Schedule, **settings: object) -> Schedule:
    """The record that follows, with something else in it."""
    return msgspec.structs.replace(found, **{"revision": found.revision + 1, **settings})


class TestPutSchedules:
    async def test_a_record_is_shown_as_it_was_put(self, store: JobStore, clock: FakeClock) -> None:
        plain = schedule(clock, "plain")
        full = msgspec.structs.replace(
            schedule(clock, "full", Cron("0 8 * * MON", "Europe/Paris"), catch_up="none"),
            declared=True,
            paused=True,
            last=clock.now,
            job=steps.new_id(),
            outcome=Outcome.KEPT,
            fired=7,
        )
        assert await store.put_schedules([plain, full]) == [True, True]
        assert await store.schedules() == [full, plain], "by id"
        assert full.read() == (await one(store, "full")).read()

    async def test_only_those_that_are_asked_for(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock, id) for id in "cab"])
        assert [found.id for found in await store.schedules(["c", "a", "none", "a"])] == ["a", "c"]
        assert await store.schedules([]) == []

    async def test_a_new_one_never_replaces_one_that_is_there(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = schedule(clock)
        await store.put_schedules([first])
        clock.tick()
        assert await store.put_schedules([schedule(clock)]) == [False]
        assert await store.schedules() == [first]

    async def test_a_record_replaces_the_one_that_was_read(self, store: JobStore, clock: FakeClock) -> None:
        first = schedule(clock)
        await store.put_schedules([first])
        second = changed(first, next=first.next + 1, paused=True)
        assert await store.put_schedules([second]) == [True]
        assert await store.schedules() == [second]

    @pytest.mark.parametrize("revision", [2, 4])
    async def test_a_record_that_was_changed_since_stays(
        self, store: JobStore, clock: FakeClock, revision: int
    ) -> None:
        first = schedule(clock)
        second = changed(first, next=first.next + 1)
        await store.put_schedules([first])
        await store.put_schedules([second])
        assert await store.put_schedules([changed(first, revision=revision, paused=True)]) == [False]
        assert await store.schedules() == [second]

    async def test_each_of_a_batch_stands_for_itself(self, store: JobStore, clock: FakeClock) -> None:
        known, new = schedule(clock, "known"), schedule(clock, "new")
        await store.put_schedules([known])
        assert await store.put_schedules([known, changed(schedule(clock, "gone")), new]) == [
            False,
            False,
            True,
        ]
        assert await store.schedules() == [known, new]
        assert await store.put_schedules([]) == []

    async def test_of_many_writers_who_have_read_the_same_one_wins(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = schedule(clock)
        await store.put_schedules([first])
        rivals = [changed(first, next=first.next + number) for number in range(RACERS)]
        won = await asyncio.gather(*(store.put_schedules([rival]) for rival in rivals))
        [winner] = [rival for rival, [yes] in zip(rivals, won, strict=True) if yes]
        assert await store.schedules() == [winner]

    async def test_of_many_who_put_a_new_one_one_wins(self, store: JobStore, clock: FakeClock) -> None:
        won = await asyncio.gather(*(store.put_schedules([schedule(clock)]) for _ in range(RACERS)))
        assert sum(yes for [yes] in won) == 1

    async def test_a_change_of_one_that_was_removed_is_not_made(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = schedule(clock)
        await store.put_schedules([first])
        assert await store.drop_schedule("s") is True
        assert await store.put_schedules([changed(first)]) == [False]
        clock.tick()
        anew = schedule(clock, timing=Every(3))
        await store.put_schedules([anew])
        assert await store.put_schedules([changed(first)]) == [False], "who was put anew is another"
        assert await store.schedules() == [anew]

    async def test_removing_says_whether_there_was_one(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        assert [await store.drop_schedule("s"), await store.drop_schedule("s")] == [True, False]
        assert await store.schedules() == []

    async def test_what_is_put_or_changed_is_heard(self, store: JobStore, clock: FakeClock) -> None:
        topics = frozenset({"schedules"})
        for record in (schedule(clock), changed(schedule(clock))):
            mark = store.mark()
            waiting = asyncio.create_task(store.wait(topics, PATIENCE))
            await asyncio.sleep(0)
            await store.put_schedules([record])
            assert await waiting is True
            assert await store.wait(topics, PATIENCE, since=mark) is True


class TestDue:
    async def test_the_most_overdue_come_first_and_the_next_of_the_others_is_told(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        seconds = {"b": 3, "a": 5, "c": 1, "d": 7, "e": 6}
        await store.put_schedules([schedule(clock, id, Every(every)) for id, every in seconds.items()])
        clock.tick(5_000)
        due = await store.due(10)
        assert [found.id for found in due.schedules] == ["c", "b", "a"]
        assert due.schedules == [await one(store, id) for id in "cba"]
        assert due.next_at == clock.now + 1_000
        few = await store.due(2)
        assert [found.id for found in few.schedules] == ["c", "b"]
        assert few.next_at == clock.now + 1_000, "of those that are not due"

    async def test_a_slot_comes_with_its_very_millisecond(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        assert (await store.due(10, now=clock.now + TEN - 1)).schedules == []
        assert (await store.due(10, now=clock.now + TEN)).schedules == [await one(store)]
        early, late = await store.due(10), await store.due(10, now=clock.now + TEN)
        assert (early.next_at, late.next_at) == (clock.now + TEN, None)

    async def test_nothing_is_due_where_nothing_is(self, store: JobStore) -> None:
        due = await store.due(10)
        assert (due.schedules, due.next_at) == ([], None)

    async def test_looking_fires_nothing(self, store: JobStore, clock: FakeClock) -> None:
        await store.put_schedules([schedule(clock)])
        clock.tick(TEN)
        assert await store.due(10) == await store.due(10)
        assert (await one(store)).fired == 0
        assert await total(store) == 0

    async def test_one_that_is_paused_is_not_due(self, store: JobStore, clock: FakeClock) -> None:
        record = schedule(clock)
        await store.put_schedules([record])
        paused = pause(record, paused=True, now=clock.now)
        assert paused is not None
        await store.put_schedules([paused])
        assert (await store.due(10)).next_at is None
        clock.tick(TEN)
        assert (await store.due(10)).schedules == []
        resumed = pause(paused, paused=False, now=clock.now)
        assert resumed is not None
        await store.put_schedules([resumed])
        assert (await store.due(10)).next_at == clock.now + TEN
