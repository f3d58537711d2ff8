"""The heartbeat: a thread with its own event loop that keeps the worker's leases, whatever its handlers do.

It learns from each beat which jobs are lost or should stop, and tells their handlers; and it watches the
worker's own loop, so that a handler that blocks it is named.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from onejob.core.errors import StoreClosed
from onejob.core.job import Lease, WorkerId
from onejob.core.lifecycle import Move, Returned, Settlement
from onejob.core.span import counted
from onejob.current import AbortReason
from onejob.store import Pulse, Store
from onejob.worker.attempt import Attempt, Interruption, Roster
from onejob.worker.failure import describe, first_line
from onejob.worker.finishing import settle_one
from onejob.worker.journal import say
from onejob.worker.loopwatch import LoopWatch
from onejob.worker.pump import Pump
from onejob.worker.setup import Settings
from onejob.worker.traffic import AT_ONCE

TICK = 0.4
"""Seconds between looks at the worker; only some of them lead to a beat."""


class Heartbeat:
    """Beats for one worker until stopped. `start`, `stop` and `linger` are called from the worker's loop."""

    def __init__(self, store: Store, worker: WorkerId, settings: Settings, roster: Roster) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._roster = roster
        self._beat = settings.beat(worker)
        self._held_since = 0.0
        self._held_until = 0.0
        self._next_beat = 0.0
        self._beaten_at = 0.0
        self._failures = 0
        self._strangers: dict[Lease, int] = {}
        self._stuck: Sequence[Attempt] = ()
        self._stopping = threading.Event()
        self._beating: asyncio.Task[None] | None = None

    def fresh(self) -> bool:
        """True while the last beat still covers a new claim; a claim under an ended lease would be rescued."""
        return time.monotonic() < self._held_until

    def holds(self, asked: float) -> bool:
        """True if whatever a call brought that was made then is still ours: no lease of this worker has ended since.

        A process that was stopped may have beaten anew before it hears that others run what it was given. From any thread.
        """
        return self.fresh() and self._held_since <= asked

    def age(self) -> float | None:
        """Seconds since the last beat that the store has answered; None before the first. From any thread."""
        return time.monotonic() - self._beaten_at if self._beaten_at else None

    async def start(self, pump: Pump, on_revoked: Callable[[Attempt], None]) -> None:
        """Beat once, so that trouble with the store is raised here, then go on in a thread.

        `on_revoked` is called in the worker's loop, once for each job that should stop.
        """
        self._pump = pump
        self._on_revoked = on_revoked
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop, self._roster, self._settings.block_warning)
        self._own_loop, self._wake = asyncio.new_event_loop(), asyncio.Event()
        self._over = self._loop.create_future()
        await self._beat_once()
        threading.Thread(target=self._run, name="onejob-heartbeat", daemon=True).start()

    async def stop(self) -> None:
        """End the thread; the leases last as long as the last beat said. Cancelled, it breaks off a beat under way."""
        self._stopping.set()
        _in_loop(self._own_loop, self._wake.set)
        try:
            await asyncio.shield(self._over)
        except asyncio.CancelledError:
            if self._beating is not None:
                _in_loop(self._own_loop, self._beating.cancel)
            raise

    def linger(self, stuck: Sequence[Attempt]) -> None:
        """Go on beating for handlers that could not be stopped, until they return or the process ends.

        Otherwise their jobs would run elsewhere beside them.
        """
        self._stuck = stuck
        self._stopping.set()

    def _run(self) -> None:
        with (
            asyncio.Runner(loop_factory=lambda: self._own_loop) as runner,
            contextlib.suppress(asyncio.CancelledError),
        ):
            runner.run(self._beat_on())
        _in_loop(self._loop, self._over.set_result, None)

    async def _beat_on(self) -> None:
        self._beating = asyncio.current_task()
        while not self._stopping.is_set() or self._still_stuck():
            try:
                self._watch.look()
                if time.monotonic() >= self._due():
                    await self._beat_within_lease()
            except StoreClosed:
                return
            except Exception as error:
                self._note_failure(error)
            await self._sleep(min(TICK, max(self._due() - time.monotonic(), 0.005)))
        if self._stuck:
            await self._depart()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                self._wake.clear()
        except TimeoutError:
            pass

    def _due(self) -> float:
        if self._failures:
            return self._next_beat
        return self._beaten_at + (self._settings.busy_beat if self._roster else self._settings.heartbeat)

    async def _beat_within_lease(self) -> None:
        # An answer that comes after the lease has ended is no use: give up in time to tell the handlers.
        async with asyncio.timeout(max(self._settings.lease / 3, self._held_until - time.monotonic())):
            await self._beat_once()

    async def _beat_once(self) -> None:
        mine = self._roster.copy()
        progress = {
            attempt.claimed.id: data
            for attempt in mine.values()
            if (data := attempt.current.latest_progress) is not None and data is not attempt.sent_progress
        }
        beat = msgspec.structs.replace(self._beat, progress=progress) if progress else self._beat
        lease, sent = self._settings.lease, time.monotonic()
        pulse = await self._store.beat(beat)
        was_fresh, answered = self.fresh(), time.monotonic()
        if answered >= self._held_until:
            self._held_since = answered  # the one before may have ended before this one began
        # Counted from before the call: at no moment do we believe in a lease longer than the store does.
        self._held_until, self._beaten_at = sent + lease, sent
        if self._failures:
            text = f"heartbeat works again after {counted(self._failures, 'failure')}"
            say(logging.INFO, "heartbeat.works", text, worker=self._worker)
            self._failures = 0
        for attempt in mine.values():
            attempt.sent_progress = progress.get(attempt.claimed.id, attempt.sent_progress)
        self._heed(pulse, mine)
        if not was_fresh:
            _in_loop(self._loop, self._pump.nudge)

    def _heed(self, pulse: Pulse, mine: Roster) -> None:
        """Tell the handlers what the pulse says. All of `mine` was claimed before the beat was sent."""
        for lease, attempt in mine.items():
            if pulse.held.get(lease.id) != lease.token:
                self._lose(attempt)
            elif lease.id in pulse.aborting and not attempt.current.aborted:
                attempt.tell(AbortReason.REVOKED)
                _in_loop(self._loop, self._on_revoked, attempt)
        self._return_orphans(pulse)

    def _lose(self, attempt: Attempt) -> None:
        # One that has ended may be settled already; the reply to its settlement says what became of it.
        if not attempt.running or attempt.current.aborted.reason is AbortReason.LOST:
            return
        if attempt.current.settling:
            return  # it ends itself, and so holds no lease any more; if it cannot, that is where it is told
        text = f"{attempt}, but its lease is lost: the handler is told, and its outcome will be refused"
        say(logging.WARNING, "lease.lost", text, attempt.claimed, worker=self._worker)
        attempt.tell(AbortReason.LOST)
        _in_loop(self._loop, attempt.interrupt, Interruption.LOST)

    def _return_orphans(self, pulse: Pulse) -> None:
        """Hand back jobs that were claimed for us by a call whose reply never came; our beats hold them."""
        seen: dict[Lease, int] = {}
        traffic = self._pump.traffic
        for id, token in pulse.held.items():
            lease = Lease(id, token)
            if lease in self._roster:
                continue
            seen[lease] = self._strangers.get(lease, traffic.calls_begun)
            if lease in self._strangers and traffic.calls_ended >= seen[lease] and lease not in self._roster:
                text = f"job {id} was claimed but its reply was lost; it goes back uncharged"
                say(logging.WARNING, "job.orphaned", text, job=id, worker=self._worker)
                _in_loop(self._loop, self._pump.owe, Settlement(lease, Move.HAND_BACK))
                # Those that begin before the loop hears of it do not take it along.
                seen[lease] = traffic.calls_begun + 1 + AT_ONCE
        self._strangers = seen

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._next_beat = time.monotonic() + random.uniform(0.05, 0.4)
        if self._failures in (1, 10) or self._failures % 100 == 0:
            text = f"heartbeat failed ({self._failures} in a row): {first_line(describe(error))}"
            say(logging.WARNING, "heartbeat.failed", text, worker=self._worker)
        if not self.fresh():
            for attempt in self._roster.copy().values():
                self._lose(attempt)

    def _still_stuck(self) -> bool:
        return any(attempt.occupied for attempt in self._stuck)

    async def _depart(self) -> None:
        """All stuck handlers have returned after the worker stopped: settle them, and leave."""
        try:
            for attempt in self._stuck:
                await settle_one(self._store, attempt, attempt.outcome or Returned())
            await self._store.leave(self._worker)
        except Exception as error:
            text = f"the last outcomes could not be stored: {first_line(describe(error))}"
            say(logging.WARNING, "store.trouble", text, worker=self._worker)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:  # that loop has been closed; nobody is left to tell
        pass
