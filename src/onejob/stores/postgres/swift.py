"""Newcomers with keys, without a transaction: one statement where nobody has their keys, and one where all are kept.

Where some are new and the others kept, the new ones are a second statement. A statement writes all that it is given or
nothing, so whatever takes more than that can still be done by `enqueue` from the start. Which is tried first is a guess:
where most keys were held the last time, only their holders are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onejob.absorbing import Absorbed
from onejob.core.dedup import Plan
from onejob.core.job import NewJob, State
from onejob.core.judge import Answer, Outcome, first_due, judge, keep
from onejob.stores.postgres.failures import UNIQUE_VIOLATION, sqlstate
from onejob.stores.postgres.holding import Kinds, Seen, read, settings
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work

_KINDS = 12
_CREATED: Final = Outcome.CREATED


def accept(work: Work, jobs: Sequence[NewJob]) -> Steps[list[Answer] | None]:
    """The answers, if they need no more than that; None: nothing is written, and it takes a transaction."""
    plans = [job.plan for job in jobs if job.plan is not None and job.lane is None and not job.blockers]
    if len({plan.digest for plan in plans}) < len(jobs):
        return None
    looked = work.guesses.repetitive
    seen = yield from (_look(work, jobs, plans) if looked else _make(work, jobs, plans))
    if seen is None:
        return None
    held = seen.held
    work.guesses.repetitive = 2 * len(held) >= len(jobs)
    if not held and not looked:
        return [Answer(job.id, _CREATED) for job in jobs]
    absorbed: list[Absorbed] = []
    answers = _answers(seen, jobs, plans, absorbed)
    if answers is None:
        return None
    if len(held) < len(jobs):
        new = [job for job, plan in zip(jobs, plans, strict=True) if plan.digest not in held]
        made = yield from _make(work, new, [plan for plan in plans if plan.digest not in held])
        if made is None or made.held:
            return None
    work.absorbed += absorbed
    return answers


def _answers(
    seen: Seen, jobs: Sequence[NewJob], plans: Sequence[Plan], absorbed: list[Absorbed]
) -> list[Answer] | None:
    """What they are answered once those are made whose keys nobody has, and who is absorbed; None if that is not all there is
    to do."""
    holder_of, known, now = seen.held.get, seen.known, seen.now
    answers: list[Answer] = []
    for job, plan in zip(jobs, plans, strict=True):
        holder = holder_of(plan.digest)
        if holder is None:
            answers.append(Answer(job.id, _CREATED))
            continue
        answer = keep(job, plan, holder, now)
        if answer is None:
            decision = judge(job, holder, now)
            if not decision.is_an_answer:
                return None
            answer = decision.answer
        if answer.holder is not None:
            if job.id in known:
                answer = Answer(job.id, _CREATED)
            else:
                absorbed.append((plan.digest, holder.id, answer.payload_differs))
        answers.append(answer)
    return answers


def _look(work: Work, jobs: Sequence[NewJob], plans: Sequence[Plan]) -> Steps[Seen]:
    """See who has their keys."""
    digests = [plan.digest for plan in plans]
    seen = Seen()
    read(seen, (yield from ask("enqueue.look", work.now, digests, [job.id for job in jobs])))
    return seen


def _make(work: Work, jobs: Sequence[NewJob], plans: Sequence[Plan]) -> Steps[Seen | None]:
    """Make them all if nobody has one of their keys, else say who has; None if somebody was faster."""
    kinds = Kinds()
    numbers: list[int] = []
    of: dict[tuple[object, ...], int] = {}
    for job, plan in zip(jobs, plans, strict=True):
        common = (settings(job), id(plan.rules), plan.items)  # one object of rules for all jobs of a task
        number = of.get(common)
        if number is None:
            number = of[common] = kinds.number(_kind(job, plan))
        numbers.append(number)
    sizes = [plan.size or None for plan in plans]
    try:
        rows = yield from ask(
            "enqueue.make_all",
            work.now,
            [plan.digest for plan in plans],
            [plan.text for plan in plans],
            [job.id for job in jobs],
            numbers if len(of) > 1 else None,
            [job.payload for job in jobs],
            [plan.fingerprint for plan in plans],
            sizes if any(sizes) else None,
            *kinds.columns(_KINDS),
        )
    except Exception as error:
        if sqlstate(error) != UNIQUE_VIOLATION:
            raise
        return None
    seen = Seen()
    if read(seen, rows):
        work.tell("work", {job.queue for job in jobs})
    return seen


def _kind(job: NewJob, plan: Plan) -> tuple[object, ...]:
    """What a newcomer may share with others, in the order of `make_all`."""
    due = first_due(job, 0)
    return (
        job.queue,
        job.task,
        State.DELAYED if due > 0 else State.WAITING,
        job.priority,
        due,
        job.expires,
        job.options,
        job.max_crashes,
        plan.items,
        plan.rules.encoded,
        *plan.rules.memory,
    )
