"""`onejob intake`: how the rows of an app's intakes stand, why one is or is not a job, taking them in, allowing one again."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

import click

from onejob.app import App
from onejob.cli.output import (
    ABSORBED,
    NothingMatched,
    emit,
    emit_json,
    emit_json_lines,
    emit_table,
    end,
    example,
    json_option,
    printable,
    say,
)
from onejob.cli.source import Source, app_option, refuse_options
from onejob.core.errors import OnejobError, shown
from onejob.hooks import headline
from onejob.intake.handle import Intake
from onejob.intake.journal import BAD_ROWS, log
from onejob.intake.views import Allowed, IntakeReport, IntakeStatus, Progress
from onejob.keys import near

STATUS_COLUMNS = ("intake", "table", "total", "scheduled", "pending", "due now")
REPORT_COLUMNS = ("intake", "table", "taken", "kept", "failed")
MOST_FAILURES = 20
"""How many bad rows are named."""


@click.group(invoke_without_command=True, epilog=example("onejob intake --app jobs:app"))
@app_option
@json_option
@click.pass_context
def intake(context: click.Context, target: str | None, as_json: bool) -> None:
    """Look after rows of your own tables that become jobs.

    Alone it is `intake status`.
    """
    if context.invoked_subcommand is None:
        context.invoke(status, target=target, name=None, as_json=as_json)
    else:
        refuse_options(context, "--app MODULE:APP")


@intake.command(epilog=example("onejob intake status --app jobs:app"))
@click.argument("name", required=False)
@app_option
@json_option
def status(target: str | None, name: str | None, as_json: bool) -> None:
    """Count the rows of all intakes, or of NAME, by table.

    Of those that are pending, the ones that are due now. Names the index that a table lacks. Exit code 1 if one of
    all is wrong; the others are counted nevertheless.
    """

    async def look(app: App) -> None:
        found: list[IntakeStatus] = []
        wrong: dict[str, Exception] = {}
        for one in _chosen(app, name):
            try:
                found.append(await one.astatus())
            except Exception as error:  # of ours, or of the database that has the rows
                if name is not None:
                    raise
                wrong[one.name] = error
        if as_json:
            emit_json_lines(one.as_dict() for one in found)
        else:
            emit_table(STATUS_COLUMNS, [row for one in found for row in _status_rows(one)])
            for one in found:
                _suggest(one)
        for failed, error in wrong.items():
            reason = str(error) if isinstance(error, OnejobError) else headline(error)
            say(f"Error: intake {failed}: {printable(reason)}")
        if wrong:
            end(1)

    _run(target, look)


@intake.command(epilog=example("onejob intake why sms 1 --app jobs:app"))
@click.argument("name")
@click.argument("id")
@app_option
@click.option("--table", help="The table, where there are several.")
@json_option
def why(target: str | None, name: str, id: str, table: str | None, as_json: bool) -> None:
    """Say why a row is or is not a job.

    NAME is the intake's, ID what the row has in its id column. Where several tables have that id, all of them
    answer.
    """

    async def ask(app: App) -> None:
        [one] = _chosen(app, name)
        for row in _readings(id):
            if told := await one.aexplain_rows(row, table=table):
                if as_json:
                    emit_json_lines(each.as_dict() for each in told)
                else:
                    emit("\n".join(printable(each) for each in told))
                return
        raise NothingMatched(_no_row(one, id, table))

    _run(target, ask)


@intake.command(epilog=example("onejob intake run --app jobs:app"))
@click.argument("name", required=False)
@app_option
@json_option
def run(target: str | None, name: str | None, as_json: bool) -> None:
    """Take in the rows that are due, of all intakes or of NAME.

    As any worker of the app does by itself. Exit code 1 if there were rows that cannot become jobs.
    """

    async def act(app: App) -> None:
        reports: list[IntakeReport] = []
        for one in _chosen(app, name):
            with _named_once(), _progress(one.name) as on_page:
                reports.append(await one.arun(on_page=on_page))
        if as_json:
            emit_json_lines(report.as_dict() for report in reports)
        else:
            emit_table(REPORT_COLUMNS, [row for report in reports for row in _report_rows(report)])
        for report in reports:
            _complain(report)
        if any(report.failed for report in reports):
            end(1)

    _run(target, act, may_create=True)


@intake.command(epilog=example("onejob intake allow sms 1 --app jobs:app"))
@click.argument("name")
@click.argument("id")
@app_option
@click.option("--table", help="The table, where there are several.")
@click.option("--force", is_flag=True, help="Even if its job has not ended.")
@json_option
def allow(target: str | None, *, name: str, id: str, table: str | None, force: bool, as_json: bool) -> None:
    """Let a row be scheduled again: clear its flag and its key.

    Exit code 4, and nothing is changed, while its job has not ended.
    """

    async def act(app: App) -> None:
        [one] = _chosen(app, name)
        outcome = Allowed.NOT_FOUND
        for row in _readings(id):
            outcome = await one.aallow(row, table=table, force=force)
            if outcome is not Allowed.NOT_FOUND:
                break
        if as_json:
            emit_json({"intake": name, "id": id, "outcome": outcome})
        match outcome:
            case Allowed.ALLOWED:
                if not as_json:
                    emit(f"allowed: row {printable(id)} will be taken in again")
            case Allowed.QUEUED:
                say(
                    f"Row {printable(id)} was left alone: its job has not ended. --force allows it all the same."
                )
                end(ABSORBED)
            case Allowed.NOT_FOUND:
                raise NothingMatched(_no_row(one, id, table))
            case _:
                assert_never(outcome)

    _run(target, act)


def _run(
    target: str | None, body: Callable[[App], Coroutine[Any, Any, None]], *, may_create: bool = False
) -> None:
    if target is None:
        raise click.UsageError("Intakes are in an app: give --app MODULE:APP, or set $ONEJOB_APP.")
    try:
        Source(target, None).run(body, may_create=may_create)
    except Exception as error:
        if not _is_databases(error):
            raise
        raise click.ClickException(printable(headline(error))) from error


def _is_databases(error: Exception) -> bool:
    """True if a database that has rows has raised it: without SQLAlchemy there is none."""
    exceptions = sys.modules.get("sqlalchemy.exc")
    return exceptions is not None and isinstance(error, exceptions.SQLAlchemyError)


def _chosen(app: App, name: str | None) -> Sequence[Intake]:
    """The intake of that name, or all."""
    if not app.intakes:
        raise NothingMatched("This app declares no intake: see app.intake(…).")
    if name is None:
        return list(app.intakes.values())
    if name not in app.intakes:
        hint = near(name, tuple(app.intakes))
        raise click.UsageError(f"This app has no intake {shown(name)}: {hint}")
    return [app.intakes[name]]


def _readings(id: str) -> list[int | str]:
    """What an id on the command line may mean, the likeliest first: a number, or a text that looks like one."""
    return [int(id), id] if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", id) else [id]


def _no_row(one: Intake, id: str, table: str | None) -> str:
    return (
        f"Intake {one.name!r} has no row {shown(id)}{'' if table is None else f' in table {shown(table)}'}."
    )


def _status_rows(one: IntakeStatus) -> list[tuple[object, ...]]:
    if not one.tables:
        return [(one.name, "", None, None, None, None)]
    return [
        (one.name, table.name, table.total, table.scheduled, table.pending, table.due) for table in one.tables
    ]


def _suggest(one: IntakeStatus) -> None:
    """Name the indexes that are missing, once for tables that differ by day only."""
    lacking = [table.index for table in one.tables if table.index is not None]
    if not lacking:
        return
    more = f"\n  and the same for {len(lacking) - 1} more" if len(lacking) > 1 else ""
    say(f"Intake {one.name} needs an index to find its rows quickly:\n  {printable(lacking[0])};{more}")


def _report_rows(report: IntakeReport) -> list[tuple[object, ...]]:
    return [(report.name, table.name, table.taken, table.kept, table.failed) for table in report.tables] or [
        (report.name, "", 0, 0, 0)
    ]


def _complain(report: IntakeReport) -> None:
    """Name some of the rows that cannot become jobs."""
    if not report.failures:
        return
    for row in report.failures[:MOST_FAILURES]:
        say(printable(f"Row {row.id} of {row.table} cannot become a job: {row.reason}"))
    if report.failed > MOST_FAILURES:
        say(f"and {report.failed - MOST_FAILURES:,} more")
    say(f"All there is to know about one: onejob intake why {report.name} {printable(report.failures[0].id)}")


@contextmanager
def _named_once() -> Generator[None]:
    """Keep Python from printing the log's lines about bad rows, if nobody has set up logging: they are listed below."""
    if log.hasHandlers():
        yield
        return
    log.addFilter(_is_no_bad_row)
    try:
        yield
    finally:
        log.removeFilter(_is_no_bad_row)


def _is_no_bad_row(record: logging.LogRecord) -> bool:
    return getattr(record, "event", None) not in BAD_ROWS


@contextmanager
def _progress(name: str) -> Generator[Callable[[Progress], None] | None]:
    """A progress bar on a terminal, once it takes more than a page."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"intake {name}", total=None, visible=False)
        yield lambda far: bar.update(task, completed=far.done, total=max(far.about, far.done), visible=True)
