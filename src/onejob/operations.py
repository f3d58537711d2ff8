"""What people ask of jobs that are already stored: explain, release, revoke, retry, delete."""

from __future__ import annotations

from typing import Any, Final

from onejob.core.dedup import check_key
from onejob.core.errors import InvalidOption, shown
from onejob.core.job import Job, JobId
from onejob.core.options import check_name, whole_number
from onejob.explain import Explanation, explain_call, explain_job, explain_missing
from onejob.plans import Call, Planner, milliseconds
from onejob.receipt import Receipt
from onejob.store import Amended, Amendment, DeadErrors, JobFilter, JobStore

MAX_PLACE: Final = 2**31 - 1
"""The last place that a range may name."""


async def explain(store: JobStore, subject: str | Receipt[Any]) -> Explanation:
    """Why a job stands as it does, and what a call like it would get now."""
    job = await store.job(job_id(subject))
    if job is not None:
        key = None if job.digest is None else await store.key(job.digest)
        return explain_job(job, key, await store.workers(), await store.time())
    missing = explain_missing(job_id(subject))
    if not isinstance(subject, Receipt):
        return missing
    about_call = await explain_one_call(store, subject.call)
    return about_call.told_after(missing)


async def explain_one_call(store: JobStore, call: Call[Any]) -> Explanation:
    """What a call would get if it were enqueued now."""
    key = None if call.plan is None else await store.key(call.plan.digest)
    newcomer = call.planner.new_job(call, JobId(""), None, milliseconds)
    return explain_call(newcomer, key, call.planner.why_not_unique(), await store.time())


async def release_one_call(store: JobStore, call: Call[Any]) -> JobId | None:
    """Make a call's key vacant."""
    return None if call.plan is None else await store.release(call.plan.digest)


async def release_key(store: JobStore, key: str | tuple[object, ...], planner: Planner[Any]) -> JobId | None:
    """Make a key of a task vacant, given as text, or as its parts; as shown by a receipt will do, too."""
    if isinstance(key, str):
        check_key(key)
    elif not isinstance(key, tuple):
        raise InvalidOption(
            f"release(…) takes a receipt, a key's text or a tuple of its parts, not {shown(key)}."
        )
    released = await store.release(planner.realm.digest((key,) if isinstance(key, str) else key))
    if released is not None or not isinstance(key, str):
        return released
    # A key of several parts is shown joined: its jobs know the digest.
    wanted = JobFilter(
        queues=frozenset({planner.options.queue}), tasks=frozenset({planner.task}), keys=frozenset({key})
    )
    newest = (await store.jobs(wanted, limit=1)).jobs
    digest = newest[0].digest if newest else None
    return None if digest is None else await store.release(digest)


async def amend(store: JobStore, subject: str | Receipt[Any], amendment: Amendment) -> Amended:
    """Revoke, retry or delete one job."""
    return (await store.amend([job_id(subject)], amendment))[0]


async def dead(store: JobStore, queue: str | None, start: int, stop: int) -> list[Job]:
    """A range of the dead letters of a queue."""
    whole_number("start", start, 0, MAX_PLACE)
    whole_number("stop", stop, start, MAX_PLACE)
    return await store.dead(_queue(queue), start, stop)


async def dead_errors(store: JobStore, queue: str | None, limit: int) -> list[DeadErrors]:
    """The dead letters of a queue by error."""
    return await store.dead_errors(_queue(queue), whole_number("limit", limit, 1, MAX_PLACE))


def _queue(queue: str | None) -> str | None:
    return None if queue is None else check_name("Queue", queue)


def job_id(subject: str | Receipt[Any]) -> JobId:
    """The id that a receipt or a text names."""
    if isinstance(subject, Receipt):
        return subject.id
    if isinstance(subject, str):
        return JobId(subject)
    raise InvalidOption(f"Give a job's id or a receipt, not {shown(subject)}.")
