"""settle and claim: attempts end and the next ones start, in one commit."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from onejob.core.job import ENDED, ChainId, Claimed, JobId, Lease, State, WorkerId
from onejob.core.lifecycle import ENDING, MOVES, Move, Settlement
from onejob.store import Ask, Beat, Claims, Expired, Pulse, Settled, SettleReply
from onejob.stores.sqlite.connect import Row, array
from onejob.stores.sqlite.dead import bury
from onejob.stores.sqlite.ending import Ended, after_end, expire_overdue
from onejob.stores.sqlite.session import Session, id_from_bytes, id_to_bytes
from onejob.stores.sqlite.statements import statements

PROMOTE_LIMIT = 1_000
UNBEATEN_GRACE = 60_000
"""How long a worker that claims before its first beat counts as alive (ms)."""

_IN_PLACE = frozenset({Move.HAND_BACK, Move.LOSE})
"""Moves after which a job keeps its due time, and so its place in line."""


def settle(session: Session, done: Sequence[Settlement], ask: Ask | None, now: int | None) -> SettleReply:
    """End attempts and claim the next; see `Store.settle`."""
    instant = session.now(now)
    settled = _end_attempts(session, done, instant) if done else []
    return SettleReply(settled, Claims([]) if ask is None else claim(session, ask, instant))


def claim(session: Session, ask: Ask, now: int | None) -> Claims:
    """Start waiting jobs; see `Store.claim`."""
    instant = session.now(now)
    sql = statements("claim")
    expire_overdue(session, PROMOTE_LIMIT, instant)
    session.run(sql["register"], {"worker": ask.worker, "now": instant, "grace": UNBEATEN_GRACE})
    token = os.urandom(8)
    jobs: list[Claimed] = []
    next_due: int | None = None
    for queue in ask.queues:
        due = _next_due(session, queue)
        if due is not None and due <= instant:
            session.run(sql["promote"], {"queue": queue, "now": instant, "limit": PROMOTE_LIMIT})
            due = _next_due(session, queue)
        if due is not None:
            wait = max(due - instant, 0)
            next_due = wait if next_due is None else min(next_due, wait)
        room = ask.limit - len(jobs)
        if room > 0:
            rows = session.rows(
                sql["claim"],
                {"queue": queue, "worker": ask.worker, "lease": token, "limit": room, "now": instant},
            )
            rows.sort(key=_order)
            jobs += [_claimed(row, queue, token) for row in rows]
    return Claims(jobs, next_due)


def beat(session: Session, sign: Beat, now: int | None) -> Pulse:
    """Prolong a worker's leases; see `Store.beat`."""
    instant = session.now(now)
    sql = statements("beat")
    session.run(
        sql["beat"],
        {
            "worker": sign.worker,
            "queues": msgspec.json.encode(sign.queues).decode(),
            "host": sign.host,
            "pid": sign.pid,
            "concurrency": sign.concurrency,
            "lease": sign.lease,
            "now": instant,
        },
    )
    for id, progress in sign.progress.items():
        session.run(
            sql["progress"],
            {"id": id_to_bytes(id), "progress": progress, "worker": sign.worker, "now": instant},
        )
    held: dict[JobId, bytes] = {}
    aborting: set[JobId] = set()
    for raw, lease, flagged in session.execute(sql["held"], {"worker": sign.worker}):
        id = id_from_bytes(raw)
        held[id] = lease
        if flagged:
            aborting.add(id)
    return Pulse(held, frozenset(aborting))


def expired(session: Session, limit: int, now: int | None) -> list[Expired]:
    """Running jobs whose workers are gone; see `Store.expired`."""
    rows = session.execute(statements("expired")["expired"], {"limit": limit, "now": session.now(now)})
    return [Expired(_claimed(row, row[13], row[12]), WorkerId(row[14])) for row in rows]


def _end_attempts(session: Session, done: Sequence[Settlement], now: int) -> list[Settled]:
    sql = statements("settle")
    ids = [id_to_bytes(one.lease.id) for one in done]
    running = {row[1]: row for row in session.execute(sql["look"], {"ids": array(ids)})}
    orphaning = any(MOVES[one.move].orphaned for one in done)
    alive = {row[0] for row in session.execute(sql["alive"], {"now": now})} if orphaning else set[str]()
    replies: list[Settled] = []
    updates: list[tuple[object, ...]] = []
    ended: list[Ended] = []
    dead: list[tuple[bytes, str]] = []
    for id, one in zip(ids, done, strict=True):
        row = running.get(id)
        rule = MOVES[one.move]
        if row is None or row[2] != one.lease.token or (rule.orphaned and row[6] in alive):
            replies.append(Settled.LOST)
            continue
        del running[id]  # settled: whatever else this batch says of it comes too late
        seq, _, token, aborting, digest, queue, _ = row
        state = State.REVOKED if aborting else _state_after(one)
        updates.append((*_changes(one, state, now), seq, token))
        replies.append(Settled.REVOKED if aborting else Settled.DONE)
        if state in ENDED:
            ended.append(Ended(id, queue, digest, state))
            if state is State.FAILED and one.dead_letter is not None:
                dead.append((id, one.dead_letter))
        else:
            session.topics.add("work:" + queue)
    if updates:
        session.executemany(sql["settle"], updates)
    if ended:
        after_end(session, ended, now)
    if dead:
        bury(session, dead, now)
    return replies


def _state_after(one: Settlement) -> State:
    return ENDING.get(one.move) or (State.DELAYED if one.delay > 0 else State.WAITING)


def _changes(one: Settlement, state: State, now: int) -> tuple[object, ...]:
    rule = MOVES[one.move]
    ends = state in ENDED
    return (
        state,
        now if ends else None,
        None if ends or one.move in _IN_PLACE else now + one.delay,
        rule.attempt,
        rule.failures,
        rule.crashes,
        rule.misses,
        one.result if state is State.COMPLETED else None,
        one.error,
    )


def _next_due(session: Session, queue: str) -> int | None:
    row = session.first(statements("claim")["next_due"], {"queue": queue})
    return None if row is None else row[0]


def _order(row: Row) -> tuple[int, int, int]:
    return (-row[12], row[10], row[13])


def _claimed(row: Row, queue: str, token: bytes) -> Claimed:
    """Read a row; text is decoded leniently, because one damaged row must not stop a queue."""
    id = id_from_bytes(row[0])
    key: bytes | None = row[11]
    return Claimed(
        Lease(id, token),
        queue,
        row[1].decode("utf-8", "replace"),
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[8],
        row[9],
        row[10],
        ChainId(id),
        0,
        None if key is None else key.decode("utf-8", "replace"),
    )
