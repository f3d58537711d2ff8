"""One attempt, from a claimed job to an `Outcome`: decode, call, and judge how it ended.

Whatever a handler does ends here as an outcome; nothing it raises reaches the event loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from onejob.blockers import as_given
from onejob.completion import Workshop
from onejob.core.errors import Fail, Snooze
from onejob.core.lifecycle import Outcome, Raised, Returned, Snoozed, Unknown
from onejob.core.options import JobOptions, decode_options
from onejob.current import bind
from onejob.logs import printable
from onejob.worker.attempt import Attempt, Interruption
from onejob.worker.awaited import read_blockers, result_types
from onejob.worker.charging import Charges, undecodable
from onejob.worker.finishing import completed, returned
from onejob.worker.processes import Processes
from onejob.worker.setup import ChildLimits, WorkerSetup
from onejob.worker.threads import Threads

if TYPE_CHECKING:
    from onejob.worker.observer import Observer

CACHED_OPTIONS = 1_024


class Runner:
    """Runs attempts: coroutines in the worker's loop, functions in threads or in processes."""

    def __init__(
        self,
        setup: WorkerSetup,
        threads: int,
        observer: Observer | None = None,
        children: ChildLimits | None = None,
        *,
        lease: float = 30.0,
    ) -> None:
        """`lease` (seconds) bounds for how long a handler's `complete()` may hold the store's writer."""
        self._setup = setup
        self._tasks = setup.tasks
        self._type_of = result_types(setup.tasks)
        self._workshop = (
            None
            if setup.client is None
            else Workshop(setup.client, lease=lease, compresses=setup.compresses, clock=setup.clock)
        )
        self._charges = Charges(setup.backoffs)
        self._observer = observer
        self._threads = Threads(threads)
        self._processes = Processes(setup, children or ChildLimits(threads), observer)
        self._options: dict[bytes | None, JobOptions] = {None: JobOptions()}

    def close(self) -> None:
        """Let idle threads end; one that is still in a handler goes on to its return."""
        self._threads.close()

    async def close_processes(self) -> None:
        """End all processes and wait until they are gone; one that is still in a handler is killed."""
        await self._processes.close()

    def release_waiting(self) -> None:
        """Let go of attempts that wait for a process, so that their jobs go back."""
        self._processes.release_waiting()

    def has_waiting(self, attempt: Attempt) -> bool:
        """True if the attempt waits for a process, and its handler has not been called."""
        return self._processes.has_waiting(attempt)

    async def run(self, attempt: Attempt) -> Outcome:
        """Run one attempt to its outcome; never raises."""
        claimed = attempt.claimed
        task = self._tasks.get(claimed.task)
        if task is None:
            return Unknown(printable(", ".join(sorted(self._tasks)[:20])) or "none")
        blockers = await read_blockers(self._setup.store, attempt) if claimed.blockers else ()
        if isinstance(blockers, (Snoozed, Returned)):
            return blockers
        try:
            options = self._options.get(claimed.options) or self._decoded_options(claimed.options)
            if task.process:
                return await self._processes.run(attempt, task, options, blockers)
            arguments = task.codec.decode(claimed.payload, options.into)
        except Exception as error:
            return undecodable(error)
        current = attempt.current
        if blockers:
            current.blockers = as_given(blockers, self._type_of)
        current.workplace = self._workshop
        bind(current)
        observer = self._observer
        try:
            if observer is not None:
                await observer.starts(attempt)
            if options.timeout is not None:
                self._limit(attempt, options.timeout)
            if task.is_async:
                value = await task.codec.call(arguments)
            else:
                attempt.in_thread = True
                value = await self._threads.run(partial(task.codec.call, arguments), attempt.note_return)
        except BaseException as error:
            if observer is not None:
                observer.raised(attempt, error)
            return self._after_error(attempt, options, error)
        finally:
            if attempt.timer is not None:
                attempt.timer.cancel()
            if observer is not None:
                observer.returned(attempt)
        if current.completed is not None:
            return completed(attempt, value)
        if attempt.interrupted is Interruption.TIMED_OUT:
            return self._charges.timed_out(claimed, options)
        return returned(attempt, value, self._setup)

    def _decoded_options(self, data: bytes | None) -> JobOptions:
        if len(self._options) >= CACHED_OPTIONS:
            self._options = {None: JobOptions()}
        options = self._options[data] = decode_options(data)
        return options

    def _limit(self, attempt: Attempt, timeout: int) -> None:
        loop = asyncio.get_running_loop()
        attempt.timer = loop.call_later(timeout / 1000, attempt.interrupt, Interruption.TIMED_OUT)

    def _after_error(self, attempt: Attempt, options: JobOptions, error: BaseException) -> Outcome:
        """Judge an error, or a cancellation, by what the attempt had been told before."""
        if attempt.current.completed is not None:
            return completed(attempt, error=error)
        cancelled = isinstance(error, asyncio.CancelledError)
        match attempt.interrupted:
            case Interruption.TIMED_OUT:
                return self._charges.timed_out(attempt.claimed, options)
            case Interruption.SHUTDOWN if not attempt.in_thread and not isinstance(error, (Snooze, Fail)):
                return Returned()
            case Interruption.LOST if cancelled:
                return Returned()
            case Interruption.REVOKED if cancelled:
                return Raised(
                    "Aborted: it was asked to stop and cancelled", attempts=1, retry_in=0, final=True
                )
            case _:
                return self._charges.raised(attempt.claimed, options, error)
