"""Operations on all jobs that a filter matches: page after page, each a commit of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, assert_never

from onejob.core.errors import InvalidOption, shown
from onejob.core.filter import JobFilter, as_filter
from onejob.core.job import LIVE, State
from onejob.core.options import whole_number
from onejob.store import Amended, Amendment, JobStore, Page

BATCH: Final = 200
"""Jobs per commit, so that workers get their turn in between."""
MAX_PAGE: Final = 10_000

_REVIVABLE: Final = frozenset({State.FAILED, State.REVOKED})


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

    `on_batch` hears how many jobs each batch had. What is accepted meanwhile is left alone.
    """
    wanted = affected(filter, amendment)
    outcomes: Counter[Amended] = Counter()
    cursor: str | None = None
    while True:
        found = await store.jobs(wanted, BATCH, cursor)
        if found.jobs:
            outcomes.update(await store.amend([job.id for job in found.jobs], amendment))
        if on_batch is not None:
            on_batch(len(found.jobs))
        cursor = found.cursor
        if cursor is None:
            return outcomes


def affected(filter: str | JobFilter, amendment: Amendment) -> JobFilter:
    """The jobs that an amendment of all that match is about: a text without terms names none."""
    wanted = as_filter(filter)
    if isinstance(filter, str) and wanted == JobFilter():
        raise InvalidOption(
            "An empty filter would be every job there is: name some, as in state:failed, or say all of them "
            "with state:live,ended."
        )
    match amendment:
        case Amendment.RETRY | Amendment.RETRY_WITHOUT_KEY:
            # What somebody revoked comes back only when asked for by name.
            return wanted.within({State.FAILED} if wanted.states is None else _REVIVABLE)
        case Amendment.REVOKE:
            return wanted.within(LIVE)
        case Amendment.DELETE:
            return wanted
        case _:
            assert_never(amendment)
