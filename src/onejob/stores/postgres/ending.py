"""What the end of jobs entails, in the same transaction: their lanes; and, where it is the end of a chain, its key,
those who follow it and those who wait for it.

Who begins to wait for a chain says `attach`, after it has written so. Between the two sides stands `awaited` in the row
of the chain's last job, which both lock: whoever comes second sees what the first did. Neither ever waits for a
transaction that may stay open; what another has locked is noted, and the next claim does it (`recheck`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from onejob.core.dead_letter import dead_letter_of
from onejob.core.job import JobId
from onejob.core.lifecycle import EXPIRED
from onejob.stores.postgres import blocking, lanes
from onejob.stores.postgres.blocking import Standing
from onejob.stores.postgres.dead import bury
from onejob.stores.postgres.steps import Row, Steps, ask
from onejob.stores.postgres.work import Work


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A job that has just ended. `follows` is whom it was still waiting for, if it never started."""

    id: str
    queue: str
    digest: bytes | None
    state: str
    follows: str | None = None
    lane: str | None = None
    chain: str | None = None
    """Of a continuation: its chain's first job."""
    awaited: bool = True
    """Others may wait for its chain."""
    error: str | None = None
    goes_on: bool = False
    """Its chain has a next job."""


class _Marked(msgspec.Struct, frozen=True):
    """What `mark` found of chains that somebody waits for."""

    over: list[Standing]
    busy: set[str]
    """Somebody else has their last job."""
    moved: set[str]
    """They went on meanwhile."""
    late: dict[str, str]
    """Those whose last job is a continuation that waits, and that job: it may wait for itself."""


def ended_of(row: Row) -> Ended:
    """Read what `revoke`, `expire` and `strand` return."""
    id, queue, digest, state, follows, lane, chain, awaited, error = row[:9]
    return Ended(
        str(id),
        queue,
        digest,
        state,
        None if follows is None else str(follows),
        lane,
        None if chain is None else str(chain),
        awaited,
        error,
    )


def after_end(work: Work, jobs: Sequence[Ended], now: int) -> Steps[None]:
    """Do what their end entails, and whatever that entails."""
    yield from note(work, (yield from _work_off(work, jobs, (), now)))


def attach(work: Work, chains: Iterable[str], now: int) -> Steps[None]:
    """Somebody waits for these chains from now on, and it is written in his row: let them know, or let him go."""
    yield from note(work, (yield from _work_off(work, (), chains, now)))


def recheck(work: Work, limit: int, now: int) -> Steps[bool]:
    """Look again at chains that were noted; True if some have to wait for another transaction still."""
    rows = yield from ask("ending.take", limit)
    return (yield from recheck_these(work, {str(row[0]) for row in rows}, (), now))


def recheck_these(work: Work, chains: Iterable[str], numbers: Sequence[int], now: int) -> Steps[bool]:
    """The same with these chains; the notes under these numbers are taken with it."""
    busy = yield from _work_off(work, (), chains, now, notes=numbers)
    yield from note(work, busy)  # behind the others, so that these are not looked at alone for ever
    return bool(busy)


def note(work: Work, chains: set[str]) -> Steps[None]:
    """Let the next claim look at these chains."""
    if chains:
        yield from ask("ending.note", list(chains))


def strand(work: Work, id: str, reason: str, now: int) -> Steps[list[Ended]]:
    """Fail a job that waits for what will not come; what has ended by it, for `after_end`."""
    return (yield from _strand(work, [(id, reason)], now))


def end_queued(work: Work, id: str, reason: str, now: int) -> Steps[bool]:
    """Revoke a queued job; False if it is not queued."""
    rows = yield from ask("ending.revoke", id, reason, now)
    yield from after_end(work, [ended_of(row) for row in rows], now)
    return bool(rows)


def revoke_last(work: Work, id: str, reason: str, now: int) -> Steps[bool]:
    """Revoke a chain by its live last job: one that is queued ends; one that runs is flagged, and that is False."""
    if (yield from end_queued(work, id, reason, now)):
        return True
    if (yield from ask("ending.flag", id, now)):
        return False
    return (yield from end_queued(work, id, reason, now))  # it has just come back from a run


def expire_overdue(work: Work, limit: int, now: int) -> Steps[int]:
    """End queued jobs whose time to start has passed; how many."""
    rows = yield from ask("ending.expire", limit, EXPIRED, now)
    yield from after_end(work, [ended_of(row) for row in rows], now)
    return len(rows)


