"""amend and release: what operators ask of jobs and keys, whatever their state.

Most jobs are alone: a chain of one that waits for nobody and that nobody waits for. Those are amended together, by one
guarded statement; to the others it is done one by one, in the order given, as their amendments meet each other's
effects. What has moved since it was looked at is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from onejob.core.job import ENDED, QUEUED, JobId, State
from onejob.sql.ids import written_out
from onejob.sql.rows import state_of
from onejob.store import Amended, Amendment
from onejob.stores.postgres import dead, lanes, reviving
from onejob.stores.postgres.ending import Ended, after_end, end_queued
from onejob.stores.postgres.prune import drop
from onejob.stores.postgres.reviving import Member
from onejob.stores.postgres.steps import Steps, ask, begin
from onejob.stores.postgres.work import Work

_READY = QUEUED - {State.BLOCKED}
_REVIVABLE = frozenset({State.FAILED, State.REVOKED})
_RETRIES = frozenset({Amendment.RETRY, Amendment.RETRY_WITHOUT_KEY})


class Seen(msgspec.Struct, frozen=True):
    """A job that was named, as its chain stood when all of them were looked at."""

    id: str
    state: State
    alone: bool
    digest: bytes | None
    lettered: bool
    """It is a dead letter, or has one."""


class Request(msgspec.Struct, frozen=True):
    """What is asked, of jobs in which states, and when."""

    amendment: Amendment
    states: frozenset[State]
    now: int

    def amends(self, state: State) -> bool:
        """True if a job in that state is meant."""
        return state in self.states


def amend(
    work: Work, ids: Sequence[JobId], amendment: Amendment, states: frozenset[State] | None
) -> Steps[list[Amended]]:
    """Revoke, retry or delete; see `Store.amend`."""
    yield from begin()
    named = [written_out(id) for id in ids]
    known = [id for id in dict.fromkeys(named) if id is not None]
    now, seen = yield from _look(work, known)
    request = Request(amendment, frozenset(State) if states is None else states, now)
    if amendment in _RETRIES:
        yield from _lock_keys(job for job in seen.values() if job.state in _REVIVABLE)
    together = yield from _together(work, _alone(known, seen, amendment), request)
    answers: list[Amended] = []
    for id in named:
        if id is None:
            answers.append(Amended.NOT_FOUND)
        elif id in together:
            answers.append(together.pop(id))  # named twice, it is amended twice
        else:
            answers.append((yield from _one(work, id, request, strict=states is not None)))
    return answers


def release(work: Work, digest: bytes, holder: JobId | None = None) -> Steps[JobId | None]:
    """Make a key vacant; see `Store.release`."""
    seen = None if holder is None else written_out(holder)
    if seen is None and holder is not None:
        return None
    rows = yield from ask("release.release", digest, seen)
    return JobId(str(rows[0][0])) if rows else None


def _look(work: Work, ids: list[JobId]) -> Steps[tuple[int, dict[str, Seen]]]:
    rows = yield from ask("amend.look", work.now, ids, [dead.copy_of(id) for id in ids])
    return rows[0][0], {
        str(id): Seen(str(id), state_of(state), alone, digest, lettered)
        for _, place, id, state, alone, digest, lettered in rows
        if place is not None
    }


def _alone(ids: Sequence[str], seen: dict[str, Seen], amendment: Amendment) -> dict[str, Seen]:
    """Those to which the amendment can be made together, by the id under which they were named."""
    meant = {dead.copy_of(id) for id in ids if id not in seen}  # gone, they stand for their dead letters
    found = {id: job for id, job in seen.items() if job.alone and job.id not in meant}
    if amendment in _RETRIES:
        return {id: job for id, job in found.items() if job.digest is None and not job.lettered}
    return found


def _together(work: Work, jobs: dict[str, Seen], request: Request) -> Steps[dict[str, Amended]]:
    """Amend what can be amended at once; no answer for those that have moved meanwhile."""
    answers = {id: Amended.MOVED for id, job in jobs.items() if not request.amends(job.state)}
    meant = {job.id: id for id, job in jobs.items() if id not in answers}
    standing = {job.id: job.state for id, job in jobs.items() if id not in answers}
    queued = [id for id, state in standing.items() if state in QUEUED]
    running = [id for id, state in standing.items() if state is State.RUNNING]
    over = [id for id, state in standing.items() if state in ENDED]
    done: dict[str, Amended] = {}
    match request.amendment:
        case Amendment.REVOKE:
            done = dict.fromkeys(over, Amended.FINISHED)
            done |= dict.fromkeys((yield from _end(work, queued, "revoked", request)), Amended.REVOKED)
            done |= dict.fromkeys((yield from _flag(running, request.now)), Amended.FLAGGED)
        case Amendment.DELETE | Amendment.DELETE_WITH_WAITING:
            done = dict.fromkeys(running, Amended.RUNNING)
            yield from _lock_keys(job for job in jobs.values() if job.state in QUEUED)
            ended = yield from _end(work, queued, "deleted", request)
            done |= dict.fromkeys((yield from drop([*over, *ended])), Amended.DELETED)
        case Amendment.RETRY | Amendment.RETRY_WITHOUT_KEY:
            done = dict.fromkeys((*queued, *running), Amended.RUNNING)
            done |= {id: Amended.FINISHED for id in over if standing[id] is State.COMPLETED}
            revivable = [id for id in over if standing[id] in _REVIVABLE]
            done |= dict.fromkeys((yield from _revive(work, revivable, request)), Amended.RETRIED)
        case _:
            assert_never(request.amendment)
    return answers | {meant[id]: answer for id, answer in done.items()}


def _lock_keys(jobs: Iterable[Seen]) -> Steps[None]:
    """Lock the keys of jobs in one order for everybody."""
    digests = sorted({job.digest for job in jobs if job.digest is not None})
    if digests:
        yield from ask("amend.lock_keys", digests)


def _end(work: Work, ids: Sequence[str], reason: str, request: Request) -> Steps[list[str]]:
    if not ids:
        return []
    rows = yield from ask("amend.revoke", request.now, list(ids), sorted(_READY & request.states), reason)
    ended = [
        Ended(str(id), queue, digest, state, lane=lane, awaited=False, error=error)
        for id, queue, digest, state, lane, error in rows
    ]
    yield from after_end(work, ended, request.now)
    return [job.id for job in ended]


def _flag(ids: Sequence[str], now: int) -> Steps[list[str]]:
    if not ids:
        return []
    rows = yield from ask("amend.flag", now, list(ids))
    return [str(row[0]) for row in rows]


def _revive(work: Work, ids: Sequence[str], request: Request) -> Steps[list[str]]:
    if not ids:
        return []
    states = sorted(_REVIVABLE & request.states)
    rows = yield from ask("amend.revive", request.now, list(ids), None, False, states)
    work.tell("work", {queue for _, queue, _ in rows})
    yield from lanes.touch(work, [(queue, lane) for _, queue, lane in rows])
    return [str(row[0]) for row in rows]


def _one(work: Work, id: JobId, request: Request, *, strict: bool) -> Steps[Amended]:
    """Amend one job by itself, as often as it moves before that is done."""
    while True:
        chain = yield from reviving.chain_of(id)
        if strict:
            if not chain:
                return Amended.NOT_FOUND
            if not request.amends(chain[0].state):
                return Amended.MOVED
        match request.amendment:
            case Amendment.REVOKE:
                answer = yield from _revoke(work, chain, request.now)
            case Amendment.DELETE:
                answer = yield from _delete(work, id, chain, request.now, cascade=False)
            case Amendment.DELETE_WITH_WAITING:
                answer = yield from _delete(work, id, chain, request.now, cascade=True)
            case Amendment.RETRY:
                answer = yield from reviving.retry(work, id, chain, request.now, force=False)
            case Amendment.RETRY_WITHOUT_KEY:
                answer = yield from reviving.retry(work, id, chain, request.now, force=True)
            case _:
                assert_never(request.amendment)
        if answer is not None:
            return answer


def _revoke(work: Work, chain: Sequence[Member], now: int) -> Steps[Amended | None]:
    if not chain:
        return Amended.NOT_FOUND
    last = chain[0]
    if last.state in ENDED:
        return Amended.FINISHED
    if last.state is State.RUNNING:
        return Amended.FLAGGED if (yield from _flag([last.id], now)) else None
    held = yield from reviving.hold(last)
    return Amended.REVOKED if held and (yield from end_queued(work, last.id, "revoked", now)) else None


def _delete(
    work: Work, id: str, chain: Sequence[Member], now: int, *, cascade: bool
) -> Steps[Amended | None]:
    if not chain:
        letter = yield from dead.find(work, id)
        if letter is None:
            return Amended.NOT_FOUND
        chain = yield from reviving.chain_of(letter.id)
        if not chain:
            return None
    last = chain[0]
    if last.state is State.RUNNING:
        return Amended.RUNNING
    if not cascade and (yield from ask("blockers.awaited", last.root)):
        return Amended.AWAITED
    if last.state in QUEUED and chain[-1].digest is not None:
        yield from ask("amend.lock_keys", [chain[-1].digest])
    if not (yield from reviving.hold(last)):
        return None
    if last.state in QUEUED:
        yield from end_queued(work, last.id, "deleted", now)
    return Amended.DELETED if (yield from drop([last.id])) else None
