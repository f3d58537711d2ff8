"""settle, beat and expired: attempts end, workers live on, and the next claim comes in the same commit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from onejob.core.chain import diverged
from onejob.core.job import ENDED, JobId, State, WorkerId
from onejob.core.lifecycle import ENDING, MOVES, Settlement, in_turn
from onejob.sql.attempts import changes, state_after
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.lanes import place_after
from onejob.store import Ask, Beat, Claims, Expired, Pulse, Settled, SettleReply
from onejob.stores.sqlite import blocking
from onejob.stores.sqlite.attempts import Ended
from onejob.stores.sqlite.chains import Step, go_on
from onejob.stores.sqlite.claim import claim, claimed
from onejob.stores.sqlite.connect import Row, array, numbers
from onejob.stores.sqlite.dead import bury
from onejob.stores.sqlite.ending import after_end
from onejob.stores.sqlite.lanes import plans, refresh
from onejob.stores.sqlite.limits import tell_who_waits_for_room
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements
from onejob.stores.sqlite.swift import complete

FEW = 3
"""Fewer jobs than this end in a statement each, even if they end alike."""


def settle(session: Session, done: Sequence[Settlement], ask: Ask | None, now: int | None) -> SettleReply:
    """End attempts and claim the next; see `Store.settle`."""
    instant = session.now(now)
    reasons: dict[JobId, str] = {}
    settled = [reply for part in in_turn(done) for reply in _end_attempts(session, part, reasons, instant)]
    refresh(session, instant)
    return SettleReply(settled, Claims([]) if ask is None else claim(session, ask, instant), reasons)


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
    return [Expired(claimed(row, row[13], row[12], row[15:]), WorkerId(row[14])) for row in rows]


def _end_attempts(
    session: Session, done: Sequence[Settlement], reasons: dict[JobId, str], now: int
) -> list[Settled]:
    swift = complete(session, done, now)
    if len(swift) == len(done):
        _conclude(session, swift, now)
        return [Settled.DONE] * len(done)
    completed = {job.id for job in swift}
    ended: list[Ended] = [*swift]
    ids = [id_to_bytes(one.lease.id) for one in done]
    sql = statements("settle")
    running = {row[1]: row for row in session.execute(sql["look"], {"ids": array(ids)})}
    orphaning = any(MOVES[one.move].orphaned for one in done)
    alive = {row[0] for row in session.execute(sql["alive"], {"now": now})} if orphaning else set[str]()
    again = any(one.move not in ENDING for one in done)
    holding = _lanes_that_hold(session, running.values()) if again else set[tuple[str, str]]()
    replies: list[Settled] = []
    alike: defaultdict[tuple[Row, bytes], list[int]] = defaultdict(list)
    dead: list[tuple[bytes, str]] = []
    steps: list[Step] = []
    for id, one in zip(ids, done, strict=True):
        if id in completed:
            completed.remove(id)  # settled: whatever else this batch says of it comes too late
            replies.append(Settled.DONE)
            continue
        row = running.get(id)
        rule = MOVES[one.move]
        if row is None or row[2] != one.lease.token or (rule.orphaned and row[6] in alive):
            replies.append(Settled.LOST)
            continue
        seq, _, token, aborting, digest, queue, _, lane, chain, chain_index = row
        state = State.REVOKED if aborting else state_after(one, lane)
        then = one.then if state is State.COMPLETED else None
        if then is not None and (reason := blocking.refusal(session, then, chain or id)) is not None:
            reasons[one.lease.id] = reason
            replies.append(Settled.REFUSED)
            continue
        del running[id]  # likewise
        place = place_after(state, lane, (queue, lane) in holding)
        alike[(*changes(one, state, now), place), token].append(seq)
        replies.append(Settled.REVOKED if aborting else Settled.DONE)
        if state in ENDED:
            ended.append(Ended(id, queue, digest, state, None, lane, chain, then is not None))
            if then is not None:
                steps.append(Step(len(replies) - 1, len(ended) - 1, then, chain or id, chain_index + 1))
            if state is State.FAILED and one.dead_letter is not None:
                dead.append((id, one.dead_letter))
        else:
            session.topics.add("work:" + queue)
            session.touch(queue, lane, Touch.RETURNED | Touch.LEFT)
    _write_ends(session, alike)
    for step in steps:
        found = go_on(session, step, now)
        if found is None:
            continue
        if (found.task, found.payload) != (step.job.task, step.job.payload):
            replies[step.place] = Settled.DIVERGED
            reasons[done[step.place].lease.id] = diverged(found.task, step.job.task)
        if found.chain != step.chain:
            ended[step.end] = msgspec.structs.replace(ended[step.end], goes_on=False)
    _conclude(session, ended, now)
    if dead:
        bury(session, dead, now)
    return replies


def _conclude(session: Session, ended: Sequence[Ended], now: int) -> None:
    if ended:
        after_end(session, ended, now)
        tell_who_waits_for_room(session, {job.queue for job in ended})


def _write_ends(session: Session, alike: Mapping[tuple[Row, bytes], Sequence[int]]) -> None:
    """Write attempts' ends: the jobs, by what is to be written and under which lease."""
    sql = statements("settle")
    single: list[Row] = []
    for (change, token), seqs in alike.items():
        if len(seqs) < FEW:
            single += [(*change, seq, token) for seq in seqs]
        else:
            session.execute(sql["settle_alike"], (*change, numbers(seqs), token))
    if single:
        session.executemany(sql["settle"], single)


def _lanes_that_hold(session: Session, running: Iterable[Row]) -> set[tuple[str, str]]:
    """The lanes among those of some running jobs that keep a slot over retries."""
    lanes: defaultdict[str, set[str]] = defaultdict(set)
    for row in running:
        if row[7] is not None:
            lanes[row[5]].add(row[7])
    return {
        (queue, plan.key)
        for queue, keys in lanes.items()
        for plan in plans(session, queue, keys)
        if plan.hold
    }
