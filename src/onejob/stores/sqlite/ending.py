"""What the end of a job entails, in the same transaction: its key and those who follow it."""

from __future__ import annotations

from onejob.core.job import State
from onejob.stores.sqlite.connect import Row
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements


def after_end(session: Session, row: Row, now: int) -> None:
    """A job (id, queue, digest, state, follows) has just ended: forget or remember its key, free followers."""
    id, queue, digest, state, follows = row
    session.topics.add("done:" + queue)
    if digest is None:
        return  # only a job with a key can be followed
    sql = statements("settle")
    if follows is not None:
        session.run(sql["stop_following"], {"id": id})
    names = {"digest": digest, "id": id, "state": state, "now": now, "instead": follows}
    seen = session.first(sql["look_at_end"], names)
    holds, followed, has_followers = seen or (None, None, None)
    if holds and not session.run(sql["forget_key"], names):
        session.run(sql["end_key"], names)
    if followed:
        session.run(sql["pass_on_follows"], names)
    if has_followers:
        session.tell("work", (row[0] for row in session.rows(sql["release_followers"], names)))


def end_queued(session: Session, id: bytes, reason: str, now: int) -> bool:
    """Revoke a queued job; False if it is not queued."""
    row = session.first(statements("amend")["revoke"], {"id": id, "reason": reason, "now": now})
    if row is None:
        return False
    assert row[3] == State.REVOKED
    after_end(session, row, now)
    return True


def expire_overdue(session: Session, limit: int, now: int) -> int:
    """End queued jobs whose time to start has passed; how many."""
    sql = statements("claim")
    if session.first(sql["any_overdue"], {"now": now}) is None:
        return 0
    rows = session.rows(sql["expire"], {"now": now, "limit": limit})
    for row in rows:
        after_end(session, row, now)
    return len(rows)
