"""`onejob lanes`: which lanes are in use, how full they are, and whose turn is next."""

from __future__ import annotations

import click

from onejob.app import App
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
from onejob.cli.view import LANE_COLUMNS, lane_data, lane_row


@click.command(epilog=example("onejob lanes --queue default --url sqlite:///jobs.db"))
@store_options
@click.option("--queue", help="Only those of this queue.")
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many."
)
@json_option
def lanes(source: Source, queue: str | None, limit: int, as_json: bool) -> None:
    """List the lanes in use, by queue and key.

    Slots taken of those there are, jobs ready for their turn, the rate and when it next lets a job start, and
    the job whose turn is next. The jobs of one: onejob jobs lane:user:42
    """

    async def look(app: App) -> None:
        found = await app.alanes(queue, limit=limit + 1)
        if not found:
            raise NothingMatched("No lane is in use.")
        if as_json:
            emit_json_lines(lane_data(lane) for lane in found[:limit])
        else:
            now = await app.store.time()
            rows = [lane_row(lane, now, for_people=on_terminal()) for lane in found[:limit]]
            emit_table(LANE_COLUMNS, rows)
        if len(found) > limit:
            say("There are more: raise --limit, or name a --queue.")

    source.run(look)
