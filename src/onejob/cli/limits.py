"""`onejob limits`, `pause` and `resume`: what holds for a whole queue, over all workers and from now on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

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
    say,
)
from onejob.cli.rates import rate_option
from onejob.cli.source import Source, store_options
from onejob.cli.view import LIMITS_COLUMNS, limits_data, limits_row, limits_text
from onejob.core.job import State
from onejob.core.lane import MAX_CONCURRENCY, QueueChange, QueueLimits, Rate
from onejob.core.options import check_name
from onejob.keys import near

Counts: TypeAlias = Mapping[str, Mapping[State, int]]
"""Jobs by queue and state."""


@click.command(
    epilog=example(
        "onejob limits --url sqlite:///jobs.db",
        "onejob limits mail --concurrency 20 --rate 500/60s --url sqlite:///jobs.db",
    )
)
@click.argument("queue", required=False)
@store_options
@click.option(
    "--concurrency",
    type=click.IntRange(0, MAX_CONCURRENCY),
    help="Let so many of its jobs run at a time, over all workers; 0 removes the limit.",
)
@rate_option("Let so many of its jobs start in any such time: 10/60s, 500/min, 5/1h.")
@click.option("--no-rate", is_flag=True, help="Remove the limit on its starts.")
@json_option
def limits(
    source: Source,
    *,
    queue: str | None,
    concurrency: int | None,
    rate: Rate | None,
    no_rate: bool,
    as_json: bool,
) -> None:
    """Show or set the limits of queues.

    Without options, those of QUEUE, or of every queue that has any or is paused. With options, sets them: workers
    obey from their next job on, and what runs already goes on.
    """
    if rate is not None and no_rate:
        raise click.UsageError("--rate and --no-rate exclude each other.")
    change = QueueChange(concurrency=concurrency, rate=rate, remove_rate=no_rate)
    if change != QueueChange() and queue is None:
        raise click.UsageError(
            "Limits belong to a queue: say which, as in onejob limits mail --concurrency 20."
        )

    async def act(app: App) -> None:
        if queue is None:
            await _show_all(app, as_json)
        elif change == QueueChange():
            await _show_one(app, check_name("Queue", queue), as_json)
        else:
            now = await app.store.set_queue(check_name("Queue", queue), change)
            await _tell(app, queue, now, f"{queue}: {limits_text(now) or 'no limits'}", as_json)

    source.run(act)


@click.command(epilog=example("onejob pause mail --url sqlite:///jobs.db"))
@click.argument("queue")
@store_options
@json_option
def pause(source: Source, queue: str, as_json: bool) -> None:
    """Let no job of a queue start.

    For all workers, until onejob resume. Jobs can still be enqueued, and those that run go on.
    """

    async def act(app: App) -> None:
        handle = app.queue(queue)
        already = (await handle.alimits()).paused
        now = await handle.apause()
        await _tell(app, queue, now, f"{queue}: {'was paused already' if already else 'paused'}", as_json)

    source.run(act)


@click.command(epilog=example("onejob resume mail --url sqlite:///jobs.db"))
@click.argument("queue")
@store_options
@json_option
def resume(source: Source, queue: str, as_json: bool) -> None:
    """Let the jobs of a paused queue start again."""

    async def act(app: App) -> None:
        handle = app.queue(queue)
        paused = (await handle.alimits()).paused
        if not paused and (doubt := await _doubt(app, queue, await app.acounts())):
            raise NothingMatched(doubt)
        now = await handle.aresume()
        await _tell(app, queue, now, f"{queue}: {'resumed' if paused else 'was not paused'}", as_json)

    source.run(act)


async def _show_all(app: App, as_json: bool) -> None:
    found = await app.alimits()
    if not found:
        raise NothingMatched("No queue has limits, and none is paused.")
    _show(found, await app.acounts(), as_json)


async def _show_one(app: App, queue: str, as_json: bool) -> None:
    found, counts = (await app.alimits()).get(queue), await app.acounts()
    if found is None and (doubt := await _doubt(app, queue, counts)):
        raise NothingMatched(doubt)
    _show({queue: found or QueueLimits()}, counts, as_json)


def _show(found: Mapping[str, QueueLimits], counts: Counts, as_json: bool) -> None:
    if as_json:
        emit_json_lines(_data(queue, one, counts) for queue, one in sorted(found.items()))
        return
    rows = [limits_row(queue, one, _running(queue, counts)) for queue, one in sorted(found.items())]
    emit_table(LIMITS_COLUMNS, rows)


async def _tell(app: App, queue: str, now: QueueLimits, sentence: str, as_json: bool) -> None:
    """Say what was set, and warn who may have mistyped the queue: it holds all the same, and jobs may come."""
    counts = await app.acounts()
    if as_json:
        emit_json(_data(queue, now, counts))
    else:
        states = counts.get(queue, {})
        ready = states.get(State.WAITING, 0) + states.get(State.PARKED, 0)
        emit(f"{sentence}; {ready} ready to start, {_running(queue, counts)} running")
    if doubt := await _doubt(app, queue, counts):
        say(doubt)


def _data(queue: str, limits: QueueLimits, counts: Counts) -> dict[str, Any]:
    return {"queue": queue, **limits_data(limits), "running": _running(queue, counts)}


def _running(queue: str, counts: Counts) -> int:
    return counts.get(queue, {}).get(State.RUNNING, 0)


async def _doubt(app: App, queue: str, counts: Counts) -> str | None:
    """What to say of a queue that has no jobs, no workers and no tasks, as far as we can see."""
    served = {name for worker in await app.store.workers() for name in worker.queues}
    known = {*counts, *served, *(task.queue for task in app.tasks.values())}
    if queue in known:
        return None
    hint = near(queue, sorted(known), otherwise="")
    return f"No job, worker or task of queue {queue!r} is known here{f': {hint}' if hint else '.'}"
