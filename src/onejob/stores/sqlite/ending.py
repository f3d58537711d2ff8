"""What the end of jobs entails, in the same transaction: their lanes; and, where it is the end of a chain, its key,
those who follow it and those who wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from onejob.core.dead_letter import dead_letter_of
from onejob.core.job import State
from onejob.core.lifecycle import EXPIRED
from onejob.stores.sqlite import blocking
from onejob.stores.sqlite.attempts import Ended
from onejob.stores.sqlite.connect import array
from onejob.stores.sqlite.dead import bury
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements


def after_end(session: Session, jobs: Sequence[Ended], now: int) -> None:
    """Do what their end entails. At most one of them may itself follow.

    Who is stranded by it ends too, one by one, and so on: a loop, because such a line can be long.
    """
    pending: list[Sequence[Ended]] = [jobs]
    while pending:
        ended = pending.pop()
        session.tell("done", {job.queue for job in ended})
        for job in ended:
            if job.lane is not None:
                session.touch(job.queue, job.lane, Touch.LEFT)
            if job.follows is not None:
                session.run(statements("settle")["stop_following"], {"id": job.id})
        chains = _roots(session, [job for job in ended if not job.goes_on])
        if not chains:
            continue
        _end_keys(session, [chain for chain in chains if chain.digest is not None], now)
        for id, reason in blocking.let_go(session, [(chain.id, chain.state) for chain in chains], now):
            pending.append(strand(session, id, reason, now))


def strand(session: Session, id: bytes, reason: str, now: int) -> list[Ended]:
    """Fail a job that waits for what will not come; what has ended by it, for `after_end`."""
    row = session.first(statements("blockers")["strand"], {"id": id, "reason": reason, "now": now})
    if row is None:
        return []
    session.strandings += 1
    *columns, options = row
    ended = Ended(*columns)
    dead_letter = dead_letter_of(options, ended.queue)
    if dead_letter is not None:
        bury(session, [(id, dead_letter)], now)
    return [ended]


def end_queued(session: Session, id: bytes, reason: str, now: int) -> bool:
    """Revoke a queued job; False if it is not queued."""
    row = session.first(statements("amend")["revoke"], {"id": id, "reason": reason, "now": now})
    if row is None:
        return False
    after_end(session, [Ended(*row)], now)
    return True


def revoke_last(session: Session, id: bytes, reason: str, now: int) -> bool:
    """Revoke a chain by its live last job: one that is queued ends; one that runs is flagged, and that is False."""
    if end_queued(session, id, reason, now):
        return True
    session.rows(statements("amend")["flag"], {"id": id, "now": now})
    return False


def expire_overdue(session: Session, limit: int, now: int) -> int:
    """End queued jobs whose time to start has passed; how many. One by one: they may follow each other."""
    overdue = session.rows(statements("claim")["overdue"], {"now": now, "limit": limit})
    for (id,) in overdue:
        end_queued(session, id, EXPIRED, now)
    return len(overdue)


def _roots(session: Session, jobs: list[Ended]) -> list[Ended]:
    """The chains that have ended with these jobs: each as its first job, ended as its last one is."""
    later = {job.chain for job in jobs if job.chain is not None}
    if not later:
        return jobs
    rows = session.rows(statements("settle")["roots"], {"chains": array(later)})
    first = {id: (digest, queue) for id, digest, queue in rows}
    roots: list[Ended] = []
    for job in jobs:
        if job.chain is None:
            roots.append(job)
        else:
            digest, queue = first.get(job.chain, (None, job.queue))
            session.topics.add("done:" + queue)
            roots.append(Ended(job.chain, queue, digest, job.state, job.follows))
    return roots


def _end_keys(session: Session, keyed: Sequence[Ended], now: int) -> None:
    """Forget or remember keys, and free who follows. Only a chain with a key can be followed."""
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
