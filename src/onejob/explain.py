"""Why: who holds a key, what the next call would get, and what a job waits for. Facts in, sentences out.

One set of pure functions behind Python, CLI and JSON. What the next arrival would get is asked of
`core.judge` itself, so an explanation cannot disagree with what happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, assert_never

import msgspec

from onejob.core.compression import NotUnpackable, unpacked
from onejob.core.dedup import FOREVER, Plan, Rules, Verdict, decode_rules
from onejob.core.identity import fingerprint
from onejob.core.job import Job, JobId, NewJob, State
from onejob.core.judge import Answer, Holder, Outcome, judge
from onejob.store import Key, WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known about a job or a call, and why it stands so. `print(…)` it, or take `as_dict()`."""

    job: JobId | None = None
    task: str | None = None
    queue: str | None = None
    state: State | None = None
    """The job's; None for a call, and for a job that is not on record."""
    key: str | None = None
    holder: JobId | None = None
    holder_state: State | None = None
    holder_age: float | None = None
    """Seconds since the holder's window started."""
    remembered_for: float | None = None
    """Seconds until the key of an ended holder is forgotten; None: until released, or as long as it lives."""
    absorbed: int = 0
    """Duplicates that made no job since the key was last taken."""
    differing: int = 0
    """How many of those had other arguments."""
    next_outcome: Outcome | None = None
    """What the next such call would get."""
    next_verdict: str | None = None
    reasons: tuple[str, ...] = ()
    """The same and more, in sentences."""

    def __str__(self) -> str:
        return "\n".join(self.reasons)

    def told_after(self, earlier: Explanation) -> Explanation:
        """This, about the job that `earlier` names, after what that says."""
        return replace(self, job=earlier.job, reasons=(*earlier.reasons, *self.reasons))

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data, ready for JSON."""
        return asdict(self)


def explain_call(newcomer: NewJob, key: Key | None, not_unique: str, now: int) -> Explanation:
    """Say what a call would get at this moment. `not_unique` is the reason if it has no plan."""
    about = Explanation(task=newcomer.task, queue=newcomer.queue)
    return _with_key(about, newcomer, key, not_unique, now)


def explain_job(job: Job, key: Key | None, workers: Sequence[WorkerView], now: int) -> Explanation:
    """Say how a job stands, what it waits for, and how its key stands."""
    about = Explanation(
        job=job.id,
        task=job.task,
        queue=job.queue,
        state=job.state,
        reasons=(
            f"Job {job.id} of task {job.task!r} in queue {job.queue!r}: {_standing(job, workers, now)}",
            *_grave(job),
        ),
    )
    return _with_key(about, _same_again(job), key, "it was enqueued without a unique key", now)


def explain_missing(id: str) -> Explanation:
    """Say that there is no such job."""
    return Explanation(
        job=JobId(id),
        reasons=(f"Job {id} is not on record: it never was accepted here, or ended and has been pruned.",),
    )


def explain_key(key: Key, now: int) -> Explanation:
    """Say how a key stands whose holder's job is no longer on record, and with it what its policy was."""
    holder = key.holder.at(now)
    sentences = [_held(key.text, None, key, holder, now), *_absorbed(key)]
    if holder is None:
        sentences.append("The next such call would be created: the key is free.")
    return Explanation(
        task=key.task,
        queue=key.queue,
        key=key.text,
        holder=None if holder is None else JobId(holder.id),
        holder_state=None if holder is None else holder.state,
        holder_age=None if holder is None else (now - holder.since) / 1000,
        remembered_for=None if holder is None else _remembered_for(holder, now),
        absorbed=key.absorbed,
        differing=key.differing,
        next_outcome=Outcome.CREATED if holder is None else None,
        next_verdict=Verdict.RUN.word if holder is None else None,
        reasons=tuple(sentences),
    )


def span(milliseconds: int) -> str:
    """A length of time as people say it."""
    seconds = abs(milliseconds) / 1000
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s" if seconds >= 0.1 else f"{milliseconds} ms"


def _same_again(job: Job) -> NewJob:
    plan: Plan | None = None
    if job.digest is not None and job.plan is not None:
        rules = msgspec.structs.replace(decode_rules(job.plan), forced=False)
        plan = Plan(job.digest, job.key or "", rules, _fingerprint(job), job.items)
    return NewJob(
        JobId(""), job.queue, job.task, job.payload, plan, priority=job.priority, options=job.options
    )


def _grave(job: Job) -> Sequence[str]:
    if job.origin is None:
        return ()
    return (
        f"It is the dead letter of job {job.origin}, which failed in queue {job.origin_queue!r}: retry either "
        "of them, and that one runs again.",
    )


def _fingerprint(job: Job) -> bytes:
    try:
        return fingerprint(unpacked(job.payload))
    except NotUnpackable:
        return b""


