"""What is compared of jobs, keys, lanes and limits: as the store shows them, and as the model does.

What the contract leaves to a store is taken out: a ready job of a lane may be parked or wait, and one that has just
become due may not have been looked at yet.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from policies import limits_of, settings_of

from onejob.core.dead_letter import dead_letter_of
from onejob.core.job import Job
from onejob.core.judge import Answer
from onejob.core.lane import QueueLimits
from onejob.store import JobFilter, JobStore, Key, LaneView
from onejob.testing.model import Model
from onejob.testing.records import QUEUED, LaneSight, ModelJob, ModelKey, QueueSettings, Reply

EVERYTHING = 10_000


@dataclass(frozen=True)
class Sight:
    """All that a store shows at one instant."""

    jobs: dict[str, Job]
    keys: dict[bytes, Key]
    lanes: list[LaneView]
    limits: dict[str, QueueLimits]


async def look(store: JobStore) -> Sight:
    """See everything, in one go because it is done after every step."""
    page, keys, lanes, limits = await asyncio.gather(
        store.jobs(JobFilter(), EVERYTHING),
        store.keys(limit=EVERYTHING),
        store.lanes(limit=EVERYTHING),
        store.limits(),
    )
    return Sight({job.id: job for job in page.jobs}, {key.digest: key for key in keys}, lanes, limits)


def compare(sight: Sight, model: Model, now: int) -> None:
    """The store's word on everything against the model's."""
    same("jobs", set(sight.jobs), set(model.jobs))
    for id, mine in model.jobs.items():
        same(f"job {id}", seen_job(sight.jobs[id], now), model_job(mine, now))
    same("keys", set(sight.keys), set(model.keys))
    for digest, record in model.keys.items():
        same(f"key {digest.hex()}", seen_key(sight.keys[digest], now), model_key(model, record, now))
    lanes = model.lanes(now)
    same(
        "lanes",
        [(view.queue, view.plan.key) for view in sight.lanes],
        [(lane.queue, lane.limits.key) for lane in lanes],
    )
    for view, lane in zip(sight.lanes, lanes, strict=True):
        compare_lane(view, lane, sight.jobs, now)
    queues = {name: queue.settings for name, queue in model.traffic.queues.items()}
    same(
        "limits",
        {name: settings_of(limits) for name, limits in sight.limits.items()},
        {name: settings for name, settings in queues.items() if settings != QueueSettings()},
    )


def compare_answer(answer: Answer, reply: Reply) -> None:
    """The store's answer to a call against the model's."""
    same("answer", (answer.id, answer.outcome.value), (reply.id, reply.outcome))
    if reply.differs is not None:
        same("payload_differs", answer.payload_differs, reply.differs)
    if reply.holder is not None and answer.holder is not None:
        same("holder", answer.holder, reply.holder)
    if answer.former_lane is not None or not reply.lane_may_be_forgotten:
        former = None if answer.former_lane is None else limits_of(answer.former_lane)
        same("former_lane", former, reply.former_lane)


def seen_job(job: Job, now: int) -> tuple[Any, ...]:
    """A job as the store shows it."""
    state = job.state.value
    if state == "parked" or (state == "delayed" and job.due <= now):
        state = "waiting"
    return (
        state,
        job.queue,
        job.task,
        job.payload,
        job.priority,
        job.accepted,
        job.due if state in QUEUED else None,
        job.updated if state in QUEUED else None,
        job.expires,
        (job.attempt, job.failures, job.crashes, job.misses, job.max_crashes),
        job.items,
        job.follows,
        job.aborting and state == "running",  # what an ended job was asked is not kept everywhere
        job.ended,
        job.worker if state == "running" else None,
        job.lane,
        dead_letter_of(job.options, job.queue),
        (job.origin, job.origin_queue),
        (job.chain, job.chain_index, job.blockers),
    )


def model_job(job: ModelJob, now: int) -> tuple[Any, ...]:
    """A job as the model knows it."""
    state, call = job.state, job.call
    if state == "delayed" and job.due <= now:
        state = "waiting"
    return (
        state,
        call.queue,
        call.task,
        job.payload,
        call.priority,
        job.accepted,
        job.due if state in QUEUED else None,
        job.updated if state in QUEUED else None,
        job.expires,
        (job.attempt, job.failures, job.crashes, job.misses, call.max_crashes),
        job.items,
        job.follows,
        job.aborting and state == "running",
        job.ended,
        job.worker if state == "running" else None,
        None if call.lane is None else call.lane.key,
        call.dead_letter,
        (job.origin, job.origin_queue),
        (job.chain, job.index, len(job.blockers)),
    )


def seen_key(key: Key, now: int) -> tuple[Any, ...]:
    """A key as the store shows it."""
    held = key.holder
    standing = held.at(now)
    return (
        held.id,
        held.since,
        held.completed_until,
        held.failed_until,
        held.follows,
        None if standing is None else "queued" if standing.state.queued else standing.state.value,
    )


def model_key(model: Model, record: ModelKey, now: int) -> tuple[Any, ...]:
    """A key as the model knows it."""
    state = model.state_of(record, now)
    standing = None
    if model.holds(record, now):
        standing = "queued" if state in QUEUED else state
    return (
        record.holder,
        record.since,
        record.completed_until,
        record.failed_until,
        record.follows,
        standing,
    )


def compare_lane(view: LaneView, sight: LaneSight, jobs: dict[str, Job], now: int) -> None:
    """The store's view of a lane against the model's."""
    where = f"lane {sight.queue}/{sight.limits.key}"
    same(where, (view.queue, limits_of(view.plan)), (sight.queue, sight.limits))
    same(f"{where}: holders", (set(view.holders), view.taken), (sight.holders, len(sight.holders)))
    mine = [job for job in jobs.values() if job.queue == view.queue and job.lane == view.plan.key]
    if any(unseen(job, now) for job in mine):
        return
    same(f"{where}: ready", (view.ready, view.head), (sight.ready, sight.head))
    opens_at = None if view.opens_at is not None and view.opens_at <= now else view.opens_at
    assert opens_at in sight.openings, f"{where} opens at {opens_at}, but should at {set(sight.openings)}"


def unseen(job: Job, now: int) -> bool:
    """True if time has done something to the job that a store need not have noticed yet."""
    if not job.state.queued:
        return False
    return (job.state == "delayed" and job.due <= now) or (job.expires is not None and job.expires <= now)


def same(what: str, seen: object, expected: object) -> None:
    """The store's word against the model's."""
    assert seen == expected, f"{what}: the store says {seen!r}, the model {expected!r}"
