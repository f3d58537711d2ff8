"""`onejob top`: queues, workers and running jobs, looked at again every second."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import click

from onejob.app import App
from onejob.cli import status
from onejob.cli.output import Seconds, emit_json, example, json_option, on_terminal, table
from onejob.cli.source import Source, store_options
from onejob.cli.view import WORKER_COLUMNS
from onejob.core.filter import JobFilter
from onejob.core.job import ENDED, Job, State
from onejob.core.span import span

RUNNING_COLUMNS = ("id", "task", "queue", "key", "lane", "attempt", "for", "worker")
MOST_RUNNING = 15


@click.command(epilog=example("onejob top --url sqlite:///jobs.db"))
@store_options
@click.option("--every", default=1.0, show_default=True, type=Seconds(0.1, 60), help="Seconds between looks.")
@json_option
def top(source: Source, every: float, as_json: bool) -> None:
    """Watch queues, workers and running jobs.

    q or Ctrl-C ends it. Without a terminal, or with --json, it looks once, as onejob status does.
    """
    if as_json or not on_terminal():
        snapshot = source.run(status.take)
        emit_json(snapshot.data()) if as_json else status.show(snapshot)
        return

    async def watch(app: App) -> None:
        await _watch(app, every)

    try:
        source.run(watch)
    except KeyboardInterrupt:
        pass  # the usual way to end it


async def _watch(app: App, every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    ended = asyncio.Event()
    before: status.Snapshot | None = None
    with _key_presses(ended), Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
        while not ended.is_set():
            now = await status.take(app)
            running = await app.store.jobs(JobFilter(states=frozenset({State.RUNNING})), MOST_RUNNING)
            live.update(picture(now, before, running.jobs), refresh=True)
            before = now
            try:
                async with asyncio.timeout(every):
                    await ended.wait()
            except TimeoutError:
                pass


def picture(now: status.Snapshot, before: status.Snapshot | None, running: list[Job]) -> Any:
    """What the screen shows."""
    from rich.console import Group
    from rich.text import Text

    head = f"{now.url}   {_rate(now, before)}   q ends"
    parts: list[Any] = [Text(head), table(status.QUEUE_COLUMNS, now.queue_rows(), "queues")]
    parts.append(table(WORKER_COLUMNS, now.worker_rows(), "workers") if now.workers else Text("no workers"))
    if running:
        rows = [
            (job.id, job.task, job.queue, job.key, job.lane, job.attempt, _since(job, now.now), job.worker)
            for job in running
        ]
        parts.append(table(RUNNING_COLUMNS, rows, "running"))
    return Group(*parts)


def _since(job: Job, now: int) -> str:
    return "" if job.started is None else span(max(0, now - job.started))


def _rate(now: status.Snapshot, before: status.Snapshot | None) -> str:
    """Jobs that ended per second since the last look."""
    if before is None or now.now <= before.now:
        return ""
    # Pruning between two looks takes away from the count: then nothing can be said.
    more = _ended(now) - _ended(before)
    return "" if more < 0 else f"{more * 1000 / (now.now - before.now):.1f} jobs/s"


def _ended(snapshot: status.Snapshot) -> int:
    return sum(n for states in snapshot.counts.values() for state, n in states.items() if state in ENDED)


@contextmanager
def _key_presses(ended: asyncio.Event) -> Generator[None]:
    """Set the event when q is pressed; Ctrl-C stays a signal."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    modes = termios.tcgetattr(terminal)

    def read() -> None:
        pressed = sys.stdin.read(1)
        if pressed in ("q", "Q", "\x04", ""):
            ended.set()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, modes)
