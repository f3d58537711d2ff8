"""New jobs that have nothing to do with whatever is stored: those that are alike are written by one statement.

A statement for each row opens the table and all its indexes anew, which takes longer than to write the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from onejob.core.dedup import Rules, Standing
from onejob.core.job import NewJob
from onejob.core.judge import initial_state, judge
from onejob.sql.ids import id_to_bytes
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
