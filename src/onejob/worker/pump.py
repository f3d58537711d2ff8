"""The pump: it settles what has ended, claims in the same commit what can begin, and begins it.

It holds an outcome until the store has answered for it. While handlers are quick, it claims more than it has slots for, so
that they go on during a call (`stock`). While there is plenty to do, and the store gains by it, two such
exchanges are under way at once (`traffic`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from onejob.core.errors import StoreClosed
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
from onejob.worker.stock import PATIENCE, Stock
from onejob.worker.traffic import AT_ONCE, WORTH_A_CALL, Exchange, Traffic
from onejob.worker.trouble import Trouble

if TYPE_CHECKING:
    from onejob.worker.observer import Observer

GATHERED = 64
"""So many outcomes are worth a call while the stock keeps the handlers busy; fewer wait for more, but not for long."""
GATHERING = 0.005
"""Seconds that an outcome may wait for others."""


class Room(NamedTuple):
    """For how many jobs more there is room: in free slots, and in the stock."""

    slots: int
    stock: int


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
        holds: Callable[[float], bool],
        observer: Observer | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        """`holds` says whether what was asked for then is still ours. `at_once`: how many calls to the store may be under way; see `Store.exchanges_at_once`."""
        self.traffic = Traffic()
        self.counts: Counter[str] = Counter()
        self._store = store
        self._worker = worker
        self._settings = settings
        self._runner = runner
        self._roster = roster
        self._may_claim = may_claim
        self._holds = holds
        self._observer = observer
        self._pace = None if settings.rate is None else Pace(settings.rate)
        self._wide = at_once > 1 and settings.concurrency >= at_once * WORTH_A_CALL
        """There are slots enough to share them between exchanges."""
        self._claiming = True
        self._hungry = True
        self._plenty = False
        """The last claim that was answered brought all it asked for."""
        self._dry = False
        """It brought less for the stock than it asked for: not before a slot is free is there a reason to ask again."""
        self._late = False
        """What is owed has waited for long enough."""
        self._next_due: float | None = None
        self._next_due_from = 0
        """The exchange that told so: one that was begun earlier knows less."""
        self._running = 0
        self._stock = Stock(settings.concurrency, 0 if settings.rate is not None else settings.stock)
        self._filling = False
        self._returning: asyncio.TimerHandle | None = None
        self._owed: list[Settlement] = []
        self._trouble = Trouble(worker, roster)
        self._waiter: asyncio.Future[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None

    async def run(self) -> None:
        """Settle, claim and start until `stop_claiming` was called and every attempt has been settled."""
        self._loop = asyncio.get_running_loop()
        listening = self._loop.create_task(self._listen())
        try:
            while self._broken is None:
                room = self._room()
                shared = self._shared(room)
                exchange = self._next_exchange(room, shared=shared)
                if exchange is None:
                    if not (self._claiming or self._roster or self.traffic):
                        return
                    await self._rest(room.slots)
                elif shared:
                    self._make_beside(exchange)
                else:
                    await self._make(exchange)
            raise self._broken
        finally:
            listening.cancel()
            if self._returning is not None:
                self._returning.cancel()
            await self._give_up()

    def stop_claiming(self) -> None:
        """Take no new jobs; those under way go on, and what has not begun goes back."""
        self._claiming = False
        self._return(self._stock.take(len(self._stock.waiting)))
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

    def _room(self) -> Room:
        """For how many jobs there is room, beside those being asked for. What has ended takes none."""
        if not self._claiming or not self._may_claim():
            return Room(0, 0)
        used = self._running + len(self._stock.waiting) + self.traffic.jobs
        room = self._settings.concurrency + self._stock.size - used
        if self._observer is not None:
            room = min(room, self._observer.room() - used - len(self._owed) - self.traffic.outcomes)
        if self._pace is not None:
            room = min(room, self._pace.room() - self.traffic.jobs)
        slots = max(min(self._settings.concurrency - used, room), 0)
        return Room(slots, max(room - slots, 0))

    def _shared(self, room: Room) -> bool:
        """True while there is work for two exchanges; after a failure, one at a time."""
        return self._wide and self._plenty and sum(room) > 0 and not self._trouble

    def _next_exchange(self, room: Room, *, shared: bool) -> Exchange | None:
        """Begin the next one, if there is a reason to, and it need not wait for those under way."""
        wanted = 0 if self._dry and not room.slots else sum(room)
        if not self._owed and not (self._hungry and wanted):
            return None
        if self._stock.waiting and not self._late and len(self._owed) < self._worth_a_call():
            return None
        share = self.traffic.share(len(self._owed), wanted, shared=shared)
        if share is None:
            return None
        self._late = False
        trouble, count = self._trouble, min(share.outcomes, self._trouble.at_once)
        done, self._owed = self._owed[:count], self._owed[count:]
        alone, trouble.settle_alone = trouble.settle_alone and bool(done), False
        jobs = 0 if alone else share.jobs
        if jobs:
            self._hungry = False  # before the call: a hint that comes during it is for the next one
        slots = min(jobs, room.slots)
        return self.traffic.begin(done, slots, jobs - slots, alone=alone)

    def _worth_a_call(self) -> int:
        """How many outcomes are, while the stock keeps the handlers busy."""
        return min(GATHERED, (self._settings.concurrency + self._stock.size) // 2)

    def _make_beside(self, exchange: Exchange) -> None:
        task = self._loop.create_task(self._make(exchange))
        self._beside.add(task)
        task.add_done_callback(self._made)

    def _made(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        broken = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._broken = self._broken or broken
        self.nudge()

    async def _give_up(self) -> None:
        """Break off what is still under way; without trouble, nothing is."""
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)

    async def _make(self, exchange: Exchange) -> None:
        """One commit: settle what was owed, claim into the free slots; what came is started soon."""
        done, slots, answered = exchange.done, exchange.slots, False
        ask = self._settings.ask(self._worker, slots, exchange.stock) if slots or exchange.stock else None
        asked = monotonic()
        try:
            reply = await self._store.settle(done, ask)
        except StoreClosed:
            raise
        except Exception as error:
            self._owed[:0] = done
            await asyncio.sleep(self._trouble.pause_after(error, done, self._owed, claiming=ask is not None))
            self._hungry = True
        else:
            self._trouble.has_passed(owed=bool(self._owed))
            if ask is not None:
                self._learn(reply.claims, exchange)
            self._hungry = self._hungry or exchange.alone
            # The next call, if there is a reason for one, is made before what this one brought is looked through: a store
            # should not wait for that.
            answered = True
            self.traffic.answered(exchange)
            self._loop.call_soon(self._digest, exchange, reply, asked)
        finally:
            if not answered:
                self.traffic.end(exchange)

    def _learn(self, claims: Claims, exchange: Exchange) -> None:
        """What a claim says of the next one."""
        # Fewer than there are slots means that nothing is left; a hint or the time of the next one says when to ask.
        brought = len(claims.jobs)
        self._plenty = brought >= exchange.slots + exchange.stock
        self._dry = not self._plenty
        self._hungry = self._hungry or brought >= exchange.slots
        if self._pace is not None:
            self._pace.note(len(claims.jobs))
        if exchange.number > self._next_due_from:
            self._next_due_from = exchange.number
            self._next_due = None if claims.next_due is None else self._loop.time() + claims.next_due / 1000

    def _digest(self, exchange: Exchange, reply: SettleReply, asked: float) -> None:
        """Look through what a call was answered, and begin what it brought."""
        try:
            self._acknowledge(exchange.done, reply)
            self._take(reply.claims, asked)
        except Exception as error:
            self._broken = error
        finally:
            # Only now: the heartbeat takes a lease unknown to the roster after this for an orphan.
            self.traffic.end(exchange)
            self.nudge()

    def _take(self, claims: Claims, asked: float) -> None:
        attempts = [Attempt(claimed) for claimed in claims.jobs]
        for attempt in attempts:
            attempt.asked = asked
            self._roster[attempt.claimed.lease] = attempt
        if not self._claiming:
            self._return(attempts)
            return
        free = self._settings.concurrency - self._running
        if len(attempts) <= free and not self._stock.waiting:
            self._begin(attempts)
            return
        now = self._loop.time()
        for attempt in attempts:
            attempt.since = now
        self._stock.waiting.extend(attempts)
        self._fill()
        if self._returning is None:
            self._returning = self._loop.call_later(PATIENCE, self._return_late)

    def _fill(self) -> None:
        """Begin what waits, as far as there are slots."""
        self._filling = False
        while attempts := self._stock.take(self._settings.concurrency - self._running):
            if told := [attempt for attempt in attempts if attempt.told]:
                self._return(told)  # revoked, or its lease is lost, before it began
                attempts = [attempt for attempt in attempts if not attempt.told]
            self._begin(attempts)

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        self._running += len(attempts)
        now, create, attend = self._loop.time(), self._loop.create_task, self._attend
        for attempt in attempts:
            attempt.since = now
            attempt.handle = create(attend(attempt))
        if log.isEnabledFor(logging.DEBUG):
            for attempt in attempts:
                note_start(attempt.claimed, self._worker)
        # Runs after the first step of each, so that one call looks after all of them.
        self._loop.call_soon(self._end_unstarted, attempts)

    def _return_late(self) -> None:
        """Hand back what has waited here for too long: another worker may have a slot."""
        self._returning = None
        self._return(self._stock.take_late(self._loop.time()))
        if self._stock.waiting:
            self._returning = self._loop.call_later(PATIENCE, self._return_late)

    def _return(self, attempts: Sequence[Attempt]) -> None:
        """Hand back what has not begun, uncharged."""
        for attempt in attempts:
            attempt.outcome = Returned()
            self._owed.append(after_attempt(attempt.claimed, attempt.outcome))
        if attempts:
            self.nudge()

    async def _attend(self, attempt: Attempt) -> None:
        # Here and not earlier: a process that stood still may find that others have begun what it was about to begin.
        if not self._holds(attempt.asked):
            self._end(attempt, Returned())
            return
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
        self._running -= 1
        stock = self._stock
        stock.learn(self._loop.time() - attempt.since)
        if stock.waiting and not self._filling:
            self._filling = True
            self._loop.call_soon(self._fill)  # once for all that end in this round of the loop
        done = attempt.current.completed
        if done is None:
            self._owed.append(after_attempt(attempt.claimed, outcome))
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
        """Sleep until an attempt ends, a call is answered, a hint comes, or it is time to look."""
        self._waiter = self._loop.create_future()
        timer = None
        if self._owed and not self.traffic:
            timer = self._loop.call_later(GATHERING, self._hurry)
        elif not self.traffic and (wait := self._look_in(free)) is not None:
            timer = self._loop.call_later(max(wait, 0.001), self._look)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _look_in(self, free: int) -> float | None:
        """Seconds until it is time to look by ourselves; None: whoever ends will wake us."""
        if free > 0:
            due = self._next_due
            return self._settings.poll if due is None else min(self._settings.poll, due - self._loop.time())
        if self._pace is not None and self._pace.room() <= 0:
            return self._pace.opens_in()
        return None

    def _hurry(self) -> None:
        self._late = True
        self.nudge()

    def _look(self) -> None:
        self._hungry = True
        self._dry = False
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
