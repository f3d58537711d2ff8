"""Reviving: a chain that failed or was revoked runs again from its last job, with its key if it may have it.

A dead letter stands for its original, and goes once that runs again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onejob.core.dedup import Rules, Standing, decode_rules
from onejob.core.job import QUEUED, JobId, State
from onejob.core.judge import Holder, may_revive
from onejob.sql.rows import state_of
from onejob.store import Amended
from onejob.stores.postgres import blocking, dead, lanes
from onejob.stores.postgres.ending import attach, end_queued
from onejob.stores.postgres.holding import find_holder
from onejob.stores.postgres.prune import drop
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work

_REVIVABLE = (State.FAILED, State.REVOKED)


class Member(msgspec.Struct, frozen=True):
    """A job of a chain, as far as an amendment needs to know it."""

    id: str
    root: str
    state: State
    digest: bytes | None
    queue: str
    task: str
    plan: bytes | None
    since: int
    key: str | None
    blockers: int


class Right(msgspec.Struct, frozen=True):
    """Whether a chain may have its key again. It is locked, or was vacant and has just been taken."""

    granted: bool
    holder: Holder | None = None
    taken: bool = False


_NO_KEY = Right(granted=True)


def chain_of(id: str) -> Steps[list[Member]]:
    """The jobs of the chain that a job belongs to, the last one first."""
    rows = yield from ask("amend.chain", id)
    return [Member(str(id), str(root), state_of(state), *rest) for id, root, state, *rest in rows]


def hold(job: Member) -> Steps[bool]:
    """Keep a job as it was seen until the transaction ends; False if it has moved."""
    return bool((yield from ask("amend.hold", job.id, job.state)))


def retry(work: Work, id: JobId, chain: Sequence[Member], now: int, *, force: bool) -> Steps[Amended | None]:
    """Retry a chain, or the original of a dead letter; None if something moved, so that it must be looked at again."""
    letter = yield from dead.find(work, id)
    if letter is not None:
        chain = yield from chain_of(letter.origin)
    elif chain and chain[0].id != id:
        letter = yield from dead.find(work, chain[0].id)
    if letter is None:
        return Amended.NOT_FOUND if not chain else (yield from _revive(work, chain, now, force=force))
    copies = yield from chain_of(letter.id)
    if not copies:
        return None
    last = copies[0]
    if last.state is State.RUNNING or (len(copies) > 1 and last.state in QUEUED):
        return Amended.RUNNING
    if last.state is State.COMPLETED and (not chain or id == letter.id):
        return Amended.FINISHED
    if not (yield from hold(last)):  # nobody may start it now
        return None
    if not chain:
        yield from dead.exhume(work, letter, now)
    elif (answer := (yield from _revive(work, chain, now, force=force))) is not Amended.RETRIED:
        return answer
    yield from end_queued(
        work, letter.id, "its original was retried", now
    )  # whoever waits for it waits in vain
    yield from drop([last.id])
    work.tell("done", [letter.queue])
    return Amended.RETRIED


def _revive(work: Work, chain: Sequence[Member], now: int, *, force: bool) -> Steps[Amended | None]:
    """Let a chain run again from its last job."""
    last, root = chain[0], chain[-1]
    if last.state is State.COMPLETED:
        return Amended.FINISHED
    if last.state not in _REVIVABLE:
        return Amended.RUNNING
    rules = None if root.plan is None or root.digest is None else decode_rules(root.plan)
    right = _NO_KEY if rules is None else (yield from _right_to_key(work, root, rules, now))
    if right is None:
        return None
    if not right.granted and not force:
        return Amended.KEPT
    waits = blocking.NOBODY
    if last.blockers:
        if not (yield from hold(last)):
            yield from _hand_back(root, right)
            return None
        waits = yield from blocking.renew(work, last.id)
        if waits.reason is not None:
            yield from _hand_back(root, right)
            return Amended.STRANDED
    follows = right.holder.follows if right.granted and right.holder is not None else None
    rows = yield from ask("amend.revive", now, [last.id], follows, bool(waits.live), [last.state])
    if not rows:
        yield from _hand_back(root, right)
        return None
    work.tell("work", [rows[0][1]])
    yield from lanes.touch(work, [rows[0][1:]])
    if not right.granted:
        yield from ask("amend.give_up_key", root.id)
    elif rules is not None and not right.taken:
        yield from ask("enqueue.take_key", *_columns(root, rules), follows)
    awaited = {*waits.live} if follows is None else {*waits.live, follows}
    if awaited:
        yield from attach(work, sorted(awaited), now)
    return Amended.RETRIED


def _right_to_key(work: Work, root: Member, rules: Rules, now: int) -> Steps[Right | None]:
    """Lock a chain's key and see who has it; None if somebody took it between two looks."""
    assert root.digest is not None
    if not (yield from ask("amend.lock_keys", [root.digest])):
        taken = yield from ask("amend.new_key", *_columns(root, rules))
        return Right(granted=True, taken=True) if taken else None
    found = yield from find_holder(work, root.digest)
    return Right(may_revive(JobId(root.id), rules, found, now), found)


def _hand_back(root: Member, right: Right) -> Steps[None]:
    """It does not run after all: what was taken for it is vacant again."""
    if right.taken:
        yield from ask("amend.return_key", root.digest, root.id)


def _columns(root: Member, rules: Rules) -> tuple[object, ...]:
    """What a key says of the chain that takes it back, in its old window."""
    completed_until = rules.forget_at(Standing.COMPLETED, root.since)
    failed_until = rules.forget_at(Standing.FAILED, root.since)
    return root.digest, root.key, root.queue, root.task, root.id, root.since, completed_until, failed_until
