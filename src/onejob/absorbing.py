"""Duplicates that made no job are counted in memory, and written once a second: a hot key costs no write each."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

logger = logging.getLogger("onejob")
FLUSH_EVERY: Final = 1.0
MOST: Final = 1_000


Absorbed: TypeAlias = tuple[bytes, str, bool]
"""A duplicate that made no job: its key, the holder, and whether it came with other arguments."""


@dataclass(slots=True)
class Count:
    """Duplicates of one holder of a key."""

    queue: str
    digest: bytes
    holder: str
    absorbed: int
    differing: int
    tries: int = 0
    """How often they could not be written."""


class Absorbing:
    """Counts by key and holder. Lives in one event loop."""

    def __init__(self, write: Callable[[list[Count]], Awaitable[list[Count]]]) -> None:
        """`write` adds some to the store's own counts, and returns those to be tried again."""
        self._write = write
        self._fresh: defaultdict[str, Counter[Absorbed]] = defaultdict(Counter)
        """By queue: what came since the last flush."""
        self._counts: dict[tuple[bytes, str], Count] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    @property
    def has_any(self) -> bool:
        """True if something is yet to be written."""
        return bool(self._fresh or self._counts)

    def add(self, absorbed: Iterable[Absorbed], queue: str = "") -> None:
        """Count them; they are written within a second or so. `queue` is theirs, where a key alone does not say."""
        self._fresh[queue].update(absorbed)
        self._later()

    async def flush(self) -> None:
        """Write them now; what cannot be written is counted later."""
        self._merge()
        for _ in range(-(-len(self._counts) // MOST)):
            taken = list(self._counts.values())[:MOST]
            for one in taken:
                del self._counts[one.digest, one.holder]
            left = taken
            try:
                left = await self._write(taken)
            finally:
                for one in left:
                    self._count(one)
                self._later()

    def close(self) -> None:
        """Forget what could not be written."""
        if self._timer is not None:
            self._timer.cancel()
        self._counts.clear()
        self._fresh.clear()

    def _merge(self) -> None:
        for queue, fresh in self._fresh.items():
            for (digest, holder, differs), count in fresh.items():
                self._count(Count(queue, digest, holder, count, count * differs))
        self._fresh.clear()

    def _count(self, one: Count) -> None:
        counted = self._counts.setdefault((one.digest, one.holder), one)
        if counted is not one:
            counted.absorbed += one.absorbed
            counted.differing += one.differing

    def _later(self) -> None:
        if self.has_any and self._timer is None:
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
