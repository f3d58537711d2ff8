"""What an intake logs: a line per page, one per row for who wants to see them, and one per row that is no good, once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from onejob.core.judge import Answer, Outcome
from onejob.core.timing import as_datetime
from onejob.intake.rows import Newcomer
from onejob.intake.views import FailedRow, became_jobs
from onejob.logs import event

log: Final = logging.getLogger("onejob.keepers")
_BAD_ROW: Final = "intake.bad_row"
_MANY: Final = "intake.bad_rows"
BAD_ROWS: Final = frozenset({_BAD_ROW, _MANY})
"""The events that tell of rows that cannot become jobs."""


def page(
    intake: str, table: str, newcomers: Sequence[Newcomer], answers: Sequence[Answer], *, flagged: bool
) -> None:
    """Rows have been handed over."""
    if log.isEnabledFor(logging.DEBUG):
        for newcomer, answer in zip(newcomers, answers, strict=True):
            _row(intake, table, newcomer, answer, flagged=flagged)
    if answers:
        created = sum(answer.outcome is Outcome.CREATED for answer in answers)
        had = f", {len(answers) - created:,} had one already" if created < len(answers) else ""
        text = f"intake {intake}: {became_jobs(created, f' of {table}')}{had}"
        event(
            log,
            logging.INFO,
            "intake.page",
            text,
            intake=intake,
            table=table,
            taken=created,
            kept=len(answers) - created,
        )


def bad_row(intake: str, failure: FailedRow) -> None:
    """A row cannot become a job."""
    text = f"intake {intake}: row {failure.id} of {failure.table} cannot become a job: {failure.reason}"
    event(log, logging.WARNING, _BAD_ROW, text, intake=intake, table=failure.table, row=failure.id)


def many_bad_rows(intake: str, total: int, named: int) -> None:
    """There are more of those than anybody would read."""
    text = f"intake {intake}: {total:,} rows cannot become jobs; {named:,} of them were named"
    event(log, logging.WARNING, _MANY, text, intake=intake, failed=total)


def progress(intake: str, done: int, about: int | None) -> None:
    """A run goes on."""
    of = "" if about is None else f" of about {max(about, done):,}"
    event(
        log,
        logging.INFO,
        "intake.progress",
        f"intake {intake}: {done:,}{of} rows",
        intake=intake,
        done=done,
        about=about,
    )


def _row(intake: str, table: str, newcomer: Newcomer, answer: Answer, *, flagged: bool) -> None:
    due = as_datetime(newcomer.due).isoformat()
    marked = ", marked as scheduled" if flagged else ""
    if answer.outcome is Outcome.CREATED:
        name, what = "intake.scheduled", "became job"
    else:
        name, what = "intake.kept", "has job"
    event(
        log,
        logging.DEBUG,
        name,
        f"row {newcomer.id} of {table} {what} {answer.id} (key {newcomer.key}), due {due}{marked}",
        intake=intake,
        table=table,
        row=str(newcomer.id),
        job=answer.id,
        key=newcomer.key,
    )
