"""The watch over the worker's event loop, kept from another thread: it names the handler that blocks it."""

from __future__ import annotations

import asyncio
import logging
import time

from onejob.core.job import Claimed
from onejob.worker.attempt import Roster
from onejob.worker.journal import say


class LoopWatch:
    """Asks the loop for a sign, while jobs run, and warns when none comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, roster: Roster, patience: float) -> None:
        self._loop = loop
        self._roster = roster
        self._patience = patience
        self._asked: float | None = None
        self._warned = False

    def look(self) -> None:
        """Ask for a sign, or count how long the last one is overdue."""
        now = time.monotonic()
        if self._asked is None:
            if self._roster and not self._loop.is_closed():
                self._asked = now
                self._loop.call_soon_threadsafe(self._answer)
        elif not self._warned and now - self._asked > self._patience and not self._loop.is_closed():
            self._warned = True
            job, culprit = self._culprit()
            text = f"the event loop has been blocked for {now - self._asked:.1f} s by {culprit}"
            hint = "use `await`, or a plain function, which runs in a thread"
            say(logging.WARNING, "loop.blocked", f"{text}; {hint}", job)

    def _answer(self) -> None:
        asked, self._asked = self._asked, None
        if self._warned and asked is not None:
            self._warned = False
            text = f"the event loop goes on after {time.monotonic() - asked:.1f} s"
            say(logging.WARNING, "loop.unblocked", text)

    def _culprit(self) -> tuple[Claimed | None, str]:
        current = asyncio.current_task(self._loop)
        for attempt in self._roster.copy().values():
            if attempt.handle is current and current is not None:
                return attempt.claimed, f"task {attempt.claimed.task} (job {attempt.claimed.id})"
        if current is None:
            return None, "other code of this process"
        return None, f"asyncio task {current.get_name()}"
