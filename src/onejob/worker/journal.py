"""What a worker writes to the log: one line per event, with the job's fields."""

from __future__ import annotations

import logging
from typing import assert_never

from onejob.core.job import Claimed, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.logs import event
from onejob.store import Settled
from onejob.worker.failure import first_line, one_line
from onejob.worker.setup import log


def say(level: int, name: str, text: str, job: Claimed | None = None, /, **fields: object) -> None:
    """Log one event, with the fields of the job it is about, if any."""
    if job is not None:
        fields = {**_fields(job), **fields}
    event(log, level, name, text, **fields)


def note_start(job: Claimed, worker: WorkerId) -> None:
    """A job has been claimed and its handler will be called."""
    text = f"job {job.id} (task {job.task}) starts, attempt {job.attempt}"
    say(logging.DEBUG, "job.started", text, job, worker=worker)


def note_end(
    settlement: Settlement, settled: Settled, job: Claimed | None, reason: str | None = None
) -> None:
    """The store has answered for the end of an attempt; `job` is None for what was never known here.

    `reason` is what the store says of a chain that does not go on as asked.
    """
    move, error = settlement.move, one_line(settlement.error)
    subject = f"job {settlement.lease.id} (task {'?' if job is None else job.task})"
    match settled:
        case Settled.LOST:
            text = f"{subject} was lost: its lease had ended, so its outcome ({move}) was refused"
            level, name = logging.WARNING, "job.lost"
        case Settled.REVOKED:
            level, name, text = logging.INFO, "job.revoked", f"{subject} ended revoked"
        case Settled.DONE:
            level, name, text = _moved(settlement, subject, error)
        case Settled.DIVERGED:
            level, name, text = logging.ERROR, "job.diverged", f"{subject} completed, but {reason}"
        case Settled.REFUSED:
            level, name, text = logging.ERROR, "job.refused", f"{subject} cannot go on: {reason}"
        case _:
            assert_never(settled)
    known = {"job": settlement.lease.id} if job is None else _fields(job)
    event(
        log,
        level,
        name,
        text,
        **known,
        move=move.value,
        settled=settled.value,
        error=first_line(settlement.error) or None,
    )


def _moved(settlement: Settlement, subject: str, error: str) -> tuple[int, str, str]:
    wait = settlement.delay / 1000
    match settlement.move:
        case Move.COMPLETE:
            return logging.DEBUG, "job.completed", f"{subject} completed"
        case Move.RETRY:
            return logging.WARNING, "job.retrying", f"{subject} runs again in {wait:.1f} s: {error}"
        case Move.CRASH:
            return logging.ERROR, "job.crashed", f"{subject} runs again in {wait:.1f} s: {error}"
        case Move.FAIL | Move.PERISH | Move.SUCCUMB:
            return logging.ERROR, "job.failed", f"{subject} failed: {error}"
        case Move.MISS:
            return logging.WARNING, "job.missed", f"{subject} is not known to this worker; handed back"
        case Move.SNOOZE:
            return logging.INFO, "job.snoozed", f"{subject} runs again in {wait:.1f} s, as it asked"
        case Move.HAND_BACK:
            return logging.INFO, "job.handed_back", f"{subject} was handed back unfinished"
        case other:
            return logging.INFO, f"job.{other}", f"{subject}: {other}"


def _fields(claimed: Claimed) -> dict[str, object]:
    return {
        "job": claimed.id,
        "task": claimed.task,
        "queue": claimed.queue,
        "attempt": claimed.attempt,
        "key": claimed.key,
    }
