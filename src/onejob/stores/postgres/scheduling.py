"""schedules: compare a record's revision and set the record; a slot's job is enqueued in the same commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onejob.core.job import JobId
from onejob.core.judge import Answer
from onejob.core.schedule import Firing, Schedule, fired
from onejob.sql.rows import Row, schedule_of
from onejob.store import Due, Fired
from onejob.stores.postgres.enqueue import enqueue
from onejob.stores.postgres.steps import Steps, ask, begin
from onejob.stores.postgres.work import Work


def put(work: Work, schedules: Sequence[Schedule]) -> Steps[list[bool]]:
    """Write records that are as they were read; see `Store.put_schedules`."""
    if len(schedules) > 1:
        yield from begin()
    written = [False] * len(schedules)
    # By id, so that two who put the same ones do not wait for each other in a circle.
    for place in sorted(range(len(schedules)), key=lambda place: schedules[place].id):
        written[place] = yield from _write(schedules[place])
    if work.again and not all(written):
        found = {one.id: one for one in (yield from _some([schedule.id for schedule in schedules]))}
        written = [won or found.get(one.id) == one for won, one in zip(written, schedules, strict=True)]
    if any(written):
        work.topics.add("schedules")
    return written


def drop(work: Work, id: str) -> Steps[bool]:
    """Remove one; see `Store.drop_schedule`."""
    return bool((yield from ask("schedules.drop", id)))


def due(work: Work, limit: int) -> Steps[Due]:
    """Those whose next slot has come; see `Store.due`."""
    rows = yield from ask("schedules.due", work.now, limit)
    return Due([_schedule(row[1:]) for row in rows if row[1] is not None], rows[0][0])


def fire(work: Work, firings: Sequence[Firing]) -> Steps[list[Fired]]:
    """Spend slots; see `Store.fire`."""
    yield from begin()
    rows = yield from ask("schedules.lock", work.now, sorted({firing.id for firing in firings}))
    records = {row[1]: _schedule(row[1:]) for row in rows}
    won = _winners(firings, records, again=work.again)
    if not any(won):
        return [Fired(won=False) for _ in firings]
    work.now = rows[0][0]
    jobs = [firing.job for firing, wins in zip(firings, won, strict=True) if wins and firing.job is not None]
    answers = iter((yield from enqueue(work, jobs)) if jobs else ())
    results: list[Fired] = []
    for firing, wins in zip(firings, won, strict=True):
        answer = next(answers) if wins and firing.job is not None else None
        if wins and not _fired_before(firing, records[firing.id]):
            records[firing.id] = _spent(records[firing.id], firing, answer, rows[0][0])
            yield from _write(records[firing.id])
        results.append(Fired(won=wins, answer=answer))
    return results


def schedules(work: Work, ids: Sequence[str] | None) -> Steps[list[Schedule]]:
    """Those on record; see `Inspector.schedules`."""
    if ids is not None:
        return (yield from _some(ids))
    return [_schedule(row) for row in (yield from ask("schedules.all"))]


def _winners(firings: Sequence[Firing], records: dict[str, Schedule], *, again: bool) -> list[bool]:
    """Which firings win; of several for one record, each after the one before it."""
    revisions = {id: record.revision for id, record in records.items()}
    won: list[bool] = []
    for firing in firings:
        found = records.get(firing.id)
        wins = False
        if found is not None and again and _fired_before(firing, found):
            wins = True
        elif found is not None and not found.paused:
            wins = (revisions[firing.id], found.since) == (firing.revision, firing.since)
            revisions[firing.id] += wins
        won.append(wins)
    return won


def _fired_before(firing: Firing, found: Schedule) -> bool:
    """True if the record is what this very firing made of it, whose reply was lost then."""
    return firing.job is not None and (found.revision, found.since, found.last, found.job) == (
        firing.revision + 1,
        firing.since,
        firing.slot,
        firing.job.id,
    )


def _spent(found: Schedule, firing: Firing, answer: Answer | None, now: int) -> Schedule:
    if answer is None:
        return fired(found, firing, None, None, now)
    return fired(found, firing, answer.id, answer.outcome, now)


def _write(schedule: Schedule) -> Steps[bool]:
    statement = "schedules.insert" if schedule.revision == 1 else "schedules.replace"
    return bool((yield from ask(statement, *_columns(schedule))))


def _some(ids: Sequence[str]) -> Steps[list[Schedule]]:
    return [_schedule(row) for row in (yield from ask("schedules.some", sorted(set(ids))))]


def _columns(schedule: Schedule) -> tuple[Any, ...]:
    return (
        schedule.id,
        schedule.definition,
        schedule.declared,
        schedule.paused,
        schedule.since,
        schedule.next,
        schedule.last,
        schedule.job,
        schedule.outcome,
        schedule.fired,
        schedule.updated,
        schedule.revision,
    )


def _schedule(row: Row) -> Schedule:
    return schedule_of(row, lambda id: JobId(str(id)))
