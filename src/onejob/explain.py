"""Why: who holds a key, what the next call would get, and what a job waits for. Facts in, sentences out.

One set of pure functions behind Python, CLI and JSON. What the next arrival would get is asked of
`core.judge` itself, so an explanation cannot disagree with what happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from onejob.core.compression import NotUnpackable, unpacked
from onejob.core.dedup import FOREVER, Plan, Rules, Verdict, decode_rules
from onejob.core.identity import fingerprint
from onejob.core.job import ChainId, Job, JobId, NewJob, State
from onejob.core.judge import Answer, Holder, Outcome, judge
from onejob.core.lane import LanePlan
from onejob.core.span import span
from onejob.standing import READY, Surroundings, how_it_stands, lane_in_words, still_waited_for
from onejob.store import Delay, Key, LaneView


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
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
    lane: str | None = None
    """The key of its lane."""
    lane_holders: tuple[JobId, ...] = ()
    """Who takes the slots of its lane."""
    ahead: int | None = None
    """How many ready jobs of its lane have their turn before it; None if it is not ready itself."""
    opens_in: float | None = None
    """Seconds until the rate of its lane lets a job start; None if it is not the rate that holds it up."""
    queue_paused: bool = False
    queue_limit: int | None = None
    """How many jobs of its queue may run at once."""
    chain: ChainId | None = None
    chain_index: int | None = None
    """Its place in the chain, from 0."""
    chain_state: State | None = None
    """How the last job of its chain stands."""
    blocked_by: tuple[ChainId, ...] = ()
    """The chains that it still waits for as its blockers."""
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


def unless_taken(takers: Sequence[Delay]) -> str:
    """Whose transactions may have taken a key that nobody else can see yet."""
    named = " or ".join(map(str, takers))
    return f"unless an open transaction has taken it: {named} has taken keys, and until it ends calls with the same keys wait"


def explain_call(
    newcomer: NewJob,
    key: Key | None,
    not_unique: str,
    now: int,
    lane: LaneView | None = None,
    *,
    takers: Sequence[Delay] = (),
) -> Explanation:
    """Say what a call would get at this moment. `not_unique` is the reason if it has no plan; `lane` is its lane;
    `takers` may have taken its key."""
    about = Explanation(task=newcomer.task, queue=newcomer.queue)
    told = _with_key(about, newcomer, key, not_unique, now)
    if takers:
        told = replace(told, reasons=(*told.reasons, f"That is so {unless_taken(takers)}."))
    wanted = newcomer.lane
    if wanted is None:
        return told
    if lane is None:
        sentence = f'Its lane "{wanted.key}" is empty.'
    elif lane.plan == wanted:
        sentence = f"Its {lane_in_words(lane)}."
    else:
        sentence = f"Its {lane_in_words(lane)}; a job made now lets it take {wanted}."
    return replace(told, lane=wanted.key, reasons=(*told.reasons, sentence))


def explain_job(job: Job, key: Key | None, around: Surroundings, first: Job | None = None) -> Explanation:
    """Say how a job stands, what it waits for, and how its key stands; which is that of its chain's `first` job."""
    ready, opens_in = job.state in READY, around.opens_in
    about = Explanation(
        job=job.id,
        task=job.task,
        queue=job.queue,
        state=job.state,
        lane=job.lane,
        lane_holders=() if around.lane is None else tuple(around.lane.holders),
        ahead=around.ahead if ready and around.lane is not None else None,
        opens_in=opens_in / 1000 if ready and opens_in is not None else None,
        queue_paused=around.limits.paused,
        queue_limit=around.limits.concurrency,
        chain=job.chain,
        chain_index=job.chain_index,
        chain_state=job.state if around.last is None else around.last.state,
        blocked_by=tuple(one.chain for one in still_waited_for(around.blockers)),
        reasons=tuple(how_it_stands(job, around)),
    )
    return _with_key(
        about, _same_again(first or job), key, "it was enqueued without a unique key", around.now
    )


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


def _same_again(job: Job) -> NewJob:
    plan: Plan | None = None
    if job.digest is not None and job.plan is not None:
        rules = replace(decode_rules(job.plan), forced=False)
        plan = Plan(job.digest, job.key or "", rules, _fingerprint(job), job.items)
    return NewJob(
        JobId(""),
        job.queue,
        job.task,
        job.payload,
        plan,
        priority=job.priority,
        options=job.options,
        lane=None if job.lane is None else LanePlan(job.lane),
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
