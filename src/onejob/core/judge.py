"""The judgement: one newcomer, one holder, one instant; out comes what a store must write, as plain data.

This is the only place that reads a verdict table. Stores find the holder, call `judge`, and apply the
decision in the same transaction (or guard it by the key's generation).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, assert_never

import msgspec

from onejob.core.dedup import Plan, Rules, Verdict, standing
from onejob.core.job import ENDED, QUEUED, ChainId, JobId, NewJob, State
from onejob.core.lane import LanePlan
from onejob.core.options import MAX_PAYLOAD


class Outcome(StrEnum):
    """What an enqueue did."""

    CREATED = "created"
    KEPT = "kept"
    UPDATED = "updated"
    POSTPONED = "postponed"
    COLLECTED = "collected"
    REJECTED = "rejected"


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call that changed a holder, remembered so that its repetition is recognised."""

    id: JobId
    outcome: Outcome
    holder: JobId
    """Which job it changed; the key may have gone on to another since."""


REMEMBERED_CALLS = 8
# Every duplicate that is kept needs these, and a look at an enumeration takes as long as a call.
_KEEP: Final = Verdict.KEEP
_COLLECT: Final = Verdict.COLLECT
_KEPT: Final = Outcome.KEPT
_CREATED: Final = Outcome.CREATED
_CHANGED = {
    Verdict.UPDATE: Outcome.UPDATED,
    Verdict.POSTPONE: Outcome.POSTPONED,
    Verdict.COLLECT: Outcome.COLLECTED,
}


class Holder(msgspec.Struct, frozen=True, gc=False):
    """A key's record joined with the job that holds it, as one store found it at one instant."""

    id: ChainId
    state: State
    since: int
    """Where the holder's window starts: its acceptance, or its due time if it was accepted for *later*."""
    completed_until: int | None
    """Until when the key is remembered if the holder completed; None is not at all."""
    failed_until: int | None
    accepted: int
    due: int
    attempt: int
    priority: int = 0
    options: bytes | None = None
    expires: int | None = None
    follows: ChainId | None = None
    """Whom it waits for and never ran after; whoever takes the key waits for that one too."""
    fingerprint: bytes = b""
    items: int = 0
    size: int = 0
    """Bytes of its payload before compression."""
    calls: tuple[Call, ...] = ()
    gone: bool = False
    """The job has been pruned or deleted; only the key remembers it."""
    lane: str | None = None

    def overdue(self, now: int) -> bool:
        """True if its time to start has passed: it counts as revoked, ended already or not."""
        return self.expires is not None and self.expires <= now and self.state in QUEUED

    def at(self, now: int) -> Holder | None:
        """The holder as it truly stands: expired if its time has passed, None if the key is forgotten."""
        held = self
        if self.overdue(now):
            held = msgspec.structs.replace(self, state=State.REVOKED)
        if held.state not in ENDED:
            return held
        until = self.completed_until if held.state is State.COMPLETED else self.failed_until
        return None if until is None or until <= now else held


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a store replies to one newcomer. `id` is always real: the new job's or the holder's."""

    id: JobId
    outcome: Outcome
    verdict: Verdict = Verdict.RUN
    holder: JobId | None = None
    """Who held the key when the newcomer came, if anyone."""
    state: State | None = None
    """How the holder stood at that moment."""
    age: int = 0
    """How long ago the holder's window had started (ms)."""
    payload_differs: bool = False
    options_differ: bool = False
    former_lane: LanePlan | None = None
    """The limits that its lane had until now, if this newcomer changed them."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """What *update*, *postpone* and *collect* write into a queued holder."""

    due: int
    append: bool = False
    calls: tuple[Call, ...] = ()


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The answer, and what must be written for it to be true.

    A created job gets `due`, `since`, `follows` and `calls`, and takes the key. `change` is for the queued
    holder. `end_holder` revokes a queued holder, `flag_holder` asks a running one to stop, `hurry_holder`
    makes a full one due at once, `expire_holder` ends one whose time to start has passed.
    """

    answer: Answer
    creates: bool = False
    due: int = 0
    since: int = 0
    follows: ChainId | None = None
    calls: tuple[Call, ...] = ()
    change: Change | None = None
    end_holder: bool = False
    flag_holder: bool = False
    hurry_holder: bool = False
    expire_holder: bool = False

    @property
    def is_an_answer(self) -> bool:
        """True if there is nothing to write."""
        holder_moves = self.end_holder or self.flag_holder or self.hurry_holder or self.expire_holder
        return not (self.creates or holder_moves) and self.change is None


