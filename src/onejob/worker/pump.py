"""The pump: one coroutine that settles what has ended, claims into the free slots in the same commit, and
starts what it got. It holds an outcome until the store has answered for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onejob.core.errors import OnejobError, StoreClosed
from onejob.core.job import WorkerId
from onejob.core.lifecycle import Move, Outcome, Raised, Returned, Settlement, after_attempt
from onejob.store import Claims, Settled, SettleReply, Store
from onejob.worker.attempt import Attempt, Interruption, Roster
from onejob.worker.failure import describe, first_line
from onejob.worker.finishing import refused
from onejob.worker.journal import note_end, note_start, say
from onejob.worker.pace import Pace
from onejob.worker.runner import Runner
from onejob.worker.setup import Settings, log

if TYPE_CHECKING:
    from onejob.worker.observer import Observer

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
EVERYTHING = 1_000_000
UNFIT = (TypeError, ValueError, OverflowError)
"""Errors of a value that no store can take; anything else is trouble with the store, which may pass."""


class Pump:
    """Moves jobs between the store and their handlers until told to stop claiming and nothing is left."""

    def __init__(
        self,
        *,
        store: Store,
        worker: WorkerId,
        settings: Settings,
        runner: Runner,
        roster: Roster,
        may_claim: Callable[[], bool],
        observer: Observer | None = None,
    ) -> None:
        self.calls_begun = 0
        self.calls_ended = 0
        self.counts: Counter[str] = Counter()
        self._store = store
        self._worker = worker
        self._settings = settings
        self._runner = runner
        self._roster = roster
        self._may_claim = may_claim
        self._observer = observer
        self._pace = None if settings.rate is None else Pace(settings.rate)
        self._claiming = True
        self._hungry = True
        self._next_due: float | None = None
        self._ended: list[Attempt] = []
        self._owed: list[Settlement] = []
        self._at_once = EVERYTHING
        self._refused = 0
        self._settle_alone = False
        """The last exchange failed: what is owed must not depend on what a claim meets."""
        self._waiter: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Settle, claim and start until `stop_claiming` was called and every attempt has been settled."""
        self._loop = asyncio.get_running_loop()
        listening = self._loop.create_task(self._listen())
        try:
            while True:
                self._collect()
                free = self._free_slots()
                if self._owed or (self._hungry and free > 0):
                    await self._exchange(free)
                elif self._claiming or self._roster:
                    await self._rest(free)
                else:
                    return
        finally:
            listening.cancel()

    def stop_claiming(self) -> None:
        """Take no new jobs; those under way go on."""
        self._claiming = False
        self.nudge()

    def hand_back(self) -> None:
        """Break off every coroutine, so that its job goes back uncharged; threads go on."""
        for attempt in list(self._roster.values()):
            attempt.interrupt(Interruption.SHUTDOWN)

    def owe(self, settlement: Settlement) -> None:
        """Settle something that has no attempt here."""
        self._owed.append(settlement)
        self.nudge()

    def nudge(self) -> None:
        """Look again, now."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def unsettled(self) -> list[Attempt]:
        """Attempts that have ended, but whose outcome no store has accepted yet."""
        return [attempt for attempt in self._roster.values() if not attempt.running]

    def _collect(self) -> None:
        ended, self._ended = self._ended, []
        for attempt in ended:
            assert attempt.outcome is not None
            self._owed.append(after_attempt(attempt.claimed, attempt.outcome))

    def _free_slots(self) -> int:
        """Slots to claim into. What has ended but is not settled takes none; a claim is a start."""
        if not self._claiming or not self._may_claim():
            return 0
        free = self._settings.concurrency - (len(self._roster) - len(self._owed))
        return free if self._pace is None else min(free, self._pace.room())

    async def _exchange(self, free: int) -> None:
        """One commit: settle what is owed, claim into the free slots; then start what came."""
        done = self._owed[: self._at_once]
        alone, self._settle_alone = self._settle_alone and bool(done), False
        ask = self._settings.ask(self._worker, free) if free > 0 and not alone else None
        if ask is not None:
            self._hungry = False  # before the call: a hint that comes during it is for the next one
        self.calls_begun += 1
        try:
            reply = await self._store.settle(done, ask)
        except StoreClosed:
            raise
        except Exception as error:
            await self._pause_after(error, done, claiming=ask is not None)
        else:
            self._refused = 0
            del self._owed[: len(done)]
            if not self._owed:
                self._at_once = EVERYTHING
            self._acknowledge(done, reply)
            if ask is not None:
                self._take(reply.claims, ask.limit)
            self._hungry = self._hungry or alone
        finally:
            # Only now: the heartbeat takes a lease unknown to the roster after this for an orphan.
            self.calls_ended += 1

    def _take(self, claims: Claims, limit: int) -> None:
        # Fewer than asked for means that nothing is left; a hint or the time of the next one says when to ask.
        self._hungry = self._hungry or len(claims.jobs) >= limit
        if self._pace is not None:
            self._pace.note(len(claims.jobs))
        self._next_due = None if claims.next_due is None else self._loop.time() + claims.next_due / 1000
        attempts = [Attempt(claimed) for claimed in claims.jobs]
        for attempt in attempts:
            self._roster[attempt.claimed.lease] = attempt
            if self._claiming:
                attempt.handle = self._loop.create_task(self._attend(attempt))
            else:
                self._end(attempt, Returned())
        if log.isEnabledFor(logging.DEBUG):
            for attempt in attempts:
                note_start(attempt.claimed, self._worker)
        # Runs after the first step of each, so that one call looks after all of them.
        self._loop.call_soon(self._end_unstarted, attempts)

    async def _attend(self, attempt: Attempt) -> None:
        try:
            outcome = await self._runner.run(attempt)
        except Exception as error:  # a fault of ours must not keep the job running for ever
            text = f"the runner itself failed with job {attempt.claimed.id}: {describe(error)}"
            say(logging.ERROR, "worker.fault", text, attempt.claimed)
            outcome = Raised(describe(error), attempts=1, retry_in=0, final=True)
        self._end(attempt, outcome)

    def _end_unstarted(self, attempts: Sequence[Attempt]) -> None:
        """End what was cancelled before its first step: it never ran, and cannot say so itself."""
        for attempt in attempts:
            if attempt.outcome is None and attempt.handle is not None and attempt.handle.done():
                self._end(attempt, Returned())

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.outcome = outcome
        done = attempt.current.completed
        if done is None:
            self._ended.append(attempt)
        else:
            self._hungry = True  # its slot is free, and nothing is owed that would claim for it
            self._acknowledge([done[0]], done[1])
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _acknowledge(self, done: Sequence[Settlement], reply: SettleReply) -> None:
        pop, observer = self._roster.pop, self._observer
        quiet = observer is None and not log.isEnabledFor(logging.DEBUG)
        completed = 0
        for settlement, settled in zip(done, reply.settled, strict=True):
            if settled is Settled.REFUSED:
                self._owed.append(refused(self._roster[settlement.lease], reply))
                continue
            attempt = pop(settlement.lease, None)
            applied = settled is Settled.DONE or settled is Settled.DIVERGED
            plain = applied and settlement.move is Move.COMPLETE
            completed += plain
            if settled is not Settled.DONE or not (plain and quiet):
                self.counts[settlement.move.value if applied else settled.value] += not plain
                reason = reply.reasons.get(settlement.lease.id)
                note_end(settlement, settled, None if attempt is None else attempt.claimed, reason)
                if observer is not None and attempt is not None:
                    observer.ended(attempt, settlement, settled)
        if completed:
            self.counts[Move.COMPLETE.value] += completed

    async def _rest(self, free: int) -> None:
        """Sleep until an attempt ends, a hint comes, or it is time to look."""
        self._waiter = self._loop.create_future()
        timer = None
        if free > 0:
            wait = self._settings.poll
            if self._next_due is not None:
                wait = min(wait, max(self._next_due - self._loop.time(), 0.001))
            timer = self._loop.call_later(wait, self._look)
        elif self._pace is not None and self._pace.room() <= 0:
            timer = self._loop.call_later(max(self._pace.opens_in(), 0.001), self._look)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        self._hungry = True
        self.nudge()

    async def _listen(self) -> None:
        """Turn the store's hints into claims. The mark is older than the claim, so none is missed."""
        topics = frozenset(f"work:{queue}" for queue in self._settings.queues)
        mark = self._store.mark()
        while True:
            try:
                hinted = await self._store.wait(topics, self._settings.poll, since=mark)
                mark = self._store.mark()
            except StoreClosed:
                return
            except Exception as error:
                text = f"waiting for work failed, polling goes on: {first_line(describe(error))}"
                say(logging.WARNING, "store.trouble", text, worker=self._worker)
                await asyncio.sleep(self._settings.poll)
                continue
            if hinted:
                self._look()

    async def _pause_after(self, error: Exception, done: Sequence[Settlement], *, claiming: bool) -> None:
        """Keep what the store did not take, and try again a little later, first without a claim."""
        self._settle_alone = True
        if not claiming and isinstance(error, UNFIT) and not isinstance(error, OnejobError):
            self._isolate(error, done)
        pause = min(FIRST_PAUSE * 2**self._refused, LONGEST_PAUSE) * random.uniform(0.5, 1.5)
        self._refused = min(self._refused + 1, 10)
        text = f"settling failed, {len(self._owed)} outcomes are kept and tried again in {pause:.1f} s: "
        say(logging.WARNING, "store.trouble", text + first_line(describe(error)), worker=self._worker)
        await asyncio.sleep(pause)
        self._hungry = True

    def _isolate(self, error: Exception, done: Sequence[Settlement]) -> None:
        """One outcome that a store cannot take must not hold up the others: halve, then fail that one job."""
        self._at_once = max(1, len(done) // 2)
        if len(done) == 1 and self._refused > 3:
            lease = done[0].lease
            text = f"the store does not take the outcome of job {lease.id}, which now fails for it"
            say(logging.ERROR, "store.refused", text, job=lease.id, worker=self._worker)
            text = f"StoreRefused: its outcome could not be stored: {first_line(describe(error))}"
            attempt = self._roster.get(lease)
            self._owed[0] = (
                Settlement(lease, Move.FAIL, error=text)
                if attempt is None
                else after_attempt(attempt.claimed, Raised(text, attempts=1, retry_in=0, final=True))
            )
        self._owed[:] = self._owed[len(done) :] + self._owed[: len(done)]
