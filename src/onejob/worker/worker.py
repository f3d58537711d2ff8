"""The worker: wires pump, runner, heartbeat and keepers together, and brings them down in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Self

from onejob.core.errors import WrongCall
from onejob.core.options import Seconds
from onejob.keepers import Pruner, Rescuer, make_rounds
from onejob.worker.attempt import Attempt, Roster
from onejob.worker.failure import describe, first_line
from onejob.worker.heartbeat import Heartbeat
from onejob.worker.pump import Pump
from onejob.worker.runner import Runner
from onejob.worker.setup import Settings, WorkerSetup, log, new_worker_id, served_queues

GRACE = 2.0
"""Seconds that cancelled coroutines get to unwind before the worker stops waiting for them."""


class Worker:
    """Runs jobs of some queues in this event loop.

    `async with app.worker(…):` runs beside the application and leaves signals alone; `await worker.run()`
    runs until SIGTERM or SIGINT. Times are in seconds.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        *,
        queues: Iterable[str] | str | None = None,
        concurrency: int = 10,
        lease: Seconds = 30,
        heartbeat: Seconds | None = None,
        drain: Seconds = 30,
        poll: Seconds = 5,
        block_warning: Seconds = 1,
    ) -> None:
        """`lease` is how long after its last heartbeat (default: every third of it) a worker counts as dead.

        `drain` is how long running jobs may go on after `stop`; `poll` how often to look where no hint came;
        `block_warning` after how long a blocked event loop is reported.
        """
        self.settings = Settings.checked(
            queues=served_queues(queues, setup),
            concurrency=concurrency,
            lease=lease,
            heartbeat=heartbeat,
            drain=drain,
            poll=poll,
            block_warning=block_warning,
        )
        self.id = new_worker_id()
        self._setup = setup
        self._roster: Roster = {}
        self._stops = 0
        self._serving: asyncio.Task[None] | None = None

    @property
    def counts(self) -> Counter[str]:
        """What became of the attempts so far: by move, and `lost` and `revoked`."""
        return Counter() if self._serving is None else self._pump.counts.copy()

    @property
    def stuck(self) -> list[Attempt]:
        """After the end: handlers that could not be stopped. Their leases stay theirs until they return."""
        return [attempt for attempt in self._roster.values() if attempt.running]

    async def run(self, *, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop`, SIGTERM or SIGINT, then finish or hand back what runs; twice: at once.

        `ready` is called once the worker takes jobs.
        """
        await self._start()
        with self._signals():
            if ready is not None:
                ready()
            await self._finish()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()
        await self._finish()

    def stop(self) -> None:
        """Take no new jobs, and end once those under way have; again: hand back at once. From any thread."""
        if self._serving is not None and not self._serving.done():
            self._loop.call_soon_threadsafe(self._on_stop)

    async def _start(self) -> None:
        if self._serving is not None:
            raise WrongCall("A worker runs once: make another with app.worker(…).")
        self._loop = asyncio.get_running_loop()
        self._stop_asked, self._hurry_asked = asyncio.Event(), asyncio.Event()
        setup, settings = self._setup, self.settings
        await setup.store.open()
        self._runner = Runner(setup, settings.concurrency)
        self._heartbeat = Heartbeat(setup.store, self.id, settings, self._roster)
        self._pump = Pump(
            store=setup.store,
            worker=self.id,
            settings=settings,
            runner=self._runner,
            roster=self._roster,
            may_claim=self._heartbeat.fresh,
        )
        await self._heartbeat.start(self._pump, self._cancels_on_abort)
        self._serving = self._loop.create_task(self._serve(), name=f"onejob-{self.id}")

    async def _finish(self) -> None:
        assert self._serving is not None
        try:
            await asyncio.shield(self._serving)
        except asyncio.CancelledError:
            # Whoever cancels us wants us gone, but not the jobs left in the air.
            self._on_stop(hurry=True)
            await self._serving
            raise

    def _on_stop(self, *, hurry: bool = False) -> None:
        if self._stop_asked.is_set() or hurry:
            self._hurry_asked.set()
        self._stop_asked.set()

    async def _serve(self) -> None:
        keepers = (
            Rescuer(self._setup.store, self.settings.lease / 2),
            Pruner(self._setup.store, self._setup.retention),
        )
        rounds = self._loop.create_task(make_rounds(keepers))
        pumping = self._loop.create_task(self._pump.run())
        try:
            await _either(pumping, self._stop_asked)
            self._pump.stop_claiming()
            await _either(pumping, self._hurry_asked, timeout=self.settings.drain)
            if not pumping.done():
                self._pump.hand_back()
                await asyncio.wait({pumping}, timeout=GRACE)
        finally:
            for task in (rounds, pumping):
                task.cancel()
            await asyncio.wait({rounds, pumping})
            await self._depart()
        if not pumping.cancelled():
            pumping.result()

    async def _depart(self) -> None:
        """Leave, unless a handler is still at work: then its lease must not end before it does.

        A thread, or a coroutine that swallows its cancellation, cannot be stopped, and a job handed back
        while it runs would run twice at once. So its lease is kept by a lingering heartbeat. If the process
        ends first, as `onejob worker` does, the handler dies with it, before the lease runs out.
        """
        self._runner.close()
        for attempt in self._pump.unsettled():
            log.error(
                "job %s (task %s) ended, but its outcome could not be stored before the worker stopped; "
                "it will run again",
                attempt.claimed.id,
                attempt.claimed.task,
            )
        if stuck := self.stuck:
            for attempt in stuck:
                log.warning("%s and cannot be stopped; its lease is kept until it returns", attempt)
            self._heartbeat.linger(stuck)
            return
        await self._heartbeat.stop()
        try:
            await self._setup.store.leave(self.id)
        except Exception as error:
            log.warning("could not sign off, the lease will run out: %s", first_line(describe(error)))

    def _cancels_on_abort(self, attempt: Attempt) -> bool:
        task = self._setup.tasks.get(attempt.claimed.task)
        return task is not None and task.cancel_on_abort

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        """Let SIGTERM and SIGINT stop the worker; only the main thread may ask for signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)


async def _either(task: asyncio.Task[None], event: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until the task is done, the event is set, or the time is up."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
