"""What lanes and limits cost a worker that drains a queue, and what a crowded lane costs the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.engines import Engine, Filling
from bench.working import drain
from onejob import Lane, Rate
from onejob.queue_handle import QueueHandle

LANES = 200
CONCURRENCY = 100
AMPLE = Rate(10_000, per=0.5)
"""A rate that is counted, and never in the way."""


@dataclass(frozen=True, slots=True)
class Drains:
    """Drains of the same jobs, each in a fresh store; jobs per second."""

    engine: Engine
    count: int

    def without(self, folder: Path) -> float:
        """No lanes."""
        return drain(self.engine, folder, self.count, CONCURRENCY)

    def ordered(self, folder: Path) -> float:
        """One at a time."""
        return drain(self.engine, folder, self.count, CONCURRENCY, lane)

    def wide(self, folder: Path) -> float:
        """Three at a time."""
        lanes = [Lane(_key(number), concurrency=3) for number in range(LANES)]
        return drain(self.engine, folder, self.count, CONCURRENCY, lambda number: lanes[number % LANES])

    def rated(self, folder: Path) -> float:
        """One at a time, and each lane with a rate."""
        lanes = [Lane(_key(number), rate=AMPLE) for number in range(LANES)]
        return drain(self.engine, folder, self.count, CONCURRENCY, lambda number: lanes[number % LANES])

    def limited(self, folder: Path) -> float:
        """No lanes, but limits of the queue."""

        def limit(queue: QueueHandle) -> None:
            queue.set_concurrency(CONCURRENCY)
            queue.set_rate(AMPLE)

        return drain(self.engine, folder, self.count, CONCURRENCY, limit=limit)

    def beside_a_crowd(self, folder: Path, crowd: int) -> float:
        """One at a time, beside another lane that is full of parked jobs."""
        self.engine.fill(folder, Filling.PARKED, crowd)
        return self.ordered(folder)


def lane(number: int) -> Lane:
    """That of the n-th job, one at a time."""
    return Lane(_key(number))


def _key(number: int) -> str:
    return f"user:{number % LANES}"