def _work_off(
    work: Work, jobs: Sequence[Ended], chains: Iterable[str], now: int, *, notes: Sequence[int] | None = None
) -> Steps[set[str]]:
    """Jobs have ended, chains are waited for: deal with both, and return the chains that are to be noted.

    `notes` are the numbers of those that brought us here; None if nothing had been noted.

    Who is stranded by an end ends too, and so on: a loop, because such a line can be long.
    """
    busy: set[str] = set()
    ended, joined = list(jobs), set(chains)
    while ended or joined:
        over: list[Standing] = []
        if ended:
            over = yield from _chains_over(work, ended, now)
            ended = []
        elif work.foreign:  # it may stay open for long, and so must not lock a job that may run
            return busy | joined
        else:
            marked = yield from _mark(work, joined, notes or ())
            over, joined = marked.over, marked.moved
            busy |= marked.busy
            yield from _end_keys(over, now)
            if notes is not None and marked.late:
                ended, blocked = yield from _break_circles(work, marked.late, now)
                busy |= blocked
        if over:
            freed = yield from blocking.let_go(work, over, now)
            busy |= freed.busy
            joined |= freed.joined
            ended += yield from _strand(work, freed.stranded, now)
    return busy


def _chains_over(work: Work, ended: Sequence[Ended], now: int) -> Steps[list[Standing]]:
    """Jobs have ended: leave their lanes, and end the keys of chains; returns those that somebody may wait for."""
    work.tell("done", {job.queue for job in ended})
    yield from lanes.touch(work, {(job.queue, job.lane) for job in ended if job.lane is not None})
    last = [job for job in ended if not job.goes_on]
    roots: dict[str, Row] = {}
    if later := [job.chain for job in last if job.chain is not None]:
        roots = {str(row[0]): row[1:] for row in (yield from ask("ending.roots", later))}
        work.tell("done", {queue for _, queue in roots.values()})
    over: list[Standing] = []
    awaited: list[Standing] = []
    for job in last:
        digest = job.digest if job.chain is None else roots.get(job.chain, (None,))[0]
        chain = job.chain or job.id
        one = Standing(chain, job.id, job.state, job.error, job.follows, digest, job.queue)
        over.append(one)
        if job.awaited:
            awaited.append(one)
    yield from _end_keys(over, now)
    return awaited


def _end_keys(over: Sequence[Standing], now: int) -> Steps[None]:
    """Forget or remember the keys of chains that have ended, as far as nobody else has them: it is only tidiness."""
    keyed = [one for one in over if one.digest is not None]
    if keyed:
        by_chain = {one.chain: one for one in over}
        yield from ask(
            "ending.end_keys",
            list({one.digest for one in keyed}),
            [one.chain for one in keyed],
            [one.state for one in keyed],
            [blocking.beyond(one, by_chain) for one in keyed],
            now,
        )


def _mark(work: Work, chains: set[str], notes: Sequence[int]) -> Steps[_Marked]:
    """Let chains know that they are waited for, if they live; those that have ended are ours to let go of."""
    marked = _Marked([], set(), set(), {})
    unsure: dict[str, str | None] = {}
    for row in (yield from ask("ending.mark", list(chains), list(notes))):
        one, (ended, waits_late, sure) = blocking.standing_of(row), row[7:]
        if one.last is None or ended:
            if sure:
                marked.over.append(one)
            else:
                unsure[one.chain] = one.last
        elif ended is None:
            marked.busy.add(one.chain)
        elif waits_late:
            marked.late[one.chain] = one.last
    if unsure:  # what was locked is newer than what the statement saw: look again
        for one in (yield from blocking.standing(work, unsure)).values():
            if one.last == unsure[one.chain] and not one.live:
                marked.over.append(one)
            else:
                marked.moved.add(one.chain)
    return marked


def _break_circles(work: Work, late: dict[str, str], now: int) -> Steps[tuple[list[Ended], set[str]]]:
    """Fail those continuations that wait for themselves; and the chains that could not be looked at."""
    [(alone,)] = yield from ask("blockers.one_by_one_now")
    if not alone:
        return [], set(late)
    found = yield from blocking.circles(work, late)
    return (yield from _strand(work, [(late[chain], reason) for chain, reason in found.items()], now)), set()


def _strand(work: Work, jobs: Sequence[tuple[str, str]], now: int) -> Steps[list[Ended]]:
    if not jobs:
        return []
    ids, reasons = zip(*sorted(jobs), strict=True)
    rows = yield from ask("blockers.strand", list(ids), list(reasons), now)
    ended = [ended_of(row) for row in rows]
    letters = [(job.id, dead_letter_of(row[9], job.queue)) for job, row in zip(ended, rows, strict=True)]
    yield from bury(work, [(JobId(id), queue) for id, queue in letters if queue is not None], now)
    return ended
