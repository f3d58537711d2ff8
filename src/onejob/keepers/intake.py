"""The intake's keeper: takes in what is due of one intake, again and again, in every worker of the app."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from onejob.keepers.rounds import Rhythm
from onejob.logs import event

if TYPE_CHECKING:
    from onejob.intake.handle import Intake

log = logging.getLogger("onejob.keepers")


class IntakeKeeper:
    """Runs one intake; what is wrong with it is said once, and again only if it changes."""

    def __init__(self, intake: Intake) -> None:
        self.name: Final = f"intake {intake.name}"
        self.rest: Final = Rhythm(intake.every).rest
        self._intake = intake
        self._wrong: str | None = None

    async def tick(self) -> int:
        """Take in what is due; returns how many rows became jobs."""
        try:
            report = await self._intake.atick()
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
            if wrong != self._wrong:
                self._wrong = wrong
                self._say(
                    logging.WARNING, "intake.failed", f"{self.name} failed, and will try again: {wrong}"
                )
            return 0
        if self._wrong is not None:
            self._wrong = None
            self._say(logging.INFO, "intake.recovered", f"{self.name} works again")
        return report.taken

    def _say(self, level: int, name: str, text: str) -> None:
        event(log, level, name, text, intake=self._intake.name)
