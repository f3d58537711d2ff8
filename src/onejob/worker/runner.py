"""One attempt, from a claimed job to an `Outcome`: decode, call, and judge how it ended.

Whatever a handler does ends here as an outcome; nothing it raises reaches the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from onejob.codec import CallCodec, encode_result
from onejob.core.errors import Fail, InvalidOption, Snooze
from onejob.core.job import Claimed
from onejob.core.lifecycle import Outcome, Raised, Returned, Snoozed, Succeeded, Unknown
from onejob.core.options import JobOptions, decode_options, millis
from onejob.core.retry import is_never
from onejob.current import bind
from onejob.logs import printable
from onejob.worker.attempt import Attempt, Interruption
from onejob.worker.failure import cut, describe, first_line, headline
from onejob.worker.setup import WorkerSetup, log

if TYPE_CHECKING:
    from onejob.tasks import Task

BROKEN_BACKOFF = 60_000
"""The wait (ms) when a named retry curve is missing or broken: long enough not to storm, short enough to mend."""

CACHED_OPTIONS = 1_024
NOTHING = Succeeded(None)


class Runner:
    """Runs attempts: coroutines in the worker's loop, functions in threads."""

    def __init__(self, setup: WorkerSetup, threads: int) -> None:
        self._tasks = setup.tasks
        self._backoffs = setup.backoffs
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="onejob-handler")
        self._options: dict[bytes | None, JobOptions] = {None: JobOptions()}

    def close(self) -> None:
        """Let idle threads end; one that is still in a handler goes on to its return."""
        self._threads.shutdown(wait=False)

    async def run(self, attempt: Attempt) -> Outcome:
        """Run one attempt to its outcome; never raises."""
        claimed = attempt.claimed
        task = self._tasks.get(claimed.task)
        if task is None:
            return Unknown(printable(", ".join(sorted(self._tasks)[:20])) or "none")
        try:
            options = self._options.get(claimed.options) or self._decoded_options(claimed.options)
            arguments = task.codec.decode(claimed.payload, options.into)
        except Exception as error:
            return Raised(cut(f"undecodable: {describe(error)}"), attempts=1, retry_in=0, final=True)
        bind(attempt.current)
        try:
            if task.is_async:
                if options.timeout is not None:
                    self._limit(attempt, options.timeout)
                value = await task.codec.call(arguments)
            else:
                value = await self._in_thread(attempt, task.codec, arguments, options.timeout)
        except BaseException as error:
            return self._after_error(attempt, options, error)
        finally:
            if attempt.timer is not None:
                attempt.timer.cancel()
        if attempt.interrupted is Interruption.TIMED_OUT:
            return self._timed_out(claimed, options)
        return NOTHING if value is None else _encoded(task, value)

    def _decoded_options(self, data: bytes | None) -> JobOptions:
        if len(self._options) >= CACHED_OPTIONS:
            self._options = {None: JobOptions()}
        options = self._options[data] = decode_options(data)
        return options

    def _limit(self, attempt: Attempt, timeout: int) -> None:
        loop = asyncio.get_running_loop()
        attempt.timer = loop.call_later(timeout / 1000, attempt.interrupt, Interruption.TIMED_OUT)

    async def _in_thread(
        self, attempt: Attempt, codec: CallCodec, arguments: Any, timeout: int | None
    ) -> Any:
        attempt.in_thread = True
        if timeout is not None:
            self._limit(attempt, timeout)
        context = contextvars.copy_context()
        ended = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: context.run(_call, attempt, codec, arguments)
        )
        value, error = await _outlast(ended)
        if error is not None:
            raise error
        return value

    def _after_error(self, attempt: Attempt, options: JobOptions, error: BaseException) -> Outcome:
        """Judge an error, or a cancellation, by what the attempt had been told before."""
        cancelled = isinstance(error, asyncio.CancelledError)
        match attempt.interrupted:
            case Interruption.TIMED_OUT:
                return self._timed_out(attempt.claimed, options)
            case Interruption.SHUTDOWN if not attempt.in_thread and not isinstance(error, (Snooze, Fail)):
                return Returned()
            case Interruption.LOST if cancelled:
                return Returned()
            case Interruption.REVOKED if cancelled:
                return Raised(
                    "Aborted: it was asked to stop and cancelled", attempts=1, retry_in=0, final=True
                )
            case _:
                return self._raised(attempt.claimed, options, error)

    def _raised(self, claimed: Claimed, options: JobOptions, error: BaseException) -> Outcome:
        match error:
            case Snooze(seconds=seconds):
                try:
                    return Snoozed(millis("Snooze(seconds)", seconds, minimum=0))
                except InvalidOption as invalid:
                    return self._failed(claimed, options, invalid)
            case Fail():
                return Raised(headline(error), options.attempts, 0, final=True)
            case _:
                return self._failed(claimed, options, error)

    def _failed(self, claimed: Claimed, options: JobOptions, error: BaseException) -> Raised:
        return self._charged(claimed, options, error, describe(error))

    def _timed_out(self, claimed: Claimed, options: JobOptions) -> Raised:
        seconds = (options.timeout or 0) / 1000
        text = f"TimedOut after {seconds:g} s, the timeout of task {claimed.task}"
        return self._charged(claimed, options, TimeoutError(text), text)

    def _charged(self, claimed: Claimed, options: JobOptions, error: BaseException, text: str) -> Raised:
        failures = claimed.failures + 1
        if is_never(options.never, error):
            return Raised(text, options.attempts, 0, final=True)
        wait = self._retry_in(claimed, options, failures, error) if failures < options.attempts else 0
        return Raised(text, options.attempts, wait)

    def _retry_in(self, claimed: Claimed, options: JobOptions, failures: int, error: BaseException) -> int:
        backoff = options.backoff
        if not isinstance(backoff, str):
            return millis("backoff", backoff.seconds(failures, random.random()), minimum=0)
        try:
            return millis(f"backoff {backoff!r}", self._backoffs[backoff](failures, error), minimum=0)
        except BaseException as broken:  # the user's strategy must not take the worker down
            log.error(
                "backoff %r of job %s (task %s) is missing or broken, so it waits %d s: %s",
                backoff,
                claimed.id,
                claimed.task,
                BROKEN_BACKOFF // 1000,
                first_line(describe(broken)),
            )
            return BROKEN_BACKOFF


def _call(attempt: Attempt, codec: CallCodec, arguments: Any) -> tuple[Any, BaseException | None]:
    # The error travels as a value: a future refuses StopIteration, and the loop dies of SystemExit.
    try:
        return codec.call(arguments), None
    except BaseException as error:
        return None, error
    finally:
        attempt.returned = True


async def _outlast(
    ended: asyncio.Future[tuple[Any, BaseException | None]],
) -> tuple[Any, BaseException | None]:
    """Await a thread to its real end, whoever cancels us: until then the job is running."""
    while True:
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.cancelled():
                raise


def _encoded(task: Task[..., Any], value: object) -> Outcome:
    try:
        return Succeeded(encode_result(value))
    except Exception as error:
        text = f"result of task {task.name} cannot be stored: {describe(error)}"
        return Raised(cut(text), attempts=1, retry_in=0, final=True)
