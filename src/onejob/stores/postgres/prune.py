"""prune: remove what has been kept long enough, and whatever goes with jobs that are deleted."""

from __future__ import annotations

from collections.abc import Sequence

from onejob.core.job import State
from onejob.store import Pruned, Retention
from onejob.stores.postgres.ending import expire_overdue
from onejob.stores.postgres.steps import Steps, ask, begin
from onejob.stores.postgres.work import Work

DEAD_WORKER_KEPT = 24 * 3600_000


def prune(work: Work, retention: Retention, limit: int) -> Steps[Pruned]:
    """Remove what has been kept long enough; see `Store.prune`. Two at once skip each other's."""
    yield from begin()
    [(now,)] = yield from ask("prune.clock", work.now)
    gone = yield from expire_overdue(work, limit, now)
    jobs = 0
    for state, kept in (
        (State.COMPLETED, retention.completed),
        (State.FAILED, retention.failed),
        (State.REVOKED, retention.revoked),
    ):
        if jobs < limit:
            [(dropped,)] = yield from ask("prune.old_chains", state, now - kept, limit - jobs)
            jobs += dropped
    keys = len((yield from ask("prune.drop_keys", now, limit)))
    workers = len((yield from ask("prune.drop_workers", now - DEAD_WORKER_KEPT)))
    yield from ask("prune.drop_flags", limit)
    yield from ask("prune.drop_lanes", now, limit)
    return Pruned(jobs, keys, workers, gone, more=max(jobs, keys, gone) >= limit)


def drop(ids: Sequence[str]) -> Steps[list[str]]:
    """Delete whole chains that have ended, each by its last job, leaving in their keys what those still need.

    Returns those that are gone; the others have moved.
    """
    if not ids:
        return []
    rows = yield from ask("prune.drop", list(ids))
    return [str(row[0]) for row in rows]
