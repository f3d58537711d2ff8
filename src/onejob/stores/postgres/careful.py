"""settle with care: the ends of attempts in a transaction, with all that they entail: continuations, dead letters, and
those who wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from onejob.core.chain import diverged
from onejob.core.job import ENDED, JobId, State
from onejob.core.lifecycle import ENDING, MOVES, Settlement
from onejob.sql.attempts import changes, state_after
from onejob.sql.lanes import place_after
from onejob.sql.rows import state_of
from onejob.store import Settled
from onejob.stores.postgres import blocking, lanes
from onejob.stores.postgres.chains import Step, go_on
from onejob.stores.postgres.dead import bury
from onejob.stores.postgres.ending import Ended, after_end
from onejob.stores.postgres.limits import tell_who_waits_for_room
from onejob.stores.postgres.steps import Row, Steps, ask
from onejob.stores.postgres.work import Work

ORPHANED = frozenset(move for move, rule in MOVES.items() if rule.orphaned)
id_of = attrgetter("lease.id")


class Report(msgspec.Struct):
    """What became of a batch, by job: no job is in it twice."""

    replies: dict[JobId, Settled]
    reasons: dict[JobId, str] = {}


def with_care(work: Work, done: Sequence[Settlement]) -> Steps[Report]:
    """End attempts in a transaction, with all that it entails."""
    if not work.foreign and any(one.then is not None and one.then.blockers for one in done):
        yield from ask("blockers.one_by_one")
    running, now = yield from _lock(work, done)
    report = Report(dict.fromkeys((one.lease.id for one in done), Settled.LOST))
    replies = report.replies
    updates: list[Row] = []
    ended: list[Ended] = []
    dead: list[tuple[str, str]] = []
    steps: list[Step] = []
    for one in done:
        job = running.get(one.lease.id)
        if job is None:
            continue
        state = State.REVOKED if job.flagged else state_after(one, job.lane)
        then = one.then if state is State.COMPLETED else None
        chain = job.chain or job.id
        waits = blocking.NOBODY if then is None else (yield from blocking.look_for_next(work, then, chain))
        if isinstance(waits, str):
            report.reasons[one.lease.id] = waits
            replies[one.lease.id] = Settled.REFUSED
            continue
        replies[one.lease.id] = Settled.REVOKED if job.flagged else Settled.DONE
        updates.append((job.id, *changes(one, state, now), place_after(state, job.lane, job.holds)))
        if state in ENDED:
            if then is not None:
                index = job.chain_index + 1
                steps.append(Step(one.lease.id, len(ended), then, waits, chain, index, job.awaited))
            ended.append(_ended(job, state, goes_on=then is not None))
            if state is State.FAILED and one.dead_letter is not None:
                dead.append((job.id, one.dead_letter))
        else:
            work.tell("work", [job.queue])
    if updates:
        errors = yield from _apply(updates, [job.chain or job.id for job in running.values() if job.flagged])
        ended = [msgspec.structs.replace(job, error=errors.get(job.id)) for job in ended]
        back = {running[id] for id, *_ in updates} - {running[job.id] for job in ended}
        yield from lanes.touch(work, {(job.queue, job.lane) for job in back})
    if steps:
        yield from _go_on(work, steps, ended, report, now)
    if ended:
        yield from after_end(work, ended, now)
        yield from tell_who_waits_for_room(work, {job.queue for job in ended})
    yield from bury(work, dead, now)
    if work.again:
        yield from _recognise(work, done, replies)
    return report


class _Running(msgspec.Struct, frozen=True):
    """A running job that is ours to settle."""

    id: str
    flagged: bool
    digest: bytes | None
    queue: str
    lane: str | None
    chain: str | None
    chain_index: int
    awaited: bool
    holds: bool
    """Its lane keeps its slot over a retry."""


def _lock(work: Work, done: Sequence[Settlement]) -> Steps[tuple[dict[str, _Running], int]]:
    """The jobs that are ours to settle, and the instant."""
    ours: list[str] = []
    for orphaned in (False, True):
        ids, tokens = _leases(one for one in done if (one.move in ORPHANED) is orphaned)
        if ids and orphaned:
            ours += [str(row[0]) for row in (yield from ask("settle.lock_orphans", ids, tokens, work.now))]
        elif ids:
            ours += [str(row[0]) for row in (yield from ask("settle.lock", ids, tokens))]
    if not ours:
        return {}, 0
    # A statement sees nothing that was committed while it waited for a lock: look with another.
    rows = yield from ask("settle.look", ours, work.now)
    found: dict[str, _Running] = {}
    for id, flagged, digest, queue, lane, chain, chain_index, awaited, holds, _ in rows:
        root = None if chain is None else str(chain)
        found[str(id)] = _Running(str(id), flagged, digest, queue, lane, root, chain_index, awaited, holds)
    return found, rows[0][-1]


def _apply(updates: Sequence[Row], flagged: list[str]) -> Steps[dict[str, str | None]]:
    """Write the ends of attempts; returns the errors that stand now, by job."""
    columns = [list(column) for column in zip(*sorted(updates), strict=True)]
    columns[9] = [text_of(error) for error in columns[9]]
    rows = yield from ask("settle.apply", *columns)
    if flagged:
        yield from ask("settle.unflag", flagged)
    return {str(id): error for id, error in rows}


def _go_on(work: Work, steps: Sequence[Step], ended: list[Ended], report: Report, now: int) -> Steps[None]:
    """Let chains go on; where another job has the place of the next one, say so, or end the chain."""
    found = yield from go_on(work, steps, now)
    for step in steps:
        there = found.get(step.job.id)
        if there is None:
            continue
        if (there.task, there.payload) != (step.job.task, step.job.payload):
            report.replies[step.settled] = Settled.DIVERGED
            report.reasons[step.settled] = diverged(there.task, step.job.task)
        if there.chain != step.chain:
            ended[step.end] = msgspec.structs.replace(ended[step.end], goes_on=False)


def _recognise(work: Work, done: Sequence[Settlement], replies: dict[JobId, Settled]) -> Steps[None]:
    """An earlier try of this very call may have been committed, and its reply lost: what it settled, it settled."""
    lost = {one.lease.id: one for one in done if replies[one.lease.id] is Settled.LOST}
    if not lost:
        return
    for id, word, queue in (yield from ask("settle.settled_before", *_leases(lost.values()))):
        state, expected = state_of(word), ENDING.get(lost[JobId(str(id))].move)
        if state is State.REVOKED:
            replies[JobId(str(id))] = Settled.REVOKED
        elif state is expected or (expected is None and state.queued):
            replies[JobId(str(id))] = Settled.DONE
        work.tell("done", [queue])


def _leases(part: Iterable[Settlement]) -> tuple[list[JobId], list[bytes]]:
    """Ids, sorted, and tokens."""
    leases = [one.lease for one in sorted(part, key=id_of)]
    return [lease.id for lease in leases], [lease.token for lease in leases]


def _ended(job: _Running, state: State, *, goes_on: bool) -> Ended:
    return Ended(
        job.id,
        job.queue,
        job.digest,
        state,
        lane=job.lane,
        chain=job.chain,
        awaited=job.awaited,
        goes_on=goes_on,
    )


def text_of(error: str | None) -> str | None:
    """An error as PostgreSQL can store it."""
    return None if error is None else error.replace("\0", "\N{REPLACEMENT CHARACTER}")
