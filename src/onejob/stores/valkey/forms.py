"""How jobs, plans and settlements go to the scripts, and how what they say is read. None is False there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from onejob.core.dead_letter import copy_id, dead_letter_of, with_dead_letter
from onejob.core.dedup import Plan, Rules, Verdict
from onejob.core.job import ChainId, Claimed, Job, JobId, Lease, NewJob, State
from onejob.core.judge import Answer, Outcome
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import ENDING, MOVES, Settlement
from onejob.sql.attempts import IN_PLACE
from onejob.sql.ids import id_from_bytes, id_to_bytes, is_id
from onejob.sql.lanes import rate_of
from onejob.stores.valkey.wire import blob, blob_or_false, id_blob

STATES: Final[dict[bytes, State]] = {
    b"b": State.BLOCKED,
    b"d": State.DELAYED,
    b"p": State.PARKED,
    b"w": State.WAITING,
    b"r": State.RUNNING,
    b"c": State.COMPLETED,
    b"f": State.FAILED,
    b"v": State.REVOKED,
}
LETTERS: Final = {state: letter.decode() for letter, state in STATES.items()}

Waited = tuple[bytes, str, str | bool]
"""A chain that a job waits for: its id, its queue, and the error of its last job, if that is known."""


def raw_id(id: str) -> bytes | None:
    """An id as it is stored; None for what is none."""
    return id_to_bytes(id) if is_id(id) else None


def shown_id(raw: bytes | None) -> JobId | None:
    """An id that may be missing, as people and programs see it."""
    return None if raw is None else id_from_bytes(raw)


def text_of(raw: bytes | None) -> str | None:
    """Text that may be missing; a damaged one must not stop a queue."""
    return None if raw is None else raw.decode("utf-8", "replace")


def newcomer(job: NewJob, waits: Sequence[Waited] = ()) -> tuple[object, ...]:
    """A job as `judge.lua` reads it."""
    return (
        id_blob(job.id),
        job.task,
        blob(job.payload),
        False if job.plan is None else _plan(job.plan),
        job.priority,
        job.delay,
        False if job.expires is None else job.expires,
        job.max_crashes,
        blob_or_false(job.options),
        blob_or_false(None if job.caller is None else raw_id(job.caller)),
        lane_form(job.lane),
        [(blob(chain), queue, error) for chain, queue, error in waits],
        job.runs_anyway,
        _grave(job),
    )


def rules_form(rules: Rules) -> tuple[object, ...]:
    """Rules as a plan without a key, which is enough for an operator's retry."""
    return ("", "", "", 0, 0, *_rules(rules))


def lane_form(lane: LanePlan | None) -> tuple[object, ...] | bool:
    """A lane as `making.lua` reads it."""
    if lane is None:
        return False
    limits = (
        lane.concurrency,
        False if lane.rate is None else lane.rate.max,
        False if lane.rate is None else lane.rate.window,
        int(lane.hold),
    )
    return (lane.key, *limits, limits)


def lane_of(key: str, row: Sequence[Any]) -> LanePlan:
    """The limits of a lane."""
    concurrency, most, per, hold = row[:4]
    return LanePlan(key, concurrency, rate_of(most, per), bool(hold))


def answer_of(row: Sequence[Any], job: NewJob) -> Answer:
    """What a newcomer was answered."""
    id, outcome, verdict, holder, state, age, payload_differs, options_differ, former = row
    return Answer(
        id_from_bytes(id),
        Outcome(outcome.decode()),
        Verdict(verdict.decode()),
        shown_id(holder),
        None if state is None else STATES[state],
        age,
        bool(payload_differs),
        bool(options_differ),
        None if former is None or job.lane is None else lane_of(job.lane.key, former),
    )


def settlement(
    one: Settlement, waits: Sequence[Waited] = (), instead: Job | None = None
) -> tuple[object, ...]:
    """A settlement as `settle.lua` reads it; `waits` are the chains that its continuation waits for.

    `instead` is a stranger in another queue that has the continuation's id.
    """
    rule = MOVES[one.move]
    ends = ENDING.get(one.move)
    raw = id_to_bytes(one.lease.id)
    return (
        blob(raw),
        blob(one.lease.token),
        False if ends is None else LETTERS[ends],
        one.delay,
        blob_or_false(one.result),
        False if one.error is None else one.error,
        one.dead_letter or False,
        blob(copy_id(raw)) if one.dead_letter else False,
        False if one.then is None else (newcomer(one.then, waits), one.then.queue),
        rule.attempt,
        rule.failures,
        rule.crashes,
        rule.misses,
        one.move in IN_PLACE,
        rule.orphaned,
        instead is not None and (_other_task(instead, one.then),),
    )


def _other_task(found: Job, asked: NewJob | None) -> str | bool:
    """The task of a job that is there instead of another; False if it is the same in all that counts."""
    same = asked is not None and (found.task, found.payload) == (asked.task, asked.payload)
    return False if same else found.task


def claimed(row: Sequence[Any], queue: str, token: bytes) -> Claimed:
    """A job that was started. Text is read leniently: one damaged job must not stop a queue."""
    id = id_from_bytes(row[0])
    chain = row[11]
    return Claimed(
        Lease(id, token),
        queue,
        row[1].decode("utf-8", "replace"),
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[8],
        row[9],
        row[10],
        ChainId(id if chain is None else id_from_bytes(chain)),
        row[12],
        text_of(row[13]),
        text_of(row[14]),
        row[15],
    )


def _plan(plan: Plan) -> tuple[object, ...]:
    return (blob(plan.digest), plan.text, blob(plan.fingerprint), plan.items, plan.size, *_rules(plan.rules))


def _rules(rules: Rules) -> tuple[object, ...]:
    return (
        rules.table,
        False if rules.window is None else rules.window,
        rules.wait,
        False if rules.max_wait is None else rules.max_wait,
        rules.max_items,
        rules.strict,
        rules.forced,
        blob(rules.encoded),
    )


def _grave(job: NewJob) -> tuple[object, ...] | bool:
    """Where a copy goes should the job fail before it ever starts, with which options, and under which id."""
    queue = dead_letter_of(job.options, job.queue)
    if queue is None:
        return False
    bare = with_dead_letter(job.options, None)
    return (queue, blob_or_false(bare), blob(copy_id(id_to_bytes(job.id))))
