"""The processes of a worker: started when a job first needs one, used again, replaced when they are spent.

From an attempt to its outcome, as the runner does for coroutines and threads. What a process cannot say itself,
because it died or was killed, is judged here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from onejob.core.chain import continuation_id
from onejob.core.errors import InvalidOption
from onejob.core.job import Claimed, NewJob
from onejob.core.lifecycle import Crashed, Outcome, Raised, Returned, Snoozed, Succeeded
from onejob.core.options import MAX_PAYLOAD, MAX_SECONDS, JobOptions
from onejob.current import MAX_PROGRESS, AbortReason, bind
from onejob.logs import printable
from onejob.references import Reference, reference_to, running_script
from onejob.store import Blocker
from onejob.worker.attempt import Attempt, Interruption
from onejob.worker.charging import Charges
from onejob.worker.failure import cut, first_line
from onejob.worker.frames import Boot, Broken, End, Ended, Line, Next, Slept, Start
from onejob.worker.journal import say
from onejob.worker.process import Death, Listener, Process
from onejob.worker.setup import ChildLimits, WorkerSetup

if TYPE_CHECKING:
    from onejob.tasks import Task
    from onejob.worker.observer import Observer

GRACE: Mapping[Interruption, float] = {
    Interruption.TIMED_OUT: 2.0,
    Interruption.REVOKED: 2.0,
    Interruption.SHUTDOWN: 1.0,
    Interruption.LOST: 0.0,
}
"""Seconds a handler has for its `finally` blocks before its process is killed; a lost one may run elsewhere."""

CLOSE_LIMIT = 10.0
"""Seconds to wait for the end of processes; one that the kernel cannot kill must not hold up its worker."""

NO_PROCESS_DELAY = 5_000
"""The wait (ms) of a job for which no process could be started; nothing is charged."""


class Processes:
    """Runs attempts in processes, at most so many at a time."""

    def __init__(self, setup: WorkerSetup, limits: ChildLimits, observer: Observer | None = None) -> None:
        self._tasks = setup.tasks
        self._backoffs = setup.backoffs
        self._compresses = setup.compresses
        self._charges = Charges(setup.backoffs)
        self._limits = limits
        self._observer = observer
        self._free = asyncio.Semaphore(limits.at_once)
        self._waiting: set[Attempt] = set()
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._references: dict[str, Reference] = {}

    async def run(
        self,
        attempt: Attempt,
        task: Task[..., Any],
        options: JobOptions,
        blockers: Sequence[Blocker] = (),
    ) -> Outcome:
        """Run one attempt to its outcome; never raises. `blockers` are what the job waited for."""
        bind(attempt.current)
        begun = False
        try:
            async with self._process_for(attempt) as process:
                begun = True
                end = await self._run_in(process, attempt, task, options, blockers)
        except asyncio.CancelledError:
            end = Death("its worker let go of it")
            if attempt.interrupted is None or not begun:
                return Returned()
        except OSError as error:
            end = Death(str(error), unborn=True)
        if attempt.interrupted is Interruption.TIMED_OUT:
            return self._charges.timed_out(attempt.claimed, options)
        return (
            _after_death(attempt, end) if isinstance(end, Death) else self._after_end(attempt, options, end)
        )

    def has_waiting(self, attempt: Attempt) -> bool:
        """True if no process has taken up the attempt yet."""
        return attempt in self._waiting

    def release_waiting(self) -> None:
        """Let go of the attempts that no process has taken up yet; their jobs go back."""
        for attempt in list(self._waiting):
            attempt.interrupt(Interruption.SHUTDOWN)

    async def close(self) -> None:
        """End every process, and wait until all are gone."""
        for process in list(self._all):
            if process in self._idle:
                process.dismiss()
            else:
                process.kill("its worker has stopped")
        self._idle.clear()
        if self._all:
            going = [asyncio.ensure_future(process.wait()) for process in self._all]
            await asyncio.wait(going, timeout=CLOSE_LIMIT)

    @contextlib.asynccontextmanager
    async def _process_for(self, attempt: Attempt) -> AsyncGenerator[Process]:
        self._waiting.add(attempt)
        try:
            await self._free.acquire()
        finally:
            self._waiting.discard(attempt)
        try:
            process = self._fit_one() or await self._new()
            try:
                yield process
            finally:
                self._put_back(process)
        finally:
            self._free.release()

    def _fit_one(self) -> Process | None:
        """The idle process that was used last and can still be used."""
        while self._idle:
            process = self._idle.pop()
            if process.fit:
                return process
        return None

    async def _new(self) -> Process:
        process = Process(self._boot(), self._on_gone)
        await process.start()
        self._all.add(process)
        return process

    def _boot(self) -> Boot:
        here = str(Path.cwd())
        return Boot(
            path=[part or here for part in sys.path],
            argv=sys.argv,
            script=running_script(),
            levels={name: logging.getLogger(name).getEffectiveLevel() for name in ("root", "onejob")},
            measure=self._limits.max_memory is not None,
        )

    def _put_back(self, process: Process) -> None:
        limits = self._limits
        if not process.fit:
            return  # dead, or made to
        spent = limits.max_jobs is not None and process.jobs >= limits.max_jobs
        fat = limits.max_memory is not None and process.memory > limits.max_memory
        if spent or fat:
            process.dismiss()
        else:
            self._idle.append(process)

    def _on_gone(self, process: Process) -> None:
        self._all.discard(process)
        if process in self._idle:
            self._idle.remove(process)

    async def _run_in(
        self,
        process: Process,
        attempt: Attempt,
        task: Task[..., Any],
        options: JobOptions,
        blockers: Sequence[Blocker],
    ) -> End | Death:
        observer = self._observer
        if observer is not None:
            await observer.starts(attempt)
        current, told = attempt.current, _Told(process, attempt)
        attempt.stop_process = lambda why: process.stop(GRACE[why])
        try:
            start = self._start(attempt, task, options, blockers)
            running = process.run(start, _Ear(attempt, options), blockers)
            current.aborted.when_set(told)
            return await running
        finally:
            current.aborted.forget(told)
            attempt.stop_process = None
            if attempt.timer is not None:
                attempt.timer.cancel()
            if observer is not None:
                observer.returned(attempt)

    def _start(
        self, attempt: Attempt, task: Task[..., Any], options: JobOptions, blockers: Iterable[Blocker]
    ) -> Start:
        claimed = attempt.claimed
        return Start(
            claimed,
            self._references.get(task.name) or self._reference(task),
            self._curve(options),
            self._compresses(claimed.queue),
            self._outputs({blocker.task for blocker in blockers}),
        )

    def _outputs(self, names: Iterable[str]) -> dict[str, Reference]:
        """Where a process finds what the outputs of blockers are typed by."""
        found: dict[str, Reference] = {}
        for name in names:
            if (task := self._tasks.get(name)) is not None:
                with contextlib.suppress(InvalidOption):  # then its outputs are plain JSON there
                    found[name] = reference_to("The task", task.function)
        return found

    def _reference(self, task: Task[..., Any]) -> Reference:
        made = self._references[task.name] = reference_to(f"Task {task.name!r}", task.function)
        return made

    def _curve(self, options: JobOptions) -> Reference | None:
        """Where a process finds the named retry curve, because there the real error can be shown to it."""
        if not isinstance(options.backoff, str) or options.backoff not in self._backoffs:
            return None
        try:
            return reference_to("The backoff", self._backoffs[options.backoff])
        except InvalidOption:
            return None

    def _after_end(self, attempt: Attempt, options: JobOptions, end: End) -> Outcome:
        match end:
            case Ended(result) if result is not None and len(result) > MAX_PAYLOAD:
                text = f"the result of task {attempt.claimed.task} has {len(result)} bytes, more than {MAX_PAYLOAD}"
                return Raised(text, attempts=1, retry_in=0, final=True)
            case Ended(result, _, then):
                return Succeeded(result, None if then is None else _next_job(attempt.claimed, then))
            case Slept(delay):
                return Snoozed(_sane(delay))
            case Broken(error, retry_in, final):
                text = cut("\n".join(map(printable, error.split("\n"))))
                if retry_in is None and not final and attempt.claimed.failures + 1 < options.attempts:
                    retry_in = self._charges.wait_of(attempt.claimed, options, RuntimeError(first_line(text)))
                return Raised(text, options.attempts, _sane(retry_in or 0), final)
            case _:
                assert_never(end)


class _Ear(Listener):
    """Hears a running job for its attempt."""

    def __init__(self, attempt: Attempt, options: JobOptions) -> None:
        self._attempt = attempt
        self._timeout = options.timeout

    def begins(self) -> None:
        """The time starts now: to start a process and to import a module is no part of the job."""
        if self._timeout is not None:
            loop, attempt = asyncio.get_running_loop(), self._attempt
            attempt.timer = loop.call_later(self._timeout / 1000, attempt.interrupt, Interruption.TIMED_OUT)

    def progresses(self, data: bytes) -> None:
        """The heartbeat takes it from there."""
        if len(data) <= MAX_PROGRESS:
            self._attempt.current.latest_progress = data

    def logs(self, line: Line) -> None:
        """Log it as if it had been logged here."""
        logger = logging.getLogger(line.logger)
        if logger.isEnabledFor(line.level):
            record = logger.makeRecord(line.logger, line.level, "(process)", 0, line.text, (), None)
            vars(record).update(
                (name, value) for name, value in line.fields.items() if not hasattr(record, name)
            )
            logger.handle(record)


class _Told:
    """Passes on to the process that its job should stop, from whatever thread that is known."""

    def __init__(self, process: Process, attempt: Attempt) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._aborted = attempt.current.aborted

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._pass_on)
        except RuntimeError:  # the loop is closed; nobody is left to tell
            pass

    def _pass_on(self) -> None:
        self._process.tell(self._aborted.reason or AbortReason.REVOKED)


def _after_death(attempt: Attempt, death: Death) -> Outcome:
    match attempt.interrupted:
        case Interruption.SHUTDOWN | Interruption.LOST:
            return Returned()
        case Interruption.REVOKED:
            return Raised("Aborted: it was asked to stop and killed", attempts=1, retry_in=0, final=True)
        case _ if death.unborn:
            text = f"{attempt} waits {NO_PROCESS_DELAY // 1000} s, because it got no process: {death.reason}"
            say(logging.ERROR, "process.missing", text, attempt.claimed)
            return Snoozed(NO_PROCESS_DELAY)
        case _:
            return Crashed(f"Crashed: {printable(death.reason)}")


def _next_job(claimed: Claimed, then: Next) -> NewJob:
    return NewJob(
        continuation_id(claimed.chain, claimed.chain_index + 1),
        then.queue,
        then.task,
        then.payload,
        None,
        then.priority,
        then.delay,
        then.expires,
        then.max_crashes,
        then.options,
        None,
        then.lane,
        then.blockers,
        then.runs_anyway,
    )


def _sane(wait: int) -> int:
    return min(max(wait, 0), MAX_SECONDS * 1000)