def initial_state(
    due: int, follows: ChainId | None, now: int, *, laned: bool = False, blocked: bool = False
) -> State:
    """Where a job stands before a start: behind others, before its time, or ready; its lane decides more."""
    if follows is not None or blocked:
        return State.BLOCKED
    if due > now:
        return State.DELAYED
    return State.PARKED if laned else State.WAITING


def first_due(job: NewJob, now: int) -> int:
    """When a newcomer is due whose key nobody has."""
    due, plan = now + job.delay, job.plan
    if plan is not None and plan.rules.wait and not _is_full(job, plan.items):
        due = max(due, now + plan.rules.wait)
    return due


def judge(job: NewJob, found: Holder | None, now: int) -> Decision:
    """Decide what becomes of `job`, whose key's record is `found`, at the instant `now`."""
    plan = job.plan
    if plan is None or found is None:
        return _create(job, now)
    if found.id == job.id:
        return Decision(Answer(job.id, Outcome.CREATED))
    for call in found.calls:
        if call.id == job.id:
            return Decision(Answer(call.holder, call.outcome))
    holder = found.at(now)
    decision = _create(job, now, found) if holder is None else _judge(job, plan, holder, now)
    if holder is found or not found.overdue(now):
        return decision
    return msgspec.structs.replace(decision, expire_holder=True)


def keep(job: NewJob, plan: Plan, holder: Holder, now: int) -> Answer | None:
    """What `judge` answers a newcomer that is kept, if nothing is to be written; None: ask `judge`.

    Most duplicates get no further than this.
    """
    rules, state = plan.rules, holder.state
    if state not in rules.keeps or holder.calls or holder.id in (job.id, job.caller):
        return None
    if rules.window is not None and now - holder.since >= rules.window:
        return None
    if (state in ENDED or holder.expires is not None) and holder.at(now) is not holder:
        return None
    if rules.strict and plan.fingerprint != holder.fingerprint:
        return None
    return _answer(job, holder, _KEEP, _KEPT, now)


def _judge(job: NewJob, plan: Plan, holder: Holder, now: int) -> Decision:
    column = standing(holder.state, own=holder.id == job.caller)
    verdict = plan.rules.verdict(column, now - holder.since)
    if verdict is _KEEP:
        if plan.rules.strict and plan.fingerprint != holder.fingerprint:
            return Decision(_answer(job, holder, Verdict.RAISE, Outcome.REJECTED, now))
        return Decision(_answer(job, holder, verdict, _KEPT, now))
    match verdict:
        case Verdict.RUN | Verdict.FOLLOW | Verdict.LATER | Verdict.CANCEL:
            return _take(job, holder, verdict, now)
        case Verdict.RAISE:
            return Decision(_answer(job, holder, verdict, Outcome.REJECTED, now))
        case Verdict.UPDATE:
            return _change(job, holder, verdict, due=holder.due, now=now)
        case Verdict.POSTPONE:
            return _postpone(job, holder, plan.rules, now)
        case Verdict.COLLECT:
            return _collect(job, holder, now)
        case _:
            assert_never(verdict)


def may_revive(id: JobId, rules: Rules | None, found: Holder | None, now: int) -> bool:
    """True if an operator's retry of an ended job may have its key: vacant, its own, or the cell says *run*."""
    holder = None if found is None else found.at(now)
    if rules is None or holder is None or holder.id == id:
        return True
    # `force=True` was a wish of that one call; a retry asks the policy's own table.
    asked = msgspec.structs.replace(rules, forced=False)
    return asked.verdict(standing(holder.state), now - holder.since) is Verdict.RUN


