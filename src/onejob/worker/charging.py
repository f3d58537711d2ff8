"""What the end of a handler costs: from a value or an error to an outcome, in the worker as in its processes."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping

from onejob.codec import encode_result
from onejob.core.compression import compressed
from onejob.core.errors import Fail, InvalidOption, Refused, Snooze, WrongCall
from onejob.core.job import Claimed
from onejob.core.lifecycle import Outcome, Raised, Snoozed, Succeeded
from onejob.core.options import JobOptions, millis
from onejob.core.retry import is_never
from onejob.worker.failure import cut, describe, headline, one_line
from onejob.worker.journal import say
from onejob.worker.setup import NamedBackoff

BROKEN_BACKOFF = 60_000
"""The wait (ms) when a named retry curve is missing or broken: long enough not to storm, short enough to mend."""


class Charges:
    """Judges errors by a job's options; `backoffs` are the named retry curves."""

    __slots__ = ("_backoffs",)

    def __init__(self, backoffs: Mapping[str, NamedBackoff]) -> None:
        self._backoffs = backoffs

    def raised(self, claimed: Claimed, options: JobOptions, error: BaseException) -> Outcome:
        """What an error of the handler's leads to."""
        match error:
            case Snooze(seconds=seconds):
                try:
                    return Snoozed(millis("Snooze(seconds)", seconds, minimum=0))
                except InvalidOption as invalid:
                    return self._failed(claimed, options, invalid)
            case Refused(reason=reason):
                return Raised(cut(reason), options.attempts, 0, final=True)
            case Fail():
                return Raised(headline(error), options.attempts, 0, final=True)
            case _:
                return self._failed(claimed, options, error)

    def timed_out(self, claimed: Claimed, options: JobOptions) -> Raised:
        """A failed attempt, because its time was up."""
        seconds = (options.timeout or 0) / 1000
        text = f"TimedOut after {seconds:g} s, the timeout of task {claimed.task}"
        return self._charged(claimed, options, TimeoutError(text), text)

    def _failed(self, claimed: Claimed, options: JobOptions, error: BaseException) -> Raised:
        return self._charged(claimed, options, error, describe(error))

    def _charged(self, claimed: Claimed, options: JobOptions, error: BaseException, text: str) -> Raised:
        failures = claimed.failures + 1
        # The same code makes the same mistake again, and the next attempt would only tell it later.
        if isinstance(error, WrongCall) or is_never(options.never, error):
            return Raised(text, options.attempts, 0, final=True)
        wait = self.wait_of(claimed, options, error) if failures < options.attempts else 0
        return Raised(text, options.attempts, wait)

    def wait_of(self, claimed: Claimed, options: JobOptions, error: BaseException) -> int:
        """How long (ms) the retry curve asks to wait after this error."""
        backoff, failures = options.backoff, claimed.failures + 1
        if not isinstance(backoff, str):
            return millis("backoff", backoff.seconds(failures, random.random()), minimum=0)
        if backoff not in self._backoffs:
            return self._instead_of(backoff, claimed, "it is not registered in this worker's app")
        try:
            return millis(f"backoff {backoff!r}", self._backoffs[backoff](failures, error), minimum=0)
        except BaseException as broken:  # the user's strategy must not take the worker down
            return self._instead_of(backoff, claimed, one_line(describe(broken)))

    def _instead_of(self, backoff: str, claimed: Claimed, why: str) -> int:
        text = (
            f"backoff {backoff!r} of job {claimed.id} (task {claimed.task}) is missing or broken, "
            f"so it waits {BROKEN_BACKOFF // 1000} s: {why}"
        )
        say(logging.ERROR, "backoff.broken", text, claimed, backoff=backoff)
        return BROKEN_BACKOFF


def undecodable(error: Exception) -> Raised:
    """What bytes that cannot be read lead to."""
    return Raised(cut(f"undecodable: {describe(error)}"), attempts=1, retry_in=0, final=True)


def encoded(task: str, value: object, *, compresses: bool) -> Outcome:
    """What a returned value leads to."""
    if value is None:
        return NOTHING
    try:
        data = encode_result(value)
        return Succeeded(compressed(data) if data is not None and compresses else data)
    except Exception as error:
        text = f"result of task {task} cannot be stored: {describe(error)}"
        return Raised(cut(text), attempts=1, retry_in=0, final=True)


NOTHING = Succeeded(None)
