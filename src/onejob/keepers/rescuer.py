"""The rescuer: ends the attempts of workers that have stopped beating, by the same rule as any other end."""

from __future__ import annotations

import logging
from typing import Final

from onejob.core.lifecycle import Lost, Move, after_attempt
from onejob.store import Settled, Store

log = logging.getLogger("onejob.keepers")

BATCH = 100


class Rescuer:
    """Finds lost jobs and settles them; a heartbeat that comes first, or another rescuer, wins."""

    def __init__(self, store: Store, every: float) -> None:
        self.name: Final = "rescuer"
        self.every: Final = every
        self._store = store

    async def tick(self) -> int:
        """Rescue what is lost by now; returns how many."""
        rescued = 0
        while lost := await self._store.expired(BATCH):
            done = [after_attempt(expired.job, Lost(expired.worker)) for expired in lost]
            reply = await self._store.settle(done)
            taken = 0
            for expired, settlement, settled in zip(lost, done, reply.settled, strict=True):
                if settled is Settled.LOST:
                    continue
                taken += 1
                log.warning(
                    "job %s (task %s) was lost with worker %s: %s",
                    expired.job.id,
                    expired.job.task,
                    expired.worker,
                    "it runs again" if settlement.move is Move.LOSE else "it has failed",
                    extra={"job": expired.job.id, "task": expired.job.task, "worker": expired.worker},
                )
            rescued += taken
            if len(lost) < BATCH or not taken:
                break
        return rescued
