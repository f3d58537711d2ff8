"""`onejob dead`: dead letters of a queue, one by one or by error; retried or deleted together."""

from __future__ import annotations

import click

from onejob.app import App
from onejob.cli.amend import DONE, amend_matching, report, yes_option
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
from onejob.core.filter import JobFilter
from onejob.core.job import LIVE, Job, State
from onejob.core.options import check_name
from onejob.core.span import span
from onejob.operations import MAX_PLACE
from onejob.store import Amendment

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
    type=click.IntRange(0, MAX_PLACE),
    help="The first to list; 0 is the newest.",
)
@click.option(
    "--stop", type=click.IntRange(1, MAX_PLACE), help="The first not to list.  [default: 50 after the first]"
)
@click.option("--retry", is_flag=True, help="Run their originals again.")
@click.option("--delete", is_flag=True, help="Remove them; the originals stay failed.")
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
    retry: bool,
    delete: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """List dead letters, retry or delete them.

    QUEUE is the queue in which the jobs failed; without it, all. With --retry or --delete, all of them are meant,
    not only those listed; shows them and asks.
    """
    if retry and delete:
        raise click.UsageError("--retry and --delete exclude each other.")
    amendment = Amendment.RETRY if retry else Amendment.DELETE if delete else None
    if amendment is not None and (by_error or start or stop is not None):
        raise click.UsageError(
            "--retry and --delete are about all of them: leave --by-error, --start and --stop out."
        )
    if by_error and error is not None:
        raise click.UsageError("--by-error and --error exclude each other.")

    async def act(app: App) -> None:
        if amendment is not None:
            await _amend(app, queue, error, amendment, yes=yes, as_json=as_json)
        elif by_error:
            await _by_error(app, queue, as_json)
        else:
            await _list(app, queue, error, (start, start + 50 if stop is None else stop), as_json)

    source.run(act)


async def _list(
    app: App, queue: str | None, error: str | None, places: tuple[int, int], as_json: bool
) -> None:
    if error:
        # In the order of `dead`, of which they are a part: the places are counted among them.
        start, stop = places
        found = (await app.store.jobs(_letters(queue, error), stop)).jobs[start:]
    else:
        found = await app.adead(queue, *places)
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
    outcomes = await amend_matching(app, _letters(queue, error), amendment, yes=yes, noun="dead letter")
    if outcomes is None:
        raise NothingMatched("There are no dead letters here.")
    if not DONE & outcomes.keys():
        say("Nothing was changed.")
    report(outcomes, as_json)


def _letters(queue: str | None, error: str | None) -> JobFilter:
    """The dead letters that nobody has dealt with."""
    return JobFilter(
        origins=frozenset({"*" if queue is None else check_name("Queue", queue)}),
        states=LIVE | {State.FAILED},
        errors=frozenset({error}) if error else None,
    )


def _row(job: Job, now: int) -> tuple[object, ...]:
    buried = f"{span(now - job.accepted)} ago" if on_terminal() else instant(job.accepted)
    error = (job.error or "").split("\n", 1)[0]
    return job.id, job.origin, job.origin_queue, job.queue, job.task, buried, error
