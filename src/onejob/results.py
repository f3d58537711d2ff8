"""Waiting for a chain's result: hints make it quick, looking again now and then makes it certain."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from onejob.codec import decode_result
from onejob.core.errors import JobFailed, JobRevoked, ResultGone, ResultTimeout
from onejob.core.job import Job, State
from onejob.core.options import Seconds, millis
from onejob.core.wording import reason
from onejob.receipt import Receipt
from onejob.store import JobStore

R = TypeVar("R")

LONGEST_PAUSE = 1.0
"""Seconds between two looks, should a hint get lost."""


async def await_last(
    store: JobStore, receipt: Receipt[Any], timeout: Seconds | None, *, uncommitted: bool = False
) -> Job:
    """Wait until the receipt's chain has ended and return its last job; see `Receipt.result`.

    `uncommitted` says that the caller is inside a transaction, in which it may have made the job.
    """
    limit = None if timeout is None else millis("timeout", timeout) / 1000
    deadline = None if limit is None else time.monotonic() + limit
    topics = frozenset({f"done:{receipt.queue}"})  # of its first job: a chain's end is told there, too
    while True:
        mark = store.mark()
        last = await store.last(receipt.id)
        if last is None:
            raise ResultGone(
                f"Job {receipt.id} of task {receipt.task!r} is not stored: {_why_gone(uncommitted)}."
            )
        if last.state.ended:
            return last
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise ResultTimeout(
                f"Job {receipt.id} of task {receipt.task!r} did not end within {limit:g} s: {_stands(last)} "
                "and goes on. app.explain(receipt) says what it waits for."
            )
        await store.wait(topics, LONGEST_PAUSE if left is None else min(LONGEST_PAUSE, left), since=mark)


def result_of(last: Job, receipt: Receipt[R], type_of: Callable[[str], Any]) -> R:
    """What a chain returned, by its last job; raises what failed, or that it was revoked.

    `type_of` is what a task returns: the last job's may be another than the receipt's.
    """
    if last.state is State.COMPLETED:
        if last.task == receipt.task:
            return receipt.call.planner.result(last.result)
        return decode_result(last.result, type_of(last.task))
    kind = JobFailed if last.state is State.FAILED else JobRevoked
    where = f", step {last.chain_index} of chain {last.chain}," if last.chain_index else ""
    raise kind(
        f"Job {last.id} of task {last.task!r}{where} {last.state}: {reason(last.state, last.error)}",
        id=last.id,
    )


def _stands(last: Job) -> str:
    if not last.chain_index:
        return f"it is {last.state}"
    return (
        f"its chain is at step {last.chain_index}, job {last.id} of task {last.task!r}, which is {last.state}"
    )


def _why_gone(uncommitted: bool) -> str:
    if uncommitted:
        return (
            "what is enqueued in the transaction that is open here is stored when its block ends, so ask for "
            "the result after that"
        )
    return (
        "it ended and was pruned, or was deleted, or the transaction that enqueued it was rolled back or is still open. "
        "App(retention=…) says how long ended jobs are kept"
    )
