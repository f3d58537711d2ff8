"""set_queue: limits that hold for a whole queue, and what an observer sees of them and of lanes."""

from __future__ import annotations

from collections.abc import Iterable

from onejob.core.job import JobId
from onejob.core.lane import QueueChange, QueueLimits
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.lanes import OWN_RATE, limits_of, plan_of
from onejob.store import LaneView
from onejob.stores.sqlite.connect import Row, array
from onejob.stores.sqlite.rates import forget_starts
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements

HOLDERS_SHOWN = 100


def set_queue(session: Session, queue: str, change: QueueChange) -> QueueLimits:
    """Change a queue's limits; see `Store.set_queue`."""
    sql = statements("set_queue")
    row = session.first(sql["limits"], {"queue": queue})
    limits = change.applied(QueueLimits() if row is None else limits_of(*row))
    rate = limits.rate
    if rate is None:
        forget_starts(session, queue, OWN_RATE)
    if limits == QueueLimits():
        session.run(sql["drop"], {"queue": queue})
    else:
        session.run(
            sql["put"],
            {
                "queue": queue,
                "concurrency": limits.concurrency,
                "rate_max": None if rate is None else rate.max,
                "rate_per": None if rate is None else rate.window,
                "paused": limits.paused,
            },
        )
    session.tell("work", [queue])
    return limits


def tell_who_waits_for_room(session: Session, queues: Iterable[str]) -> None:
    """Jobs of these queues have ended: where only so many may run, others can start now."""
    rows = session.execute(statements("set_queue")["narrow"], {"queues": array(queues)})
    session.tell("work", [row[0] for row in rows])


def limits(session: Session) -> dict[str, QueueLimits]:
    """The limits of every queue that has any; see `Inspector.limits`."""
    return {str(name): limits_of(*rest) for name, *rest in session.rows(statements("set_queue")["all"], ())}


def lane(session: Session, queue: str, key: str) -> LaneView | None:
    """One lane; see `Inspector.lane`."""
    names = {"queue": queue, "key": key, "now": session.now()}
    row = session.first(statements("inspect")["lane"], names)
    return None if row is None else _view(session, queue, row)


def lanes(session: Session, queue: str | None, limit: int) -> list[LaneView]:
    """Lanes in use; see `Inspector.lanes`."""
    names = {"queue": queue, "limit": limit, "now": session.now()}
    rows = session.rows(statements("inspect")["lanes"], names)
    found = (lane(session, where, key) for where, key in rows)
    return [view for view in found if view is not None]


def ahead(session: Session, id: JobId, limit: int) -> int:
    """How many have their turn before a job; see `Inspector.ahead`."""
    try:
        names = {"id": id_to_bytes(id), "limit": limit}
    except ValueError:
        return 0
    [(found,)] = session.rows(statements("inspect")["ahead"], names)
    return found


def _view(session: Session, queue: str, row: Row) -> LaneView:
    *columns, opens_at, taken, ready = row
    plan = plan_of(*columns)
    sql = statements("inspect")
    names = {"queue": queue, "lane": plan.key}
    holders = session.rows(sql["slot_holders"], {**names, "limit": HOLDERS_SHOWN})
    head = session.first(sql["head_in_order" if plan.ordered else "head_by_priority"], names)
    return LaneView(
        queue=queue,
        plan=plan,
        holders=[id_from_bytes(row[0]) for row in holders],
        taken=taken,
        ready=ready,
        head=None if head is None else id_from_bytes(head[0]),
        opens_at=opens_at if ready else None,
    )
