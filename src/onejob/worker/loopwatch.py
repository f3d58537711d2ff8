"""The watch over the worker's event loop, kept from another thread: it names the handler that blocks it."""

from __future__ import annotations

import asyncio
import time

from onejob.worker.attempt import Roster
from onejob.worker.setup import log


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
            log.warning(
                "the event loop has been blocked for %.1f s by %s; use `await`, or a plain function, which "
                "runs in a thread",
                now - self._asked,
                self._culprit(),
            )

    def _answer(self) -> None:
        asked, self._asked = self._asked, None
        if self._warned and asked is not None:
            self._warned = False
            log.warning("the event loop goes on after %.1f s", time.monotonic() - asked)

    def _culprit(self) -> str:
        current = asyncio.current_task(self._loop)
        for attempt in self._roster.copy().values():
            if attempt.handle is current and current is not None:
                return f"task {attempt.claimed.task} (job {attempt.claimed.id})"
        return "other code of this process" if current is None else f"asyncio task {current.get_name()}"
