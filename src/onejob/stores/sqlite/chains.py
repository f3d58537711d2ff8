"""Chains: the next job of a chain is made in the commit that completes the one before it."""

from __future__ import annotations

import msgspec

from onejob.core.job import NewJob
from onejob.core.judge import initial_state
from onejob.sql.ids import id_to_bytes
from onejob.sql.lanes import stored_plan
from onejob.stores.sqlite import blocking
from onejob.stores.sqlite.ending import after_end, strand
from onejob.stores.sqlite.lanes import join
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements


class Step(msgspec.Struct, frozen=True):
    """A chain goes on: a settlement makes this the chain's job at `index`."""

    place: int
    """Which settlement of its batch."""
    end: int
    """Which of the ends of that batch."""
    job: NewJob
    chain: bytes
    index: int


class Found(msgspec.Struct, frozen=True):
    """A job that has the id of a chain's next one already."""

    task: str
    payload: bytes
    chain: bytes | None
    """Its chain: another one, if somebody has made it under that id on his own account."""


def go_on(session: Session, step: Step, now: int) -> Found | None:
    """Make the next job of a chain, unless there is one."""
    job, id, lane = step.job, id_to_bytes(step.job.id), step.job.lane
    waits = blocking.look(session, job)
    due = now + job.delay
    made = session.run(
        statements("settle")["continue"],
        (
            id,
            job.queue,
            job.task,
            initial_state(due, None, now, laned=lane is not None, blocked=waits.blocked),
            job.priority,
            due,
            now,
            None if job.expires is None else now + job.expires,
            job.payload,
            job.options,
            job.max_crashes,
            None if lane is None else lane.key,
            stored_plan(lane),
            len(waits.chains),
            step.chain,
            step.index,
        ),
    )
    if not made:
        return Found(*session.rows(statements("settle")["found_instead"], {"id": id})[0])
    session.topics.add("work:" + job.queue)
    if lane is not None:
        join(session, job.queue, lane)
    if waits.chains:
        blocking.put(session, id, waits, runs_anyway=job.runs_anyway)
    if waits.reason is not None:
        after_end(session, strand(session, id, waits.reason, now), now)
    return None
