"""schedules: the desk compares a record's revision and sets the record; a slot's job is on its way with the same write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onejob.core.judge import Answer, Outcome
from onejob.core.schedule import Firing, Schedule
from onejob.sql.ids import id_from_bytes
from onejob.sql.rows import schedule_of
from onejob.store import Due, Fired
from onejob.stores.valkey.forms import answer_of
from onejob.stores.valkey.newcomers import newcomer
from onejob.stores.valkey.office import DESK, Delivered, Office, portions
from onejob.stores.valkey.wire import blob, id_blob


async def put(office: Office, schedules: Sequence[Schedule], now: int | None) -> list[bool]:
    """Write records that are as they were read; see `Store.put_schedules`."""
    written: list[bool] = []
    for some in portions([_record(schedule) for schedule in schedules]):
        written += map(bool, await office.call("put_schedules", DESK, some, now=now))
    return written


async def drop(office: Office, id: str) -> bool:
    """Remove one; see `Store.drop_schedule`."""
    return bool(await office.call("drop_schedule", DESK, (id,)))


async def due(office: Office, limit: int, now: int | None) -> Due:
    """Those whose next slot has come; see `Store.due`."""
    rows, next_at = await office.look("due", DESK, (limit,), now=now)
    return Due([_schedule(row) for row in rows], next_at)


async def schedules(office: Office, ids: Sequence[str] | None) -> list[Schedule]:
    """Those on record; see `Inspector.schedules`."""
    found: dict[str, Schedule] = {}
    if ids is not None:
        for some in portions(sorted(set(ids))):
            rows, _ = await office.look("schedules", DESK, (some, False))
            found |= {one.id: one for one in map(_schedule, rows)}
    else:
        cursor: bytes | None = b"0"
        while cursor:
            rows, cursor = await office.look("schedules", DESK, (False, blob(cursor)))
            found |= {one.id: one for one in map(_schedule, rows)}
    return [found[id] for id in sorted(found)]


async def fire(office: Office, firings: Sequence[Firing], now: int | None) -> list[Fired]:
    """Spend slots; see `Store.fire`."""
    delivered = Delivered()
    forms = [
        (
            firing.id,
            firing.revision,
            firing.since,
            firing.slot,
            firing.next,
            False if firing.job is None else newcomer(firing.job),
            "" if firing.job is None else firing.job.queue,
        )
        for firing in firings
    ]
    won = await office.call("fire", DESK, forms, now=now, delivered=delivered)
    answers = {(row[0].decode(), row[1]): row[2] for row in delivered.answers}
    return [
        Fired(bool(one), _answer(firing, answers) if one else None)
        for firing, one in zip(firings, won, strict=True)
    ]


def _answer(firing: Firing, answers: dict[tuple[str, int], Any]) -> Answer | None:
    """What the slot's job was answered; if somebody else has delivered it, that it is on its way."""
    if firing.job is None:
        return None
    row = answers.get((firing.id, firing.slot))
    return Answer(firing.job.id, Outcome.CREATED) if row is None else answer_of(row, firing.job)


def _record(schedule: Schedule) -> tuple[object, ...]:
    return (
        schedule.id,
        blob(schedule.definition),
        int(schedule.declared),
        int(schedule.paused),
        schedule.since,
        schedule.next,
        False if schedule.last is None else schedule.last,
        False if schedule.job is None else id_blob(schedule.job),
        schedule.outcome or False,
        schedule.fired,
        schedule.updated,
        schedule.revision,
    )


def _schedule(row: Sequence[Any]) -> Schedule:
    id, *rest = row
    columns = [id.decode(), *rest]
    columns[8] = None if columns[8] is None else columns[8].decode()
    return schedule_of(tuple(columns), id_from_bytes)
