"""set_queue: limits that hold for a whole queue, and what an observer sees of them and of lanes."""

from __future__ import annotations

from collections.abc import Iterable

from onejob.core.job import JobId
from onejob.core.lane import QueueChange, QueueLimits
from onejob.sql.ids import is_id
from onejob.sql.lanes import OWN_RATE, limits_of, plan_of
from onejob.store import LaneView
from onejob.stores.postgres import rates
from onejob.stores.postgres.steps import Row, Steps, ask, begin
from onejob.stores.postgres.work import Work

HOLDERS_SHOWN = 100
_PATIENCE = "1s"
"""How long to wait for claims under way; others wait behind us meanwhile."""


def set_queue(work: Work, queue: str, change: QueueChange) -> Steps[QueueLimits]:
    """Change a queue's limits; see `Store.set_queue`."""
    yield from begin()
    yield from ask("claim.be_patient", _PATIENCE)
    yield from ask("set_queue.wait")
    rows = yield from ask("set_queue.limits", queue)
    limits = change.applied(limits_of(*rows[0]) if rows else QueueLimits())
    rate = limits.rate
    if rate is None:
        yield from rates.forget([(queue, OWN_RATE)])
    if limits == QueueLimits():
        yield from ask("set_queue.drop", queue)
    else:
        yield from ask(
            "set_queue.put",
            queue,
            limits.concurrency,
            None if rate is None else rate.max,
            None if rate is None else rate.window,
            limits.paused,
        )
    work.tell("work", [queue])
    return limits


def tell_who_waits_for_room(work: Work, queues: Iterable[str]) -> Steps[None]:
    """Jobs of these queues have ended: where only so many may run, others can start now."""
    rows = yield from ask("set_queue.narrow", sorted(set(queues)))
    work.tell("work", [row[0] for row in rows])


def limits(work: Work) -> Steps[dict[str, QueueLimits]]:
    """The limits of every queue that has any; see `Inspector.limits`."""
    rows = yield from ask("set_queue.all")
    return {str(name): limits_of(*rest) for name, *rest in rows}


def lane(work: Work, queue: str, key: str) -> Steps[LaneView | None]:
    """One lane; see `Inspector.lane`."""
    rows = yield from ask("lane_views.views", work.now, [queue], [key], HOLDERS_SHOWN)
    return _view(rows[0]) if rows else None


def lanes(work: Work, queue: str | None, limit: int) -> Steps[list[LaneView]]:
    """Lanes in use; see `Inspector.lanes`."""
    names = yield from ask("lane_views.names", work.now, queue, limit)
    if not names:
        return []
    queues, keys = [name for name, _ in names], [key for _, key in names]
    rows = yield from ask("lane_views.views", work.now, queues, keys, HOLDERS_SHOWN)
    return [_view(row) for row in rows]


def ahead(work: Work, id: JobId, limit: int) -> Steps[int]:
    """How many have their turn before a job; see `Inspector.ahead`."""
    if not is_id(id):
        return 0
    [(found,)] = yield from ask("lane_views.ahead", id, limit)
    return found


def _view(row: Row) -> LaneView:
    queue, key, concurrency, rate_max, rate_per, hold, opens_at, taken, ready, holders, head = row
    return LaneView(
        queue=queue,
        plan=plan_of(key, concurrency, rate_max, rate_per, hold),
        holders=[JobId(str(id)) for id in holders],
        taken=taken,
        ready=ready,
        head=None if head is None else JobId(str(head)),
        opens_at=opens_at if ready else None,
    )
