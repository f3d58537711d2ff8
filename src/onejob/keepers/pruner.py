"""The pruner: removes ended jobs past their retention, forgotten keys and dead workers, in small rounds."""

from __future__ import annotations

import asyncio
from typing import Final

from onejob.keepers.rounds import Rhythm
from onejob.store import Pruned, Retention, Store

BATCH = 500
BREATH = 0.05


class Pruner:
    """Prunes in rounds that leave room for others' writes."""

    def __init__(self, store: Store, retention: Retention, every: float = 60.0) -> None:
        self.name: Final = "pruner"
        self.rest: Final = Rhythm(every).rest
        self._store = store
        self._retention = retention

    async def tick(self) -> Pruned:
        """Prune until nothing is left; returns what was removed."""
        jobs = keys = workers = expired = 0
        while True:
            removed = await self._store.prune(self._retention, BATCH)
            jobs += removed.jobs
            keys += removed.keys
            workers += removed.workers
            expired += removed.expired
            if not removed.more:
                return Pruned(jobs=jobs, keys=keys, workers=workers, expired=expired)
            await asyncio.sleep(BREATH)
