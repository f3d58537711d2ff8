"""schedules: compare a record's revision and set the record; a slot's job is enqueued in the same commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onejob.core.schedule import Firing, Schedule, fired
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.rows import schedule_of
from onejob.store import Due, Fired
from onejob.stores.sqlite.enqueue import enqueue
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements


def put(session: Session, schedules: Sequence[Schedule]) -> list[bool]:
    """Write records that are as they were read; see `Store.put_schedules`."""
    written = [_write(session, schedule) for schedule in schedules]
    if any(written):
        session.topics.add("schedules")
    return written


def drop(session: Session, id: str) -> bool:
    """Remove one; see `Store.drop_schedule`."""
    return session.run(statements("schedules")["drop"], {"id": id}) > 0


def due(session: Session, limit: int, now: int | None) -> Due:
    """Those whose next slot has come; see `Store.due`."""
    sql, at = statements("schedules"), session.now(now)
    found = session.rows(sql["due"], {"now": at, "limit": limit})
    [(next_at,)] = session.rows(sql["next_at"], {"now": at})
    return Due([schedule_of(row, id_from_bytes) for row in found], next_at)


def fire(session: Session, firings: Sequence[Firing], now: int | None) -> list[Fired]:
    """Spend slots; see `Store.fire`."""
    at = session.now(now)
    return [_fire(session, firing, at) for firing in firings]


def schedules(session: Session, ids: Sequence[str] | None) -> list[Schedule]:
    """Those on record; see `Inspector.schedules`."""
    if ids is None:
        return [schedule_of(row, id_from_bytes) for row in session.rows(statements("schedules")["all"], ())]
    found = (_one(session, id) for id in sorted(set(ids)))
    return [schedule for schedule in found if schedule is not None]


def _fire(session: Session, firing: Firing, now: int) -> Fired:
    found = _one(session, firing.id)
    if found is None or found.paused or (found.revision, found.since) != (firing.revision, firing.since):
        return Fired(won=False)
    answer = None if firing.job is None else enqueue(session, [firing.job], now)[0]
    if answer is None:
        spent = fired(found, firing, None, None, now)
    else:
        spent = fired(found, firing, answer.id, answer.outcome, now)
    _write(session, spent)
    return Fired(won=True, answer=answer)


def _write(session: Session, schedule: Schedule) -> bool:
    statement = "insert" if schedule.revision == 1 else "replace"
    return session.run(statements("schedules")[statement], _columns(schedule)) > 0


def _one(session: Session, id: str) -> Schedule | None:
    row = session.first(statements("schedules")["one"], {"id": id})
    return None if row is None else schedule_of(row, id_from_bytes)


def _columns(schedule: Schedule) -> dict[str, Any]:
    return {
        "id": schedule.id,
        "definition": schedule.definition,
        "declared": schedule.declared,
        "paused": schedule.paused,
        "since": schedule.since,
        "next": schedule.next,
        "last": schedule.last,
        "job": None if schedule.job is None else id_to_bytes(schedule.job),
        "outcome": schedule.outcome,
        "fired": schedule.fired,
        "updated": schedule.updated,
        "revision": schedule.revision,
    }
