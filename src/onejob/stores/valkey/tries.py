"""The tries of one call: how many there were, how long patience lasts, and what may be said if none succeeds. No I/O."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from onejob.home import Limit
from onejob.stores.valkey.failures import may_have_counted

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Tries(Limit):
    """A call that is not answered at once, and what has become of it so far; cancels it when patience is over."""

    __slots__ = ("_patience", "asks", "last", "number", "script", "unsure")

    def __init__(self, patience: float, since: float, *, script: str = "") -> None:
        super().__init__(since + patience - asyncio.get_running_loop().time())
        self._patience = patience
        self.since = since
        self.script = script
        self.number = 0
        self.last: Exception | None = None
        self.asks = False
        """A server is being asked, and has not answered yet."""
        self.unsure = False
        """Some try may have counted, though its reply was lost."""

    def failed(self, error: Exception) -> None:
        """A try has ended so."""
        self.unsure = self.unsure or may_have_counted(error)
        self.asks = False
        self.last = error
        self.number += 1

    def pause(self) -> float | None:
        """How long to wait before another try; None if patience is over."""
        pause = random.uniform(0.5, 1) * min(_FIRST_PAUSE * 2 ** (self.number - 1), _LONGEST_PAUSE)
        return pause if self.age() + pause < self._patience else None
