"""Schedules in the reference model: plain records, and what becomes of one that is put, paused, due and fired.

All its timings are grids: so many milliseconds apart, counted from a fixed instant or from when it was first put.
Who decides and who writes are two: a draft, or a firing, may be applied at any later time, and more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from onejob.testing.model import Model
from onejob.testing.records import Call, Reply

MISSED: Final = 60_000
"""A slot that nobody fired for so long is no longer worth it to those who asked for that."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a user says of a schedule; the call of each slot gets its id from it."""

    period: int
    from_zero: bool = False
    """The grid is that of the clock, and does not begin with the schedule."""
    call: Call = field(default_factory=lambda: Call(id=""))
    lets_go: bool = False
    """Missed slots become no job at all, rather than one for the last of them."""
    declared: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelSchedule:
    """A schedule's record."""

    id: str
    wish: Wish
    since: int
    next: int
    updated: int
    revision: int = 1
    paused: bool = False
    last: int | None = None
    job: str | None = None
    outcome: str | None = None
    fired: int = 0

    def after(self, wish: Wish, instant: int) -> int:
        """The first slot after an instant that a wish has for this schedule."""
        if wish.from_zero:
            return instant - instant % wish.period + wish.period
        slot = self.since + wish.period
        if slot <= instant:
            slot += (instant - slot) // wish.period * wish.period + wish.period
        return slot


@dataclass(frozen=True, kw_only=True)
class ModelFiring:
    """A slot to be spent, as it was decided on by one who had read that record."""

    read: ModelSchedule
    slot: int
    next: int
    call: Call | None


@dataclass
class ScheduledModel(Model):
    """A store with schedules."""

    schedules: dict[str, ModelSchedule] = field(default_factory=dict[str, ModelSchedule])
    slot_id: Callable[[str, int], str] = "slot {1} of {0}".format

    def put_draft(self, found: ModelSchedule | None, id: str, wish: Wish, now: int) -> ModelSchedule | None:
        """What is to be written so that a schedule is as its user wishes; None if it is so already."""
        if found is None:
            new = ModelSchedule(id=id, wish=wish, since=now, next=now, updated=now)
            return replace(new, next=new.after(wish, now))
        if found.wish == wish:
            return None
        due = found.next
        if (found.wish.period, found.wish.from_zero) != (wish.period, wish.from_zero):
            due = found.after(wish, now if found.last is None or found.last < now else found.last)
        return replace(found, wish=wish, next=due, updated=now, revision=found.revision + 1)

    def pause_draft(self, found: ModelSchedule, now: int, *, paused: bool) -> ModelSchedule | None:
        """What is to be written so that it is paused, or no longer; None if it is so already."""
        if found.paused is paused:
            return None
        due = found.next
        if not paused and due <= now:
            due = found.after(found.wish, now if found.last is None or found.last < now else found.last)
        return replace(found, paused=paused, next=due, updated=now, revision=found.revision + 1)

    def write(self, draft: ModelSchedule) -> bool:
        """Write what was decided, if nobody else has written or removed it since."""
        found = self.schedules.get(draft.id)
        if draft.revision == 1:
            fits = found is None
        else:
            fits = found is not None and (found.since, found.revision + 1) == (draft.since, draft.revision)
        if fits:
            self.schedules[draft.id] = draft
        return fits

    def drop_schedule(self, id: str) -> bool:
        """Remove one; its jobs stay."""
        return self.schedules.pop(id, None) is not None

    def due(self, now: int) -> list[ModelSchedule]:
        """Those whose slot has come."""
        found = [one for one in self.schedules.values() if not one.paused and one.next <= now]
        return sorted(found, key=lambda one: one.next)

    def next_slot(self, now: int) -> int | None:
        """When the next of the others is due."""
        return min(
            (one.next for one in self.schedules.values() if not one.paused and one.next > now), default=None
        )

    def decide(self, found: ModelSchedule, now: int) -> ModelFiring:
        """Which slot of one that is due to spend: the last, and with or without a job."""
        slot = found.next
        while slot + found.wish.period <= now:
            slot += found.wish.period
        call = None
        if not (found.wish.lets_go and now - slot >= MISSED):
            call = replace(found.wish.call, id=self.slot_id(found.id, slot), schedule=found.id, slot=slot)
        return ModelFiring(read=found, slot=slot, next=found.after(found.wish, max(now, slot)), call=call)

    def fire(self, firing: ModelFiring, now: int) -> tuple[bool, Reply | None]:
        """Spend a slot, if its schedule is still as it was read; a paused one's is not. What was its call answered?"""
        found = self.schedules.get(firing.read.id)
        if found is None or found.paused:
            return False, None
        if (found.since, found.revision) != (firing.read.since, firing.read.revision):
            return False, None
        reply = None if firing.call is None else self.enqueue(firing.call, now)
        after = replace(found, next=firing.next, updated=now, revision=found.revision + 1)
        if reply is not None:
            after = replace(
                after, last=firing.slot, job=reply.id, outcome=reply.outcome, fired=found.fired + 1
            )
        self.schedules[found.id] = after
        return True, reply
