"""A store with schedules and its model side by side: who reads and decides is one step, who writes or fires another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pair import Pair
from policies import letter_id, new_job
from sights import EVERYTHING, compare_answer, same

from onejob.core import schedule as deciding
from onejob.core.job import JobId
from onejob.core.options import decode_options
from onejob.core.schedule import Definition, Firing, Schedule, slot_id
from onejob.core.timing import Cron, Every, Timing
from onejob.store import JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.schedules import template
from onejob.testing.timetable import ModelFiring, ModelSchedule, ScheduledModel, Wish

CRONS = {60_000: "* * * * *", 300_000: "*/5 * * * *"}


class SchedulePair(Pair):
    """What a test drives."""

    model: ScheduledModel

    def __init__(self, open_store: Callable[[FakeClock], JobStore], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(open_store, loop)
        self.model = ScheduledModel(letter_id=letter_id, slot_id=slot_id)
        self.lead = 0
        """By how much the clock of those who decide is ahead of the store's."""
        self.drafts: list[tuple[Schedule, ModelSchedule]] = []
        """Every record that anybody ever wanted to write."""
        self.firings: list[tuple[Firing, ModelFiring]] = []
        """Every slot that anybody ever wanted to spend."""
        self._spent: dict[str, int] = {}
        """The last slot that became a job, of each schedule since it was put."""

    @property
    def time(self) -> int:
        """The clock of those who decide."""
        return self.clock.now + self.lead

    def draft(self, id: str, wish: Wish) -> int | None:
        """Decide how to put a schedule; the index of the draft, None if nothing is to be written."""
        [*seen] = self._do(self.store.schedules([id]))
        found, mine = (seen[0] if seen else None), self.model.schedules.get(id)
        drafted = deciding.put(found, id, definition_of(wish), declared=wish.declared, now=self.time)
        return self._drafted(drafted, self.model.put_draft(mine, id, wish, self.time))

    def draft_pause(self, id: str, *, paused: bool) -> int | None:
        """Decide how to pause or resume one that is there."""
        [found] = self._do(self.store.schedules([id]))
        drafted = deciding.pause(found, paused=paused, now=self.time)
        return self._drafted(
            drafted, self.model.pause_draft(self.model.schedules[id], self.time, paused=paused)
        )

    def write(self, *drafts: int) -> None:
        """Write drafts, new or old."""
        written = self._do(self.store.put_schedules([self.drafts[index][0] for index in drafts]))
        same("written", written, [self.model.write(self.drafts[index][1]) for index in drafts])
        for index, yes in zip(drafts, written, strict=True):
            if yes and self.drafts[index][0].revision == 1:
                self._spent.pop(self.drafts[index][0].id, None)
        self.check()

    def put(self, id: str, wish: Wish) -> None:
        """Decide and write at once."""
        if (draft := self.draft(id, wish)) is not None:
            self.write(draft)

    def pause(self, id: str, *, paused: bool) -> None:
        """Decide and write at once."""
        if (draft := self.draft_pause(id, paused=paused)) is not None:
            self.write(draft)

    def drop(self, id: str) -> None:
        """Somebody removes a schedule."""
        same(f"dropped {id}", self._do(self.store.drop_schedule(id)), self.model.drop_schedule(id))
        self.check()

    def see_due(self, limit: int = EVERYTHING) -> list[int]:
        """The first half of a tick: see what is due, and decide; returns the indices of the firings."""
        due = self._do(self.store.due(limit, now=self.time))
        expected = self.model.due(self.time)
        same("due", [found.next for found in due.schedules], [one.next for one in expected[:limit]])
        same("next slot", due.next_at, self.model.next_slot(self.time))
        return [self._decide(found) for found in due.schedules]

    def see(self, id: str) -> int:
        """Decide about one without asking whether it is due, or paused."""
        [found] = self._do(self.store.schedules([id]))
        return self._decide(found)

    def fire(self, *firings: int) -> None:
        """The second half of some tick, whenever it comes."""
        chosen = [self.firings[index] for index in firings]
        results = self._do(self.store.fire([theirs for theirs, _ in chosen]))
        same("number of results", len(results), len(chosen))
        for (theirs, mine), result in zip(chosen, results, strict=True):
            known = set(self.model.jobs)
            won, reply = self.model.fire(mine, self.clock.now)
            same(f"slot {theirs.slot} of {theirs.id} won", result.won, won)
            same("answered", result.answer is not None, reply is not None)
            if result.answer is not None and reply is not None and theirs.job is not None:
                compare_answer(result.answer, reply)
                self._spend(theirs)
                if theirs.job.id in self.model.jobs and theirs.job.id not in known:
                    self.watch.created(theirs.job)
                self._known.add(theirs.job.id)
        self.check()

    def tick(self) -> None:
        """Both halves."""
        self.fire(*self.see_due())

    def check(self) -> None:
        """Compare everything observable, schedules included."""
        super().check()
        seen = self._do(self.store.schedules())
        mine = [self.model.schedules[id] for id in sorted(self.model.schedules)]
        same("schedules", [seen_schedule(one) for one in seen], [model_schedule(one) for one in mine])

    def check_chains(self) -> None:
        """What an observer looks at now and then: chains, and where jobs come from."""
        super().check_chains()
        for job in self._jobs().values():
            options, call = decode_options(job.options), self.model.jobs[job.id].call
            same(f"origin of {job.id}", (options.schedule, options.slot), (call.schedule, call.slot))

    def inherit(self, other: Pair) -> None:
        """Know what others wanted to write and to spend, too."""
        super().inherit(other)
        assert isinstance(other, SchedulePair)
        self.lead, self.drafts, self.firings = other.lead, list(other.drafts), list(other.firings)

    def _decide(self, found: Schedule) -> int:
        mine = self.model.schedules[found.id]
        same(f"due {found.id}", seen_schedule(found), model_schedule(mine))
        decided = deciding.firing(found, self.time), self.model.decide(mine, self.time)
        same(f"firing of {found.id}", seen_firing(decided[0]), model_firing(decided[1]))
        self.firings.append(decided)
        return len(self.firings) - 1

    def _drafted(self, draft: Schedule | None, mine: ModelSchedule | None) -> int | None:
        same("draft", draft and seen_schedule(draft), mine and model_schedule(mine))
        if draft is None or mine is None:
            return None
        self.drafts.append((draft, mine))
        return len(self.drafts) - 1

    def _spend(self, firing: Firing) -> None:
        """By the store's own words alone, no slot is spent twice, and none after a later one."""
        last = self._spent.get(firing.id)
        assert last is None or last < firing.slot, f"{firing.id} spent {firing.slot} after {last}"
        self._spent[firing.id] = firing.slot


