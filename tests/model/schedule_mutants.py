"""Known bugs of schedules, each as a switch; see `mutants`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from chain_mutants import swap
from mutants import ErringStore, Switch, replaced

from onejob.core import schedule as deciding
from onejob.core.job import JobId, NewJob
from onejob.core.judge import Outcome
from onejob.core.schedule import Definition, Firing, Schedule, Template
from onejob.core.timing import Cron, Every
from onejob.store import Fired
from onejob.stores.sqlite import scheduling
from onejob.stores.sqlite.session import Session


class RemovingTakesTheJobsAlong(ErringStore):
    async def drop_schedule(self, id: str) -> bool:
        await self.sql(
            "delete from onejob_job where cast(options as text) like ? and state != 'running'",
            f'%"schedule":"{id}"%',
        )
        return await super().drop_schedule(id)


class SlotsAreSpentBeforeTheirJobsAreMade(ErringStore):
    """Two commits, and a crash between them: the job is lost."""

    async def fire(self, firings: Any, *, now: int | None = None) -> list[Fired]:
        results = await super().fire([replaced(firing, job=None) for firing in firings], now=now)
        for firing, result in zip(firings, results, strict=True):
            if result.won and firing.job is not None and firing.slot % 3:
                await self.enqueue([firing.job], now=now)
        return results


class JobsAreMadeBeforeTheirSlotsAreSpent(ErringStore):
    """Two commits the other way round: who loses has made a job already."""

    async def fire(self, firings: Any, *, now: int | None = None) -> list[Fired]:
        for firing in firings:
            if firing.job is not None:
                await self.enqueue([firing.job], now=now)
        return await super().fire(firings, now=now)


STORES: list[type[ErringStore]] = [
    RemovingTakesTheJobsAlong,
    SlotsAreSpentBeforeTheirJobsAreMade,
    JobsAreMadeBeforeTheirSlotsAreSpent,
]

Fire = Callable[[Session, Firing, int], Fired]


def firing_differently(
    patch: pytest.MonkeyPatch, wrong: Callable[[Fire, Session, Firing, int], Fired]
) -> None:
    right = scheduling._fire
    patch.setattr(scheduling, "_fire", lambda session, firing, now: wrong(right, session, firing, now))


def who_fires_does_not_compare_the_revision(patch: pytest.MonkeyPatch) -> None:
    def careless(right: Fire, session: Session, firing: Firing, now: int) -> Fired:
        found = scheduling._one(session, firing.id)
        return right(session, firing if found is None else replaced(firing, revision=found.revision), now)

    firing_differently(patch, careless)


def who_fires_takes_one_that_was_put_anew_for_the_old_one(patch: pytest.MonkeyPatch) -> None:
    def careless(right: Fire, session: Session, firing: Firing, now: int) -> Fired:
        found = scheduling._one(session, firing.id)
        return right(session, firing if found is None else replaced(firing, since=found.since), now)

    firing_differently(patch, careless)


def who_fires_does_not_see_a_pause(patch: pytest.MonkeyPatch) -> None:
    def heedless(right: Fire, session: Session, firing: Firing, now: int) -> Fired:
        paused = session.rows("select id from onejob_schedule where paused", ())
        session.run("update onejob_schedule set paused = 0", ())
        fired = right(session, firing, now)
        session.executemany("update onejob_schedule set paused = 1 where id = ?", paused)
        return fired

    firing_differently(patch, heedless)


def unspent(patch: pytest.MonkeyPatch, is_so: Callable[[Fired], bool]) -> None:
    """Some firings win and leave the record as it was."""

    def forgetful(right: Fire, session: Session, firing: Firing, now: int) -> Fired:
        before = scheduling._one(session, firing.id)
        fired = right(session, firing, now)
        if before is not None and fired.won and is_so(fired):
            session.run("delete from onejob_schedule where id = ?", (firing.id,))
            scheduling._write(session, replaced(before, revision=1))
            session.run("update onejob_schedule set revision = ? where id = ?", (before.revision, firing.id))
        return fired

    firing_differently(patch, forgetful)


def a_slot_whose_call_was_kept_is_not_spent(patch: pytest.MonkeyPatch) -> None:
    unspent(patch, lambda fired: fired.answer is not None and fired.answer.outcome is Outcome.KEPT)


def a_slot_whose_call_was_rejected_is_not_spent(patch: pytest.MonkeyPatch) -> None:
    unspent(patch, lambda fired: fired.answer is not None and fired.answer.outcome is Outcome.REJECTED)


def a_missed_slot_is_not_spent(patch: pytest.MonkeyPatch) -> None:
    unspent(patch, lambda fired: fired.answer is None)


def putting_resets_the_next_slot(patch: pytest.MonkeyPatch) -> None:
    right = deciding.put

    def eager(
        found: Schedule | None, id: str, definition: Definition, *, declared: bool, now: int
    ) -> Schedule | None:
        record = right(found, id, definition, declared=declared, now=now)
        if found is None or record is None:
            return record
        return replaced(record, next=definition.timing.after(now, found.since))

    patch.setattr(deciding, "put", eager)


def another_timing_is_due_at_once(patch: pytest.MonkeyPatch) -> None:
    right = deciding.put

    def eager(
        found: Schedule | None, id: str, definition: Definition, *, declared: bool, now: int
    ) -> Schedule | None:
        record = right(found, id, definition, declared=declared, now=now)
        changed = found is not None and record is not None and found.next != record.next
        return replaced(record, next=now) if record is not None and changed else record

    patch.setattr(deciding, "put", eager)


def putting_ends_a_pause(patch: pytest.MonkeyPatch) -> None:
    right = deciding.put

    def resuming(*given: Any, **settings: Any) -> Schedule | None:
        record = right(*given, **settings)
        return record and replaced(record, paused=False)

    patch.setattr(deciding, "put", resuming)


def another_timing_forgets_what_was_spent(patch: pytest.MonkeyPatch) -> None:
    right = deciding.put

    def forgetful(found: Schedule | None, *given: Any, **settings: Any) -> Schedule | None:
        blank = found and replaced(found, last=None)
        record = right(blank, *given, **settings)
        return record and replaced(record, last=None if found is None else found.last)

    patch.setattr(deciding, "put", forgetful)


def slots_of_a_pause_are_made_up_for(patch: pytest.MonkeyPatch) -> None:
    right = deciding.pause

    def sparing(found: Schedule, *, paused: bool, now: int) -> Schedule | None:
        record = right(found, paused=paused, now=now)
        return record and replaced(record, next=found.next)

    patch.setattr(deciding, "pause", sparing)


def deciding_differently(patch: pytest.MonkeyPatch, wrong: Callable[[Schedule, int, Firing], Firing]) -> None:
    right = deciding.firing
    patch.setattr(deciding, "firing", lambda found, now: wrong(found, now, right(found, now)))


def a_slot_fires_twice_if_the_clock_goes_back(patch: pytest.MonkeyPatch) -> None:
    def forgetful(found: Schedule, now: int, firing: Firing) -> Firing:
        return replaced(firing, next=found.read().timing.after(now - 1, found.since))

    deciding_differently(patch, forgetful)


def every_missed_slot_becomes_a_job(patch: pytest.MonkeyPatch) -> None:
    def pedantic(found: Schedule, _: int, firing: Firing) -> Firing:
        definition = found.read()
        job = definition.template.job(deciding.slot_id(found.id, found.next), found.id, found.next)
        return replaced(
            firing, slot=found.next, next=definition.timing.after(found.next, found.since), job=job
        )

    deciding_differently(patch, pedantic)


def missed_slots_run_whatever_was_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "MISSED_AFTER", 10**15)


def a_slot_is_missed_a_moment_too_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "MISSED_AFTER", deciding.MISSED_AFTER + 1)


def whoever_fires_gives_the_slot_an_id_of_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "slot_id", lambda *_: JobId(str(uuid.uuid4())))


def jobs_do_not_say_where_they_come_from(patch: pytest.MonkeyPatch) -> None:
    right = Template.job

    def silent(self: Template, id: JobId, schedule: str, slot: int | None) -> NewJob:
        return replaced(right(self, id, schedule, slot), options=self.options)

    patch.setattr(Template, "job", silent)


def an_interval_counts_from_its_last_slot(patch: pytest.MonkeyPatch) -> None:
    def drifting(self: Every, instant: int, anchor: int = 0) -> int:
        return instant + self.period

    patch.setattr(Every, "after", drifting)


def the_latest_slot_is_the_next_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cron, "latest", lambda self, instant, first, anchor=0: self.after(instant, anchor))


def who_writes_does_not_compare_the_revision(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "schedules", "replace", "and revision = :revision - 1", "")


def who_writes_takes_one_that_was_put_anew_for_the_old_one(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "schedules", "replace", "and since = :since", "")


def a_new_one_replaces_what_is_there(patch: pytest.MonkeyPatch) -> None:
    swap(
        patch,
        "schedules",
        "insert",
        "do nothing",
        "do update set next = excluded.next, definition = excluded.definition, revision = 1",
    )


def the_first_by_name_is_due_first(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "schedules", "due", "order by next", "order by id")


def a_paused_one_is_due(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "schedules", "due", "paused = 0 and", "")


def a_slot_comes_a_moment_late(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "schedules", "due", "next <= :now", "next < :now")


def the_next_slot_is_one_that_has_come(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "schedules", "next_at", "next > :now", "next > 0 * :now")


def a_paused_one_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    swap(patch, "schedules", "next_at", "paused = 0 and", "")


SWITCHES: list[Switch] = [
    who_fires_does_not_compare_the_revision,
    who_fires_takes_one_that_was_put_anew_for_the_old_one,
    who_fires_does_not_see_a_pause,
    a_slot_whose_call_was_kept_is_not_spent,
    a_slot_whose_call_was_rejected_is_not_spent,
    a_missed_slot_is_not_spent,
    putting_resets_the_next_slot,
    another_timing_is_due_at_once,
    putting_ends_a_pause,
    another_timing_forgets_what_was_spent,
    slots_of_a_pause_are_made_up_for,
    a_slot_fires_twice_if_the_clock_goes_back,
    every_missed_slot_becomes_a_job,
    missed_slots_run_whatever_was_asked,
    a_slot_is_missed_a_moment_too_late,
    whoever_fires_gives_the_slot_an_id_of_its_own,
    jobs_do_not_say_where_they_come_from,
    an_interval_counts_from_its_last_slot,
    the_latest_slot_is_the_next_one,
    who_writes_does_not_compare_the_revision,
    who_writes_takes_one_that_was_put_anew_for_the_old_one,
    a_new_one_replaces_what_is_there,
    the_first_by_name_is_due_first,
    a_paused_one_is_due,
    a_slot_comes_a_moment_late,
    the_next_slot_is_one_that_has_come,
    a_paused_one_is_waited_for,
]
