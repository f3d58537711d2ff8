"""Lanes and limits: what a user writes, what a store receives, and the arithmetic of slots and rate windows.

A `Lane` is the policy, a `LanePlan` what it means for one job: plain data that a store applies. A rate is
exact over any window of its length: a start counts for `per` seconds, and not an instant longer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import millis, whole_number

MAX_LANE_KEY: Final = 256
MAX_CONCURRENCY: Final = 10_000
MAX_RATE: Final = 10_000

OnRetry: TypeAlias = Literal["release", "hold"]
LaneBy: TypeAlias = str | Iterable[str] | Callable[..., Any]


class Rate(msgspec.Struct, frozen=True):
    """At most `max` starts in any `per` seconds; retries are starts too."""

    max: int
    per: float | dt.timedelta

    def __post_init__(self) -> None:
        whole_number("Rate(max=…)", self.max, 1, MAX_RATE)
        milliseconds = millis("Rate(per=…)", self.per, minimum=1)
        msgspec.structs.force_setattr(self, "per", milliseconds / 1000)

    @property
    def window(self) -> int:
        """Its length in milliseconds."""
        return round(cast("float", self.per) * 1000)

    def __str__(self) -> str:
        return f"{self.max} per {self.per:g} s"


class Lane(msgspec.Struct, frozen=True):
    """Jobs of a queue that share a lane's key start at most `concurrency` at a time, and as `rate` allows.

    At 1 they start in the order in which they were accepted, of those that are due. `key` is a text, the same
    for every call; or `by` names the arguments it is made of, or is a function of them (None: no lane).
    `on_retry="hold"` keeps the slot until the job has ended, whatever happens in between; `"release"` lets others
    pass while a job waits to be retried.
    """

    key: str | None = None
    concurrency: int = 1
    rate: Rate | None = None
    on_retry: OnRetry = "release"
    by: LaneBy | None = None

    def __post_init__(self) -> None:
        if (self.key is None) == (self.by is None):
            raise InvalidOption(
                'A lane needs a key, or by=…, not both: Lane("imports"), Lane(by="user_id") or Lane(by=function).'
            )
        if self.key is not None:
            check_lane_key(self.key)
        elif not callable(self.by):
            msgspec.structs.force_setattr(self, "by", _names(self.by))
        whole_number("Lane(concurrency=…)", self.concurrency, 1, MAX_CONCURRENCY)
        checked_rate("Lane(rate=…)", self.rate)
        if self.on_retry not in ("release", "hold"):
            raise InvalidOption(f'Lane(on_retry=…) must be "release" or "hold", not {shown(self.on_retry)}.')

    def plan(self, key: str) -> LanePlan:
        """This lane for a job whose lane key is `key`."""
        return LanePlan(key, self.concurrency, self.rate, self.on_retry == "hold")


class LanePlan(msgspec.Struct, frozen=True, gc=False):
    """The lane of one job, as a store receives it: its key, and the limits that stand from now on."""

    key: str
    concurrency: int = 1
    rate: Rate | None = None
    hold: bool = False
    """A slot is kept from a job's first start to its end, retries and all."""

    @property
    def ordered(self) -> bool:
        """True if its jobs start in order of acceptance; otherwise by priority, due time and acceptance."""
        return self.concurrency == 1

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", {self.rate}"
        return f"{self.concurrency} at a time{rate}{', held over retries' if self.hold else ''}"


class QueueLimits(msgspec.Struct, frozen=True):
    """What is set for a whole queue, over all workers; None is no limit."""

    concurrency: int | None = None
    rate: Rate | None = None
    paused: bool = False


class QueueChange(msgspec.Struct, frozen=True):
    """What to set of a queue; None leaves it as it is, 0 and `remove_rate` take a limit away."""

    concurrency: int | None = None
    rate: Rate | None = None
    remove_rate: bool = False
    paused: bool | None = None

    def applied(self, limits: QueueLimits) -> QueueLimits:
        """The limits after this change."""
        concurrency = limits.concurrency if self.concurrency is None else self.concurrency or None
        rate = None if self.remove_rate else limits.rate if self.rate is None else self.rate
        return QueueLimits(concurrency, rate, limits.paused if self.paused is None else self.paused)


def starts_until_opening(started: int, rate: Rate, reserved: int) -> int | None:
    """Which of the starts inside the window, counted from the oldest, must grow old before another may start.

    `started` are in the window now, and `reserved` more may start at once. None if no passing of time helps.
    """
    number = started - rate.max + reserved + 1
    return None if number > started else max(number, 0)


def check_lane_key(key: object) -> str:
    """Return a lane's key if it can be one."""
    if not isinstance(key, str):
        raise InvalidOption(f"A lane's key must be a text, not {shown(key)}.")
    if not key:
        raise InvalidOption("A lane's key must not be empty: give a text, or no lane.")
    if len(key) > MAX_LANE_KEY:
        raise InvalidOption(
            f"Ordering key exceeds maximum length ({len(key)} > {MAX_LANE_KEY}). Use a shorter lane key, such as "
            f"an id or a hash; this one begins with {shown(key[:40])}."
        )
    if "\0" in key:
        raise InvalidOption(f"A lane's key must not hold NUL, which not every store can hold: {shown(key)}")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"A lane's key holds a lone surrogate, which no store can hold: {shown(key)}"
        ) from None
    return key


def checked_rate(what: str, rate: object) -> Rate | None:
    """Return a rate, or None for none."""
    if rate is None or isinstance(rate, Rate):
        return rate
    raise InvalidOption(f"{what} must be Rate(max, per=seconds) or None, not {shown(rate)}.")


def _names(by: object) -> tuple[str, ...]:
    names = (by,) if isinstance(by, str) else tuple(cast("Iterable[object]", by)) if _iterable(by) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidOption(
            f'Lane(by=…) names arguments of the task, as in by="user_id", or is a function of them, not {shown(by)}.'
        )
    # A set has no order of its own, and a lane's key must be the same in every process.
    checked = cast("tuple[str, ...]", names)
    return tuple(sorted(checked)) if isinstance(by, (set, frozenset)) else checked


def _iterable(value: object) -> bool:
    return isinstance(value, Iterable)
