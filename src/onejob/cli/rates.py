"""Rates as the command line writes them, and reads them back: `10/60s`, `500/min`, `5/1h`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from onejob.core.errors import InvalidOption, shown
from onejob.core.filter import span
from onejob.core.lane import Rate

F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {
    "ms": "ms",
    "s": "s", "sec": "s", "second": "s", "seconds": "s",
    "m": "m", "min": "m", "minute": "m", "minutes": "m",
    "h": "h", "hour": "h", "hours": "h",
    "d": "d", "day": "d", "days": "d",
}  # fmt: skip
"""What people write behind a number, or without one, and what other lengths of time have instead."""
_SIZES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def rate_option(meaning: str) -> Callable[[F], F]:
    """Give a command `--rate`, with this as its help."""
    return click.option("--rate", metavar="STARTS/TIME", callback=_given, help=meaning)


def parse_rate(text: str) -> Rate:
    """Read a rate: starts, and the time in which there may be so many. A unit alone is one of it."""
    parts = re.fullmatch(r"([0-9]{1,18}) *(?:/|per) *(.+)", text.strip())
    if parts is None:
        raise InvalidOption(f"{shown(text)} is no rate: write starts/time, as in 10/60s, 500/min or 5/1h.")
    starts, time = parts.groups()
    try:
        return Rate(int(starts), per=span("After the slash it", _usual(time)) / 1000)
    except InvalidOption as error:
        raise InvalidOption(f"{shown(text)} is no rate. {error}") from None


def rate_text(rate: Rate | None) -> str:
    """A rate as `parse_rate` reads it; nothing for none."""
    return "" if rate is None else f"{rate.max}/{_time(rate.window)}"


def _given(_: click.Context, __: click.Parameter, text: str | None) -> Rate | None:
    try:
        return None if text is None else parse_rate(text)
    except InvalidOption as error:
        raise click.BadParameter(str(error)) from None


def _usual(time: str) -> str:
    """A length of time as it is written elsewhere."""
    parts = re.fullmatch(r"([0-9.]*) *([a-z]+)", time)
    return time if parts is None or parts[2] not in _UNITS else f"{parts[1] or 1}{_UNITS[parts[2]]}"


def _time(milliseconds: int) -> str:
    """In the largest unit of which it has a whole number; a minute is 60s."""
    for size, unit in _SIZES:
        count, rest = divmod(milliseconds, size)
        if not rest and count and (count, unit) != (1, "m"):
            return f"{count}{unit}"
    return f"{milliseconds}ms"
