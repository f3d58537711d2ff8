"""Duplicates that made no job are counted in memory, and written once a second: a hot key costs no row version each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Absorbed, Work

logger = logging.getLogger("onejob")
FLUSH_EVERY: Final = 1.0
MOST: Final = 1_000
TRIES: Final = 5
"""How often a count is tried that finds no row, because that is locked or the key is another's by now."""


@dataclass(slots=True)
class Count:
    """Duplicates of one holder of a key."""

    digest: bytes
    holder: str
    absorbed: int
    differing: int
    tries: int = 0


class Absorbing:
    """Counts by key and holder. Lives in one event loop."""

    def __init__(self, run: Callable[[Callable[[Work], Steps[Any]]], Awaitable[Any]]) -> None:
        self._run = run
        self._counts: dict[tuple[bytes, str], Count] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    @property
    def has_any(self) -> bool:
        """True if something is yet to be written."""
        return bool(self._counts)

    def add(self, absorbed: Iterable[Absorbed]) -> None:
        """Count them; they are written within a second or so."""
        counts = self._counts
        for digest, holder, differs in absorbed:
            counted = counts.get((digest, holder))
            if counted is None:
                counts[digest, holder] = Count(digest, holder, 1, int(differs))
            else:
                counted.absorbed += 1
                counted.differing += differs
        self._later()

    async def flush(self) -> None:
        """Write them now. Rows that others have locked are counted later."""
        for _ in range(-(-len(self._counts) // MOST)):
            taken = list(self._counts.values())[:MOST]
            for one in taken:
                del self._counts[one.digest, one.holder]
            left = taken
            try:
                left = await self._run(lambda _, taken=taken: _write(taken))
            finally:
                for one in left:
                    self._count(one)
                self._later()

    def close(self) -> None:
        """Forget what could not be written."""
        if self._timer is not None:
            self._timer.cancel()
        self._counts.clear()

    def _count(self, one: Count) -> None:
        counted = self._counts.setdefault((one.digest, one.holder), one)
        if counted is not one:
            counted.absorbed += one.absorbed
            counted.differing += one.differing

    def _later(self) -> None:
        if self._counts and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_EVERY, self._flush_soon)

    def _flush_soon(self) -> None:
        self._timer = None
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._try_to_flush())
        else:
            self._later()

    async def _try_to_flush(self) -> None:
        try:
            await self.flush()
        except Exception as error:
            logger.debug("counts of absorbed duplicates wait for another second: %s", error)


def _write(counts: list[Count]) -> Steps[list[Count]]:
    """Add them to the keys' own counts, and return those to be tried again."""
    rows = yield from ask(
        "enqueue.count_absorbed",
        [one.digest for one in counts],
        [one.holder for one in counts],
        [one.absorbed for one in counts],
        [one.differing for one in counts],
    )
    done = {bytes(row[0]) for row in rows}
    left = [one for one in counts if one.digest not in done]
    for one in left:
        one.tries += 1
    return [one for one in left if one.tries < TRIES]
