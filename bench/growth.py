"""What an enqueue, a claim and a settlement cost when the store is small and when it is large, batch by batch in turn."""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from bench.engines import Engine, Filling
from bench.figures import OURS, Samples
from bench.jobs import KEY, Jobs, arguments, define
from onejob import Lane
from onejob.core.job import NewJob, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.ids import new_ids
from onejob.store import Ask

T = TypeVar("T")
OPERATIONS = ("enqueue", "claim", "settle")
BATCH = 100
WARMING_UP = 5
_ASK = Ask(WorkerId("bench"), ("default",), BATCH)
_numbers = count()


@dataclass(frozen=True, slots=True)
class Growth:
    """Measures in copies of stores that were filled once, in `home`."""

    engine: Engine
    filling: Filling
    home: Path
    sizes: tuple[int, ...]
    batches: int

    def __call__(self, folder: Path) -> Samples:
        """Microseconds per job of each operation, at the largest size as ours, beside the smaller ones."""
        copies = [folder / str(size) for size in self.sizes]
        for size, copy in zip(self.sizes, copies, strict=True):
            copy.mkdir()
            self.engine.copy(filled(self.engine, self.home, size, self.filling), copy)
        os.sync()
        try:
            costs = self.engine.run(self._costs(folder))
        finally:
            for copy in copies:
                self.engine.forget(copy)
        found = {
            (line_key(self.filling, operation), size_name(size)): cost
            for (operation, size), cost in costs.items()
        }
        judged = {
            (line_key(self.filling, operation), OURS): costs[operation, self.sizes[-1]]
            for operation in OPERATIONS
        }
        return {**found, **judged}

    async def _costs(self, folder: Path) -> dict[tuple[str, int], float]:
        stores = {size: define(self.engine.url(folder / str(size))) for size in self.sizes}
        spent: defaultdict[tuple[str, int], float] = defaultdict(float)
        for number in range(WARMING_UP + self.batches):
            for size, jobs in stores.items():
                if number == WARMING_UP:
                    spent.update({(operation, size): 0.0 for operation in OPERATIONS})
                await one_batch(
                    jobs,
                    self._sender(jobs),
                    lambda operation, taken, size=size: _add(spent, operation, size, taken),
                )
        for jobs in stores.values():
            await jobs.app.aclose()
        return {of: 1e6 * taken / (self.batches * BATCH) for of, taken in spent.items()}

    def _sender(self, jobs: Jobs) -> Any:
        match self.filling:
            case Filling.KEYS:
                return jobs.unique
            case Filling.LANES | Filling.PARKED:
                return jobs.nothing.using(lane=Lane(by=KEY))
            case _:
                return jobs.nothing


def filled(engine: Engine, home: Path, size: int, *fillings: Filling) -> Path:
    """A store that is to be copied, never used: made once, and kept for later runs."""
    folder = home / "-".join([*fillings, str(size)])
    whole = folder / "whole"
    if not whole.exists():
        engine.forget(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for filling in fillings:
            engine.fill(folder, filling, size)
        whole.touch()
    return folder


async def one_batch(jobs: Jobs, sender: Any, note: Callable[[str, float], None]) -> None:
    """As many in as out, so that the size stays what it is."""
    store = jobs.app.store
    await _timed(store.enqueue(_new_jobs(sender)), lambda taken: note("enqueue", taken))
    claims = await _timed(store.claim(_ASK), lambda taken: note("claim", taken))
    if len(claims.jobs) != BATCH:
        raise RuntimeError(f"a claim of {BATCH} jobs brought {len(claims.jobs)}")
    done = [Settlement(job.lease, Move.COMPLETE) for job in claims.jobs]
    await _timed(store.settle(done), lambda taken: note("settle", taken))


def line_key(filling: Filling, operation: str) -> str:
    """The line that an operation's cost belongs to."""
    return f"{filling}-{operation}"


def size_name(size: int) -> str:
    """Whose figure it is. That of the largest store is ours as well: it is what we are judged by."""
    return f"{size:,}"


def _add(spent: defaultdict[tuple[str, int], float], operation: str, size: int, taken: float) -> None:
    spent[operation, size] += taken


async def _timed(operation: Awaitable[T], note: Callable[[float], None]) -> T:
    started = time.perf_counter()
    result = await operation
    note(time.perf_counter() - started)
    return result


def _new_jobs(sender: Any) -> list[NewJob]:
    planner = sender.planner
    made = [
        sender.job(**arguments(number, f"new-{number}"))
        for _, number in zip(range(BATCH), _numbers, strict=False)
    ]
    return [planner.new_job(call, id, None, int) for call, id in zip(made, new_ids(BATCH), strict=True)]
