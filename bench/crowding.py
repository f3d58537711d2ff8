"""How long a claim takes at worst in a store full of jobs that wait and jobs that are done, beside an empty one."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from bench.aims import EMPTY
from bench.engines import Engine, Filling
from bench.figures import OURS, Samples
from bench.growth import WARMING_UP, filled, one_batch
from bench.jobs import define

P50, P99 = "crowded-p50", "crowded-p99"


@dataclass(frozen=True, slots=True)
class Crowding:
    """Measures in a copy of a store that was filled once, in `home`, and in a fresh one, in turn."""

    engine: Engine
    home: Path
    size: int
    claims: int

    def __call__(self, folder: Path) -> Samples:
        """Milliseconds of a claim, the median and the 99th percentile."""
        homes = {OURS: folder / "full", EMPTY: folder / "empty"}
        for each in homes.values():
            each.mkdir()
        # In this order: to make a finished job, the store claims one.
        source = filled(self.engine, self.home, self.size, Filling.FINISHED, Filling.WAITING)
        self.engine.copy(source, homes[OURS])
        os.sync()
        try:
            taken = self.engine.run(self._claims({who: self.engine.url(each) for who, each in homes.items()}))
        finally:
            for each in homes.values():
                self.engine.forget(each)
        ends = {P50: 50, P99: 99}
        return {
            (line, who): 1000 * sorted(times)[len(times) * percent // 100]
            for who, times in taken.items()
            for line, percent in ends.items()
        }

    async def _claims(self, urls: dict[str, str]) -> dict[str, list[float]]:
        taken: defaultdict[str, list[float]] = defaultdict(list)
        stores = {who: define(url) for who, url in urls.items()}
        for number in range(WARMING_UP + self.claims):
            for who, jobs in stores.items():

                def note(operation: str, seconds: float, who: str = who, number: int = number) -> None:
                    if operation == "claim" and number >= WARMING_UP:
                        taken[who].append(seconds)

                await one_batch(jobs, jobs.nothing, note)
        for jobs in stores.values():
            await jobs.app.aclose()
        return taken
