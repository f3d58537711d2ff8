"""What is said, once, of a server that has not answered yet: a call goes on trying for as long as its patience lasts.

After its first answer a store says no more of that kind: a server that goes away is told by the calls that it fails.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

logger = logging.getLogger("onejob")
SOON: Final = 3.0
"""Seconds after which silence is worth a word, too."""


class FirstAnswer:
    """Whether a server has answered yet, and whether it was said that it has not. Lives on the loop that asks."""

    def __init__(self, who: str, patience: float) -> None:
        self._who = who
        self._patience = patience
        self._awaited = True

    def came(self) -> None:
        """The server has answered."""
        self._awaited = False

    def failed(self, error: BaseException) -> None:
        """A try has failed; there will be another."""
        if self._awaited:
            self._tell(str(error) or type(error).__name__)

    def watch(self) -> asyncio.TimerHandle | None:
        """From the start of a call: to be cancelled at its end. Speaks up if nothing at all has happened by then."""
        if not self._awaited:
            return None
        return asyncio.get_running_loop().call_later(SOON, self._silent)

    def _silent(self) -> None:
        if self._awaited:
            self._tell("nothing was heard of it so far")

    def _tell(self, why: str) -> None:
        self._awaited = False
        logger.warning(
            "%s does not answer (%s); it is tried for %g s, ?patience= in the store's URL",
            self._who,
            why,
            self._patience,
            extra={"event": "store.unanswered"},
        )
