"""One start of one job in this process: its handle, and what it has been told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from onejob.core.job import Claimed, Lease
from onejob.core.lifecycle import Outcome
from onejob.current import AbortReason, CurrentJob
from onejob.worker.journal import say

STUBBORN_AFTER = 5.0
"""Seconds after which a coroutine that goes on in spite of its cancellation is worth a warning."""


class Interruption(StrEnum):
    """Why a run was broken off before it ended by itself."""

    TIMED_OUT = "timed out"
    SHUTDOWN = "the worker stops"
    REVOKED = "revoked"
    LOST = "its lease was lost"


_TOLD = {
    Interruption.TIMED_OUT: AbortReason.TIMED_OUT,
    Interruption.REVOKED: AbortReason.REVOKED,
    Interruption.LOST: AbortReason.LOST,
    # At shutdown a thread is not told: what it returns still counts, and a handler that gave up on hearing
    # of it could not be told from one that finished.
}


class Attempt:
    """One start of a job. `handle` is set once its handler has begun, `outcome` once it has ended; until that is settled,
    the lease is ours.
    """

    asked = 0.0
    """When the call was made that brought it, by the monotonic clock."""
    handle: asyncio.Task[object] | None = None
    in_thread = False
    interrupted: Interruption | None = None
    outcome: Outcome | None = None
    returned = False
    """A handler in a thread has returned, though its loop may be gone and never learn of it."""
    sent_progress: bytes | None = None
    since = 0.0
    """When it came, or its handler began, by the loop's clock."""
    stop_process: Callable[[Interruption], None] | None = None
    """How to end the process that the handler runs in; None while none does."""
    timer: asyncio.TimerHandle | None = None
    told = False
    """It should stop, or not even begin."""

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.current = CurrentJob(claimed)

    @property
    def running(self) -> bool:
        """True until the handler has really ended, also before it has begun."""
        return self.outcome is None

    @property
    def begun(self) -> bool:
        """False while it waits for a slot."""
        return self.handle is not None

    @property
    def occupied(self) -> bool:
        """True while the handler may still be at work, even if the loop it was started from is closed."""
        if self.outcome is not None or self.handle is None:
            return False
        return not self.returned if self.in_thread else not self.handle.get_loop().is_closed()

    def note_return(self) -> None:
        """The handler has returned, in its thread."""
        self.returned = True

    def tell(self, reason: AbortReason) -> None:
        """Let the handler see that it should stop; callable from any thread."""
        self.told = True
        self.current.aborted.set(reason)

    def interrupt(self, why: Interruption) -> None:
        """Tell the handler, and cancel it if it is a coroutine; end its process; a thread cannot be stopped.

        In the loop only. The first reason decides the outcome; a second call cancels again.
        """
        if self.outcome is not None or self.handle is None or self.handle.done():
            return
        if self.interrupted is None:
            self.interrupted = why
        if why in _TOLD:
            self.tell(_TOLD[why])
        if self.stop_process is not None:
            self.stop_process(why)
            return
        if self.in_thread:
            if why is not Interruption.SHUTDOWN:
                text = f"{self} in a thread ({why}); it cannot be stopped and keeps its slot until it returns"
                say(logging.WARNING, "handler.stuck", text, self.claimed, reason=why.value)
            return
        self.handle.cancel()
        self.handle.get_loop().call_later(STUBBORN_AFTER, self._warn_if_stubborn, why)

    def __str__(self) -> str:
        return f"job {self.claimed.id} runs task {self.claimed.task}"

    def _warn_if_stubborn(self, why: Interruption) -> None:
        if self.outcome is None:
            text = f"{self} although it was cancelled ({why}); it keeps its slot until it returns"
            say(logging.WARNING, "handler.stuck", text, self.claimed, reason=why.value)


Roster: TypeAlias = dict[Lease, Attempt]
"""Every lease this worker believes it holds, up to the reply of the settlement that ends it."""
