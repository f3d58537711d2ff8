"""When a cron pattern is due, found out without any cleverness: by a look at the clock on the wall every minute.

Shares no code with onejob or cronsim, so that both can be held against it. Knows `*`, numbers, lists, ranges, steps.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zoneinfo import ZoneInfo

MINUTE = 60_000
_MINUTE = dt.timedelta(minutes=1)
_LEAD = 2 * 24 * 60 * MINUTE
"""So long before the first look a time may have been shown already, and so come again."""
_RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(8))


@dataclass(frozen=True)
class Look:
    """One minute: what the clock shows, whether it has shown it before, and what it has left out to get there."""

    instant: int
    shown: dt.datetime
    again: bool
    left_out: tuple[dt.datetime, ...]


def looks(tz: str, start: int, end: int) -> list[Look]:
    """One for each minute of that time, which begins with `start` and ends before `end`."""
    return [look for look in _watch(ZoneInfo(tz), start - _LEAD, end) if look.instant >= start]


def due(pattern: str, seen: list[Look]) -> list[int]:
    """The instants at which a pattern is due."""
    minute_field, hour_field, *_ = pattern.split()
    rhythm = minute_field.startswith("*") or hour_field.startswith("*")
    matches = matcher(pattern)
    found: list[int] = []
    for look in seen:
        counts = matches(look.shown) and (rhythm or not look.again)
        if counts or (not rhythm and look.left_out and any(map(matches, look.left_out))):
            found.append(look.instant)
    return found


def matcher(pattern: str) -> Callable[[dt.datetime], bool]:
    """Says whether what a clock shows is what the five fields say."""
    minutes, hours, days, months, weekdays = map(_numbers, pattern.split(), _RANGES)
    _, _, day_field, _, weekday_field = pattern.split()
    both = day_field.startswith("*") or weekday_field.startswith("*")

    def matches(shown: dt.datetime) -> bool:
        if shown.minute not in minutes or shown.hour not in hours or shown.month not in months:
            return False
        day, weekday = (
            shown.day in days,
            not weekdays.isdisjoint({shown.isoweekday(), shown.isoweekday() % 7}),
        )
        return (day and weekday) if both else (day or weekday)

    return matches


def at(text: str) -> int:
    """An instant in UTC, as in "2027-03-28 01:00"."""
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000)


def _watch(zone: ZoneInfo, start: int, end: int) -> Iterator[Look]:
    shown_before: set[dt.datetime] = set()
    before: dt.datetime | None = None
    for instant in range(start // MINUTE * MINUTE, end, MINUTE):
        shown = dt.datetime.fromtimestamp(instant // 1000, zone).replace(tzinfo=None)
        left_out: list[dt.datetime] = []
        moment = shown if before is None else before + _MINUTE
        while moment < shown:
            left_out.append(moment)
            moment += _MINUTE
        yield Look(instant, shown, shown in shown_before, tuple(left_out))
        shown_before.add(shown)
        before = shown


def _numbers(field: str, all_of_it: range) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            numbers = list(all_of_it)
        elif last:
            numbers = list(range(int(first), int(last) + 1))
        elif step:
            numbers = list(range(int(first), all_of_it[-1] + 1))
        else:
            numbers = [int(first)]
        found.update(numbers[:: int(step or 1)])
    return found