def _with_key(
    about: Explanation, newcomer: NewJob, key: Key | None, not_unique: str, now: int
) -> Explanation:
    plan = newcomer.plan
    if plan is None:
        sentence = f"Calls like it are never deduplicated: {not_unique}."
        return replace(
            about,
            next_outcome=Outcome.CREATED,
            next_verdict=Verdict.RUN.word,
            reasons=(*about.reasons, sentence),
        )
    answer = judge(newcomer, None if key is None else key.holder, now).answer
    holder = None if key is None else key.holder.at(now)
    facts = replace(
        about,
        key=plan.text,
        holder=None if holder is None else JobId(holder.id),
        holder_state=None if holder is None else holder.state,
        holder_age=None if holder is None else (now - holder.since) / 1000,
        remembered_for=None if holder is None else _remembered_for(holder, now),
        absorbed=0 if key is None else key.absorbed,
        differing=0 if key is None else key.differing,
        next_outcome=answer.outcome,
        next_verdict=answer.verdict.word,
    )
    sentences = [_held(plan.text, about.job, key, holder, now), *_absorbed(key)]
    sentences.append(f"The next such call would be {answer.outcome}: {_because(plan.rules, holder, answer)}.")
    return replace(facts, reasons=(*about.reasons, *sentences))


def _held(text: str, job: JobId | None, key: Key | None, holder: Holder | None, now: int) -> str:
    if key is None:
        return f'Nobody holds key "{text}".'
    if holder is None:
        return f'Nobody holds key "{text}" any more: job {key.holder.id} has ended and its key is forgotten.'
    who = "It holds" if holder.id == job else f"Job {holder.id} holds"
    stands = f"{holder.state}, {span(now - holder.since)} old{', pruned' if holder.gone else ''}"
    if not holder.state.ended:
        return f'{who} key "{text}" ({stands}).'
    left = _remembered_for(holder, now)
    memory = "until it is released" if left is None else f"for another {span(round(left * 1000))}"
    return f'{who} key "{text}" ({stands}), remembered {memory}.'


def _absorbed(key: Key | None) -> Sequence[str]:
    if key is None or not key.absorbed:
        return ()
    noun = "duplicate" if key.absorbed == 1 else "duplicates"
    return (f"{key.absorbed} {noun} absorbed, {key.differing} of them with other arguments.",)


def _remembered_for(holder: Holder, now: int) -> float | None:
    if not holder.state.ended:
        return None
    until = holder.completed_until if holder.state is State.COMPLETED else holder.failed_until
    return None if until is None or until >= FOREVER else (until - now) / 1000


def _because(rules: Rules, holder: Holder | None, answer: Answer) -> str:
    """Why the next call would get what it would get."""
    if holder is None:
        return "the key is free"
    if rules.forced:
        return "force=True always runs"
    says = f"the policy says {answer.verdict.word} while the holder is {holder.state}"
    if rules.window is None:
        return says
    left = rules.window - answer.age
    if left > 0:
        return f"{says}, inside its window of {span(rules.window)}, which ends in {span(left)}"
    return f"{says} and its window of {span(rules.window)} has passed, {span(left)} ago"


def _standing(job: Job, workers: Sequence[WorkerView], now: int) -> str:
    match job.state:
        case State.BLOCKED:
            return f"blocked; it starts only after job {job.follows} has ended."
        case State.PARKED:
            return "parked until its lane or its queue has room."
        case State.DELAYED:
            return f"delayed; {_delay(job)}, due in {span(max(0, job.due - now))}."
        case State.WAITING:
            return f"waiting for {span(now - job.due)}; {_who_serves(job, workers)}."
        case State.RUNNING:
            asked = "; it has been asked to stop" if job.aborting else ""
            since = "" if job.started is None else f" for {span(now - job.started)}"
            return f"running{since} on worker {job.worker}, attempt {job.attempt}{asked}."
        case State.COMPLETED | State.FAILED | State.REVOKED:
            ago = "" if job.ended is None else f" {span(now - job.ended)} ago"
            why = f": {_first_line(job.error)}" if job.error and job.error != job.state else ""
            return f"{job.state}{ago}{why}."
        case _:
            assert_never(job.state)


def _delay(job: Job) -> str:
    if job.failures:
        return (
            f"to be retried after failure {job.failures} ({_first_line(job.error or 'no error on record')})"
        )
    if job.misses:
        return f"handed back {job.misses} times, because no worker of its queue knew its task"
    if job.crashes:
        return f"to be run again after {job.crashes} lost workers"
    if job.attempt:
        return "snoozed by its handler"
    return "not due yet"


def _who_serves(job: Job, workers: Sequence[WorkerView]) -> str:
    serving = [worker for worker in workers if worker.alive and job.queue in worker.queues]
    if not serving:
        return f"no worker serves queue {job.queue!r}: start one with `onejob worker module:app`"
    slots = sum(worker.concurrency for worker in serving)
    busy = sum(worker.running for worker in serving)
    return f"{len(serving)} worker(s) serve its queue, with {busy} of {slots} slots in use"


def _first_line(text: str) -> str:
    line = text.split("\n", 1)[0]
    return line if len(line) <= 200 else line[:199] + "…"
