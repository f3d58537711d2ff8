"""How one job stands, in words: what it waits for, or how it ended. Facts in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec

from onejob.core.job import Job, JobId, State
from onejob.core.lane import QueueLimits
from onejob.core.span import counted, span
from onejob.store import Blocker, Delay, LaneView, WorkerView

READY = frozenset({State.WAITING, State.PARKED})
NAMED = 3
"""How many of a job's blockers are named."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's standing depends on besides the job itself, as a store had it at one instant."""

    now: int
    workers: Sequence[WorkerView] = ()
    limits: QueueLimits = QueueLimits()
    """Those of its queue."""
    running: int = 0
    """How many jobs of its queue run; counted only where a limit bounds them."""
    lane: LaneView | None = None
    """Its lane, while it is live."""
    ahead: int = 0
    """How many ready jobs of its lane have their turn before it."""
    before: Job | None = None
    """Who takes the slot that it waits for, or has its turn next."""
    blockers: Sequence[Blocker] = ()
    """The chains that it waits for, while it is blocked."""
    delays: Sequence[Delay] = ()
    """Whose transactions keep it from being started, while it is due."""
    last: Job | None = None
    """The last job of its chain, if that is longer than one."""

    @property
    def opens_in(self) -> int | None:
        """Milliseconds until the rate of its lane lets a job start; None if no rate holds it up."""
        if self.lane is None or self.lane.opens_at is None or self.lane.opens_at <= self.now:
            return None
        return self.lane.opens_at - self.now


def first_before(job: Job, lane: LaneView) -> JobId | None:
    """Whom a ready job of a lane waits for: who takes the slot, or else whose turn is next."""
    if job.id in lane.holders:
        return None
    if lane.taken >= lane.plan.concurrency:
        return lane.holders[0]
    return None if lane.head == job.id else lane.head


def how_it_stands(job: Job, around: Surroundings) -> Iterator[str]:
    """How a job stands, and then what else there is to say of it."""
    yield f"Job {job.id} of task {job.task!r} in queue {job.queue!r}: {_standing(job, around)}"
    if job.state in READY:
        yield from _held_up(job, around)
    yield from map(_delayed_by, around.delays)
    if around.lane is not None:
        yield f"Its {lane_in_words(around.lane)}."
    if around.last is not None:
        yield _place(job, around.last)
    if job.origin is not None:
        yield (
            f"It is the dead letter of job {job.origin}, which failed in queue {job.origin_queue!r}: retry either "
            "of them, and that one runs again."
        )


def lane_in_words(view: LaneView) -> str:
    """How a lane stands."""
    plan, ready = view.plan, _jobs(view.ready, "is", "are")
    return f'lane "{plan.key}" takes {plan}: {view.taken} of {plan.concurrency} slots in use, {ready} ready'


def _standing(job: Job, around: Surroundings) -> str:
    now = around.now
    match job.state:
        case State.BLOCKED:
            return f"blocked{_by_blockers(job, around.blockers)}{_behind_another(job)}."
        case State.PARKED:
            behind = _behind(job, around)
            return f"parked{behind}; it has been due for {span(now - job.due)}{_nobody(job, around)}."
        case State.DELAYED:
            if job.due > now:
                return f"delayed; {_delay(job) or 'not due yet'}, due in {span(job.due - now)}."
            why = _delay(job)
            return f"delayed; {why}{why and ', and '}has been due for {span(now - job.due)}{_nobody(job, around)}."
        case State.WAITING:
            return f"waiting for {span(now - job.due)}; {_who_serves(job, around.workers)}."
        case State.RUNNING:
            return _running(job, around)
        case State.COMPLETED | State.FAILED | State.REVOKED:
            ago = "" if job.ended is None else f" {span(now - job.ended)} ago"
            why = f": {_first_line(job.error)}" if job.error and job.error != job.state else ""
            return f"{job.state}{ago}{why}."
        case _:
            assert_never(job.state)


def _running(job: Job, around: Surroundings) -> str:
    since = "" if job.started is None else f" {span(around.now - job.started)} ago"
    here = next((worker for worker in around.workers if worker.id == job.worker), None)
    if here is not None and here.alive:
        asked = "; it has been asked to stop" if job.aborting else ""
        since = "" if job.started is None else f" for {span(around.now - job.started)}"
        return f"running{since} on worker {job.worker}, attempt {job.attempt}{asked}."
    silent = "" if here is None else f" {span(around.now - here.seen)} ago"
    lost = f"started{since} on worker {job.worker}, attempt {job.attempt}, which stopped beating{silent}"
    return f"{lost}; its lease has ended, and {_rescued(job, around)}."


def _rescued(job: Job, around: Surroundings) -> str:
    """What becomes of a job whose worker is gone, and when."""
    if job.aborting:
        what = "revokes it"
    elif job.crashes < job.max_crashes:
        what = "runs it again"
    else:
        what = f"lets it fail (max_crashes is {job.max_crashes})"
    if any(worker.alive for worker in around.workers):
        return f"any live worker {what} when it looks next"
    return f"the next worker that starts {what}: start one with `onejob worker MODULE:APP`"


def still_waited_for(blockers: Sequence[Blocker]) -> tuple[Blocker, ...]:
    """Those that have not ended."""
    return tuple(one for one in blockers if one.state is not None and not one.state.ended)


def _by_blockers(job: Job, blockers: Sequence[Blocker]) -> str:
    live = still_waited_for(blockers)
    if not live:
        return ""
    named = ", ".join(f"job {one.chain} (task {one.task!r}, {one.state})" for one in live[:NAMED])
    more = f" and {len(live) - NAMED} more" if len(live) > NAMED else ""
    noun = "blocker" if job.blockers == 1 else "blockers"
    return f" by {len(live)} of its {job.blockers} {noun}: {named}{more}"


def _behind_another(job: Job) -> str:
    return "" if job.follows is None else f"; it starts only after job {job.follows} has ended"


def _place(job: Job, last: Job) -> str:
    place = f"It is step {job.chain_index} of chain {job.chain}"
    if last.id == job.id:
        return f"{place}, and its last: the chain is {last.state}."
    return f"{place}, which has come to step {last.chain_index}: job {last.id} of task {last.task!r}, {last.state}."


def _held_up(job: Job, around: Surroundings) -> Iterator[str]:
    """Everything that keeps a ready job from starting now, but for the want of a worker."""
    limits = around.limits
    if limits.paused:
        yield f"Queue paused: nothing of {job.queue!r} starts until somebody resumes it (onejob resume {job.queue})."
    if around.ahead:
        yield f"{_jobs(around.ahead, 'of its lane is', 'of its lane are')} ahead of it."
    if around.opens_in is not None and around.lane is not None:
        yield f"The rate window of its lane opens in {span(around.opens_in)} ({around.lane.plan.rate})."
    if limits.concurrency is not None and around.running >= limits.concurrency:
        yield f"The queue limit of {limits.concurrency} is full: so many jobs of {job.queue!r} are running."
    if limits.rate is not None:
        yield f"Queue {job.queue!r} starts at most {limits.rate}, all its jobs together."


def _delayed_by(delay: Delay) -> str:
    if delay.session is None:
        since = "" if delay.age is None else f" {span(delay.age)} ago"
        return (
            f"The transaction {delay.gid!r}, which was prepared{since}, has locked {delay.what}: no worker can start the job before "
            f"somebody decides on it: commit prepared '{delay.gid}', or rollback prepared '{delay.gid}'."
        )
    said = f" It last said: {_first_line(delay.query)}" if delay.query else ""
    return (
        f"Database {delay} has locked {delay.what}: no worker can start the "
        f"job before that transaction ends.{said}"
    )


def _behind(job: Job, around: Surroundings) -> str:
    lane, before = around.lane, around.before
    if before is None:
        return ""
    has_room = lane is None or lane.taken < lane.plan.concurrency
    if has_room and before.state is State.PARKED and not _served(job, around):
        return ""  # nobody but a worker would let either of them in
    others = 0 if lane is None or has_room else lane.taken - 1
    more = f" and {others} more" if others else ""
    return f" behind job {before.id} ({before.state}){more}"


def _jobs(count: int, one: str, many: str) -> str:
    return f"1 job {one}" if count == 1 else f"{count} jobs {many}"


def _delay(job: Job) -> str:
    if job.failures:
        return (
            f"to be retried after failure {job.failures} ({_first_line(job.error or 'no error on record')})"
        )
    if job.misses:
        return f"handed back {counted(job.misses, 'time')}, because no worker of its queue knew its task"
    if job.crashes:
        return f"to be run again after {counted(job.crashes, 'lost worker')}"
    if job.attempt:
        return "snoozed by its handler"
    return ""


def _nobody(job: Job, around: Surroundings) -> str:
    return "" if _served(job, around) else f"; {_who_serves(job, around.workers)}"


def _served(job: Job, around: Surroundings) -> bool:
    return any(worker.alive and job.queue in worker.queues for worker in around.workers)


def _who_serves(job: Job, workers: Sequence[WorkerView]) -> str:
    serving = [worker for worker in workers if worker.alive and job.queue in worker.queues]
    if not serving:
        return f"no worker serves queue {job.queue!r}: start one with `onejob worker MODULE:APP --queues {job.queue}`"
    slots = sum(worker.concurrency for worker in serving)
    busy = sum(worker.running for worker in serving)
    return f"{len(serving)} worker(s) serve its queue, with {busy} of {slots} slots in use"


def _first_line(text: str) -> str:
    line = text.split("\n", 1)[0]
    return line if len(line) <= 200 else line[:199] + "…"
