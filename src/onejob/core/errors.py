"""Every error onejob raises on purpose: one root, and a leaf only where a caller can act on it."""

from __future__ import annotations

__all__ = [
    "ArgumentsInvalid",
    "DuplicateJob",
    "Fail",
    "InvalidOption",
    "JobFailed",
    "JobRevoked",
    "KeyBusy",
    "LeaseLost",
    "OnejobError",
    "PayloadMismatch",
    "PayloadTooLarge",
    "ResultGone",
    "ResultTimeout",
    "SchemaMismatch",
    "Snooze",
    "StoreBusy",
    "StoreClosed",
    "StoreFull",
    "StoreUnavailable",
    "TransactionTimeout",
    "Undecodable",
    "UnknownBlocker",
    "UnknownSchedule",
    "UnknownTask",
    "WrongCall",
    "shown",
]

SHOWN = 80


def shown(value: object) -> str:
    """Render a rejected value for a message: printable, and at most 80 characters."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide the error being reported
        text = f"<{type(value).__name__}>"
    if not text.isprintable():  # a __repr__ of somebody's own
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class OnejobError(Exception):
    """The root of all errors raised by onejob."""


class InvalidOption(OnejobError, ValueError):
    """A name, policy, time or option breaks a rule; nothing was stored."""


class MissingDriver(InvalidOption):
    """A store needs a package that is not installed. `remedy` is the command that installs it."""

    def __init__(self, kind: str, package: str, extra: str) -> None:
        self.remedy = f"pip install 'onejob[{extra}]'"
        super().__init__(f"{kind} stores need {package}, which is not installed: {self.remedy}.")


class ArgumentsInvalid(OnejobError, TypeError):
    """Arguments do not fit the task's signature or type hints; nothing was stored."""


class PayloadTooLarge(OnejobError, ValueError):
    """Arguments or a result exceed 1 MB once serialised; nothing was stored."""


class Undecodable(OnejobError, ValueError):
    """Stored bytes are not a payload that this task can read."""


class UnknownBlocker(OnejobError):
    """A job was to wait for a chain that is not on record; nothing was stored."""


class UnknownTask(OnejobError, LookupError):
    """No task of that name is registered on this app."""


class WrongCall(OnejobError, RuntimeError):
    """A call was made from a place where it cannot work; the message names the right one."""


class DuplicateJob(OnejobError):
    """The policy says *raise*: the key is held. `holder` is the holding job's id."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class PayloadMismatch(DuplicateJob):
    """The key is held by a job with other arguments, and the policy says `mismatch="raise"`."""


class StoreBusy(OnejobError):
    """The store stayed locked by another writer for the whole of its patience; try again."""


class KeyBusy(StoreBusy):
    """Somebody's open transaction holds this key; try again once it has ended."""


class StoreUnavailable(StoreBusy):
    """The store's server could not be reached, or did not answer, for the whole of its patience; try again."""


class StoreFull(OnejobError):
    """The disk or memory behind the store is full, or failed to write; nothing of this call was stored."""


class StoreClosed(OnejobError):
    """The store has been closed."""


class SchemaMismatch(OnejobError):
    """The store was written by another version of onejob; the message says which side to upgrade."""


class TransactionTimeout(OnejobError):
    """A transaction block held the store's writer for too long and was rolled back."""


class LeaseLost(OnejobError):
    """This run no longer owns its job: its lease ended and the job went on without it."""


class JobFailed(OnejobError):
    """The awaited job failed; the message carries its error."""

    def __init__(self, message: str, *, id: str) -> None:
        super().__init__(message)
        self.id = id


class JobRevoked(JobFailed):
    """The awaited job was revoked before it could complete."""


class ResultGone(OnejobError):
    """The job ended long ago and has been pruned; its result is no longer stored."""


class ResultTimeout(OnejobError, TimeoutError):
    """The job did not end within the time given; it goes on."""


class UnknownSchedule(OnejobError, LookupError):
    """There is no schedule of that id."""


class Snooze(Exception):
    """Raise in a handler to run the same job again later, at no charge to its retries."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Fail(Exception):
    """Raise in a handler to end the job as failed at once, whatever retries are left."""

    def __init__(self, reason: str = "the handler gave up") -> None:
        super().__init__(reason)
        self.reason = reason


class Refused(Fail):
    """A chain cannot go on as its job asked: its next job would wait for itself, or for what is not on record."""
