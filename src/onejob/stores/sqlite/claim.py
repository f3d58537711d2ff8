"""claim: start waiting jobs for one worker, within the limits of their queues.

Which job of a lane may start now has been settled before: only those wait.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from onejob.core.job import ChainId, Claimed, Lease
from onejob.core.lane import QueueLimits
from onejob.sql.ids import id_from_bytes
from onejob.sql.lanes import EVERYBODY, OWN_RATE, limits_of
from onejob.store import Ask, Claims
from onejob.stores.sqlite.connect import Row, numbers
from onejob.stores.sqlite.ending import expire_overdue
from onejob.stores.sqlite.lanes import count_starts, open_lanes, refresh
from onejob.stores.sqlite.rates import record_starts, window
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements
from onejob.stores.sqlite.swift import remember

PROMOTE_LIMIT = 1_000
UNBEATEN_GRACE = 60_000
"""How long a worker that claims before its first beat counts as alive (ms)."""


class Outlook(msgspec.Struct, frozen=True):
    """What a queue has to expect: when time brings something, and what limits it."""

    due: int | None
    due_in_lane: int | None
    opens_at: int | None
    rated: bool
    """Some of its lanes have a rate."""
    limits: QueueLimits

    @property
    def next(self) -> int | None:
        """The next instant at which something happens by itself."""
        instants = (self.due, self.due_in_lane, self.opens_at)
        return min((instant for instant in instants if instant is not None), default=None)


def claim(session: Session, ask: Ask, now: int | None) -> Claims:
    """Start waiting jobs; see `Store.claim`."""
    instant = session.now(now)
    more_overdue = expire_overdue(session, PROMOTE_LIMIT, instant) == PROMOTE_LIMIT
    refresh(session, instant)
    session.run(
        statements("claim")["register"], {"worker": ask.worker, "now": instant, "grace": UNBEATEN_GRACE}
    )
    token = os.urandom(8)
    jobs: list[Claimed] = []
    waits = [0] if more_overdue else list[int]()  # one of them may be in somebody's way
    for queue in ask.queues:
        outlook = _outlook(session, queue, instant)
        if outlook.limits.paused:
            continue
        room, opens_at = _room(session, queue, outlook.limits, instant)
        names = {"queue": queue, "worker": ask.worker, "lease": token, "now": instant}
        rows = _start(session, names, *_share(ask, len(jobs), outlook.limits, room))
        started = [claimed(row, queue, token, row[14:18]) for row in rows]
        remember(session, started, rows)
        jobs += started
        if rows and _record(session, outlook, rows, names):
            outlook = _outlook(session, queue, instant)
            if len(rows) == room:  # only then can the rate hold somebody up
                _, opens_at = _room(session, queue, outlook.limits, instant)
        waits += [max(at - instant, 0) for at in (outlook.next, opens_at) if at is not None]
    return Claims(jobs, min(waits, default=None))


def claimed(row: Row, queue: str, token: bytes, rest: Row) -> Claimed:
    """Read a row and its `rest`: lane, chain, place and blockers.

    Text is decoded leniently, because one damaged row must not stop a queue.
    """
    raw, task, payload, options, attempt, failures = row[:6]
    crashes, max_crashes, misses, accepted, due, key = row[6:12]
    lane, chain, chain_index, blockers = rest
    id = id_from_bytes(raw)
    return Claimed(
        Lease(id, token),
        queue,
        task.decode("utf-8", "replace"),
        payload,
        options,
        attempt,
        failures,
        crashes,
        max_crashes,
        misses,
        accepted,
        due,
        ChainId(id if chain is None else id_from_bytes(chain)),
        chain_index,
        None if key is None else key.decode("utf-8", "replace"),
        None if lane is None else lane.decode("utf-8", "replace"),
        blockers,
    )


def _outlook(session: Session, queue: str, now: int) -> Outlook:
    """Look at a queue; what has become due meanwhile is let in first."""
    sql = statements("claim")
    outlook = _look(session, queue, now)
    if outlook.limits.paused or outlook.next is None or outlook.next > now:
        return outlook
    open_lanes(session, queue, now)
    session.run(sql["promote"], {"queue": queue, "now": now, "limit": PROMOTE_LIMIT})
    for (lane,) in session.rows(sql["promote_in_lanes"], {"queue": queue, "now": now}):
        session.touch(queue, lane, Touch.RETURNED)
    refresh(session, now)
    return _look(session, queue, now)


def _look(session: Session, queue: str, now: int) -> Outlook:
    names = {"queue": queue, "now": now}
    [(due, due_in_lane, opens_at, rated, *limits)] = session.rows(statements("claim")["outlook"], names)
    return Outlook(due, due_in_lane, opens_at, bool(rated), limits_of(*limits))


def _room(session: Session, queue: str, limits: QueueLimits, now: int) -> tuple[int, int | None]:
    """How many jobs of a queue may start, and when its rate lets one more start."""
    room, opens_at = EVERYBODY, None
    if limits.concurrency is not None:
        [(running,)] = session.rows(statements("set_queue")["running"], {"queue": queue})
        room = max(limits.concurrency - running, 0)
    if limits.rate is not None:
        counted = window(session, queue, OWN_RATE, limits.rate, now)
        if counted.room == 0:
            opens_at = counted.opens_at(session, 0)
        room = min(room, counted.room)
    return room, opens_at


def _share(ask: Ask, started: int, limits: QueueLimits, room: int) -> tuple[int, int]:
    """How many jobs of a queue may start, after so many of others, and how many more for the worker's stock."""
    limit = min(max(ask.limit - started, 0), room)
    stock = 0 if limits.concurrency is not None or limits.rate is not None else ask.stock
    return limit, max(min(stock, ask.limit + ask.stock - started), 0)


def _start(session: Session, names: dict[str, Any], limit: int, stock: int) -> list[Row]:
    if limit + stock <= 0:
        return []
    sql = statements("claim")
    wanted = {"queue": names["queue"], "now": names["now"], "limit": limit + stock}
    rows = _plain_beyond(limit, session.rows(sql["next"], wanted))
    if rows:
        started = numbers([row[13] for row in rows])
        session.execute(sql["start"], (names["lease"], names["worker"], names["now"], started))
    return rows


def _plain_beyond(limit: int, rows: list[Row]) -> list[Row]:
    """So many, and more up to the first that has a lane, was once lost with its worker, or must never be."""
    if len(rows) <= limit:
        return rows
    special = (place for place, row in enumerate(rows) if row[14] is not None or row[6] or not row[7])
    return rows[: max(limit, next(special, len(rows)))]


def _record(session: Session, outlook: Outlook, rows: Sequence[Row], names: dict[str, Any]) -> bool:
    """Write down the starts that a rate counts; True if that changed what the queue has to expect."""
    queue, lease, now = names["queue"], names["lease"], names["now"]
    if outlook.limits.rate is not None:
        record_starts(session, queue, [(OWN_RATE, row[0]) for row in rows], lease, now)
    if outlook.rated:
        laned = [(row[14].decode("utf-8", "replace"), row[0]) for row in rows if row[14] is not None]
        if laned:
            count_starts(session, queue, laned, lease, now)
            refresh(session, now)
    return outlook.rated or outlook.limits.rate is not None
