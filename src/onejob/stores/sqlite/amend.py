"""amend, release and prune: what operators and keepers ask of jobs and keys, whatever their state."""

from __future__ import annotations

from collections.abc import Sequence

from onejob.core.dedup import Standing, decode_rules
from onejob.core.job import QUEUED, JobId, State
from onejob.core.judge import may_revive
from onejob.store import Amended, Amendment, Pruned, Retention
from onejob.stores.sqlite import dead
from onejob.stores.sqlite.connect import Row
from onejob.stores.sqlite.ending import end_queued, expire_overdue
from onejob.stores.sqlite.enqueue import find_holder
from onejob.stores.sqlite.lanes import back_to_lane, refresh
from onejob.stores.sqlite.session import Session, id_from_bytes, id_to_bytes
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


def release(session: Session, digest: bytes) -> JobId | None:
    """Make a key vacant; see `Store.release`."""
    row = session.first(statements("release")["release"], {"digest": digest})
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
        rows = session.rows(
            sql["old_jobs"], {"state": state, "before": instant - kept, "limit": limit - jobs}
        )
        _drop(session, rows)
        jobs += len(rows)
    keys = session.run(sql["drop_keys"], {"now": instant, "limit": limit})
    refresh(session, instant)
    workers = session.run(sql["drop_workers"], {"before": instant - DEAD_WORKER_KEPT})
    return Pruned(jobs, keys, workers, gone, more=limit in (jobs, keys, gone))


def _drop(session: Session, rows: list[Row]) -> None:
    """Delete ended jobs (id, digest, fingerprint), leaving in their keys what those still need."""
    sql = statements("prune")
    session.executemany(
        sql["keep_memory"],
        [
            {"id": id, "digest": digest, "fingerprint": fingerprint}
            for id, digest, fingerprint in rows
            if digest is not None
        ],
    )
    session.executemany(sql["drop_job"], [(row[0],) for row in rows])


def _amend_one(session: Session, id: JobId, amendment: Amendment, now: int) -> Amended:
    try:
        raw = id_to_bytes(id)
    except ValueError:
        return Amended.NOT_FOUND
    match amendment:
        case Amendment.REVOKE:
            return _revoke(session, raw, now)
        case Amendment.DELETE:
            return _delete(session, raw, now)
        case Amendment.RETRY | Amendment.RETRY_WITHOUT_KEY:
            return _retry(session, raw, amendment is Amendment.RETRY_WITHOUT_KEY, now)


def _moved(session: Session, id: JobId, states: frozenset[State] | None) -> Amended | None:
    """The answer for a job that is not in one of the states; None if it is, or if any will do."""
    if states is None:
        return None
    try:
        row = _look(session, id_to_bytes(id))
    except ValueError:
        return Amended.NOT_FOUND
    if row is None:
        return Amended.NOT_FOUND
    return None if State(row[0]) in states else Amended.MOVED


def _look(session: Session, raw: bytes) -> Row | None:
    return session.first(statements("amend")["look"], {"id": raw})


def _revoke(session: Session, raw: bytes, now: int) -> Amended:
    row = _look(session, raw)
    if row is None:
        return Amended.NOT_FOUND
    if State(row[0]).ended:
        return Amended.FINISHED
    if end_queued(session, raw, "revoked", now):
        return Amended.REVOKED
    session.rows(statements("amend")["flag"], {"id": raw, "now": now})
    return Amended.FLAGGED


def _delete(session: Session, raw: bytes, now: int) -> Amended:
    row = _look(session, raw)
    if row is None:
        letter = dead.find(session, raw)
        return Amended.NOT_FOUND if letter is None else _delete(session, letter.id, now)
    state, _, digest, *_, fingerprint = row
    if state == State.RUNNING:
        return Amended.RUNNING
    if state in QUEUED:
        end_queued(session, raw, "deleted", now)
    _drop(session, [(raw, digest, fingerprint)])
    return Amended.DELETED


def _retry(session: Session, raw: bytes, force: bool, now: int) -> Amended:
    letter = dead.find(session, raw)
    row = _look(session, raw if letter is None else letter.origin)
    if letter is None:
        return Amended.NOT_FOUND if row is None else _revive(session, raw, row, force, now)
    if letter.state == State.RUNNING:
        return Amended.RUNNING
    if letter.state == State.COMPLETED and (row is None or raw == letter.id):
        return Amended.FINISHED
    if row is None:
        dead.exhume(session, letter, now)
    elif (answer := _revive(session, letter.origin, row, force, now)) is not Amended.RETRIED:
        return answer
    dead.remove(session, letter)
    return Amended.RETRIED


def _revive(session: Session, raw: bytes, row: Row, force: bool, now: int) -> Amended:
    state, queue, digest, plan, since, key, task, _ = row
    if state == State.COMPLETED:
        return Amended.FINISHED
    if state not in (State.FAILED, State.REVOKED):
        return Amended.RUNNING
    rules = None if plan is None else decode_rules(plan)
    found = None if digest is None or rules is None else find_holder(session, digest)
    with_key = may_revive(id_from_bytes(raw), rules, found, now)
    if not with_key and not force:
        return Amended.KEPT
    follows = None if found is None or found.follows is None or not with_key else id_to_bytes(found.follows)
    revived = session.rows(
        statements("amend")["revive"], {"id": raw, "now": now, "with_key": with_key, "follows": follows}
    )
    for _, lane, brought in revived:
        back_to_lane(session, queue, lane, brought)
    if with_key and rules is not None:
        completed_until = rules.forget_at(Standing.COMPLETED, since)
        failed_until = rules.forget_at(Standing.FAILED, since)
        session.run(
            statements("enqueue")["take_key"],
            (digest, key, queue, task, raw, since, completed_until, failed_until, follows),
        )
    session.tell("work", [queue])
    return Amended.RETRIED
