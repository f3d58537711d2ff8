"""Waiting for a job's result: hints make it quick, looking again now and then makes it certain."""

from __future__ import annotations

import time
from typing import TypeVar

from onejob.core.errors import JobFailed, JobRevoked, ResultGone, ResultTimeout
from onejob.core.job import Job, State
from onejob.core.options import Seconds, millis
from onejob.receipt import Receipt
from onejob.store import JobStore

R = TypeVar("R")

LONGEST_PAUSE = 1.0
"""Seconds between two looks, should a hint get lost."""


async def await_result(
    store: JobStore, receipt: Receipt[R], timeout: Seconds | None, *, uncommitted: bool = False
) -> R:
    """Wait until the receipt's job has ended and return its result; see `Receipt.result`.

    `uncommitted` says that the caller is inside a transaction, in which it may have made the job.
    """
    limit = None if timeout is None else millis("timeout", timeout) / 1000
    deadline = None if limit is None else time.monotonic() + limit
    topics = frozenset({f"done:{receipt.queue}"})
    while True:
        mark = store.mark()
        job = await store.job(receipt.id)
        if job is None:
            raise ResultGone(
                f"Job {receipt.id} of task {receipt.task!r} is not stored: {_why_gone(uncommitted)}."
            )
        if job.state.ended:
            return _of_ended(job, receipt)
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise ResultTimeout(
                f"Job {receipt.id} of task {receipt.task!r} did not end within {limit:g} s: it is {job.state} "
                "and goes on. app.explain(receipt) says what it waits for."
            )
        await store.wait(topics, LONGEST_PAUSE if left is None else min(LONGEST_PAUSE, left), since=mark)


def _why_gone(uncommitted: bool) -> str:
    if uncommitted:
        return (
            "what is enqueued in the transaction that is open here is stored when its block ends, so ask for "
            "the result after that"
        )
    return (
        "it ended and was pruned, or was deleted, or the transaction that enqueued it was rolled back. "
        "App(retention=…) says how long ended jobs are kept"
    )


def _of_ended(job: Job, receipt: Receipt[R]) -> R:
    if job.state is State.COMPLETED:
        return receipt.call.planner.result(job.result)
    kind = JobFailed if job.state is State.FAILED else JobRevoked
    raise kind(f"Job {job.id} of task {job.task!r} {job.state}: {job.error or 'no reason given'}", id=job.id)
