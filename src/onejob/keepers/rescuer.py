"""The rescuer: ends the attempts of workers that have stopped beating, by the same rule as any other end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from onejob.core.job import Claimed
from onejob.core.lifecycle import Lost, Move, Settlement, after_attempt
from onejob.keepers.rounds import Rhythm
from onejob.logs import event
from onejob.store import Expired, Settled, Store

Tell: TypeAlias = Callable[[Claimed, Settlement, Settled], None]
"""Who wants to know of each rescue: the job, how its attempt was ended, and what the store made of that."""

log = logging.getLogger("onejob.keepers")

BATCH = 100


class Rescuer:
    """Finds lost jobs and settles them; a heartbeat that comes first, or another rescuer, wins."""

    def __init__(self, store: Store, every: float, tell: Tell | None = None) -> None:
        self.name: Final = "rescuer"
        self.rest: Final = Rhythm(every).rest
        self._store = store
        self._tell = tell

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
                _log(expired, settlement, settled)
                if self._tell is not None:
                    self._tell(expired.job, settlement, settled)
            rescued += taken
            if len(lost) < BATCH or not taken:
                break
        return rescued


def _log(expired: Expired, settlement: Settlement, settled: Settled) -> None:
    job, worker = expired.job, expired.worker
    if settled is Settled.REVOKED:
        then = "it ended revoked"
    else:
        then = "it runs again" if settlement.move is Move.LOSE else "it has failed"
    text = f"job {job.id} (task {job.task}) was lost with worker {worker}: {then}"
    fields = {"job": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt, "worker": worker}
    event(log, logging.WARNING, "job.rescued", text, move=settlement.move.value, **fields)
