"""`onejob keys` and `onejob key release`: which keys are on record, and making one vacant."""

from __future__ import annotations

import click

from onejob.app import App
from onejob.cli.output import (
    NothingMatched,
    emit,
    emit_json,
    emit_json_lines,
    emit_table,
    example,
    json_option,
    on_terminal,
    printable,
)
from onejob.cli.source import Source, store_options
from onejob.cli.view import KEY_COLUMNS, key_data, key_row
from onejob.cli.why import find_keys
from onejob.core.errors import shown


@click.command(epilog=example("onejob keys --queue default --url sqlite:///jobs.db"))
@store_options
@click.option("--queue", help="Only those of this queue.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many."
)
@json_option
def keys(source: Source, queue: str | None, limit: int, as_json: bool) -> None:
    """List the keys on record, the most recently taken first."""

    async def look(app: App) -> None:
        found = await app.store.keys(queue, limit)
        if not found:
            raise NothingMatched("No key is on record.")
        now = await app.store.time()
        if as_json:
            emit_json_lines(key_data(key, now) for key in found)
        else:
            emit_table(KEY_COLUMNS, [key_row(key, now, for_people=on_terminal()) for key in found])

    source.run(look)


@click.group(epilog=example("onejob key release u1 --task send_welcome --url sqlite:///jobs.db"))
def key() -> None:
    """Change a key."""


@key.command(epilog=example("onejob key release u1 --task send_welcome --url sqlite:///jobs.db"))
@click.argument("text", metavar="KEY")
@store_options
@click.option("--task", required=True, help="The task of the key's holder; its module may be left out.")
@click.option("--queue", help="The key's queue, if several have it.")
@json_option
def release(source: Source, text: str, task: str, queue: str | None, as_json: bool) -> None:
    """Make a key vacant, so that the next call is created.

    Its holder lives on without it.
    """

    async def act(app: App) -> None:
        found = await find_keys(app, text, queue, task)
        if not found:
            raise NothingMatched(f"No key {shown(text)} of task {shown(task)} is on record: it is free.")
        if len(found) > 1:
            places = ", ".join(f"{one.task} in queue {one.queue}" for one in found)
            raise click.UsageError(
                f"Several keys read {shown(text)}: {places}. Say --queue, or the whole --task."
            )
        holder = await app.store.release(found[0].digest)
        if as_json:
            emit_json({"key": text, "task": found[0].task, "queue": found[0].queue, "holder": holder})
        else:
            emit(f'released: key "{printable(text)}" was held by {holder}')

    source.run(act)
