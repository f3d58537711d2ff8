"""`onejob dead`: dead letters of a queue, one by one or by error; retried or deleted together."""

from __future__ import annotations

from collections import Counter

import click

from onejob import bulk
from onejob.app import App
from onejob.cli.amend import DONE, SAMPLES, ask, progress, report, yes_option
from onejob.cli.output import (
    NothingMatched,
    emit_json_lines,
    emit_table,
    example,
    json_option,
    on_terminal,
    say,
)
from onejob.cli.source import Source, store_options
from onejob.cli.view import instant, job_data, moment
from onejob.core.job import Job
from onejob.explain import span
from onejob.store import Amended, Amendment

COLUMNS = ("id", "original", "from", "queue", "task", "buried", "error")


@click.command(
    epilog=example(
        "onejob dead default --by-error --url sqlite:///jobs.db",
        "onejob dead default --error TimeoutError --retry --yes --url sqlite:///jobs.db",
    )
)
@click.argument("queue", required=False)
@store_options
@click.option("--by-error", is_flag=True, help="Group them by the first line of their error.")
@click.option("--error", help="Only those whose error has this in it.")
@click.option(
    "--start",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="The first to list; 0 is the newest.",
)
@click.option("--stop", type=click.IntRange(1), help="The first not to list.  [default: 50 after the first]")
@click.option("--retry", "amendment", flag_value="retry", help="Run their originals again.")
@click.option("--delete", "amendment", flag_value="delete", help="Remove them; the originals stay failed.")
@yes_option
@json_option
def dead(
    source: Source,
    *,
    queue: str | None,
    by_error: bool,
    error: str | None,
    start: int,
    stop: int | None,
    amendment: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """List dead letters, retry or delete them.

    QUEUE is the queue in which the jobs failed; without it, all. With --retry or --delete, all of them are meant,
    not only those listed; shows them and asks.
    """
    if amendment is not None and (by_error or start or stop is not None):
        raise click.UsageError(
            "--retry and --delete are about all of them: leave --by-error, --start and --stop out."
        )
    if by_error and error is not None:
        raise click.UsageError("--by-error and --error exclude each other.")

    async def act(app: App) -> None:
        if amendment is not None:
            await _amend(app, queue, error, Amendment(amendment), yes=yes, as_json=as_json)
        elif by_error:
            await _by_error(app, queue, as_json)
        else:
            await _list(app, queue, error, (start, start + 50 if stop is None else stop), as_json)

    source.run(act)


async def _list(
    app: App, queue: str | None, error: str | None, places: tuple[int, int], as_json: bool
) -> None:
    found = _with_error(await app.adead(queue, *places), error)
    if not found:
        raise NothingMatched("There are no dead letters here.")
    if as_json:
        emit_json_lines(job_data(job) for job in found)
        return
    now = await app.store.time()
    emit_table(COLUMNS, [_row(job, now) for job in found])


async def _by_error(app: App, queue: str | None, as_json: bool) -> None:
    groups = await app.adead_errors(queue)
    if not groups:
        raise NothingMatched("There are no dead letters here.")
    if as_json:
        emit_json_lines(
            {
                "error": group.error,
                "count": group.count,
                "sample": group.sample,
                "first": instant(group.first),
                "last": instant(group.last),
            }
            for group in groups
        )
        return
    now = await app.store.time()

    def when(at: int) -> str | None:
        return moment(at, now) if on_terminal() else instant(at)

    emit_table(
        ("count", "error", "id", "first", "last"),
        [(group.count, group.error, group.sample, when(group.first), when(group.last)) for group in groups],
    )


async def _amend(
    app: App, queue: str | None, error: str | None, amendment: Amendment, *, yes: bool, as_json: bool
) -> None:
    everything: list[Job] = []
    while page := await app.adead(queue, len(everything), len(everything) + bulk.BATCH):
        everything += page
    letters = _with_error(everything, error)
    if not letters:
        raise NothingMatched("There are no dead letters here.")
    verb = "Retry" if amendment is Amendment.RETRY else "Delete"
    ask(verb, len(letters), letters[:SAMPLES], yes=yes, noun="dead letter")
    outcomes: Counter[Amended] = Counter()
    with progress(verb, len(letters)) as advance:
        for first in range(0, len(letters), bulk.BATCH):
            batch = letters[first : first + bulk.BATCH]
            outcomes.update(await app.store.amend([letter.id for letter in batch], amendment))
            advance(len(batch))
    if not DONE & outcomes.keys():
        say("Nothing was changed.")
    report(outcomes, as_json)


def _with_error(letters: list[Job], part: str | None) -> list[Job]:
    return [one for one in letters if part is None or part.lower() in (one.error or "").lower()]


def _row(job: Job, now: int) -> tuple[object, ...]:
    buried = f"{span(now - job.accepted)} ago" if on_terminal() else instant(job.accepted)
    error = (job.error or "").split("\n", 1)[0]
    return job.id, job.origin, job.origin_queue, job.queue, job.task, buried, error
