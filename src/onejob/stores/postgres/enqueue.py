"""enqueue: find each newcomer's holder, let `core.judge` decide, and write what it decided.

What needs no second look is one statement: jobs without a key, and one job whose key is free or kept. Everything else is
one transaction: take the keys that nobody has, judge all newcomers in memory, lock what the judgement rests on, look
and judge again until nothing can move, and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onejob.core.errors import KeyBusy, OnejobError, shown
from onejob.core.job import NewJob, State
from onejob.core.judge import Answer, Outcome, first_due
from onejob.store import Delay
from onejob.stores.postgres import blocking, lanes, swift
from onejob.stores.postgres.blocking import Waits
from onejob.stores.postgres.changing import Plans, change_as_seen, insert, write
from onejob.stores.postgres.contended import change_in_turn
from onejob.stores.postgres.failures import LOCK_NOT_AVAILABLE, UNIQUE_VIOLATION, sqlstate
from onejob.stores.postgres.holding import Kinds, Seen, lock_keys, lock_rows, read, settings, take
from onejob.stores.postgres.judging import Judgement
from onejob.stores.postgres.steps import Statement, Steps, ask, begin
from onejob.stores.postgres.work import Work

_NOTHING: Final = (None,) * 7
# Every job needs these, and a look at an enumeration takes as long as a call.
_CREATED: Final = Outcome.CREATED
_DELAYED: Final = State.DELAYED
_WAITING: Final = State.WAITING

ROUNDS: Final = 20
"""How often a holder may move while we look before its key is called busy."""


def enqueue(work: Work, jobs: Sequence[NewJob], *, alone: bool = False) -> Steps[list[Answer]]:
    """Accept newcomers in order; see `Store.enqueue`. Raises `KeyBusy` if a key stays locked.

    `alone`: it is no part of a transaction, so that a statement may fail and another be tried.
    """
    if not jobs:
        return []
    try:
        if len(jobs) == 1:
            [job] = jobs
            if job.lane is None and not job.blockers:
                if job.plan is None:
                    return (yield from _bare(work, job))
                answers = yield from _one(work, job)
                if answers is not None:
                    return answers
        elif all(job.plan is None and job.lane is None and not job.blockers for job in jobs):
            return (yield from _plain(work, jobs, careful=work.again or not alone))
        elif alone and not work.again and (answers := (yield from swift.accept(work, jobs))) is not None:
            return answers
        return (yield from _together(work, jobs))
    except Exception as error:
        if work.foreign or sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise busy(jobs) from error


def busy(jobs: Sequence[NewJob]) -> KeyBusy:
    """The error for keys that others keep locked."""
    keyed = [job for job in jobs if job.plan is not None]
    text = "A key" if not keyed or keyed[0].plan is None else f"Key {shown(keyed[0].plan.text)}"
    among = f", or one of {len(keyed) - 1} others of the same call," if len(keyed) > 1 else ""
    return KeyBusy(
        f"{text}{among} is held by somebody's open transaction, and only one at a time can decide about a key. Try "
        "again once that has ended, and keep transactions that enqueue short."
    )


def busy_with(error: KeyBusy, takers: Sequence[Delay]) -> KeyBusy:
    """The same with those who may be the ones, the oldest first."""
    if not takers:
        return error
    named = "; ".join(map(str, takers))
    return KeyBusy(f"{error} Open transactions that have taken keys: {named}.")


def _bare(work: Work, job: NewJob) -> Steps[list[Answer]]:
    """One job without key, lane and blockers."""
    work.tell("work", (job.queue,))
    yield Statement(
        "enqueue.insert_job",
        (
            work.now,
            job.id,
            job.queue,
            job.task,
            _DELAYED if job.delay > 0 else _WAITING,
            job.priority,
            job.delay,
            job.expires,
            job.payload,
            job.options,
            job.max_crashes,
        ),
    )
    return [Answer(job.id, _CREATED)]


def _plain(work: Work, jobs: Sequence[NewJob], *, careful: bool) -> Steps[list[Answer]]:
    """Several jobs without key, lane and blockers: one statement."""
    work.tell("work", {job.queue for job in jobs})
    kinds = Kinds()
    numbers: list[int] = []
    of: dict[tuple[object, ...], int] = {}
    for job in jobs:
        common = settings(job)
        number = of.get(common)
        if number is None:
            number = of[common] = kinds.number(_kind(job))
        numbers.append(number)
    rows = [(job.id, job.payload, *_NOTHING) for job in jobs]
    try:
        yield from insert(work.now, rows, numbers, kinds, careful=careful)
    except Exception as error:
        if careful or sqlstate(error) != UNIQUE_VIOLATION:
            raise
        yield from insert(work.now, rows, numbers, kinds, careful=True)
    return [Answer(job.id, _CREATED) for job in jobs]


def _kind(job: NewJob) -> tuple[object, ...]:
    """As `New.kind`, for a job without key, lane and blockers."""
    state = _DELAYED if job.delay > 0 else _WAITING
    common = (
        job.queue,
        job.task,
        state,
        job.priority,
        job.delay,
        0,
        job.expires,
        job.options,
        job.max_crashes,
    )
    return (*common, 0, None, None, None, 0, False)


def _one(work: Work, job: NewJob) -> Steps[list[Answer] | None]:
    """One job with a key, by itself; None if that takes a transaction."""
    plan = job.plan
    assert plan is not None
    rows = yield from ask(
        "enqueue.one",
        work.now,
        plan.digest,
        plan.text,
        job.queue,
        job.task,
        job.id,
        *plan.rules.memory,
        first_due(job, 0),
        job.priority,
        job.expires,
        job.payload,
        job.options,
        job.max_crashes,
        plan.items,
        plan.rules.encoded,
        plan.fingerprint,
        plan.size or None,
    )
    seen = Seen()
    if read(seen, rows):
        work.tell("work", (job.queue,))
        return [Answer(job.id, _CREATED)]
    judged = Judgement(seen, {}, foreign=work.foreign, alone=True)
    judged.judge([job])
    if judged.changes and not work.foreign and not judged.keys:
        [changed] = judged.changes.values()
        if changed.holder.lane is not None:
            return None
        if work.guesses.contended or not (yield from change_as_seen(work, seen, changed)):
            return (yield from change_in_turn(work, seen, job, changed.holder.id))
    elif not judged.is_certain or judged.made:
        return None
    work.absorbed += judged.absorbed
    return judged.answers


class _Again(Exception):
    """More must be locked than we thought, and waiting for it with the rest in hand could be mutual: start over."""


def _together(work: Work, jobs: Sequence[NewJob]) -> Steps[list[Answer]]:
    """Any newcomers, in one transaction; in somebody else's, all of them or none."""
    yield from begin()
    yield from ask("enqueue.savepoint")
    seen = Seen(careful=work.again or work.foreign)  # an error in a user's transaction may be noticed
    for _ in range(ROUNDS):
        try:
            answers = yield from _in_order(work, seen, jobs)
        except Exception as error:
            again = isinstance(error, _Again) or (sqlstate(error) == UNIQUE_VIOLATION and not seen.careful)
            if again or isinstance(error, OnejobError):
                yield from ask("enqueue.rollback_to")
            if not again:
                raise
            seen = seen.again()
        else:
            if work.foreign:
                yield from ask("enqueue.release_savepoint")
            return answers
    raise busy(jobs)


