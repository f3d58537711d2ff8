"""settle: attempts end, and the next claim comes in the same commit.

What needs nothing but the jobs, their keys, flags and slots is one statement (`_at_once`). Whatever else an end entails,
continuations, dead letters and those who wait for it, takes a transaction (`_with_care`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from onejob.core.chain import diverged
from onejob.core.job import ENDED, JobId, State
from onejob.core.lifecycle import ENDING, MOVES, Move, Settlement
from onejob.sql.attempts import changes, state_after
from onejob.sql.lanes import place_after
from onejob.store import Ask, Claims, Settled, SettleReply
from onejob.stores.postgres import blocking, claim, lanes
from onejob.stores.postgres.chains import Step, go_on
from onejob.stores.postgres.dead import bury
from onejob.stores.postgres.ending import Ended, after_end, recheck_these
from onejob.stores.postgres.limits import tell_who_waits_for_room
from onejob.stores.postgres.steps import Row, Steps, ask, begin
from onejob.stores.postgres.work import Work

NOTHING_ASKED = (None,) * 7
"""The parameters of a claim that is not there."""
_ORPHANED = frozenset(move for move, rule in MOVES.items() if rule.orphaned)
_id = attrgetter("lease.id")


def settle(work: Work, done: Sequence[Settlement], wish: Ask | None, token: bytes) -> Steps[SettleReply]:
    """End attempts and claim the next; see `Store.settle`. `token` is the lease of what is claimed."""
    if not done:
        return SettleReply([], Claims([]) if wish is None else (yield from claim.claim(work, wish, token)))
    if not work.foreign and not work.again and _is_plain(done):
        return (yield from _at_once(work, done, wish, token))
    yield from begin()
    settled: list[Settled] = []
    reasons: dict[JobId, str] = {}
    for part in _parts(done):
        report = yield from _with_care(work, part)
        settled += report.replies.values()
        reasons.update(report.reasons)
    claims = Claims([]) if wish is None else (yield from claim.claim(work, wish, token))
    return SettleReply(settled, claims, reasons)


def _is_plain(done: Sequence[Settlement]) -> bool:
    """True if each is another job, and ends without anything being made of it."""
    for one in done:
        if one.then is not None or one.dead_letter is not None or one.move in _ORPHANED:
            return False
    return len({one.lease.id for one in done}) == len(done)


def _at_once(work: Work, done: Sequence[Settlement], wish: Ask | None, token: bytes) -> Steps[SettleReply]:
    """One statement settles and claims. Where it finds that others may wait, it leaves a note, and we go on from there."""
    batch = sorted(done, key=_id)
    # What comes back without delay could be claimed, but a statement does not see what it writes.
    starts = wish is not None and all(one.move in ENDING or one.delay > 0 for one in done)
    asking = (
        claim.asking(work.now, wish, token) if starts and wish is not None else (work.now, *NOTHING_ASKED)
    )
    name, parameters = _written(batch)
    rows = yield from ask(f"settle.{name}_and_start" if starts else f"settle.{name}", *asking, *parameters)
    outcome = claim.head(rows)[claim.OUTCOME] if starts else rows[0]
    now, held, flagged, over, ready, left, notes, noted = outcome
    settled = [Settled.DONE] * len(done)
    if held is not None or flagged is not None:
        settled = _replies(done, held, flagged)
    work.tell("done", over or ())
    work.tell("work", ready or ())
    if noted is not None:
        yield from begin()
        yield from recheck_these(work, map(str, noted), notes, now)
    rest = [one for one, reply in zip(done, settled, strict=True) if reply is Settled.LOST]
    if rest:  # lost indeed, or left to us, so that who waits for one comes to its lane as its slot does
        yield from begin()
        replies = (yield from _with_care(work, rest)).replies
        settled = [replies.get(one.lease.id, reply) for one, reply in zip(done, settled, strict=True)]
    if wish is None:
        return SettleReply(settled, Claims([]))
    if not starts or left or rest or noted is not None:
        return SettleReply(settled, (yield from claim.claim(work, wish, token)))
    found = claim.read(rows, wish, token)
    claims = found.claims
    if claims is None:
        claims = yield from claim.general(work, wish, token, found.outlook)
    return SettleReply(settled, _with_delays(claims, done))


def _written(batch: Sequence[Settlement]) -> tuple[str, tuple[Any, ...]]:
    """The statement for a batch, and what it writes."""
    tokens = [one.lease.token for one in batch]
    if tokens.count(tokens[0]) == len(tokens):
        del tokens[1:]
    guards = ([one.lease.id for one in batch], tokens)
    if all(one.move is Move.COMPLETE for one in batch):
        results = [one.result for one in batch]
        return "complete", (*guards, None if results.count(None) == len(results) else results)
    rows = [changes(one, state_after(one, None), 0) for one in batch]
    states, _, delays, attempts, failures, crashes, misses, results, errors = map(
        list, zip(*rows, strict=True)
    )
    errors = [_text(error) for error in errors]
    return "end", (*guards, results, states, delays, attempts, failures, crashes, misses, errors)


def _replies(done: Sequence[Settlement], held: list[Any] | None, flagged: list[Any] | None) -> list[Settled]:
    """What became of each settlement, given the jobs whose leases held (None: all) and those that were flagged."""
    replies = dict.fromkeys((one.lease.id for one in done), Settled.DONE if held is None else Settled.LOST)
    replies.update((JobId(str(id)), Settled.DONE) for id in held or ())
    replies.update((JobId(str(id)), Settled.REVOKED) for id in flagged or ())
    return [replies[one.lease.id] for one in done]


def _with_delays(claims: Claims, done: Sequence[Settlement]) -> Claims:
    """A claim that did not see which jobs come back, and when."""
    delays = [one.delay for one in done if one.move not in ENDING]
    if not delays:
        return claims
    soonest = min(delays) if claims.next_due is None else min(claims.next_due, *delays)
    return msgspec.structs.replace(claims, next_due=soonest)


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


class _Report(msgspec.Struct):
    """What became of a batch, by job: no job is in it twice."""

    replies: dict[JobId, Settled]
    reasons: dict[JobId, str] = {}


def _parts(done: Sequence[Settlement]) -> Iterable[Sequence[Settlement]]:
    """Batches to settle one after the other: how chains stand must be on record before somebody waits for them, and
    what is said of a job twice is told apart.
    """
    part: dict[JobId, Settlement] = {}
    for one in done:
        waits = one.then is not None and bool(one.then.blockers)
        if part and (waits or one.lease.id in part):
            yield list(part.values())
            part = {}
        part[one.lease.id] = one
        if waits:
            yield [one]
            part = {}
    if part:
        yield list(part.values())


def _with_care(work: Work, done: Sequence[Settlement]) -> Steps[_Report]:
    """End attempts in a transaction, with all that it entails."""
    if not work.foreign and any(one.then is not None and one.then.blockers for one in done):
        yield from ask("blockers.one_by_one")
    running, now = yield from _lock(work, done)
    report = _Report(dict.fromkeys((one.lease.id for one in done), Settled.LOST))
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


def _lock(work: Work, done: Sequence[Settlement]) -> Steps[tuple[dict[str, _Running], int]]:
    """The jobs that are ours to settle, and the instant."""
    ours: list[str] = []
    for orphaned in (False, True):
        ids, tokens = _leases(one for one in done if (one.move in _ORPHANED) is orphaned)
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
    columns[9] = [_text(error) for error in columns[9]]
    rows = yield from ask("settle.apply", *columns)
    if flagged:
        yield from ask("settle.unflag", flagged)
    return {str(id): error for id, error in rows}


def _go_on(work: Work, steps: Sequence[Step], ended: list[Ended], report: _Report, now: int) -> Steps[None]:
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
        state, expected = State(word), ENDING.get(lost[JobId(str(id))].move)
        if state is State.REVOKED:
            replies[JobId(str(id))] = Settled.REVOKED
        elif state is expected or (expected is None and state.queued):
            replies[JobId(str(id))] = Settled.DONE
        work.tell("done", [queue])


def _leases(part: Iterable[Settlement]) -> tuple[list[JobId], list[bytes]]:
    """Ids, sorted, and tokens."""
    leases = [one.lease for one in sorted(part, key=_id)]
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


def _text(error: str | None) -> str | None:
    """An error as PostgreSQL can store it."""
    return None if error is None else error.replace("\0", "\N{REPLACEMENT CHARACTER}")
