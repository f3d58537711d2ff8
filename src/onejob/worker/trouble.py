"""Trouble with settling: how long to wait after a failure, and what the next exchange must then do without.

One at a time, first without a claim, in smaller and smaller batches if it is an outcome that the store cannot take.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from onejob.core.errors import OnejobError
from onejob.core.job import WorkerId
from onejob.core.lifecycle import Move, Raised, Settlement, after_attempt
from onejob.worker.attempt import Roster
from onejob.worker.failure import describe, first_line
from onejob.worker.journal import say

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
EVERYTHING = 1_000_000
UNFIT = (TypeError, ValueError, OverflowError)
"""Errors of a value that no store can take; anything else is trouble with the store, which may pass."""


class Trouble:
    """What has failed, and has not been mended since."""

    def __init__(self, worker: WorkerId, roster: Roster) -> None:
        self.at_once = EVERYTHING
        """How many outcomes the next exchange may take along."""
        self.settle_alone = False
        """The last exchange failed: what is owed must not depend on what a claim meets."""
        self._worker = worker
        self._roster = roster
        self._refused = 0

    def __bool__(self) -> bool:
        return self.settle_alone or self._refused > 0 or self.at_once != EVERYTHING

    def has_passed(self, *, owed: bool) -> None:
        """The store has answered; `owed`: some outcomes it has not seen yet."""
        self._refused = 0
        if not owed:
            self.at_once = EVERYTHING

    def pause_after(
        self, error: Exception, done: Sequence[Settlement], owed: list[Settlement], *, claiming: bool
    ) -> float:
        """Seconds to wait before trying again. `done`, the first of what is `owed`, was not taken."""
        self.settle_alone = True
        if not claiming and isinstance(error, UNFIT) and not isinstance(error, OnejobError):
            self._isolate(error, done, owed)
        pause = min(FIRST_PAUSE * 2**self._refused, LONGEST_PAUSE) * random.uniform(0.5, 1.5)
        self._refused = min(self._refused + 1, 10)
        kept = "1 outcome is" if len(owed) == 1 else f"{len(owed)} outcomes are"
        text = f"settling failed, {kept} kept and tried again in {pause:.2g} s: "
        say(logging.WARNING, "store.trouble", text + first_line(describe(error)), worker=self._worker)
        return pause

    def _isolate(self, error: Exception, done: Sequence[Settlement], owed: list[Settlement]) -> None:
        """One outcome that a store cannot take must not hold up the others: halve, then fail that one job."""
        self.at_once = max(1, len(done) // 2)
        if len(done) == 1 and self._refused > 3:
            lease = done[0].lease
            text = f"the store does not take the outcome of job {lease.id}, which now fails for it"
            say(logging.ERROR, "store.refused", text, job=lease.id, worker=self._worker)
            text = f"StoreRefused: its outcome could not be stored: {first_line(describe(error))}"
            attempt = self._roster.get(lease)
            owed[0] = (
                Settlement(lease, Move.FAIL, error=text)
                if attempt is None
                else after_attempt(attempt.claimed, Raised(text, attempts=1, retry_in=0, final=True))
            )
        owed[:] = owed[len(done) :] + owed[: len(done)]
