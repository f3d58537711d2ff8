"""Chains: the next job of a chain is made in the commit that completes the one before it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onejob.core.job import JobId, NewJob
from onejob.core.judge import initial_state
from onejob.sql.lanes import stored_plan
from onejob.stores.postgres import blocking, lanes
from onejob.stores.postgres.blocking import Waits
from onejob.stores.postgres.ending import after_end, attach, note, strand
from onejob.stores.postgres.steps import Row, Steps, ask
from onejob.stores.postgres.work import Work


class Step(msgspec.Struct, frozen=True):
    """A chain goes on: a settlement makes this the chain's job at `index`."""

    settled: JobId
    """The job that is settled with it."""
    end: int
    """Which of the ends of that batch."""
    job: NewJob
    waits: Waits
    chain: str
    index: int
    awaited: bool
    """Others may wait for the chain."""


class Found(msgspec.Struct, frozen=True):
    """A job that has the id of a chain's next one already."""

    task: str
    payload: bytes
    chain: str | None
    """Its chain: another one, if somebody has made it under that id on his own account."""


def go_on(work: Work, steps: Sequence[Step], now: int) -> Steps[dict[str, Found]]:
    """Make the next jobs of chains; returns what is there instead of some, by id."""
    rows = [_row(step, now) for step in steps]
    columns = (list(column) for column in zip(*rows, strict=True))
    made = {str(row[0]) for row in (yield from ask("settle.continue", now, *columns))}
    work.tell("work", {step.job.queue for step in steps if step.job.id in made})
    yield from _join_lanes(work, [step.job for step in steps if step.job.id in made])
    for step in steps:
        if step.waits.chains and step.job.id in made:
            yield from _wait(work, step, now)
    missing = [step.job.id for step in steps if step.job.id not in made]
    found = (yield from ask("settle.found_instead", missing)) if missing else []
    return {
        str(id): Found(task, payload, None if chain is None else str(chain))
        for id, task, payload, chain in found
    }


def _row(step: Step, now: int) -> Row:
    job, lane, waits, due = step.job, step.job.lane, step.waits, now + step.job.delay
    return (
        job.id,
        job.queue,
        job.task,
        initial_state(due, None, now, laned=lane is not None, blocked=waits.blocked),
        job.priority,
        due,
        None if job.expires is None else now + job.expires,
        job.payload,
        job.options,
        job.max_crashes,
        None if lane is None else lane.key,
        stored_plan(lane),
        len(waits.chains),
        step.chain,
        step.index,
        step.awaited,
    )


def _join_lanes(work: Work, jobs: Sequence[NewJob]) -> Steps[None]:
    """New jobs stand in lanes, whose limits are those that the last of them brings."""
    plans = [(job.queue, job.lane) for job in jobs if job.lane is not None]
    if not plans:
        return
    standing = yield from lanes.standing_plans(work, {(queue, plan.key) for queue, plan in plans})
    touches: list[tuple[str, str, bytes | None, bool]] = []
    for queue, plan in plans:
        place = (queue, plan.key)
        touches.append((*place, stored_plan(plan), standing.get(place) != plan))
        standing[place] = plan
    yield from lanes.touch_with_plans(work, touches)


def _wait(work: Work, step: Step, now: int) -> Steps[None]:
    """The next job waits for others; or ends now, if one of them will never complete."""
    waits = step.waits
    yield from blocking.put(work, step.job.id, waits, step.job.runs_anyway)
    if waits.reason is not None:
        yield from after_end(work, (yield from strand(work, step.job.id, waits.reason, now)), now)
        return
    yield from attach(work, waits.live, now)
    if work.foreign and waits.live:  # that they do not wait for each other could not be made sure
        yield from note(work, {step.chain})
