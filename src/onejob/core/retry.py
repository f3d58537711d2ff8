"""Retry curves: how many times a raised error is tried again, and how long it waits in between."""

from __future__ import annotations

import datetime as dt
import math
from typing import TypeAlias, cast

import msgspec

from onejob.core.errors import InvalidOption, shown

MAX_SECONDS = 10 * 366 * 24 * 3600
"""Ten years: what is further off is a mistake."""


class Exponential(msgspec.Struct, frozen=True, tag="exponential", omit_defaults=True):
    """`base`, twice that, four times that, … seconds, up to `max`; `jitter=0.1` spreads each by ±10 %."""

    base: float | dt.timedelta = 1.0
    factor: float = 2.0
    max: float | dt.timedelta = 24 * 3600.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _in_seconds(self, "base")
        _in_seconds(self, "max")
        if not _is_number(self.factor) or self.factor < 1:
            raise InvalidOption(f"Exponential(factor=…) must be at least 1, not {shown(self.factor)}.")
        _fraction(self.jitter)

    def seconds(self, failures: int, roll: float) -> float:
        """The wait after that many failures; `roll` in [0, 1) decides the jitter."""
        power = min(failures - 1, 1000)
        try:
            plain = cast("float", self.base) * self.factor**power
        except OverflowError:
            plain = math.inf
        return _jittered(min(plain, cast("float", self.max)), self.jitter, roll)


class Fixed(msgspec.Struct, frozen=True, tag="fixed", omit_defaults=True):
    """The same wait each time, in seconds."""

    wait: float | dt.timedelta = 1.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _in_seconds(self, "wait", zero=True)
        _fraction(self.jitter)

    def seconds(self, failures: int, roll: float) -> float:
        """The wait after that many failures; `roll` in [0, 1) decides the jitter."""
        return _jittered(cast("float", self.wait), self.jitter, roll)


Backoff: TypeAlias = Exponential | Fixed | str


class Retry(msgspec.Struct, frozen=True):
    """Try up to `attempts` times in all, waiting by `backoff`; errors of a type in `never` fail at once.

    `backoff` is `Exponential(…)`, `Fixed(…)`, a number (the same wait each time) or the name of a strategy
    registered with `@app.backoff("name")`. `never` takes exception classes, which cover their subclasses.
    """

    attempts: int = 5
    backoff: Backoff | float | dt.timedelta = msgspec.field(default_factory=Exponential)
    never: tuple[type[BaseException] | str, ...] = ()

    def __post_init__(self) -> None:
        if (
            not isinstance(self.attempts, int)
            or isinstance(self.attempts, bool)
            or not 1 <= self.attempts <= 1000
        ):
            raise InvalidOption(
                f"Retry(attempts=…) must be a whole number from 1 to 1000, not {shown(self.attempts)}."
            )
        if isinstance(self.backoff, (int, float, dt.timedelta)) and not isinstance(self.backoff, bool):
            msgspec.structs.force_setattr(self, "backoff", Fixed(self.backoff))
        elif not isinstance(self.backoff, (Exponential, Fixed, str)) or self.backoff == "":
            raise InvalidOption(
                "Retry(backoff=…) must be Exponential(…), Fixed(…), seconds or the name of a registered "
                f"strategy, not {shown(self.backoff)}."
            )
        if not isinstance(self.never, (tuple, list)):
            raise InvalidOption(
                f"Retry(never=…) takes a tuple of exception classes, not {shown(self.never)}: write (ValueError,)."
            )
        msgspec.structs.force_setattr(self, "never", tuple(_checked_error(error) for error in self.never))


def is_never(never: tuple[str, ...], error: BaseException) -> bool:
    """True if the error, or a class it derives from, is one that must not be retried."""
    return bool(never) and any(_error_name(kind) in never for kind in type(error).__mro__)


def _error_name(error: type) -> str:
    return f"{error.__module__}.{error.__qualname__}"


def _checked_error(error: object) -> str:
    if isinstance(error, type) and issubclass(error, BaseException):
        return _error_name(error)
    # As stored: module and name. A bare name would match nothing.
    if isinstance(error, str) and "." in error.strip("."):
        return error
    raise InvalidOption(f"Retry(never=…) takes exception classes, not {shown(cast('object', error))}.")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _in_seconds(curve: Exponential | Fixed, name: str, *, zero: bool = False) -> None:
    """Check one of a curve's times, and turn a timedelta into seconds."""
    value: object = getattr(curve, name)
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
        msgspec.structs.force_setattr(curve, name, value)
    _positive(name, value, zero=zero)


def _positive(name: str, value: object, *, zero: bool = False) -> None:
    if not _is_number(value) or not isinstance(value, (int, float)) or value < 0 or (value == 0 and not zero):
        least = "zero or more" if zero else "more than zero"
        raise InvalidOption(f"A backoff's {name} must be {least} seconds, not {shown(value)}.")
    if value > MAX_SECONDS:
        raise InvalidOption(f"A backoff's {name} must be at most ten years, not {shown(value)}.")


def _fraction(value: object) -> None:
    if not _is_number(value) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidOption(f"A backoff's jitter must be between 0 and 1, not {shown(value)}.")


def _jittered(seconds: float, jitter: float, roll: float) -> float:
    return seconds * (1 + jitter * (2 * roll - 1)) if jitter else seconds