def _in_order(work: Work, seen: Seen, jobs: Sequence[NewJob]) -> Steps[list[Answer]]:
    """Accept newcomers portion by portion: what ends a holder is judged and written alone, then we look anew."""
    fresh = yield from take(work, seen, jobs)
    if wanted := seen.wanted & seen.held.keys():
        yield from lock_keys(seen, wanted)
        fresh = False
    places = {(job.queue, job.lane.key) for job in jobs if job.lane is not None}
    standing: Plans = (yield from lanes.standing_plans(work, sorted(places))) if places else {}
    answers: list[Answer] = []
    size = len(jobs)
    while len(answers) < len(jobs):
        rest = jobs[len(answers) :]
        portion = _independent(rest[:size])
        judged, count = yield from _judged(work, seen, portion, rest, fresh=fresh)
        if count:
            answers += yield from write(work, seen, judged, standing)
        seen.known.update(new.job.id for new in judged.made)
        seen.written, fresh = True, False
        # After one that had to be alone there may be more of that kind: look at few, and then at more again.
        size = 1 if count < len(portion) else size * 2
    return answers


def _independent(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """The newcomers before the first that waits for one of them, and for others."""
    if not any(job.blockers for job in jobs):
        return jobs
    ids: set[str] = set()
    for number, job in enumerate(jobs):
        if not ids.isdisjoint(job.blockers) and not ids.issuperset(job.blockers):
            return jobs[:number]
        ids.add(job.id)
    return jobs


def _judged(
    work: Work, seen: Seen, jobs: Sequence[NewJob], rest: Sequence[NewJob], *, fresh: bool
) -> Steps[tuple[Judgement, int]]:
    """Judge newcomers, and lock what that rests on, until nothing of it can move; and how many were judged."""
    for _ in range(ROUNDS):
        if not fresh and not (yield from take(work, seen, jobs)):
            continue
        fresh = False
        waits = yield from _waits(work, seen, jobs)
        judged = Judgement(seen, waits, foreign=work.foreign, alone=len(jobs) == 1)
        count = judged.judge(jobs)
        keys = judged.keys
        if count < len(rest) and not seen.written:
            # More will be written later, and then nobody may be waited for.
            digests = {job.plan.digest for job in rest if job.plan is not None}
            keys = keys | (digests & seen.held.keys())
        if (yield from _locked(work, seen, jobs, judged, keys - seen.locked)):
            return judged, count
    raise busy(jobs)


def _locked(
    work: Work, seen: Seen, jobs: Sequence[NewJob], judged: Judgement, keys: set[bytes]
) -> Steps[bool]:
    """Lock keys, and the holders that a judgement rests on; True if it is true now, False: look again.

    First free keys are taken, then others locked, then rows, each in order; who finds out later that he needs more
    starts over. So two never wait for each other.
    """
    if keys:
        seen.wanted |= keys
        if not seen.written and (seen.has_locked or not keys <= seen.held.keys()):
            raise _Again
        yield from lock_keys(seen, keys)
    as_seen = yield from _lock_rows(work, seen, jobs, judged.rows, share=False)
    as_seen &= yield from _lock_rows(work, seen, jobs, judged.pins, share=True)
    return as_seen and not keys


def _lock_rows(work: Work, seen: Seen, jobs: Sequence[NewJob], ids: set[str], *, share: bool) -> Steps[bool]:
    """Lock what is to be changed, or must not start; True if all of it is as it was seen."""
    if not ids:
        return True
    if not ids.isdisjoint(seen.stuck):  # the policy has no other way
        if not work.foreign:
            raise busy(jobs)
        return (yield from lock_rows(seen, ids, share=share, patient=True))
    # Several that we may not get are tried one by one, in transactions of their own: see `Portions`.
    patient = len(ids) > 1 and not work.foreign
    return (yield from lock_rows(seen, ids, share=share, patient=patient))


def _waits(work: Work, seen: Seen, jobs: Sequence[NewJob]) -> Steps[dict[str, Waits]]:
    """Whom newcomers are to wait for, if not for each other; one that was accepted before is not asked."""
    if not any(job.blockers for job in jobs):
        return {}
    ids = {job.id for job in jobs}
    blocked = [
        job for job in jobs if job.blockers and ids.isdisjoint(job.blockers) and not _is_repeated(seen, job)
    ]
    waits = (yield from blocking.look_many(work, blocked)) if blocked else []
    return {job.id: each for job, each in zip(blocked, waits, strict=True)}


def _is_repeated(seen: Seen, job: NewJob) -> bool:
    found = None if job.plan is None else seen.held.get(job.plan.digest)
    return job.id in seen.known or (found is not None and any(call.id == job.id for call in found.calls))
