"""New jobs that have nothing to do with whatever is stored: those that are alike are written by one statement.

A statement for each row opens the table and all its indexes anew, which takes longer than to write the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from onejob.core.dedup import Plan, Rules, Standing
from onejob.core.job import NewJob, State
from onejob.core.judge import Decision, initial_state, judge
from onejob.sql.ids import id_to_bytes
from onejob.sql.lanes import stored_plan
from onejob.sql.rows import stored_calls
from onejob.stores.sqlite.connect import LARGE, array
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements

FEW = 4
"""Fewer jobs than this are written one by one, even if they are alike."""

Shape = Callable[[NewJob], tuple[Any, ...]]
_PLAIN: Shape = attrgetter("queue", "task", "priority", "delay", "expires", "options", "max_crashes")
_KEYED: Shape = attrgetter(
    "queue", "task", "priority", "delay", "expires", "options", "max_crashes", "plan.items", "plan.rules"
)


class Made(msgspec.Struct, frozen=True, gc=False):
    """A job with a key that is not yet written."""

    id: bytes
    job: NewJob
    plan: Plan
    decision: Decision
    state: State
    follows: bytes | None
    blockers: int


def insert_plain(session: Session, jobs: Sequence[NewJob], now: int) -> None:
    """Write jobs without key, lane and blockers, in order; an id that is already there is left alone."""
    sql = statements("enqueue")
    single: list[tuple[Any, ...]] = []
    for (queue, task, priority, delay, expires, options, max_crashes), run in groupby(jobs, _PLAIN):
        alike = list(run)
        due = now + delay
        state = initial_state(due, None, now)
        until = None if expires is None else now + expires
        shared = (queue, task, state, priority, due, now, until, options, max_crashes)
        if len(alike) < FEW or _any_large(alike):
            single += [(*shared, id_to_bytes(job.id), job.payload) for job in alike]
            continue
        if single:
            session.executemany(sql["insert_plain_job"], single)
            single.clear()
        values = array([id_to_bytes(job.id) + job.payload for job in alike])
        session.execute(sql["insert_plain_alike"], (*shared, values))
    if single:
        session.executemany(sql["insert_plain_job"], single)


def insert_keyed(session: Session, jobs: Sequence[NewJob], ids: Sequence[bytes], now: int) -> None:
    """Write jobs that take keys which are vacant and all different, in order."""
    sql = statements("enqueue")
    each = iter(ids)
    for (queue, task, priority, _, expires, options, max_crashes, items, rules), run in groupby(jobs, _KEYED):
        alike = list(run)
        decision = judge(alike[0], None, now)  # where nobody holds the key, it depends on the shape alone
        due, since = decision.due, decision.since
        state = initial_state(due, None, now)
        until = None if expires is None else now + expires
        values = array([_value(job, id) for job, id in zip(alike, each, strict=False)])
        shared = (
            queue,
            task,
            state,
            priority,
            due,
            now,
            since,
            until,
            options,
            max_crashes,
            items,
            rules.encoded,
        )
        session.execute(sql["insert_keyed_alike"], (*shared, values))
        session.execute(sql["take_keys"], (queue, task, since, *memory(rules, since), values))


def job_rows(gathered: Sequence[Made], now: int) -> Iterator[tuple[Any, ...]]:
    """Jobs that take keys, as `insert_keyed_job` writes them."""
    for made in gathered:
        job, plan, decision, lane = made.job, made.plan, made.decision, made.job.lane
        yield (
            made.id,
            job.queue,
            job.task,
            made.state,
            job.priority,
            decision.due,
            now,
            decision.since,
            None if job.expires is None else now + job.expires,
            job.payload,
            job.options,
            job.max_crashes,
            plan.items,
            made.follows,
            plan.digest,
            plan.text,
            plan.rules.encoded,
            plan.fingerprint,
            stored_calls(decision.calls),
            plan.size or None,
            None if lane is None else lane.key,
            stored_plan(lane),
            made.blockers,
        )


def key_rows(gathered: Sequence[Made]) -> Iterator[tuple[Any, ...]]:
    """Their keys, as `take_key` writes them."""
    rules, since, completed_until, failed_until = None, 0, None, None
    for made in gathered:
        job, plan = made.job, made.plan
        if plan.rules is not rules or made.decision.since != since:  # in bulk, the same for all
            rules, since = plan.rules, made.decision.since
            completed_until, failed_until = memory(rules, since)
        yield (
            plan.digest,
            plan.text,
            job.queue,
            job.task,
            made.id,
            since,
            completed_until,
            failed_until,
            made.follows,
        )


def plain_at_once(job: NewJob, now: int) -> tuple[Any, ...]:
    """What `insert_plain_at_once` writes."""
    due = now + job.delay
    return (
        job.queue,
        job.task,
        initial_state(due, None, now),
        job.priority,
        due,
        now,
        None if job.expires is None else now + job.expires,
        job.options,
        job.max_crashes,
        id_to_bytes(job.id),
        job.payload,
    )


def keyed_at_once(job: NewJob, plan: Plan, decision: Decision, now: int) -> tuple[Any, ...]:
    """What `insert_keyed_at_once` writes."""
    state = initial_state(decision.due, None, now)
    made = (Made(id_to_bytes(job.id), job, plan, decision, state, None, 0),)
    return (*next(key_rows(made)), *next(job_rows(made, now)))


def fit(jobs: Sequence[NewJob]) -> bool:
    """True if `insert_keyed` can write these jobs, and is worth it."""
    return len(jobs) >= FEW and all(map(_fits, jobs))


def memory(rules: Rules, since: int) -> tuple[int | None, int | None]:
    """Until when a key is remembered if its holder completed, and if it failed."""
    return rules.forget_at(Standing.COMPLETED, since), rules.forget_at(Standing.FAILED, since)


def _fits(job: NewJob) -> bool:
    plan = job.plan
    return (
        plan is not None
        and job.lane is None
        and not job.blockers
        and not plan.size
        and len(plan.digest) == 16
        and len(plan.fingerprint) == 8
        and "\0" not in plan.text
        and len(job.payload) <= LARGE
    )


def _value(job: NewJob, id: bytes) -> bytes:
    plan = job.plan
    assert plan is not None
    return b"".join((id, plan.digest, plan.fingerprint, plan.text.encode(), b"\0", job.payload))


def _any_large(jobs: Sequence[NewJob]) -> bool:
    return max(len(job.payload) for job in jobs) > LARGE
