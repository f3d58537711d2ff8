"""What is wrong, in words: with a store itself, which it says, and with what is going on in it, judged here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from onejob.core.errors import MissingDriver, OnejobError
from onejob.core.filter import JobFilter
from onejob.core.job import State
from onejob.core.lane import QueueLimits
from onejob.core.span import counted, span
from onejob.store import Finding, JobStore, Level, WorkerView

if TYPE_CHECKING:
    from onejob.intake.handle import Intake

STALE: Final = 24 * 3_600_000
"""Milliseconds after which a failed job that nobody dealt with is an old one."""
MANY: Final = 100
"""Old failed jobs that are a pile."""
GRACE: Final = 5_000
"""Milliseconds in which a worker may still be on its way."""
PATIENCE: Final = 60_000
"""Milliseconds that a job may wait, or a dead worker's job lie, before it is worth a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is going on in a store at one moment."""

    now: int
    waiting_since: Mapping[str, int]
    workers: Sequence[WorkerView]
    old_failed: int
    limits: Mapping[str, QueueLimits] = field(default_factory=dict[str, QueueLimits])
    running: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many jobs of each queue run."""
    parked: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many jobs of each queue are parked."""
    due: Mapping[str, int] = field(default_factory=dict[str, int])
    """When each schedule that is not paused is due next."""


async def diagnose(store: JobStore) -> list[Finding]:
    """Everything that is wrong, the worst first; nothing if all is well. Changes nothing."""
    try:
        findings = await store.checkup()
    except MissingDriver as error:
        return [
            Finding(
                Level.ERROR,
                "not_installed",
                f"The store cannot be looked into: {error}",
                f"{error.remedy}",
                blocking=True,
            )
        ]
    if any(finding.blocking for finding in findings):
        return findings
    old = JobFilter(states=frozenset({State.FAILED}), ended=STALE)
    counts = await store.counts()
    facts = Facts(
        now=await store.time(),
        waiting_since=await store.waiting_since(),
        workers=await store.workers(),
        old_failed=await store.count(old),
        limits=await store.limits(),
        running={queue: jobs.get(State.RUNNING, 0) for queue, jobs in counts.items()},
        parked={queue: jobs.get(State.PARKED, 0) for queue, jobs in counts.items()},
        due={schedule.id: schedule.next for schedule in await store.schedules() if not schedule.paused},
    )
    return sorted([*findings, *judged(facts)], key=lambda finding: finding.level is not Level.ERROR)


async def diagnose_intakes(intakes: Iterable[Intake]) -> list[Finding]:
    """The intakes that cannot take rows in, as a table is missing or not as they need it."""
    findings: list[Finding] = []
    for intake in intakes:
        try:
            await intake.acheck()
        except Exception as error:
            why = str(error) if isinstance(error, OnejobError) else f"{type(error).__name__}: {error}"
            why = why.split("\n", 1)[0].rstrip(".") + "."
            findings.append(
                Finding(
                    Level.ERROR,
                    "intake",
                    f"Intake {intake.name!r} takes no rows in: {why}",
                    "Make the table, or correct the intake; onejob intake status shows when it works.",
                )
            )
    return findings


def judged(facts: Facts) -> Iterator[Finding]:
    """What the facts say is wrong."""
    served = {queue for worker in facts.workers if worker.alive for queue in worker.queues}
    for queue, parked in sorted(facts.parked.items()):
        # Only claims let jobs into lanes: without a worker, even a free slot stays free.
        if parked and queue not in served and queue not in facts.waiting_since:
            yield _unserved(queue, f"Queue {queue!r} holds {counted(parked, 'parked job')}")
    for queue, since in sorted(facts.waiting_since.items()):
        if queue not in served:
            waited = facts.now - since
            level = Level.ERROR if waited > GRACE else Level.WARNING
            yield _unserved(queue, f"Jobs have been waiting in queue {queue!r} for {span(waited)}", level)
        limits = facts.limits.get(queue, QueueLimits())
        if limits.paused:
            yield Finding(
                Level.WARNING,
                "paused",
                f"Queue {queue!r} is paused, and jobs have been waiting in it for {span(facts.now - since)}.",
                f"When they may run again: onejob resume {queue}",
            )
        elif queue in served and facts.now - since > PATIENCE:
            yield _slow(queue, facts.now - since, limits, facts.running.get(queue, 0))
    rescuers = any(worker.alive for worker in facts.workers)
    for worker in facts.workers:
        silent = facts.now - worker.seen
        if not worker.alive and worker.running and (silent > PATIENCE or not rescuers):
            yield Finding(
                Level.ERROR,
                "not_rescued",
                f"Worker {worker.id} was last seen {span(silent)} ago, and {worker.running} job(s) it ran have "
                "not been rescued.",
                "Start a worker of any queue: it rescues them." if not rescuers else "See the workers' logs.",
            )
    if facts.due:
        yield from _on_schedules(facts, ticking=rescuers)
    if facts.old_failed >= MANY:
        yield Finding(
            Level.WARNING,
            "failed",
            f"{facts.old_failed} jobs failed more than {span(STALE)} ago and nobody has dealt with them.",
            "Look with onejob jobs state:failed; then onejob retry, delete or prune.",
        )


def _on_schedules(facts: Facts, *, ticking: bool) -> Iterator[Finding]:
    """Any live worker fires whatever is due."""
    late = [(facts.now - due, id) for id, due in facts.due.items() if facts.now - due > PATIENCE]
    what = f"{len(facts.due)} schedule(s) are on record"
    if late:
        longest, id = max(late)
        what = f"{len(late)} schedule(s) are overdue, {id!r} by {span(longest)}"
    if not ticking:
        yield Finding(
            Level.ERROR if late else Level.WARNING,
            "unticked",
            f"{what}, and no live worker is there to fire them.",
            "Start a worker of any queue: onejob worker MODULE:APP",
        )
    elif late:
        yield Finding(
            Level.ERROR,
            "late",
            f"{what}, though workers are alive.",
            "Look at them with onejob schedules, and into the workers' logs.",
        )


def _unserved(queue: str, what: str, level: Level = Level.ERROR) -> Finding:
    return Finding(
        level,
        "unserved",
        f"{what}, and no live worker serves it.",
        f"Start one: onejob worker MODULE:APP --queues {queue}",
    )


def _slow(queue: str, waited: int, limits: QueueLimits, running: int) -> Finding:
    what = f"The longest waiting job of queue {queue!r} has been due for {span(waited)}"
    if limits.concurrency is not None and running >= limits.concurrency:
        what += f", and the queue's limit of {limits.concurrency} at a time is full"
        remedy = f"Raise it if so many may run: onejob limits {queue} --concurrency {limits.concurrency * 2}"
    elif limits.rate is not None:
        what += f", and the queue starts at most {limits.rate}"
        remedy = f"Raise or remove that if more may start: onejob limits {queue} --no-rate"
    else:
        remedy = "See what its workers do with onejob top; raise --concurrency or start more of them."
    return Finding(Level.WARNING, "slow", f"{what}.", remedy)
