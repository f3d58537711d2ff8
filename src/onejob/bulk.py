"""Operations on all jobs that a filter matches: page after page, each a commit of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, assert_never

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.filter import JobFilter, as_filter
from onejob.core.job import LIVE, QUEUED, Job, JobId, State
from onejob.core.options import whole_number
from onejob.store import Amended, Amendment, JobStore, Page

BATCH: Final = 200
"""Jobs per commit, so that workers get their turn in between."""
MAX_PAGE: Final = 10_000

_REVIVABLE: Final = frozenset({State.FAILED, State.REVOKED})
_UNDELIVERED: Final = QUEUED | {State.FAILED}
"""The states of dead letters that nobody has dealt with."""


async def page(store: JobStore, filter: str | JobFilter, limit: int, cursor: str | None) -> Page:
    """Some of the jobs that match."""
    whole_number("limit", limit, 1, MAX_PAGE)
    if cursor is not None and not (isinstance(cursor, str) and cursor.isascii() and cursor.isdigit()):
        raise InvalidOption(f"cursor=… must be the cursor of a page before, not {shown(cursor)}.")
    return await store.jobs(as_filter(filter), limit, cursor)


async def amend_many(
    store: JobStore,
    filter: str | JobFilter,
    amendment: Amendment,
    *,
    on_batch: Callable[[int], None] | None = None,
) -> Counter[Amended]:
    """Amend every job that matches, newest first, each looked at once; returns how often each answer came.

    An amendment is one of a whole chain, so jobs of the same chain that match are asked about once.

    A retry of one that waits for others comes after those that were retried with it.

    `on_batch` hears how many jobs each batch had. What is accepted meanwhile, or is no longer in the state for
    which it was chosen, is left alone.
    """
    outcomes: Counter[Amended] = Counter()
    for wanted in affected(filter, amendment):
        stranded: list[JobId] = []
        async for batch in _batches(store, wanted):
            # Between the look and the change, a job may have been revived, or begun to run.
            ids = list({job.chain: job.id for job in reversed(batch)}.values())[::-1]
            answers = await store.amend(ids, amendment, states=wanted.states)
            outcomes.update(answers)
            stranded += _stranded(ids, answers)
            if on_batch is not None:
                on_batch(len(batch))
        while stranded and outcomes[Amended.RETRIED]:
            left, again = await _once_more(store, stranded, amendment, wanted)
            outcomes[Amended.STRANDED] -= len(stranded)
            outcomes.update(again)
            if len(left) == len(stranded):
                break
            stranded = left
    return +outcomes


async def _once_more(
    store: JobStore, stranded: Sequence[JobId], amendment: Amendment, wanted: JobFilter
) -> tuple[list[JobId], Counter[Amended]]:
    """Ask again about jobs whose blockers may live by now, the oldest first; who is stranded still, and all answers."""
    left: list[JobId] = []
    outcomes: Counter[Amended] = Counter()
    for end in range(len(stranded), 0, -BATCH):
        some = stranded[max(end - BATCH, 0) : end][::-1]
        answers = await store.amend(some, amendment, states=wanted.states)
        outcomes.update(answers)
        left += _stranded(some, answers)
    return left[::-1], outcomes


def _stranded(ids: Sequence[JobId], answers: Sequence[Amended]) -> list[JobId]:
    return [id for id, answer in zip(ids, answers, strict=True) if answer is Amended.STRANDED]


async def _batches(store: JobStore, wanted: JobFilter) -> AsyncGenerator[list[Job]]:
    cursor: str | None = None
    while True:
        found = await store.jobs(wanted, BATCH, cursor)
        if found.jobs:
            yield found.jobs
        cursor = found.cursor
        if cursor is None:
            return


def affected(filter: str | JobFilter, amendment: Amendment) -> tuple[JobFilter, ...]:
    """The jobs that an amendment of all that match is about, in parts that share none: a text without terms
    names none."""
    wanted = as_filter(filter)
    if isinstance(filter, str) and wanted == JobFilter():
        raise InvalidOption(
            "An empty filter would be every job there is: name some, as in state:failed, or say all of them "
            "with state:live,ended."
        )
    match amendment:
        case Amendment.RETRY | Amendment.RETRY_WITHOUT_KEY:
            return _to_be_retried(wanted)
        case Amendment.REVOKE:
            return (wanted.within(LIVE),)
        case Amendment.DELETE | Amendment.DELETE_WITH_WAITING:
            return (wanted,)
        case _:
            assert_never(amendment)


def _to_be_retried(wanted: JobFilter) -> tuple[JobFilter, ...]:
    """Failed jobs, and dead letters where their queue, their origin or their id is named."""
    if wanted.origins is not None:
        return (wanted.within(_UNDELIVERED if wanted.states is None else _UNDELIVERED | _REVIVABLE),)
    if wanted.states is not None:
        return (wanted.within(_REVIVABLE),)
    failed = wanted.within({State.FAILED})  # what somebody revoked comes back only when asked for by name
    if wanted.queues is None and wanted.ids is None:
        return (failed,)  # a dead letter's original is among them
    return failed, msgspec.structs.replace(wanted, origins=frozenset("*")).within(QUEUED)
