"""The rounds of the keepers: each ticks again and again, out of step with its like in other workers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Protocol

from onejob.logs import event

log = logging.getLogger("onejob.keepers")


class Keeper(Protocol):
    """Something that keeps the store in order. A tick may run in any number of workers at once."""

    @property
    def name(self) -> str:
        """What it is called in the log."""
        ...

    async def tick(self) -> object:
        """Do what there is to do now."""
        ...

    async def rest(self) -> None:
        """Sleep until the next tick is worth it; before the first one, too."""
        ...


class Rhythm:
    """Rests of `every` seconds on average."""

    def __init__(self, every: float) -> None:
        self.every = every
        self._begun = False

    async def rest(self) -> None:
        """Sleep for about as long as ever; the first time for any part of it, so that workers get out of step."""
        share = random.uniform(0.75, 1.25) if self._begun else random.random()
        self._begun = True
        await asyncio.sleep(self.every * share)


async def make_rounds(keepers: Sequence[Keeper]) -> None:
    """Let the keepers tick until cancelled. There is no leader: whoever comes first does the work."""
    async with asyncio.TaskGroup() as group:
        for keeper in keepers:
            group.create_task(_keep(keeper))


async def _keep(keeper: Keeper) -> None:
    while True:
        await keeper.rest()
        try:
            await keeper.tick()
        except Exception as error:
            text = f"{keeper.name} failed, and will try again: {type(error).__name__}: {error}"
            event(log, logging.WARNING, "keeper.failed", text, keeper=keeper.name)
