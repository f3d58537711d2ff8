"""Runs operations: on a connection, within a deadline, again where a failure passes by itself; and tells what came of it.

Everything below `run` happens on the store's own event loop (`home`), but for the exchanges of workers (`near`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from onejob.absorbing import Absorbing, Count
from onejob.core.errors import OnejobError, StoreBusy, StoreClosed, StoreUnavailable
from onejob.first_answer import FirstAnswer
from onejob.home import Home, Limit
from onejob.stores.postgres import absorbing, migrate
from onejob.stores.postgres.address import Address
from onejob.stores.postgres.driver import Link, connect, drive
from onejob.stores.postgres.failures import (
    NO_STATEMENT,
    READ_ONLY,
    explained,
    is_lost,
    outcome,
    passes,
    sqlstate,
)
from onejob.stores.postgres.near import Near, Unfinished, after_begin
from onejob.stores.postgres.pool import Pool
from onejob.stores.postgres.signals import Signals
from onejob.stores.postgres.statements import FILES
from onejob.stores.postgres.steps import Steps
from onejob.stores.postgres.work import Guesses, Work

T = TypeVar("T")
Make = Callable[[Work], Steps[T]]
Use = Callable[[Link, bool], Awaitable[T]]
"""What to do with a connection; True: an earlier try may have counted."""

logger = logging.getLogger("onejob")
_GRACE: Final = 1.0
"""Seconds by which the server's own timeouts come first."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
PROBES: Final = {
    "enable_seqscan": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""What works is made of index probes. A plan that was made while a table was nearly empty must not read or sort all of it."""


class Engine:
    """The connections of one store in one process."""

    def __init__(self, address: Address, clock: Callable[[], int] | None = None) -> None:
        self.address = address
        self._clock = clock
        self.home = Home("onejob-postgres", self._drop_everything)
        self._longest = max(address.patience, address.statement_timeout) + _GRACE
        """Seconds after which any call is given up."""
        self._first_answer = FirstAnswer(f"PostgreSQL at {address.place}", address.patience)
        self._closed = False
        self._ready = False
        self._preparing: asyncio.Task[None] | None = None
        self.calls = self._pool(address.pool, PROBES)
        self.reads = self._pool(max(1, address.pool // 4), {})
        """For those who look on, whatever they look for: they do not hold up who works."""
        self.beats = self._pool(1, PROBES)
        """A heart must beat while every other connection is busy."""
        self.transactions = self._pool(address.pool, {})
        """Of their own: a call from within an open transaction must not wait for that one's end."""
        self._under_way: set[Limit] = set()
        self.signals = Signals(address, self.home, lambda make: self._run_beside(make, ready=False))
        self._absorbing = Absorbing(self._write_counts)
        self._guesses = Guesses()
        self._thread_turn = threading.Lock()
        """Whose thread asks by itself. One that is interrupted at the wrong moment keeps it, and all others go together."""
        self._near: dict[asyncio.AbstractEventLoop, list[Near]] = {}

    @asynccontextmanager
    async def at_hand(self) -> AsyncGenerator[None]:
        """Meanwhile the running loop has a connection of its own, for `run_here`."""
        loop, near = asyncio.get_running_loop(), Near(lambda: connect(self.address, settings=PROBES))
        self._near.setdefault(loop, []).append(near)
        try:
            yield
        finally:
            self._near[loop].remove(near)
            if not self._near[loop]:
                del self._near[loop]
            await near.close()

    async def run_here(self, make: Make[T], *, now: int | None = None) -> T:
        """As `run`, without leaving the loop that asks if it has a connection. What fails there goes on at home."""
        idle = [near for near in self._near.get(asyncio.get_running_loop(), ()) if near.is_free]
        if not idle or not self._ready or self._closed:
            return await self.run(make, now=now)
        if now is None and self._clock is not None:
            now = self._clock()
        work, since = Work(now, guesses=self._guesses), time.monotonic()
        steps = make(work)
        begun: tuple[Work, Steps[T]] | None = None
        try:
            result = await idle[0].drive(steps, self._longest)
        except Unfinished:
            begun = work, steps
        except OnejobError:
            raise
        except Exception as error:
            logger.debug("an exchange with PostgreSQL goes on elsewhere: %s", error)
        else:
            if work.topics or work.absorbed:
                self.home.post(lambda: self.committed(work))
            return result
        spent = time.monotonic() - since
        return await self.at_home(
            lambda: self._perform(make, now, self.calls, begun=begun, again=True, spent=spent)
        )

    async def run(self, make: Make[T], *, now: int | None = None, pool: Pool | None = None) -> T:
        """Run an operation to its commit and return what it returned. From any event loop."""
        if now is None and self._clock is not None:
            now = self._clock()
        return await self.at_home(lambda: self._perform(make, now, pool or self.calls))

    async def use(self, use: Use[T], *, pool: Pool | None = None, ready: bool = True) -> T:
        """Do something with a connection; not `ready`: whatever there is in the database. From any event loop."""
        return await self.at_home(lambda: self.tries(use, pool or self.reads, ready=ready))

    async def migrate(self) -> None:
        """Bring the tables up to date, whatever the URL says, and however long it takes. From any event loop."""
        await self.at_home(lambda: self._look_at_tables(migrate.migrate))

    async def flush(self) -> None:
        """Write what is counted in memory."""
        await self.at_home(self._absorbing.flush)

    async def close(self) -> None:
        """Let calls under way end, write what is counted, and close every connection."""
        self._closed = True
        if self.home.started:
            with suppress(StoreClosed):  # by somebody else meanwhile, or before
                await self.home.run(self._wind_up)
            await self.home.stopped()

    def abandon(self) -> None:
        """Nobody has the store any more, and nobody closed it."""
        self._closed = True
        self.home.stop()

    async def at_home(self, make: Callable[[], Any]) -> Any:
        """Run a coroutine of ours on our own event loop."""
        if self._closed:
            raise self._gone()
        return await self.home.run(make)

    def run_from_thread(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """As `at_home`, from a thread that has no event loop, and waits. None: nothing was asked, for another thread does so."""
        if self._closed:
            raise self._gone()
        turn = self._thread_turn
        if self.home.is_here or not turn.acquire(blocking=False):
            return None
        try:
            return self.home.run_from_thread(make)
        finally:
            turn.release()

    async def _perform(
        self,
        make: Make[T],
        now: int | None,
        pool: Pool,
        *,
        again: bool = False,
        begun: tuple[Work, Steps[T]] | None = None,
        spent: float = 0.0,
    ) -> T:
        """`again`: an earlier try may have counted, and took so long. `begun`: it has come to its transaction elsewhere."""
        work: Work | None = None

        async def once(link: Link, again: bool) -> T:
            nonlocal work, begun
            if begun is not None:
                (work, steps), begun = begun, None
                return await drive(link, after_begin(steps))
            work = Work(now, again=again, guesses=self._guesses)
            return await drive(link, make(work))

        result = await self.tries(once, pool, again=again, spent=spent)
        if work is not None:
            self.committed(work)
        return result

    async def _run_beside(self, make: Make[T], *, ready: bool = True) -> T:
        """For what goes on beside the calls, at home."""
        return await self.tries(
            lambda link, again: drive(link, make(Work(again=again))), self.calls, ready=ready
        )

    async def _write_counts(self, counts: list[Count]) -> list[Count]:
        return await self._run_beside(lambda _: absorbing.write(counts))

    def committed(self, work: Work) -> None:
        """What an operation has to tell, now that it counts. At home."""
        if work.topics:
            self.signals.tell(work.topics)
        if work.absorbed:
            self._absorbing.add(work.absorbed)

    async def tries(
        self,
        use: Use[T],
        pool: Pool,
        *,
        ready: bool = True,
        keep: bool = False,
        again: bool = False,
        spent: float = 0.0,
    ) -> T:
        """Use a connection, again and again while failures pass by themselves and there is patience.

        With `keep` the connection stays with the caller if that worked. `again`: a try before these may have counted, and took
        so long.
        """
        limit = Limit(self._longest, spent)
        self._under_way.add(limit)
        watch = self._first_answer.watch()
        number = 0
        link: Link | None = None
        try:
            while True:
                try:
                    if ready and not self._ready:
                        await self._prepare()
                    link = pool.idle() or await pool.take()
                    result = await use(link, again)
                except Exception as error:
                    if link is not None:
                        again = again or link.committed or is_lost(error)
                        self._put_away(link, pool, error)
                        link = None
                    pause = self._pause(number, limit)
                    if pause is None or not passes(error):
                        found = self._explained(error, may_count=again)
                        if found is error:
                            raise
                        # Whoever is told that there is no server has all of the cause in that one line.
                        raise found from (None if isinstance(found, StoreUnavailable) else error)
                    if is_lost(error):
                        self._first_answer.failed(error)
                    number += 1
                    await asyncio.sleep(pause)
                else:
                    self._first_answer.came()
                    if not keep:
                        pool.give_back(link)
                    return result
        except asyncio.CancelledError:
            if link is not None:
                pool.drop(link)
            if not limit.is_over:
                raise
            limit.task.uncancel()
            raise self._too_late(pool, waiting=link is None, may_count=again or link is not None) from None
        finally:
            limit.handle.cancel()
            if watch is not None:
                watch.cancel()
            self._under_way.discard(limit)

    def _gone(self) -> StoreClosed:
        return StoreClosed(f"The store at {self.address.place} has been closed.")

    def _put_away(self, link: Link, pool: Pool, error: Exception) -> None:
        stale = sqlstate(error) in {READ_ONLY, *NO_STATEMENT} or passes(error)
        pool.drop(link) if stale else pool.give_back(link)

    def _pause(self, number: int, limit: Limit) -> float | None:
        """How long to wait before another try; None if patience is over."""
        pause = random.uniform(0.5, 1) * min(_FIRST_PAUSE * 2**number, _LONGEST_PAUSE)
        return pause if limit.age() + pause < self.address.patience else None

    def _explained(self, error: Exception, *, may_count: bool) -> Exception:
        found = explained(error, self.address, may_count=may_count)
        if isinstance(found, OnejobError) and sqlstate(error) in ("42P01", "3F000"):
            self._ready = False  # somebody dropped the tables: the next call looks, and may make them again
        return found

    def _too_late(self, pool: Pool, *, waiting: bool, may_count: bool) -> OnejobError:
        address = self.address
        if not self._ready and self._preparing is not None:
            return StoreUnavailable(
                f"PostgreSQL at {address.place} has not answered for {address.patience:g} s, or its tables are still "
                "being brought up to date; nothing was stored. Try again."
            )
        if waiting and pool.is_full():
            return StoreBusy(
                f"All {pool.size} connections to PostgreSQL at {address.place} stayed in use for "
                f"{address.patience:g} s: raise ?pool= in the store's URL, or keep transactions short."
            )
        return StoreUnavailable(
            f"PostgreSQL at {address.place} did not answer for {address.patience:g} s; {outcome(may_count)}. Try again, or "
            "raise ?patience=SECONDS in the store's URL."
        )

    async def _prepare(self) -> None:
        """Look at the tables, and make them if need be: once for all who wait for it."""
        if self._preparing is None:
            self._preparing = self.home.spawn(self._look_at_tables(migrate.ensure))
        preparing = self._preparing
        try:
            await asyncio.shield(preparing)
        finally:
            if preparing.done() and self._preparing is preparing:
                self._preparing = None

    async def _look_at_tables(self, deal_with: Callable[[Link, Address], Awaitable[None]]) -> None:
        FILES.read_all()
        link: Link | None = None
        try:
            link = await connect(self.address)
            self._first_answer.came()  # from here on it takes what bringing tables up to date takes
            await deal_with(link, self.address)
            self._ready = True
        except Exception as error:
            found = error if passes(error) else explained(error, self.address)
            if found is error:
                raise
            raise found from error
        finally:
            if link is not None:
                await link.close()

    async def _wind_up(self) -> None:
        self.signals.stop_listening()
        await self.transactions.close()
        while self._under_way:  # noqa: ASYNC110 - each has its own limit
            await asyncio.sleep(0.002)
        if self._absorbing.has_any:
            try:
                await self._absorbing.flush()
            except Exception as error:
                logger.warning("counts of absorbed duplicates could not be stored: %s", error)
        self._absorbing.close()
        await self.signals.close()
        await asyncio.gather(*(pool.close() for pool in self._pools()))

    def _drop_everything(self) -> None:
        self.signals.terminate()
        for pool in self._pools():
            pool.terminate()

    def _pools(self) -> tuple[Pool, ...]:
        return (self.transactions, self.calls, self.reads, self.beats)

    def _pool(self, size: int, settings: Mapping[str, str]) -> Pool:
        return Pool(size, lambda: connect(self.address, settings=settings), self.home.spawn)
