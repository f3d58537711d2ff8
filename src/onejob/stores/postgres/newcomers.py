"""Rows that are only to be written: new jobs, and holders that are changed. Until then they may still change."""

from __future__ import annotations

import msgspec

from onejob.core.dedup import Plan, Standing
from onejob.core.job import ChainId, NewJob, State
from onejob.core.judge import Call, Change, Holder
from onejob.sql.lanes import Place, stored_plan
from onejob.sql.rows import stored_calls
from onejob.stores.postgres.blocking import NOBODY, Waits


class New(msgspec.Struct, gc=False):
    """A job that is to be written, and so may still change."""

    job: NewJob
    index: int
    state: State
    due: int
    since: int
    payload: bytes
    items: int = 0
    size: int | None = None
    fingerprint: bytes | None = None
    follows: ChainId | None = None
    calls: tuple[Call, ...] = ()
    waits: Waits = NOBODY
    awaited: bool = False

    def until(self) -> tuple[int | None, int | None]:
        """Until when its key is remembered once it has ended: completed, or not."""
        assert self.job.plan is not None
        rules = self.job.plan.rules
        return rules.forget_at(Standing.COMPLETED, self.since), rules.forget_at(Standing.FAILED, self.since)

    def as_holder(self, now: int) -> Holder:
        """It as the holder of its key."""
        job = self.job
        completed_until, failed_until = self.until()
        return Holder(
            id=ChainId(job.id),
            state=self.state,
            since=self.since,
            completed_until=completed_until,
            failed_until=failed_until,
            accepted=now,
            due=self.due,
            attempt=0,
            priority=job.priority,
            options=job.options,
            expires=None if job.expires is None else now + job.expires,
            follows=self.follows,
            fingerprint=self.fingerprint or b"",
            items=self.items,
            size=len(self.payload) if self.size is None else self.size,
            calls=self.calls,
            lane=None if job.lane is None else job.lane.key,
        )

    def change(self, job: NewJob, plan: Plan, change: Change, now: int) -> None:
        """Do what `change_holders` does to a row that is written."""
        size = plan.size or len(job.payload)
        if change.append:
            self.size = (len(self.payload) if self.size is None else self.size) + 1 + size
            self.items += plan.items
            self.payload += b"\n" + job.payload
        else:
            self.size, self.items, self.payload = size, plan.items, job.payload
            self.fingerprint = plan.fingerprint
        self.due, self.calls = change.due, change.calls
        self.state = _state_when_due(self.state, change.due, self.job.lane is not None, now)

    def hurry(self, now: int) -> None:
        """Do what `hurry_holders` does."""
        self.due = now
        self.state = _state_when_due(self.state, now, self.job.lane is not None, now)

    def columns(self) -> tuple[object, ...]:
        """What only it has, in the order of `insert_jobs`."""
        job, plan, lane = self.job, self.job.plan, self.job.lane
        return (
            job.id,
            self.payload,
            self.follows,
            None if plan is None else plan.digest,
            None if plan is None else plan.text,
            self.fingerprint,
            stored_calls(self.calls) if self.calls else None,
            self.size,
            None if lane is None else lane.key,
        )

    def kind(self, now: int) -> tuple[object, ...]:
        """What it may share with others, in the order of `insert_jobs`."""
        job, plan, lane = self.job, self.job.plan, self.job.lane
        place = None
        if lane is not None:
            place = Place.READY if self.state is State.PARKED else Place.NOT_READY
        return (
            job.queue,
            job.task,
            self.state,
            job.priority,
            self.due - now,
            self.since - now,
            job.expires,
            job.options,
            job.max_crashes,
            self.items,
            None if plan is None else plan.rules.encoded,
            None if lane is None else stored_plan(lane),
            place,
            len(self.waits.chains),
            self.awaited,
        )

    def key_columns(self) -> tuple[object, ...]:
        """Its key's record, in the order of `take_keys`."""
        job, plan = self.job, self.job.plan
        assert plan is not None
        return plan.digest, plan.text, job.queue, job.task, job.id, self.since, *self.until(), self.follows


class Changed(msgspec.Struct, gc=False):
    """A queued holder whose contents are to be changed: `holder` is what it will be."""

    holder: Holder
    payload: bytes
    append: bool
    """The payload comes after the one that is there."""
    fingerprint: bytes | None

    def change(self, job: NewJob, plan: Plan, change: Change, now: int) -> None:
        """Change it once more."""
        self.holder = holder_changed(self.holder, job, plan, change, now)
        if change.append:
            self.payload += b"\n" + job.payload
        else:
            self.payload, self.append, self.fingerprint = job.payload, False, plan.fingerprint

    def columns(self) -> tuple[object, ...]:
        """In the order of `change_holders`."""
        holder = self.holder
        return (
            holder.id,
            self.append,
            self.payload,
            self.fingerprint,
            holder.items,
            holder.size,
            holder.due,
            stored_calls(holder.calls),
        )


def changed(found: Holder, job: NewJob, plan: Plan, change: Change, now: int) -> Changed:
    """A holder's first change."""
    after = holder_changed(found, job, plan, change, now)
    return Changed(after, job.payload, change.append, None if change.append else plan.fingerprint)


def holder_changed(found: Holder, job: NewJob, plan: Plan, change: Change, now: int) -> Holder:
    """A holder as it is after a change."""
    size = plan.size or len(job.payload)
    return msgspec.structs.replace(
        found,
        state=_state_when_due(found.state, change.due, found.lane is not None, now),
        due=change.due,
        calls=change.calls,
        items=found.items + plan.items if change.append else plan.items,
        size=found.size + 1 + size if change.append else size,
        fingerprint=found.fingerprint if change.append else plan.fingerprint,
    )


def _state_when_due(state: State, due: int, laned: bool, now: int) -> State:
    if state is State.BLOCKED:
        return state
    if due > now:
        return State.DELAYED
    return State.PARKED if laned else State.WAITING
