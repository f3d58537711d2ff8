"""What the end of jobs entails, in the same transaction: their keys, those who follow them, and their lanes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onejob.core.job import State
from onejob.stores.sqlite.connect import array
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements

EXPIRED = "expired: it was not started in time"


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A job that has just ended. `follows` is whom it was still waiting for, if it never started."""

    id: bytes
    queue: str
    digest: bytes | None
    state: str
    follows: bytes | None = None
    lane: str | None = None


def after_end(session: Session, jobs: Sequence[Ended], now: int) -> None:
    """Forget or remember their keys, free who follows them, and touch their lanes.

    At most one of them may itself follow.
    """
    for job in jobs:
        session.topics.add("done:" + job.queue)
        session.touch(job.queue, job.lane, Touch.LEFT)
    keyed = [job for job in jobs if job.digest is not None]  # only a job with a key can be followed
    if not keyed:
        return
    sql = statements("settle")
    digests = array({job.digest for job in keyed if job.digest is not None})
    keys = {key[0]: key for key in session.execute(sql["look_at_keys"], {"digests": digests})}
    ids = array(job.id for job in keyed)
    followed = {row[0] for row in session.execute(sql["look_for_followers"], {"ids": ids})}
    forgotten: list[tuple[bytes]] = []
    remembered: list[tuple[str, int, int, bytes]] = []
    for job in keyed:
        names = {"id": job.id, "digest": job.digest, "instead": job.follows, "now": now}
        if job.follows is not None:
            session.run(sql["stop_following"], {"id": job.id})
        if job.id in followed:
            for queue, lane in session.rows(sql["release_followers"], names):
                session.tell("work", [queue])
                session.touch(queue, lane, Touch.RETURNED)
        if job.digest not in keys:
            continue
        digest, holder, waits_for, completed_until, failed_until = keys[job.digest]
        if waits_for == job.id:
            session.run(sql["pass_on_follows"], names)
        elif holder == job.id:
            until = completed_until if job.state == State.COMPLETED else failed_until
            # A holder that never started leaves whom it was waiting for to whoever takes the key next.
            if waits_for is None and (until is None or until <= now):
                forgotten.append((digest,))
            else:
                remembered.append((job.state, now, until or now, digest))
    if forgotten:
        session.executemany(sql["forget_key"], forgotten)
    if remembered:
        session.executemany(sql["end_key"], remembered)


def end_queued(session: Session, id: bytes, reason: str, now: int) -> bool:
    """Revoke a queued job; False if it is not queued."""
    row = session.first(statements("amend")["revoke"], {"id": id, "reason": reason, "now": now})
    if row is None:
        return False
    after_end(session, [Ended(*row)], now)
    return True


def expire_overdue(session: Session, limit: int, now: int) -> int:
    """End queued jobs whose time to start has passed; how many. One by one: they may follow each other."""
    overdue = session.rows(statements("claim")["overdue"], {"now": now, "limit": limit})
    for (id,) in overdue:
        end_queued(session, id, EXPIRED, now)
    return len(overdue)
