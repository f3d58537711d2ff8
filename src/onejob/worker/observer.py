"""The observer: shows attempts to the app's `on_start` and `on_end` hooks, beside the work and not in its way.

A worker without such hooks has none. What a hook needs to know and a worker does not is kept here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from onejob.core.job import Claimed, Lease
from onejob.core.lifecycle import Move, Settlement
from onejob.current import CurrentJob, bind
from onejob.hooks import PATIENCE, Ended, Ending, Hooks, watch
from onejob.store import Settled
from onejob.worker.attempt import Attempt

ENDINGS: Final = {
    Move.COMPLETE: Ending.COMPLETED,
    Move.RETRY: Ending.RETRYING,
    Move.SNOOZE: Ending.SNOOZED,
    Move.HAND_BACK: Ending.HANDED_BACK,
    Move.MISS: Ending.HANDED_BACK,
    Move.LOSE: Ending.CRASHED,
    Move.PERISH: Ending.FAILED,
    Move.CRASH: Ending.CRASHED,
    Move.SUCCUMB: Ending.FAILED,
    Move.FAIL: Ending.FAILED,
}
"""How each settling move is told."""

_AGAIN = frozenset({Move.RETRY, Move.SNOOZE, Move.CRASH})


class Observer:
    """Calls the hooks of one worker. It belongs to the worker's loop."""

    def __init__(self, hooks: Hooks, limit: int, caught_up: Callable[[], None] | None = None) -> None:
        """`limit` is how many ends may wait to be told; `caught_up` is called once there is room again."""
        self._on_start = hooks.on_start
        self._on_end = hooks.on_end
        self._limit = limit
        self._caught_up = caught_up
        self._began: dict[Lease, float] = {}
        self._seconds: dict[Lease, float] = {}
        self._raised: dict[Lease, BaseException] = {}
        self._telling: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, hooks: Hooks, limit: int, caught_up: Callable[[], None] | None = None) -> Observer | None:
        """An observer, if there is anything to call."""
        return cls(hooks, limit, caught_up) if hooks.on_start or hooks.on_end else None

    def keeps_up(self) -> bool:
        """False while hooks are so far behind that no job should be started."""
        return len(self._telling) < self._limit

    def room(self) -> int:
        """How many jobs may be started or waiting to be settled, so that no more ends than twice the limit wait to be told."""
        return 2 * self._limit - len(self._telling)

    async def starts(self, attempt: Attempt) -> None:
        """The handler is about to be called, in this task; the hooks share its context."""
        await watch(self._on_start, attempt.current)
        if self._on_end:
            self._began[attempt.claimed.lease] = time.monotonic()

    def raised(self, attempt: Attempt, error: BaseException) -> None:
        """The handler, or what awaited it, has raised."""
        if self._on_end and attempt.current.completed is None:
            self._raised[attempt.claimed.lease] = error

    def returned(self, attempt: Attempt) -> None:
        """The handler has ended, whichever way."""
        began = self._began.pop(attempt.claimed.lease, None)
        if began is not None:
            self._seconds[attempt.claimed.lease] = time.monotonic() - began

    def ended(self, attempt: Attempt, settlement: Settlement, settled: Settled) -> None:
        """The store has answered for the end of an attempt of this worker."""
        lease = settlement.lease
        seconds, error = self._seconds.pop(lease, None), self._raised.pop(lease, None)
        if seconds is None and ENDINGS[settlement.move] is Ending.HANDED_BACK:
            return  # it never began
        self._tell(attempt.current, settlement, settled, error, seconds)

    def rescued(self, claimed: Claimed, settlement: Settlement, settled: Settled) -> None:
        """The store has accepted the end of an attempt whose worker is gone."""
        self._tell(CurrentJob(claimed), settlement, settled, None, None)

    async def finish(self, patience: float = PATIENCE) -> None:
        """Wait for the hooks that have been called, for so many seconds."""
        if self._telling:
            _, late = await asyncio.wait(self._telling, timeout=patience)
            for task in late:
                task.cancel()

    def _tell(
        self,
        job: CurrentJob,
        settlement: Settlement,
        settled: Settled,
        error: BaseException | None,
        seconds: float | None,
    ) -> None:
        if not self._on_end:
            return
        ended = Ended(
            how=_how(settlement.move, settled),
            error=settlement.error,
            exception=error,
            seconds=seconds,
            retry_in=settlement.delay / 1000
            if settlement.move in _AGAIN and settled is Settled.DONE
            else None,
        )
        task = asyncio.get_running_loop().create_task(self._call(job, ended))
        self._telling.add(task)
        task.add_done_callback(self._told)

    async def _call(self, job: CurrentJob, ended: Ended) -> None:
        bind(job)
        await watch(self._on_end, job, ended)

    def _told(self, task: asyncio.Task[None]) -> None:
        was_full = not self.keeps_up()
        self._telling.discard(task)
        if was_full and self._caught_up is not None:
            self._caught_up()


def _how(move: Move, settled: Settled) -> Ending:
    match settled:
        case Settled.LOST:
            return Ending.LOST
        case Settled.REVOKED:
            return Ending.REVOKED
        case Settled.DONE | Settled.DIVERGED:
            return ENDINGS[move]
        case Settled.REFUSED:
            return Ending.FAILED  # not told as such: it is settled once more, as failed