def timing_of(wish: Wish) -> Timing:
    """A wish's grid as a user would write it."""
    return Cron(CRONS[wish.period]) if wish.from_zero else Every(wish.period / 1000)


def definition_of(wish: Wish) -> Definition:
    """A wish as a client writes it."""
    return Definition(timing_of(wish), template(new_job(wish.call)), "none" if wish.lets_go else "one")


def seen_schedule(found: Schedule) -> tuple[Any, ...]:
    """A record as the store shows it."""
    return (
        found.id,
        found.read(),
        found.declared,
        found.paused,
        (found.since, found.next, found.updated),
        (found.last, found.job, None if found.outcome is None else found.outcome.value),
        (found.fired, found.revision),
    )


def model_schedule(mine: ModelSchedule) -> tuple[Any, ...]:
    """A record as the model knows it."""
    return (
        mine.id,
        definition_of(mine.wish),
        mine.wish.declared,
        mine.paused,
        (mine.since, mine.next, mine.updated),
        (mine.last, mine.job, mine.outcome),
        (mine.fired, mine.revision),
    )


def seen_firing(firing: Firing) -> tuple[Any, ...]:
    """What was decided about a slot by the product."""
    options = None if firing.job is None else decode_options(firing.job.options)
    origin = None if options is None else (options.schedule, options.slot, options.dead_letter)
    return (firing.id, firing.slot, firing.next, firing.job and firing.job.id, origin)


def model_firing(mine: ModelFiring) -> tuple[Any, ...]:
    """The same, by the model."""
    call = mine.call
    origin = None if call is None else (call.schedule, call.slot, call.dead_letter)
    return (mine.read.id, mine.slot, mine.next, None if call is None else JobId(call.id), origin)
