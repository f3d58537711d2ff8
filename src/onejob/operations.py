"""What people ask of jobs that are already stored: explain, release, revoke, retry, delete."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from onejob.core.dedup import check_key
from onejob.core.errors import InvalidOption, shown
from onejob.core.job import LIVE, Job, JobId, State
from onejob.core.lane import QueueLimits
from onejob.core.options import check_name, whole_number
from onejob.explain import Explanation, explain_call, explain_job, explain_missing
from onejob.plans import Call, Planner, milliseconds
from onejob.receipt import Receipt
from onejob.standing import READY, Surroundings, first_before
from onejob.store import Amended, Amendment, DeadErrors, JobFilter, JobStore, Key, LaneView

MAX_PLACE: Final = 2**31 - 1
"""The last place that a range may name."""


async def explain(store: JobStore, subject: str | Receipt[Any]) -> Explanation:
    """Why a job stands as it does, and what a call like it would get now."""
    job = await store.job(job_id(subject))
    if job is not None:
        first = await store.job(JobId(job.chain)) if job.chain_index else job
        key = None if first is None or first.digest is None else await store.key(first.digest)
        return explain_job(job, key, await surroundings(store, job), first)
    missing = explain_missing(job_id(subject))
    if not isinstance(subject, Receipt):
        return missing
    about_call = await explain_one_call(store, subject.call)
    return about_call.told_after(missing)


async def explain_one_call(store: JobStore, call: Call[Any]) -> Explanation:
    """What a call would get if it were enqueued now."""
    key = None if call.plan is None else await store.key(call.plan.digest)
    newcomer = call.planner.new_job(call, JobId(""), None, milliseconds)
    lane = None if call.lane is None else await store.lane(call.queue, call.lane.key)
    takers = await store.undecided() if call.plan is not None and key is None else ()
    return explain_call(newcomer, key, call.planner.why_not_unique(), await store.time(), lane, takers=takers)


async def release_one_call(store: JobStore, call: Call[Any]) -> JobId | None:
    """Make a call's key vacant."""
    return None if call.plan is None else await store.release(call.plan.digest)


async def revoke_one_call(store: JobStore, call: Call[Any]) -> Amended:
    """Stop the job that holds a call's key."""
    if call.plan is None:
        raise InvalidOption(
            f"This call of task {call.task!r} has no key to revoke by: {call.planner.why_not_unique()}. Revoke its "
            "job by its id, or several with app.revoke_many(…)."
        )
    return await _revoke_holder(store, await store.key(call.plan.digest))


async def revoke_key(store: JobStore, key: str | tuple[object, ...], planner: Planner[Any]) -> Amended:
    """Stop the job that holds a key of a task, given as `release_key` takes it."""
    found = await store.key(_digest("revoke", key, planner))
    if found is None and isinstance(key, str):
        digest = await _digest_of_shown(store, key, planner)
        found = None if digest is None else await store.key(digest)
    return await _revoke_holder(store, found)


async def release_key(store: JobStore, key: str | tuple[object, ...], planner: Planner[Any]) -> JobId | None:
    """Make a key of a task vacant, given as text, or as its parts; as shown by a receipt will do, too."""
    released = await store.release(_digest("release", key, planner))
    if released is not None or not isinstance(key, str):
        return released
    digest = await _digest_of_shown(store, key, planner)
    return None if digest is None else await store.release(digest)


async def amend(store: JobStore, subject: str | Receipt[Any], amendment: Amendment) -> Amended:
    """Revoke, retry or delete one job."""
    return (await store.amend([job_id(subject)], amendment))[0]


async def lanes(store: JobStore, queue: str | None, limit: int) -> list[LaneView]:
    """The lanes in use of a queue."""
    found = await store.lanes(_queue(queue), whole_number("limit", limit, 1, MAX_PLACE))
    if all(view.opens_at is None for view in found):
        return found
    now = await store.time()  # what has opened by then holds nobody up, whether or not a claim has seen it
    return [
        replace(view, opens_at=None) if view.opens_at is not None and view.opens_at <= now else view
        for view in found
    ]


async def dead(store: JobStore, queue: str | None, start: int, stop: int) -> list[Job]:
    """A range of the dead letters of a queue."""
    whole_number("start", start, 0, MAX_PLACE)
    whole_number("stop", stop, start, MAX_PLACE)
    return await store.dead(_queue(queue), start, stop)


async def dead_errors(store: JobStore, queue: str | None, limit: int) -> list[DeadErrors]:
    """The dead letters of a queue by error."""
    return await store.dead_errors(_queue(queue), whole_number("limit", limit, 1, MAX_PLACE))


async def surroundings(store: JobStore, job: Job) -> Surroundings:
    """What else the standing of a job depends on; asked for as far as it can matter."""
    limits = (await store.limits()).get(job.queue, QueueLimits()) if job.state in LIVE else QueueLimits()
    running = 0
    if limits.concurrency is not None:
        wanted = JobFilter(states=frozenset({State.RUNNING}), queues=frozenset({job.queue}))
        running = await store.count(wanted)
    lane = await store.lane(job.queue, job.lane) if job.lane is not None and job.state in LIVE else None
    ready = lane is not None and job.state in READY
    before = first_before(job, lane) if lane is not None and ready else None
    last = await store.last(job.id)
    now = await store.time()
    is_due = job.state in READY or (job.state is State.DELAYED and job.due <= now)
    return Surroundings(
        now=now,
        workers=await store.workers(),
        limits=limits,
        running=running,
        lane=lane,
        ahead=await store.ahead(job.id) if ready else 0,
        before=None if before is None else await store.job(before),
        blockers=await store.blockers(job.id) if job.blockers and job.state is State.BLOCKED else (),
        delays=await store.delays(job.id) if is_due else (),
        last=last if last is not None and last.chain_index else None,
    )


async def _revoke_holder(store: JobStore, key: Key | None) -> Amended:
    # Forgotten is forgotten at that instant, whether or not the record has been swept.
    holder = None if key is None else key.holder.at(await store.time())
    if holder is None:
        return Amended.NOT_FOUND
    if holder.gone:
        return Amended.FINISHED
    return (await store.amend([JobId(holder.id)], Amendment.REVOKE))[0]


def _digest(what: str, key: str | tuple[object, ...], planner: Planner[Any]) -> bytes:
    if isinstance(key, str):
        return planner.realm.digest((check_key(key),))
    if isinstance(key, tuple):
        return planner.realm.digest(key)
    raise InvalidOption(f"{what}(…) takes a receipt, a key's text or a tuple of its parts, not {shown(key)}.")


async def _digest_of_shown(store: JobStore, key: str, planner: Planner[Any]) -> bytes | None:
    """A key of several parts is shown joined: its jobs know the digest."""
    wanted = JobFilter(
        queues=frozenset({planner.options.queue}), tasks=frozenset({planner.task}), keys=frozenset({key})
    )
    newest = (await store.jobs(wanted, limit=1)).jobs
    return newest[0].digest if newest else None


def _queue(queue: str | None) -> str | None:
    return None if queue is None else check_name("Queue", queue)


def job_id(subject: str | Receipt[Any]) -> JobId:
    """The id that a receipt or a text names."""
    if isinstance(subject, Receipt):
        return subject.id
    if isinstance(subject, str):
        return JobId(subject)
    raise InvalidOption(f"Give a job's id or a receipt, not {shown(subject)}.")
