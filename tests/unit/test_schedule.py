"""What becomes of a schedule that is put, changed, paused or due: the decisions, without a store."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wall_clock import MINUTE, at

from onejob.core.dedup import Plan, Unique, compile_rules
from onejob.core.job import JobId
from onejob.core.judge import Outcome
from onejob.core.lane import LanePlan
from onejob.core.options import JobOptions, decode_options, encode_options
from onejob.core.schedule import (
    MISSED_AFTER,
    CatchUp,
    Definition,
    Schedule,
    Template,
    fired,
    firing,
    pause,
    put,
    slot_id,
)
from onejob.core.timing import Cron, Every, Timing

NOW = at("2027-03-01 12:00")
TEN = Every(10)
JOB = JobId("00000000-0000-7000-8000-000000000001")


def definition(timing: Timing = TEN, payload: bytes = b"{}", catch_up: CatchUp = "one") -> Definition:
    return Definition(timing, Template("q", "t", payload), catch_up)


def made(timing: Timing = TEN, catch_up: CatchUp = "one", now: int = NOW) -> Schedule:
    """A schedule that was just put."""
    schedule = put(None, "s", definition(timing, catch_up=catch_up), declared=False, now=now)
    assert schedule is not None
    return schedule


def spent(found: Schedule, now: int) -> Schedule:
    """The record after its slot became a job."""
    return fired(found, firing(found, now), JOB, Outcome.CREATED, now)


class TestPut:
    def test_a_new_one_is_due_at_its_first_slot_after_now(self) -> None:
        new = made()
        assert (new.since, new.next, new.updated, new.revision) == (NOW, NOW + 10_000, NOW, 1)
        assert (new.last, new.job, new.fired, new.paused, new.declared) == (None, None, 0, False, False)
        assert made(Cron("0 12 * * *")).next == at("2027-03-02 12:00"), "what is now has passed"

    def test_the_same_again_changes_nothing(self) -> None:
        assert put(made(), "s", definition(), declared=False, now=NOW + 1) is None
        assert put(made(), "s", definition(Every(10.0)), declared=False, now=NOW + 1) is None
        crons = Cron("0 8 * * *"), Cron(" 0  8 * * * ")
        again = put(made(crons[0]), "s", definition(crons[1]), declared=False, now=NOW)
        assert again is None

    @pytest.mark.accepts("G3")
    def test_another_job_leaves_the_slots_alone(self) -> None:
        late = NOW + 35_000
        changed = put(spent(made(), NOW + 10_000), "s", definition(payload=b"2"), declared=False, now=late)
        assert changed is not None
        assert (changed.next, changed.last, changed.since) == (NOW + 20_000, NOW + 10_000, NOW)
        assert (changed.revision, changed.updated) == (3, late)
        assert changed.read().template.payload == b"2"

    def test_another_rule_for_missed_slots_leaves_the_slots_alone(self) -> None:
        changed = put(made(), "s", definition(catch_up="none"), declared=False, now=NOW + 35_000)
        assert changed is not None
        assert changed.next == NOW + 10_000

    def test_another_timing_starts_from_now(self) -> None:
        changed = put(made(), "s", definition(Every(7)), declared=False, now=NOW + 35_000)
        assert changed is not None
        assert changed.next == NOW + 42_000, "counted from when it was first put"

    def test_another_timing_never_comes_back_to_a_slot_that_was_spent(self) -> None:
        before = spent(made(), NOW + 20_000)
        changed = put(before, "s", definition(Every(5)), declared=False, now=NOW + 3_000)
        assert changed is not None
        assert changed.next == NOW + 25_000, "though the clock went back"

    def test_a_declared_one_that_is_put_by_hand_is_no_longer_declared(self) -> None:
        declared = put(made(), "s", definition(), declared=True, now=NOW)
        assert declared is not None
        assert (declared.declared, declared.next, declared.revision) == (True, NOW + 10_000, 2)

    def test_a_pause_outlives_a_change(self) -> None:
        paused = pause(made(), paused=True, now=NOW)
        assert paused is not None
        changed = put(paused, "s", definition(Every(7)), declared=False, now=NOW)
        assert changed is not None
        assert changed.paused

    def test_one_that_cannot_be_read_here_is_replaced_from_now_on(self) -> None:
        unreadable = msgspec.structs.replace(
            made(Cron("0 8 * * *", "Europe/Paris")),
            definition=definition(Cron("0 8 * * *", "Europe/Paris")).encoded().replace(b"Paris", b"Parys"),
        )
        changed = put(unreadable, "s", definition(), declared=False, now=NOW + 5_000)
        assert changed is not None
        assert changed.next == NOW + 10_000


class TestPause:
    def test_what_is_so_already_stays(self) -> None:
        assert pause(made(), paused=False, now=NOW) is None
        paused = pause(made(), paused=True, now=NOW + 1)
        assert paused is not None
        assert (paused.paused, paused.next, paused.updated, paused.revision) == (
            True,
            NOW + 10_000,
            NOW + 1,
            2,
        )
        assert pause(paused, paused=True, now=NOW) is None

    def test_slots_that_come_in_a_pause_are_let_go(self) -> None:
        paused = pause(made(), paused=True, now=NOW)
        assert paused is not None
        resumed = pause(paused, paused=False, now=NOW + 35_000)
        assert resumed is not None
        assert (resumed.paused, resumed.next, resumed.fired) == (False, NOW + 40_000, 0)
        on_the_spot = pause(paused, paused=False, now=NOW + 10_000)
        assert on_the_spot is not None
        assert on_the_spot.next == NOW + 20_000, "a slot that comes with the end of the pause is in it"

    def test_a_pause_between_two_slots_lets_none_go(self) -> None:
        paused = pause(made(), paused=True, now=NOW)
        assert paused is not None
        resumed = pause(paused, paused=False, now=NOW + 9_999)
        assert resumed is not None
        assert resumed.next == NOW + 10_000

    def test_who_resumes_after_the_clock_went_back_fires_nothing_twice(self) -> None:
        paused = pause(spent(made(), NOW + 30_000), paused=True, now=NOW + 30_000)
        assert paused is not None
        resumed = pause(paused, paused=False, now=NOW)
        assert resumed is not None
        assert resumed.next == NOW + 40_000


class TestFiring:
    def test_a_slot_becomes_a_job_that_says_so(self) -> None:
        options = encode_options(JobOptions(attempts=3, timeout=500))
        rules = compile_rules(Unique.once(), app_window=None)
        assert rules is not None
        plan, lane = Plan(b"d" * 16, "k", rules, b"f" * 16), LanePlan("l", 2)
        template = Template("q", "t", b"p", plan, 5, 100, 2_000, 1, options, lane)
        found = put(None, "s", Definition(TEN, template), declared=False, now=NOW)
        assert found is not None
        due = firing(found, NOW + 10_000)
        assert (due.id, due.revision, due.slot, due.next) == ("s", 1, NOW + 10_000, NOW + 20_000)
        job = due.job
        assert job is not None
        assert job.id == slot_id("s", NOW + 10_000)
        assert (job.queue, job.task, job.payload, job.plan, job.lane) == ("q", "t", b"p", plan, lane)
        assert (job.priority, job.delay, job.expires, job.max_crashes) == (5, 100, 2_000, 1)
        assert (job.caller, job.blockers) == (None, ())
        assert decode_options(job.options) == JobOptions(
            attempts=3, timeout=500, schedule="s", slot=NOW + 10_000
        )

    def test_a_job_besides_has_no_slot(self) -> None:
        job = Template("q", "t", b"p").job(JOB, "s", None)
        assert decode_options(job.options) == JobOptions(schedule="s")

    @pytest.mark.parametrize("catch_up", ["one", "none"])
    def test_however_many_slots_have_passed_the_last_counts(self, catch_up: CatchUp) -> None:
        due = firing(made(catch_up=catch_up), NOW + 39_000)
        assert (due.slot, due.next) == (NOW + 30_000, NOW + 40_000)
        assert due.job is not None
        assert due.job.id == slot_id("s", NOW + 30_000)

    @pytest.mark.parametrize(
        ("catch_up", "late", "runs"),
        [
            ("one", MISSED_AFTER, True),
            ("one", 100 * MINUTE, True),
            ("none", MISSED_AFTER - 1, True),
            ("none", MISSED_AFTER, False),
            ("none", 100 * MINUTE, False),
        ],
    )
    def test_a_slot_that_was_missed_by_a_minute(self, catch_up: CatchUp, late: int, runs: bool) -> None:
        found = made(Every(86_400), catch_up)
        due = firing(found, found.next + late)
        assert (due.job is not None) is runs
        assert (due.slot, due.next) == (found.next, found.next + 86_400_000)

    def test_a_clock_that_goes_back_between_look_and_firing_spends_the_slot_that_was_seen(self) -> None:
        due = firing(made(), NOW + 3_000)
        assert (due.slot, due.next) == (NOW + 10_000, NOW + 20_000)

    def test_slots_are_of_one_schedule(self) -> None:
        ids = {slot_id(name, slot) for name in ("a", "b", "ab") for slot in (0, 1, 256, NOW)}
        assert len(ids) == 12
        assert slot_id("a", NOW) == slot_id("a", NOW)


class TestFired:
    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_a_slot_is_spent_whatever_became_of_the_call(self, outcome: Outcome) -> None:
        found = made()
        after = fired(found, firing(found, NOW + 10_000), JOB, outcome, NOW + 10_001)
        assert (after.last, after.job, after.outcome, after.fired) == (NOW + 10_000, JOB, outcome, 1)
        assert (after.next, after.updated, after.revision) == (NOW + 20_000, NOW + 10_001, 2)
        assert (after.since, after.definition) == (found.since, found.definition)

    def test_a_missed_slot_leaves_no_trace_but_the_next(self) -> None:
        found = spent(made(Every(3600), "none"), NOW + 3_600_000)
        late = found.next + MISSED_AFTER
        after = fired(found, firing(found, late), None, None, late)
        assert (after.last, after.job, after.outcome, after.fired) == (
            found.last,
            JOB,
            Outcome.CREATED,
            1,
        )
        assert after.next == found.next + 3_600_000


def test_a_definition_is_the_same_bytes_however_it_was_made() -> None:
    rules = compile_rules(Unique.throttle(5), app_window=None)
    assert rules is not None
    template = Template("q", "t", b"\x00\xff", Plan(b"d" * 16, "k", rules, b"f" * 16), lane=LanePlan("l"))
    whole = Definition(Cron("0 8 * * *", "Europe/Paris"), template, "none")
    stored = msgspec.structs.replace(made(), definition=whole.encoded())
    assert stored.read() == whole
    assert stored.read().encoded() == whole.encoded()


TIMINGS: list[Timing] = [
    TEN,
    Every(7),
    Every(60),
    Cron("* * * * *"),
    Cron("*/5 * * * *"),
    Cron("30 2 * * *", "Europe/Paris"),
]
STEPS = st.one_of(
    st.tuples(
        st.just("clock"), st.sampled_from((1, 999, 7_000, 10_000, 59_999, 60_001, 3_600_000, 86_400_000))
    ),
    st.tuples(st.just("back"), st.sampled_from((1, 10_000, 61_000, 7_200_000))),
    st.tuples(st.just("put"), st.sampled_from(range(len(TIMINGS)))),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("tick"), st.just(0)),
    st.tuples(st.just("tick"), st.just(0)),
)


@given(steps=st.lists(STEPS, min_size=5, max_size=60))
def test_whatever_happens_slots_are_spent_in_order_and_none_twice(steps: list[tuple[str, int]]) -> None:
    found, now = made(), NOW
    slots: list[int] = []
    for step, value in steps:
        match step:
            case "clock":
                now += value
            case "back":
                now -= value
            case "put":
                found = put(found, "s", definition(TIMINGS[value]), declared=False, now=now) or found
            case "pause":
                found = pause(found, paused=bool(value), now=now) or found
            case _ if not found.paused and found.next <= now:
                due = firing(found, now)
                assert due.slot <= now < due.next
                slots.append(due.slot)
                found = fired(found, due, JOB, Outcome.CREATED, now)
    assert all(earlier < later for earlier, later in itertools.pairwise(slots)), slots
    assert found.fired == len(slots)
