"""`onejob status`: jobs by queue and state, how long they wait, the queues' limits, and who runs the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from onejob.app import App
from onejob.cli.output import emit, emit_json, emit_table, example, json_option, on_terminal, printable, say
from onejob.cli.rates import rate_text
from onejob.cli.source import Source, store_options
from onejob.cli.view import WORKER_COLUMNS, limits_data, limits_text, worker_data, worker_row
from onejob.core.job import State
from onejob.core.lane import QueueLimits
from onejob.core.span import span
from onejob.store import WorkerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A store at one moment."""

    url: str
    now: int
    counts: Mapping[str, Mapping[State, int]]
    waiting_since: Mapping[str, int]
    limits: Mapping[str, QueueLimits]
    workers: Sequence[WorkerView]

    def data(self) -> dict[str, Any]:
        """All of it as plain data; waits in seconds."""
        return {
            "url": self.url,
            "queues": {
                queue: {
                    "counts": {state: states.get(state, 0) for state in State},
                    "longest_wait": self.longest_wait(queue),
                    "limits": limits_data(self.limits.get(queue, QueueLimits())),
                }
                for queue, states in self.queues()
            },
            "workers": [worker_data(worker) for worker in self.workers],
        }

    def queues(self) -> list[tuple[str, Mapping[State, int]]]:
        """The jobs by state of each queue that has jobs, or limits; by name."""
        names = sorted(self.counts.keys() | self.limits.keys())
        return [(name, self.counts.get(name, {})) for name in names]

    def longest_wait(self, queue: str) -> float | None:
        """Seconds that the longest waiting job of a queue has been due."""
        since = self.waiting_since.get(queue)
        return None if since is None else max(0, self.now - since) / 1000

    def queue_rows(self) -> list[tuple[object, ...]]:
        """A line per queue, for people."""
        return [
            (queue, *(states.get(state, "") for state in State), self._wait(queue), self._limits(queue))
            for queue, states in self.queues()
        ]

    def worker_rows(self) -> list[tuple[object, ...]]:
        """A line per worker, for people."""
        return [worker_row(worker, self.now, for_people=True) for worker in self.workers]

    def _wait(self, queue: str) -> str:
        since = self.waiting_since.get(queue)
        return "" if since is None else span(max(0, self.now - since))

    def _limits(self, queue: str) -> str:
        return limits_text(self.limits.get(queue, QueueLimits()))


QUEUE_COLUMNS = ("queue", *(str(state) for state in State), "longest wait", "limits")


async def take(app: App) -> Snapshot:
    """Look at the store."""
    store = app.store
    return Snapshot(
        url=app.url,
        now=await store.time(),
        counts=await store.counts(),
        waiting_since=await store.waiting_since(),
        limits=await store.limits(),
        workers=await store.workers(),
    )


def show(snapshot: Snapshot) -> None:
    """Print a snapshot: as tables on a terminal, else in lines that begin with what they are about."""
    if on_terminal():
        say(snapshot.url)
        emit_table(QUEUE_COLUMNS, snapshot.queue_rows())
        if snapshot.workers:
            emit_table(WORKER_COLUMNS, snapshot.worker_rows())
        else:
            say("No worker is on record.")
        return
    for queue, states in snapshot.queues():
        for state, count in states.items():
            emit(f"jobs\t{queue}\t{state}\t{count}")
        wait = snapshot.longest_wait(queue)
        if wait is not None:
            emit(f"longest_wait\t{queue}\t{wait:.3f}")
        if queue in snapshot.limits:
            limits = snapshot.limits[queue]
            cells = (queue, limits.concurrency, rate_text(limits.rate), "paused" if limits.paused else "")
            emit("limits\t" + "\t".join(printable(cell) for cell in cells))
    for worker in snapshot.workers:
        cells = worker_row(worker, snapshot.now, for_people=False)
        emit("worker\t" + "\t".join(printable(cell) for cell in cells))


@click.command(epilog=example("onejob status --url sqlite:///jobs.db"))
@store_options
@json_option
def status(source: Source, as_json: bool) -> None:
    """Show how many jobs there are, and who runs them."""
    snapshot = source.run(take)
    if as_json:
        emit_json(snapshot.data())
    else:
        show(snapshot)
