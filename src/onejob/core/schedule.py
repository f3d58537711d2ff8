"""Schedules: what is stored of one, and what becomes of it when it is put, changed, paused or due.

A store compares and sets: it replaces a schedule's record if that is still as it was read. What the new record is
gets decided here, so that it is the same on every store, whoever ticks.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import Final, Literal, TypeAlias

import msgspec

from onejob.core.dedup import Plan
from onejob.core.derived import derived_id
from onejob.core.job import JobId, NewJob
from onejob.core.judge import Outcome
from onejob.core.lane import LanePlan
from onejob.core.options import decode_options, encode_options
from onejob.core.timing import MINUTE, Cron, Every, Timing

CatchUp: TypeAlias = Literal["one", "none"]

MISSED_AFTER: Final = MINUTE
"""A slot that is later than this has been missed."""


class Template(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What each slot becomes: a job in all but its id. A plan is there only if the schedule's own job asked for one."""

    queue: str
    task: str
    payload: bytes
    plan: Plan | None = None
    priority: int = 0
    delay: int = 0
    expires: int | None = None
    max_crashes: int = 3
    options: bytes | None = None
    lane: LanePlan | None = None

    def job(self, id: JobId, schedule: str, slot: int | None) -> NewJob:
        """A job of that schedule for a slot; without one, besides."""
        options = msgspec.structs.replace(decode_options(self.options), schedule=schedule, slot=slot)
        return NewJob(
            id,
            self.queue,
            self.task,
            self.payload,
            self.plan,
            self.priority,
            self.delay,
            self.expires,
            self.max_crashes,
            encode_options(options),
            lane=self.lane,
        )


class Definition(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a user says of a schedule: when, what, and what becomes of slots that nobody was there for."""

    timing: Cron | Every
    template: Template
    catch_up: CatchUp = "one"

    def encoded(self) -> bytes:
        """As it is stored; equal definitions have equal bytes."""
        return msgspec.json.encode(self)


@cache
def _decoder() -> msgspec.json.Decoder[Definition]:
    return msgspec.json.Decoder(Definition)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored. Instants are milliseconds on the store's clock."""

    id: str
    definition: bytes
    """Opaque to stores; `read` turns it into a `Definition`."""
    declared: bool = False
    """It came from the code of an app; otherwise it was put while running."""
    paused: bool = False
    since: int
    """When it was first put: from there an interval's slots are counted. Never changes while it is on record."""
    next: int
    """The slot that is due next, unless it is paused."""
    last: int | None = None
    """The last slot that was not missed, the job that stands for it, and what became of the call."""
    job: JobId | None = None
    outcome: Outcome | None = None
    fired: int = 0
    """How many slots that were; a slot that was kept or rejected counts, too."""
    updated: int
    revision: int = 1
    """Grows with each write; who writes names the one he has read."""

    def read(self) -> Definition:
        """What its user said; raises `msgspec.MsgspecError` if it cannot be read here."""
        definition = _decoder().decode(self.definition)
        decode_options(
            definition.template.options
        )  # what a newer version may have put there is not for us to drop
        return definition


class Firing(msgspec.Struct, frozen=True):
    """A slot to be spent: compare the revision, set the next slot, and enqueue the job if there is one."""

    id: str
    revision: int
    since: int
    """Both as they were read: a schedule that was removed and put anew begins its revisions anew, at another time."""
    slot: int
    next: int
    job: NewJob | None
    """None: the slot has been missed, and is let go."""


def slot_id(schedule: str, slot: int) -> JobId:
    """The id of the job for a slot: made from both alone, so that there is one, whoever fires."""
    made = derived_id(b"onejob slot", max(slot, 0).to_bytes(6, "big") + schedule.encode())
    return JobId(str(uuid.UUID(bytes=made)))


def put(
    found: Schedule | None, id: str, definition: Definition, *, declared: bool, now: int
) -> Schedule | None:
    """The record after a definition was put over what was found; None if that is what it is already.

    The same timing leaves the next slot alone; another one starts from now, and never before a slot that was spent.
    A pause outlives all that.
    """
    encoded, timing = definition.encoded(), definition.timing
    if found is None:
        first = timing.after(now, now)
        return Schedule(id=id, definition=encoded, declared=declared, since=now, next=first, updated=now)
    if found.definition == encoded and found.declared == declared:
        return None
    due = found.next
    if _timing(found) != timing:
        due = timing.after(max(now, found.last or 0), found.since)
    return msgspec.structs.replace(
        found,
        definition=encoded,
        declared=declared,
        next=due,
        updated=now,
        revision=found.revision + 1,
    )


def pause(found: Schedule, *, paused: bool, now: int) -> Schedule | None:
    """The record paused or resumed; None if it is so already. Slots that come in a pause are let go."""
    if found.paused == paused:
        return None
    due = found.next
    if not paused and due <= now:
        due = found.read().timing.after(max(now, found.last or 0), found.since)
    return msgspec.structs.replace(found, paused=paused, next=due, updated=now, revision=found.revision + 1)


def firing(found: Schedule, now: int) -> Firing:
    """What to do about a schedule whose next slot has come.

    However many slots have passed, at most one becomes a job: the last. With `catch_up="none"` it does not if it
    has been missed, too.
    """
    definition = found.read()
    timing = definition.timing
    slot = timing.latest(now, found.next, found.since)
    missed = definition.catch_up == "none" and now - slot >= MISSED_AFTER
    job = None if missed else definition.template.job(slot_id(found.id, slot), found.id, slot)
    return Firing(found.id, found.revision, found.since, slot, timing.after(max(now, slot), found.since), job)


def fired(found: Schedule, firing: Firing, job: JobId | None, outcome: Outcome | None, now: int) -> Schedule:
    """The record after a firing that won; `job` and `outcome` are what the store answered, if it was asked."""
    spent = {} if job is None else {"last": firing.slot, "job": job, "outcome": outcome}
    return msgspec.structs.replace(
        found,
        **spent,
        next=firing.next,
        fired=found.fired + (job is not None),
        updated=now,
        revision=found.revision + 1,
    )


def _timing(found: Schedule) -> Timing | None:
    """When it has been due so far; None if this process cannot read that, as with a zone that is gone."""
    try:
        return found.read().timing
    except msgspec.MsgspecError:
        return None
