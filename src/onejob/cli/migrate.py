"""`onejob migrate`: makes a store's tables or brings them up to date, says which steps are missing, or prints them as SQL."""

from __future__ import annotations

import click

from onejob.app import App
from onejob.cli.output import emit, emit_json, end, example, json_option, say
from onejob.cli.source import Source, store_options
from onejob.store import Migration


@click.command(epilog=example("onejob migrate --url sqlite:///jobs.db"))
@store_options
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 if steps are missing.")
@click.option("--sql", "as_sql", is_flag=True, help="Change nothing; print the steps as SQL.")
@json_option
def migrate(source: Source, check: bool, as_sql: bool, as_json: bool) -> None:
    """Make a store's tables, or bring them up to date.

    Prints a line for each step that was missing. The first enqueue or worker does the same, unless the URL says
    migrate=never. Steps never take anything away that a worker of the version before still needs. PostgreSQL users who
    let nobody but themselves change tables apply what --sql prints.
    """
    if as_sql and (check or as_json):
        raise click.UsageError("--sql prints a script and goes with neither --check nor --json.")

    async def act(app: App) -> None:
        if as_sql:
            script = await app.store.migration_script()
            emit(script.rstrip()) if script else say(f"{app.url} is up to date.")
            return
        steps = await app.store.migrations()
        missing = [step.name for step in steps if not step.applied]
        if not check and (missing or not steps):  # a store without tables is made all the same
            await app.store.migrate()
            steps = [Migration(step.name, True) for step in steps]
        _tell(app, steps, missing, checked=check, as_json=as_json)
        if missing and check:
            end(1)

    source.run(act, may_create=True)


def _tell(app: App, steps: list[Migration], missing: list[str], *, checked: bool, as_json: bool) -> None:
    word = "missing" if checked else "applied"
    if as_json:
        emit_json({"url": app.url, "schema": sum(step.applied for step in steps), word: missing})
        return
    for name in missing:
        emit(f"{word}\t{name}")
    if not missing:
        say(f"{app.url} is up to date.")
    elif checked:
        say("Run `onejob migrate` without --check to apply them.")
