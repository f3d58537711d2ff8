"""Assertions about what was enqueued and what was absorbed, with messages that show what there is instead.

Each has an async twin named with an `a`, as everywhere.
"""

from __future__ import annotations

from typing import Any

from onejob.app import App
from onejob.core.filter import JobFilter
from onejob.core.job import Job
from onejob.core.options import decode_options
from onejob.plans import Call
from onejob.store import Key
from onejob.tasks import Task

SHOWN = 10
LISTED = 1_000


def assert_enqueued(app: App, task: Task[..., Any], /, **arguments: object) -> Job:
    """A job of this task with these arguments (others may be anything) is on record; returns the newest."""
    return app.client.call(aassert_enqueued(app, task, **arguments), instead="await aassert_enqueued(…)")


async def aassert_enqueued(app: App, task: Task[..., Any], /, **arguments: object) -> Job:
    """As `assert_enqueued`, in async code."""
    for name in arguments:
        if name not in task.codec.parameters:
            raise TypeError(
                f"Task {task.name!r} has no parameter {name!r}: such a job can never be on record."
            )
    jobs = await _jobs(app, task)
    for job in jobs:
        given = _arguments(task, job)
        if all(name in given and given[name] == value for name, value in arguments.items()):
            return job
    raise AssertionError(f"No job of task {task.name!r} has {_call(arguments)}. {_listed(task, jobs)}")


def assert_not_enqueued(app: App, task: Task[..., Any], /, **arguments: object) -> None:
    """No job of this task with these arguments is on record."""
    return app.client.call(
        aassert_not_enqueued(app, task, **arguments), instead="await aassert_not_enqueued(…)"
    )


async def aassert_not_enqueued(app: App, task: Task[..., Any], /, **arguments: object) -> None:
    """As `assert_not_enqueued`, in async code."""
    try:
        job = await aassert_enqueued(app, task, **arguments)
    except AssertionError:
        return
    raise AssertionError(
        f"Task {task.name!r} was enqueued with {_call(arguments)}: job {job.id}, {job.state}."
    )


def assert_absorbed(
    app: App, call: Call[Any], /, *, times: int | None = None, differing: int | None = None
) -> Key:
    """Duplicates of `call` (made with `task.job(…)`) were absorbed by its key's holder; returns the key.

    `times` is how many since the holder took the key (default: at least one), `differing` how many of them
    had other arguments.
    """
    return app.client.call(
        aassert_absorbed(app, call, times=times, differing=differing), instead="await aassert_absorbed(…)"
    )


async def aassert_absorbed(
    app: App, call: Call[Any], /, *, times: int | None = None, differing: int | None = None
) -> Key:
    """As `assert_absorbed`, in async code."""
    task = call.planner.task
    if call.plan is None:
        raise AssertionError(
            f"This call of task {task!r} can absorb nothing: {call.planner.why_not_unique()}."
        )
    key = await app.store.key(call.plan.digest)
    if key is None:
        raise AssertionError(
            f'Nothing was absorbed: key "{call.plan.text}" of task {task!r} is not on record.'
        )
    right = key.absorbed > 0 if times is None else key.absorbed == times
    if not right or (differing is not None and key.differing != differing):
        wanted = "at least one duplicate" if times is None else f"{times} duplicates"
        also = "" if differing is None else f", {differing} with other arguments"
        raise AssertionError(
            f'Key "{key.text}" of task {task!r} was to absorb {wanted}{also}, but absorbed {key.absorbed}, '
            f"{key.differing} with other arguments; it is held by job {key.holder.id} ({key.holder.state})."
        )
    return key


async def _jobs(app: App, task: Task[..., Any]) -> list[Job]:
    return (await app.store.jobs(JobFilter(tasks=frozenset({task.name})), LISTED)).jobs


def _arguments(task: Task[..., Any], job: Job) -> dict[str, object]:
    arguments = task.codec.decode(job.payload, decode_options(job.options).into)
    return task.codec.mapping(arguments)


def _call(arguments: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "any arguments"


def _listed(task: Task[..., Any], jobs: list[Job]) -> str:
    if not jobs:
        return "There is no job of this task at all."
    lines = [f"  {job.id} {job.state}: {_call(_arguments(task, job))}" for job in jobs[:SHOWN]]
    more = f"\n  and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
    return "There are:\n" + "\n".join(lines) + more
