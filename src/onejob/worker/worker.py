"""The worker: wires pump, runner, heartbeat and keepers together, and brings them down in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import NoReturn, Self

from onejob.core.errors import WrongCall
from onejob.core.lane import Rate
from onejob.core.lifecycle import Move
from onejob.core.options import Seconds
from onejob.hooks import PATIENCE, lived
from onejob.keepers import IntakeKeeper, Pruner, Rescuer, Scheduler, make_rounds
from onejob.references import loading
from onejob.store import AtHand
from onejob.worker.attempt import Attempt, Interruption, Roster
from onejob.worker.failure import describe, first_line
from onejob.worker.health import Health, Phase
from onejob.worker.heartbeat import Heartbeat
from onejob.worker.journal import say
from onejob.worker.observer import Observer
from onejob.worker.pump import Pump
from onejob.worker.runner import Runner
from onejob.worker.setup import Settings, WorkerSetup, new_worker_id, served_queues

GRACE = 2.0
"""Seconds beyond the drain time in which cancelled coroutines unwind, and the worker signs off."""
LAST_WORDS = 0.5
"""Seconds that it has for signing off in any case."""
NAMED = 3
"""How many jobs are named whose outcomes could not be stored."""


_ENDED = {
    Move.COMPLETE.value: "completed",
    Move.RETRY.value: "to be retried",
    Move.FAIL.value: "failed",
    Move.PERISH.value: "failed",
    Move.SUCCUMB.value: "failed after crashes",
    Move.CRASH.value: "crashed and to run again",
    Move.SNOOZE.value: "snoozed",
    Move.HAND_BACK.value: "handed back",
    Move.MISS.value: "handed back",
}
"""What became of attempts, in words."""


class Worker:
    """Runs jobs of some queues in this event loop.

    `async with app.worker(…):` runs beside the application and leaves signals alone; `await worker.run()`
    runs until SIGTERM or SIGINT. Times are in seconds.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each setting
        self,
        setup: WorkerSetup,
        *,
        queues: Iterable[str] | str | None = None,
        concurrency: int = 10,
        stock: int | None = None,
        rate: Rate | None = None,
        children: int | None = None,
        max_jobs_per_child: int | None = 1000,
        max_memory_per_child: int | None = None,
        lease: Seconds = 30,
        heartbeat: Seconds | None = None,
        drain: Seconds = 30,
        poll: Seconds = 5,
        block_warning: Seconds = 1,
    ) -> None:
        """`rate` bounds how many jobs this worker starts; the limits of queues and lanes hold besides.

        While handlers take a few milliseconds, up to `stock` jobs (default: four times the concurrency, or 100) are claimed
        before there is a slot for them, so that none is ever idle; 0 claims into free slots only. Jobs with a lane, and
        those of queues with limits, always are.

        `lease` is how long after its last heartbeat (default: every third of it) a worker counts as dead.

        `drain` is how long running jobs may go on after `stop`; `poll` how often to look where no hint came;
        `block_warning` after how long a blocked event loop is reported. `children` is how many processes may run
        jobs of `process=True` (default: one per core, at most `concurrency`); one is replaced after
        `max_jobs_per_child` jobs, or when it has grown beyond `max_memory_per_child` MiB.
        """
        self.settings = Settings.checked(
            queues=served_queues(queues, setup),
            concurrency=concurrency,
            stock=stock,
            rate=rate,
            children=children,
            max_jobs_per_child=max_jobs_per_child,
            max_memory_per_child=max_memory_per_child,
            lease=lease,
            heartbeat=heartbeat,
            drain=drain,
            poll=poll,
            block_warning=block_warning,
        )
        self.id = new_worker_id()
        self._setup = setup
        self._roster: Roster = {}
        self._phase = Phase.STARTING
        self._serving: asyncio.Task[None] | None = None
        self._stop_early = False
        """Told to stop before it was started: then it ends as soon as it is."""
        self._keeping = False
        self._deadline = math.inf
        """By the loop's clock, when it should be gone, once it has been told to stop."""
        self._unsettled: list[Attempt] = []

    @property
    def counts(self) -> Counter[str]:
        """What became of the attempts so far: by move, and `lost` and `revoked`."""
        return Counter() if self._serving is None else self._pump.counts.copy()

    @property
    def stuck(self) -> list[Attempt]:
        """After the end: handlers that could not be stopped. Their leases stay theirs until they return."""
        return [attempt for attempt in self._roster.values() if attempt.running]

    @property
    def unsettled(self) -> list[Attempt]:
        """After the end: attempts whose outcomes no store has accepted. Their jobs run again."""
        return [*self._unsettled]

    @property
    def held_up(self) -> bool:
        """After the end: something of it is still in a thread and cannot be stopped, a handler or a keeper."""
        return bool(self.stuck) or self._keeping

    def __repr__(self) -> str:
        return f"<Worker {self.id}: {self._phase}, serves {', '.join(self.settings.queues)}>"

    def health(self) -> Health:
        """How this worker is now; callable from any thread."""
        begun = self._serving is not None
        running = sum(attempt.begun and attempt.running for attempt in self._roster.copy().values())
        return Health(
            worker=self.id,
            phase=self._phase,
            fresh=begun and self._heartbeat.fresh(),
            beat_age=self._heartbeat.age() if begun else None,
            running=running,
            queues=self.settings.queues,
        )

    async def run(self, *, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop`, SIGTERM or SIGINT, then finish or hand back what runs; twice: at once.

        `ready` is called once the worker takes jobs.
        """
        with self._signals():
            await self._start()
            if ready is not None and self._phase is not Phase.STOPPED:
                ready()
            await self._finish()

    def __enter__(self) -> NoReturn:
        """Refused: a worker lives in an event loop."""
        raise WrongCall(
            "A worker runs in an event loop: write `async with app.worker(…):`, or run one beside this program "
            "with `onejob worker MODULE:APP`, or here until Ctrl-C with `asyncio.run(app.worker(…).run())`."
        )

    def __exit__(self, *ended: object) -> None:
        """For `with` to come as far as `__enter__`."""

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
        if self._serving is None:
            self._stop_early = True
        elif not self._serving.done():
            self._loop.call_soon_threadsafe(self._on_stop)

    async def _start(self) -> None:
        if self._serving is not None:
            raise WrongCall("A worker runs once: make another with app.worker(…).")
        if loading.get():
            raise WrongCall(
                "This process runs jobs of a worker and only imports its script: what starts a worker there must "
                'stand under `if __name__ == "__main__":`.'
            )
        for task in self._setup.tasks.values():
            task.planner.check_backoff()
        self._loop = asyncio.get_running_loop()
        self._stop_asked, self._hurry_asked = asyncio.Event(), asyncio.Event()
        self._wire()
        started = self._loop.create_future()
        self._serving = self._loop.create_task(self._live(started), name=f"onejob-{self.id}")
        if self._stop_early:
            self._loop.call_soon(self._on_stop)
        try:
            await asyncio.wait({started, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._serving.cancel()
            await asyncio.wait({self._serving})
            raise
        if not started.done():
            self._serving.result()

    def _wire(self) -> None:
        setup, settings = self._setup, self.settings
        self._heartbeat = Heartbeat(setup.store, self.id, settings, self._roster)
        self._observer = Observer.of(setup.hooks, settings.concurrency, self._on_caught_up)
        self._runner = Runner(
            setup, settings.concurrency, self._observer, settings.children, lease=settings.lease
        )
        self._pump = Pump(
            store=setup.store,
            worker=self.id,
            settings=settings,
            runner=self._runner,
            roster=self._roster,
            may_claim=self._heartbeat.fresh if self._observer is None else self._may_claim,
            holds=self._heartbeat.holds,
            observer=self._observer,
            at_once=setup.store.exchanges_at_once,
        )

    async def _live(self, started: asyncio.Future[None]) -> None:
        """The whole life of a worker, in one task: what the app's lifespan opens here is closed here."""
        try:
            store = self._setup.store
            await store.open()
            near = store.at_hand() if isinstance(store, AtHand) else contextlib.nullcontext()
            async with near, lived(self._setup.hooks):
                await self._heartbeat.start(self._pump, self._on_revoked)
                self._phase = Phase.SERVING
                say(logging.INFO, "worker.started", self._greeting(), **self._fields())
                started.set_result(None)
                await self._serve()
        except asyncio.CancelledError:
            if started.done() or not self._stop_asked.is_set():
                raise
            # Told to stop before it had begun: there is nothing to finish.
        finally:
            self._phase = Phase.STOPPED
        told = _summary(self.counts, self.stuck, self._unsettled)
        say(logging.INFO, "worker.stopped", f"worker {self.id} stopped: {told}", **self._fields())

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
        if self._phase is Phase.STARTING and self._serving is not None:
            self._serving.cancel()
        elif self._phase is Phase.SERVING:
            self._phase = Phase.DRAINING

    async def _serve(self) -> None:
        observer = self._observer
        keepers = (
            Rescuer(
                self._setup.store, self.settings.lease / 2, None if observer is None else observer.rescued
            ),
            Pruner(self._setup.store, self._setup.retention),
            Scheduler(self._setup.store, self._setup.schedules, self._setup.tasks),
            *(IntakeKeeper(intake) for intake in self._setup.intakes.values()),
        )
        rounds = self._loop.create_task(make_rounds(keepers))
        pumping = self._loop.create_task(self._pump.run())
        try:
            await _either(pumping, self._stop_asked)
            self._say_what_is_left()
            self._pump.stop_claiming()
            self._runner.release_waiting()
            drain = self.settings.drain
            self._deadline = self._loop.time() + drain + GRACE
            await _either(pumping, self._hurry_asked, timeout=drain)
            if self._hurry_asked.is_set():
                self._deadline = min(self._deadline, self._loop.time() + GRACE)
            if not pumping.done():
                self._pump.hand_back()
                await asyncio.wait({pumping}, timeout=self._left(GRACE))
        finally:
            for task in (rounds, pumping):
                task.cancel()
            # A keeper may be in a thread that waits for somebody's database, and cannot be stopped.
            await asyncio.wait({rounds, pumping}, timeout=self._left(GRACE))
            self._keeping = not rounds.done()
            if observer is not None:
                await observer.finish(GRACE if self._hurry_asked.is_set() else PATIENCE)
            await self._depart()
        if pumping.done() and not pumping.cancelled():
            pumping.result()

    async def _depart(self) -> None:
        """Leave, unless a handler is still at work: then its lease must not end before it does.

        A thread, or a coroutine that swallows its cancellation, cannot be stopped, and a job handed back
        while it runs would run twice at once. So its lease is kept by a lingering heartbeat. If the process
        ends first, as `onejob worker` does, the handler dies with it, before the lease runs out.
        """
        self._runner.close()
        await self._runner.close_processes()
        self._unsettled = self._pump.unsettled()
        for attempt in self._unsettled:
            job = attempt.claimed
            text = f"job {job.id} (task {job.task}) ended, but its outcome could not be stored before the worker stopped"
            say(logging.ERROR, "job.unsettled", f"{text}; it will run again", job, worker=self.id)
        if stuck := self.stuck:
            for attempt in stuck:
                text = f"{attempt} and cannot be stopped; its lease is kept until it returns or this process ends"
                say(logging.WARNING, "handler.stuck", text, attempt.claimed, worker=self.id)
            self._heartbeat.linger(stuck)
            return
        try:
            async with asyncio.timeout(self._left(self.settings.drain + GRACE)):
                await self._heartbeat.stop()
                await self._setup.store.leave(self.id)
        except Exception as error:
            late = isinstance(error, TimeoutError)
            why = "the store did not answer in time" if late else first_line(describe(error))
            text = f"could not sign off, the lease will run out: {why}"
            say(logging.WARNING, "store.trouble", text, worker=self.id)

    def _left(self, most: float) -> float:
        """Seconds until it should be gone; a moment in any case."""
        return min(most, max(self._deadline - self._loop.time(), LAST_WORDS))

    def _say_what_is_left(self) -> None:
        """Who has told us to stop should know what we still wait for."""
        count, drain = sum(attempt.begun for attempt in self._roster.values()), self.settings.drain
        if count and not self._hurry_asked.is_set():
            jobs = "1 job is" if count == 1 else f"{count} jobs are"
            text = f"worker {self.id} stops: {jobs} under way, for which it waits up to {drain:g} s; told again, it hands them back"
            say(logging.INFO, "worker.stopping", text, **self._fields())

    def _on_caught_up(self) -> None:
        self._pump.nudge()

    def _may_claim(self) -> bool:
        return self._heartbeat.fresh() and (self._observer is None or self._observer.keeps_up())

    def _greeting(self) -> str:
        settings, where = self.settings, self._setup.where
        served = f"serving {', '.join(settings.queues)} · concurrency {settings.concurrency}"
        if settings.rate is not None:
            served += f" · {settings.rate}"
        return f"worker {self.id} {served}{where and ' · '}{where}"

    def _fields(self) -> dict[str, object]:
        return {"worker": self.id, "queues": list(self.settings.queues), "pid": os.getpid()}

    def _on_revoked(self, attempt: Attempt) -> None:
        """A job has been told to stop: break it off if its task asks for that, or if it has not begun."""
        task = self._setup.tasks.get(attempt.claimed.task)
        if (task is not None and task.cancel_on_abort) or self._runner.has_waiting(attempt):
            attempt.interrupt(Interruption.REVOKED)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        """Let SIGTERM and SIGINT stop the worker; only the main thread may ask for signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _summary(counts: Counter[str], stuck: Sequence[Attempt], unsettled: Sequence[Attempt]) -> str:
    told: Counter[str] = Counter(completed=0)
    for what, count in counts.items():
        told[_ENDED.get(what, what)] += count
    if stuck:
        told["still at work, which cannot be stopped"] = len(stuck)
    if unsettled:
        named = ", ".join(
            f"{attempt.claimed.id} (task {attempt.claimed.task})" for attempt in unsettled[:NAMED]
        )
        more = ", …" if len(unsettled) > NAMED else ""
        told[f"ended but could not be stored and will run again: job {named}{more}"] = len(unsettled)
    return ", ".join(f"{count} {words}" for words, count in told.items())


async def _either(task: asyncio.Task[None], event: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until the task is done, the event is set, or the time is up."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
