"""amend, release and prune: what operators and keepers ask of jobs and keys, whatever their state."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onejob.core.dedup import Standing, decode_rules
from onejob.core.job import QUEUED, JobId, State
from onejob.core.judge import may_revive
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.rows import state_of
from onejob.store import Amended, Amendment, Pruned, Retention
from onejob.stores.sqlite import blocking, dead
from onejob.stores.sqlite.connect import Row, array
from onejob.stores.sqlite.ending import end_queued, expire_overdue, revoke_last
from onejob.stores.sqlite.enqueue import find_holder
from onejob.stores.sqlite.lanes import back_to_lane, refresh
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements

DEAD_WORKER_KEPT = 24 * 3600_000


def amend(
    session: Session,
    ids: Sequence[JobId],
    amendment: Amendment,
    states: frozenset[State] | None,
    now: int | None,
) -> list[Amended]:
    """Revoke, retry or delete; see `Store.amend`."""
    instant = session.now(now)
    amended = [_moved(session, id, states) or _amend_one(session, id, amendment, instant) for id in ids]
    refresh(session, instant)
    return amended


def release(session: Session, digest: bytes, holder: JobId | None) -> JobId | None:
    """Make a key vacant; see `Store.release`."""
    seen = None if holder is None else id_to_bytes(holder)
    row = session.first(statements("release")["release"], {"digest": digest, "holder": seen})
    return None if row is None else id_from_bytes(row[0])


def prune(session: Session, retention: Retention, limit: int, now: int | None) -> Pruned:
    """Remove what has been kept long enough; see `Store.prune`."""
    instant = session.now(now)
    sql = statements("prune")
    gone = expire_overdue(session, limit, instant)
    jobs = 0
    for state, kept in (
        (State.COMPLETED, retention.completed),
        (State.FAILED, retention.failed),
        (State.REVOKED, retention.revoked),
    ):
        names = {"state": state, "before": instant - kept, "limit": max(limit - jobs, 0)}
        rows = session.rows(sql["old_chains"], names)
        if chains := {row[4] for row in rows if row[4] is not None}:
            rows += session.rows(sql["before_last"], {"chains": array(chains)})
        _drop(session, [row[:4] for row in rows])
        jobs += len(rows)
    keys = session.run(sql["drop_keys"], {"now": instant, "limit": limit})
    refresh(session, instant)
    workers = session.run(sql["drop_workers"], {"before": instant - DEAD_WORKER_KEPT})
    return Pruned(jobs, keys, workers, gone, more=max(jobs, keys, gone) >= limit)


def _drop(session: Session, rows: list[Row]) -> None:
    """Delete ended jobs (id, digest, fingerprint, blockers), leaving in their keys what those still need."""
    sql = statements("prune")
    session.executemany(
        sql["keep_memory"],
        [
            {"id": id, "digest": digest, "fingerprint": fingerprint}
            for id, digest, fingerprint, _ in rows
            if digest is not None
        ],
    )
    session.executemany(sql["drop_job"], [(row[0],) for row in rows])
    session.executemany(statements("blockers")["drop"], [(row[0],) for row in rows if row[3]])


def _amend_one(session: Session, id: JobId, amendment: Amendment, now: int) -> Amended:
    try:
        raw = id_to_bytes(id)
    except ValueError:
        return Amended.NOT_FOUND
    match amendment:
        case Amendment.REVOKE:
            return _revoke(session, raw, now)
        case Amendment.DELETE | Amendment.DELETE_WITH_WAITING:
            return _delete(session, raw, now, cascade=amendment is Amendment.DELETE_WITH_WAITING)
        case Amendment.RETRY | Amendment.RETRY_WITHOUT_KEY:
            return _retry(session, raw, amendment is Amendment.RETRY_WITHOUT_KEY, now)


def _moved(session: Session, id: JobId, states: frozenset[State] | None) -> Amended | None:
    """The answer for a job whose chain does not stand in one of the states; None if it does, or if any will do."""
    if states is None:
        return None
    try:
        chain = _chain(session, id_to_bytes(id))
    except ValueError:
        return Amended.NOT_FOUND
    if not chain:
        return Amended.NOT_FOUND
    return None if chain[0].state in states else Amended.MOVED


class Member(msgspec.Struct, frozen=True):
    """A job of a chain, as far as an amendment needs to know it."""

    id: bytes
    root: bytes
    state: State
    digest: bytes | None
    fingerprint: bytes | None
    blockers: int


def _chain(session: Session, raw: bytes) -> list[Member]:
    """The jobs of the chain that a job belongs to, the last one first."""
    rows = session.rows(statements("amend")["chain"], {"id": raw})
    return [Member(id, root, state_of(state), *rest) for id, root, state, *rest in rows]


def _revoke(session: Session, raw: bytes, now: int) -> Amended:
    chain = _chain(session, raw)
    if not chain:
        return Amended.NOT_FOUND
    last = chain[0]
    if last.state.ended:
        return Amended.FINISHED
    return Amended.REVOKED if revoke_last(session, last.id, "revoked", now) else Amended.FLAGGED


def _delete(session: Session, raw: bytes, now: int, *, cascade: bool) -> Amended:
    chain = _chain(session, raw)
    if not chain:
        letter = dead.find(session, raw)
        return Amended.NOT_FOUND if letter is None else _delete(session, letter.id, now, cascade=cascade)
    last = chain[0]
    if last.state == State.RUNNING:
        return Amended.RUNNING
    if not cascade and session.first(statements("blockers")["awaited"], {"chain": last.root}) is not None:
        return Amended.AWAITED
    if last.state in QUEUED:
        end_queued(session, last.id, "deleted", now)
    _drop(session, [(job.id, job.digest, job.fingerprint, job.blockers) for job in chain])
    return Amended.DELETED


def _retry(session: Session, raw: bytes, force: bool, now: int) -> Amended:
    letter = dead.find(session, raw)
    chain = _chain(session, raw if letter is None else letter.origin)
    if letter is None and chain and chain[0].id != raw:
        letter = dead.find(session, chain[0].id)
    if letter is None:
        return Amended.NOT_FOUND if not chain else _revive(session, chain[0], force, now)
    copies = _chain(session, letter.id)
    if copies[0].state == State.RUNNING or (len(copies) > 1 and copies[0].state in QUEUED):
        return Amended.RUNNING
    if copies[0].state == State.COMPLETED and (not chain or raw == letter.id):
        return Amended.FINISHED
    if not chain:
        dead.exhume(session, letter, now)
    elif (answer := _revive(session, chain[0], force, now)) is not Amended.RETRIED:
        return answer
    end_queued(session, letter.id, "its original was retried", now)  # whoever waits for it waits in vain
    _drop(session, [(job.id, job.digest, job.fingerprint, job.blockers) for job in copies[:-1]])
    dead.remove(session, letter)
    return Amended.RETRIED


def _revive(session: Session, last: Member, force: bool, now: int) -> Amended:
    """Let a chain run again from its last job, with its key if it may have it."""
    if last.state == State.COMPLETED:
        return Amended.FINISHED
    if last.state not in (State.FAILED, State.REVOKED):
        return Amended.RUNNING
    root: Row = session.first(statements("amend")["look"], {"id": last.root}) or (None,) * 6
    queue, digest, plan, since, key, task = root
    rules = None if plan is None else decode_rules(plan)
    found = None if digest is None or rules is None else find_holder(session, digest)
    with_key = may_revive(id_from_bytes(last.root), rules, found, now)
    if not with_key and not force:
        return Amended.KEPT
    waits = blocking.renew(session, last.id)
    if waits.reason is not None:
        return Amended.STRANDED
    follows = None if found is None or found.follows is None or not with_key else id_to_bytes(found.follows)
    names = {"id": last.id, "now": now, "follows": follows, "blocked": bool(waits.live)}
    for where, lane, brought in session.rows(statements("amend")["revive"], names):
        back_to_lane(session, where, lane, brought)
        session.tell("work", [where])
    if not with_key:
        session.run(statements("amend")["give_up_key"], {"id": last.root})
    elif rules is not None:
        completed_until = rules.forget_at(Standing.COMPLETED, since)
        failed_until = rules.forget_at(Standing.FAILED, since)
        session.run(
            statements("enqueue")["take_key"],
            (digest, key, queue, task, last.root, since, completed_until, failed_until, follows),
        )
    return Amended.RETRIED
