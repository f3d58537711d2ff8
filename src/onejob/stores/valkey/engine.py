"""One process's end of a store: its connections, and what must be remembered between calls."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from onejob.absorbing import Absorbed, Absorbing, Count
from onejob.core.errors import OnejobError
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.store import Finding
from onejob.stores.valkey import checkup, enqueue, keeping, scripts
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.link import Link
from onejob.stores.valkey.office import DESK, Office, ThreadLine
from onejob.stores.valkey.working import Working

logger = logging.getLogger("onejob")
T = TypeVar("T")


class Engine:
    """Runs operations: where their callers are, or on the store's own loop, which is home to what must outlive a caller."""

    def __init__(self, address: Address, clock: Callable[[], int] | None) -> None:
        self.link = Link(address, scripts.source, scripts.library())
        self.signals = self.link.signals
        self.office = Office(self.link.run, address.namespace, clock, self.signals.tell, self.signals.line)
        self.working = Working(self.office)
        self._thread_line = ThreadLine(
            self.link.run_from_thread, self.link.wait, self.signals.tell_from_thread
        )
        self._absorbing = Absorbing(self._write_counts)

    async def run(self, make: Callable[[Engine], Awaitable[T]], *, flushed: bool = False) -> T:
        """Run an operation to its end. `flushed`: what was counted in memory is written first. From any event loop."""

        async def operation() -> T:
            if flushed and self._absorbing.has_any:
                await self._absorbing.flush()
            return await make(self)

        return await self.link.at_home(operation)

    def __enter__(self) -> Engine:
        """An operation begins where its caller is, which asks the server from there. What it remembers, it does at once."""
        self.link.begin()
        return self

    def __exit__(self, *_: object) -> None:
        """It has ended."""
        self.link.end()

    async def open(self) -> None:
        """Connect, and refuse a server that would lose jobs."""
        await self.link.open()

    def absorb(self, absorbed: Sequence[Absorbed], queue: str) -> None:
        """Count duplicates of a queue; at home."""
        self._absorbing.add(absorbed, queue)

    def enqueue_from_thread(self, job: NewJob) -> Answer | None:
        """Accept a newcomer whose thread waits."""
        with self:
            return enqueue.enqueue_from_thread(self.office, job, self.absorb_from_anywhere, self._thread_line)

    def absorb_from_anywhere(self, absorbed: Sequence[Absorbed], queue: str) -> None:
        """Count duplicates of a queue. From any thread."""
        self.link.post(lambda: self.absorb(absorbed, queue))

    async def exists(self) -> bool:
        """True once somebody has written; at home."""
        return bool(await self.office.look("made", DESK))

    async def make(self) -> None:
        """Be there, though nothing is in it; at home."""
        await self.office.call("register", DESK, ((), False))

    async def checkup(self) -> list[Finding]:
        """What is wrong with the server. From any event loop."""
        return await checkup.checkup(self.link)

    async def close(self) -> None:
        """Write what was counted, and hang up."""
        await self.link.at_home(self._flush)
        await self.link.close()

    def abandon(self) -> None:
        """Nobody has the store any more, and nobody closed it."""
        self._absorbing.close()
        self.link.abandon()

    async def _flush(self) -> None:
        if self._absorbing.has_any:
            try:
                await self._absorbing.flush()
            except OnejobError as error:
                logger.warning(
                    "counts of absorbed duplicates could not be stored: %s",
                    error,
                    extra={"event": "store.counts_lost"},
                )
        self._absorbing.close()

    async def _write_counts(self, counts: list[Count]) -> list[Count]:
        by_queue: dict[str, list[tuple[bytes, str, int, int]]] = {}
        for one in counts:
            by_queue.setdefault(one.queue, []).append((one.digest, one.holder, one.absorbed, one.differing))
        for queue, some in by_queue.items():
            await keeping.count_absorbed(self.office, queue, some)
        return []
