"""Lanes: which of their ready jobs may start now. Derived from rows, for each lane that something happened to.

Operations say `touch` whenever a job of a lane becomes ready, starts, ends or goes away, and call `refresh` once
before they are done: then exactly those whose turn it is are `waiting`, and claims need not know of lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from onejob.core.job import NewJob, State
from onejob.core.lane import LanePlan
from onejob.sql.lanes import EVERYBODY, brought_plan, plan_of
from onejob.stores.sqlite.connect import Row, array
from onejob.stores.sqlite.rates import forget_starts, record_starts, window
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements


def lanes_of(session: Session, jobs: Iterable[NewJob]) -> dict[tuple[str, str], LanePlan]:
    """The limits on record of the lanes of some newcomers, by queue and key."""
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for job in jobs:
        if job.lane is not None:
            wanted[job.queue].add(job.lane.key)
    return {(queue, plan.key): plan for queue, keys in wanted.items() for plan in plans(session, queue, keys)}


def plans(session: Session, queue: str, keys: Iterable[str]) -> list[LanePlan]:
    """The limits of those lanes of a queue that are on record."""
    rows = session.execute(statements("lanes")["plans"], {"queue": queue, "keys": array(keys)})
    return [plan_of(*row) for row in rows]


def put(session: Session, queue: str, plan: LanePlan, former: LanePlan | None) -> None:
    """Let a lane's limits be these from now on."""
    rate = plan.rate
    if rate is None and former is not None and former.rate is not None:
        forget_starts(session, queue, plan.key)
    session.run(
        statements("lanes")["put"],
        {
            "queue": queue,
            "key": plan.key,
            "concurrency": plan.concurrency,
            "rate_max": None if rate is None else rate.max,
            "rate_per": None if rate is None else rate.window,
            "hold": plan.hold,
        },
    )


def join(session: Session, queue: str, plan: LanePlan) -> None:
    """A new job stands in a lane, whose limits are those that it brings."""
    former = next(iter(plans(session, queue, [plan.key])), None)
    if former != plan:
        put(session, queue, plan, former)
    session.touch(queue, plan.key, Touch.CAME if former == plan else Touch.RETURNED)


def back_to_lane(session: Session, queue: str, lane: str | None, brought: bytes | None) -> None:
    """A revived job stands in its lane again; one that was forgotten has the limits which the job once brought."""
    if lane is None:
        return
    if not plans(session, queue, [lane]):
        put(session, queue, brought_plan(lane, brought), None)
    session.touch(queue, lane, Touch.RETURNED)


def open_lanes(session: Session, queue: str, now: int) -> None:
    """Touch the lanes of a queue for which time has brought something."""
    for (key,) in session.rows(statements("lanes")["opened"], {"queue": queue, "now": now}):
        session.touch(queue, key, Touch.LEFT)


def count_starts(
    session: Session, queue: str, starts: Sequence[tuple[str, bytes]], lease: bytes, now: int
) -> None:
    """Write down starts (lane, job) for the lanes among them that have a rate."""
    sql = statements("lanes")
    keys = array({lane for lane, _ in starts})
    rated = {row[0] for row in session.execute(sql["rated"], {"queue": queue, "keys": keys})}
    if rated:
        record_starts(session, queue, [start for start in starts if start[0] in rated], lease, now)
        for (lane,) in session.rows(sql["used_up"], {"queue": queue, "keys": array(rated)}):
            session.touch(queue, lane, Touch.CAME)


def refresh(session: Session, now: int) -> None:
    """Let exactly those ready jobs wait whose turn it is, in all lanes touched since."""
    if not session.lanes:
        return
    touched: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (queue, key), touch in session.lanes.items():
        touched[queue][key] = touch
    session.lanes.clear()
    for queue, lanes in touched.items():
        several: set[str] = set()
        for row in session.rows(statements("lanes")["particular"], {"queue": queue, "keys": array(lanes)}):
            plan = plan_of(*row)
            touch = lanes[plan.key]
            if plan.rate is None and touch & ~Touch.LEFT_AGAIN == Touch.LEFT:
                if touch != Touch.LEFT:
                    several.add(plan.key)
                # Nobody came who could pass one whose turn it was.
            else:
                del lanes[plan.key]
                _refresh_one(session, queue, plan, now)
        if lanes:
            _refresh_plain(session, queue, lanes, several)


def _refresh_plain(session: Session, queue: str, lanes: dict[str, int], several: set[str]) -> None:
    """Lanes without a rate that let one job run at a time, or that jobs have only left: a statement for all of them.

    `several` have more than one slot that was freed.
    """
    sql = statements("lanes")
    released: set[str] = set()
    returned = [key for key, touch in lanes.items() if touch & Touch.RETURNED]
    if returned:  # only then can somebody stand before one whose turn it was
        names = {"queue": queue, "lanes": array(returned)}
        session.run(sql["park_passed"], names)
        released.update(row[0] for row in session.execute(sql["release_held"], names))
    more = set(lanes)
    while more:
        names = {"queue": queue, "lanes": array(more)}
        found = {row[0] for row in session.execute(sql["release_next"], names)}
        released |= found
        more = found & several
    if released:
        session.tell("work", [queue])
    left = [key for key, touch in lanes.items() if touch & Touch.LEFT and key not in released]
    if left:
        session.run(sql["drop_empty"], {"queue": queue, "lanes": array(left)})


def _refresh_one(session: Session, queue: str, plan: LanePlan, now: int) -> None:
    sql = statements("lanes")
    names: dict[str, Any] = {"queue": queue, "lane": plan.key}
    [(taken, any_held, live)] = session.rows(sql["taken"], names)
    counted = None if plan.rate is None else window(session, queue, plan.key, plan.rate, now)
    if not live and (counted is None or counted.started == 0):
        session.run(sql["drop_empty"], {"queue": queue, "lanes": array([plan.key])})
        return
    leave = EVERYBODY if counted is None else counted.room
    held = session.rows(sql["held"], names) if any_held else []
    held.sort(key=_by_acceptance if plan.ordered else _by_priority)
    turn = held[:leave]
    room = min(max(plan.concurrency - taken, 0), leave - len(turn))
    next_ones = sql["ready_in_order" if plan.ordered else "ready_by_priority"]
    ready = session.rows(next_ones, {**names, "limit": room + 1})
    ready.sort(key=_by_acceptance if plan.ordered else _by_priority)
    turn += ready[:room]
    _let_wait(session, queue, turn, held + ready)
    if counted is not None:
        # The rate holds somebody up only if its leave is used up; a slot that gets free is seen without it.
        held_up = len(turn) == leave and len(turn) < len(held) + len(ready)
        reserved = len(turn) if held_up else counted.rate.max - 1  # an empty lane goes with its last start
        opens_at = counted.opens_at(session, reserved) if held_up or not live else None
        session.run(sql["look_again"], {**names, "opens_at": opens_at})


def _let_wait(session: Session, queue: str, turn: list[Row], ready: list[Row]) -> None:
    sql = statements("lanes")
    chosen = {row[0] for row in turn}
    passed = [(row[0],) for row in ready if row[1] == State.WAITING and row[0] not in chosen]
    released = [(row[0],) for row in turn if row[1] == State.PARKED]
    if passed:
        session.executemany(sql["park"], passed)
    if released:
        session.executemany(sql["release"], released)
        session.tell("work", [queue])


def _by_acceptance(row: Row) -> int:
    return row[0]


def _by_priority(row: Row) -> tuple[int, int, int]:
    return (-row[2], row[3], row[0])