def _create(job: NewJob, now: int, former: Holder | None = None) -> Decision:
    due = first_due(job, now)
    if former is None:
        return Decision(Answer(job.id, Outcome.CREATED), True, due, now)
    return Decision(Answer(job.id, Outcome.CREATED), True, due, now, former.follows, former.calls)


def _take(job: NewJob, holder: Holder, verdict: Verdict, now: int) -> Decision:
    """A new job that takes the key from a holder that is still remembered."""
    made = _create(job, now, holder)
    follows = made.follows
    running = holder.state is State.RUNNING
    if verdict is Verdict.FOLLOW or (verdict is Verdict.CANCEL and running):
        follows = holder.id
    due, since = made.due, now
    if verdict is Verdict.LATER and job.plan is not None:
        rules = job.plan.rules
        window = rules.window or 0
        due = since = max(made.due, holder.since + window)
        # The holder may outlast its window: who would follow it then follows it now.
        column = standing(holder.state, own=holder.id == job.caller)
        if rules.verdict(column, window) is Verdict.FOLLOW:
            follows = holder.id
    return msgspec.structs.replace(
        made,
        answer=_answer(job, holder, verdict, Outcome.CREATED, now),
        due=due,
        since=since,
        follows=follows,
        end_holder=verdict is Verdict.CANCEL and holder.state.queued,
        flag_holder=verdict is Verdict.CANCEL and running,
    )


def _postpone(job: NewJob, holder: Holder, rules: Rules, now: int) -> Decision:
    latest = None if rules.max_wait is None else holder.accepted + rules.max_wait
    if latest is not None and now >= latest:
        return _change(job, holder, Verdict.UPDATE, due=holder.due, now=now)
    due = now + rules.wait if latest is None else min(now + rules.wait, latest)
    if holder.attempt > 0:
        due = max(due, holder.due)
    return _change(job, holder, Verdict.POSTPONE, due=due, now=now)


def _collect(job: NewJob, holder: Holder, now: int) -> Decision:
    items = holder.items + (job.plan.items if job.plan is not None else 0)
    limit = job.plan.rules.max_items if job.plan is not None else 0
    size = (job.plan.size if job.plan is not None else 0) or len(job.payload)
    fits = items <= limit and holder.size + size < MAX_PAYLOAD
    if not fits or holder.items >= limit:
        taken = _take(job, holder, Verdict.FOLLOW, now)
        return msgspec.structs.replace(taken, hurry_holder=holder.attempt == 0 and holder.due > now)
    due = min(holder.due, now) if _is_full(job, items) and holder.attempt == 0 else holder.due
    return _change(job, holder, Verdict.COLLECT, due=due, now=now)


def _change(job: NewJob, holder: Holder, verdict: Verdict, *, due: int, now: int) -> Decision:
    outcome = _CHANGED[verdict]
    calls = (*holder.calls, Call(job.id, outcome, _id(holder)))[-REMEMBERED_CALLS:]
    return Decision(
        _answer(job, holder, verdict, outcome, now),
        change=Change(due=due, append=verdict is Verdict.COLLECT, calls=calls),
    )


def _answer(job: NewJob, holder: Holder, verdict: Verdict, outcome: Outcome, now: int) -> Answer:
    id, plan, lane = JobId(holder.id), job.plan, job.lane
    return Answer(
        job.id if outcome is _CREATED else id,
        outcome,
        verdict,
        id,
        holder.state,
        now - holder.since,
        plan is not None and plan.fingerprint != holder.fingerprint and verdict is not _COLLECT,
        not holder.gone
        and (
            job.priority != holder.priority
            or job.options != holder.options
            or (None if lane is None else lane.key) != holder.lane
        ),
    )


def _is_full(job: NewJob, items: int) -> bool:
    return job.plan is not None and 0 < job.plan.rules.max_items <= items


def _id(holder: Holder) -> JobId:
    return JobId(holder.id)
