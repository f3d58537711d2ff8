"""`onejob jobs` and `onejob job`: which jobs there are, and all about one."""

from __future__ import annotations

import click

from onejob.app import App
from onejob.cli.choice import find_job
from onejob.cli.output import (
    NothingMatched,
    emit,
    emit_fields,
    emit_json,
    emit_json_lines,
    emit_table,
    example,
    json_option,
    on_terminal,
    say,
)
from onejob.cli.source import Source, store_options
from onejob.cli.view import JOB_COLUMNS, job_data, job_fields, job_row
from onejob.core.filter import parse


@click.command(
    epilog=example(
        "onejob jobs 'state:failed task:send_welcome args.user:u1 older:1h' --url sqlite:///jobs.db",
        "onejob jobs state:live --json --url sqlite:///jobs.db",
    )
)
@click.argument("terms", nargs=-1, metavar="[FILTER]")
@store_options
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many."
)
@click.option("--cursor", help="Where a page before has ended.")
@click.option("--count", "only_count", is_flag=True, help="Print how many match, and nothing else.")
@json_option
def jobs(
    source: Source, *, terms: tuple[str, ...], limit: int, cursor: str | None, only_count: bool, as_json: bool
) -> None:
    """List the jobs that a filter matches, newest first.

    FILTER is made of terms that must all match: state:failed,revoked task:sync queue:mail origin:mail key:user/7
    lane:user:42 chain:0198ab id:0198ab schedule:daily error:timeout args.user_id:7 older:1h newer:10m ended:2d.
    Commas separate alternatives; quotes hold a value with spaces together. Without a filter, all jobs.
    """
    wanted = parse(" ".join(terms))

    async def look(app: App) -> None:
        if only_count:
            number = await app.acount(wanted)
            emit_json({"count": number}) if as_json else emit(str(number))
            return
        page = await app.ajobs(wanted, limit=limit, cursor=cursor)
        if not page.jobs:
            raise NothingMatched("No job matches.")
        if as_json:
            emit_json_lines(job_data(job) for job in page.jobs)
        else:
            now = await app.store.time()
            emit_table(JOB_COLUMNS, [job_row(job, now, for_people=on_terminal()) for job in page.jobs])
        if page.cursor is not None:
            say(f"There are more: --cursor {page.cursor}")

    source.run(look)


@click.command(epilog=example("onejob job 0198f3ab --url sqlite:///jobs.db"))
@click.argument("id")
@store_options
@json_option
def job(source: Source, id: str, as_json: bool) -> None:
    """Show all there is to know about a job.

    ID may be cut short, to six characters or more, as long as it means one job only.
    """

    async def look(app: App) -> None:
        found = await find_job(app.store, id)
        if as_json:
            emit_json(job_data(found))
        else:
            last, now = await app.store.last(found.id), await app.store.time()
            emit_fields(job_fields(found, last, now, for_people=on_terminal()))

    source.run(look)
