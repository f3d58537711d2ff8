"""When a schedule is due: `Cron` and `Every`, and the arithmetic of their slots.

A slot is one instant of the nominal time, in UTC. `cronsim` reads the pattern; which instants a local time means
where clocks are changed is decided here. Nothing reads a clock.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import millis

if TYPE_CHECKING:
    from cronsim import CronSim

MAX_PATTERN: Final = 100
SHORTEST_INTERVAL: Final = 100
MINUTE: Final = 60_000
_DAY: Final = dt.timedelta(days=1)
_HORIZON: Final = 366 * 50
"""After so many days without a match, a pattern never matches: all calendars have come round by then."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ALL_YEARS: Final = dt.date(2000, 1, 1)
_FIELDS: Final = (
    "minute 0-59, hour 0-23, day of month 1-31 or L, month 1-12 or JAN-DEC, day of week 0-7 or SUN-SAT"
)
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_NO_ZONES: Final = frozenset({"localtime", "posixrules", "Factory"})
"""Names that mean something else on each machine, or nothing."""
LONGEST_ABBREVIATION: Final = 5


class Cron(msgspec.Struct, frozen=True, tag="cron", forbid_unknown_fields=True):
    """Due whenever a clock in the zone `tz` shows what the five fields of `pattern` say.

    Where clocks are changed: a fixed time that is left out is due at the first moment after the gap, one that
    comes twice is due the first time only. A pattern whose minute or hour starts with `*` keeps its rhythm instead:
    it goes by what clocks really show, and so leaves out what they do, and repeats what they do.
    """

    pattern: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        check_zone(self.tz)
        msgspec.structs.force_setattr(self, "pattern", _checked_pattern(self.pattern))

    def after(self, instant: int, anchor: int = 0) -> int:
        """The first slot after an instant."""
        today = _local_date(instant, self.tz)
        found = [
            slots[place]
            for day in (today - _DAY, today, today + _DAY)
            if (place := bisect_right(slots := self._slots(day), instant)) < len(slots)
        ]
        if found:
            return min(found)
        day = _next_day(self.pattern, today + 2 * _DAY)
        while day is not None:
            if slots := self._slots(day):
                return slots[0]
            day = _next_day(self.pattern, day + _DAY)  # all its times were left out by a change of clocks
        raise _never(self.pattern)

    def latest(self, instant: int, first: int, anchor: int = 0) -> int:
        """The last slot up to an instant, given that `first` is one of those."""
        day, earliest = _local_date(instant, self.tz) + _DAY, _local_date(first, self.tz) - _DAY
        newest = first
        # Only around a change of clocks can the day before have a later slot.
        while day >= earliest and newest == first:
            both = (*self._slots(day - _DAY), *self._slots(day))
            newest = max((slot for slot in both if slot <= instant), default=first)
            newest = max(newest, first)
            day -= _DAY
        return newest

    def __str__(self) -> str:
        return f"{self.pattern} {self.tz}"

    def _slots(self, day: dt.date) -> tuple[int, ...]:
        return _slots(self.pattern, self.tz, day)


class Every(msgspec.Struct, frozen=True, tag="every", forbid_unknown_fields=True):
    """Due every so many seconds, counted from when the schedule was first put."""

    seconds: float | dt.timedelta

    def __post_init__(self) -> None:
        period = millis("Every(…)", self.seconds, minimum=SHORTEST_INTERVAL)
        msgspec.structs.force_setattr(self, "seconds", period / 1000)

    @property
    def period(self) -> int:
        """In milliseconds."""
        return round(cast("float", self.seconds) * 1000)

    def after(self, instant: int, anchor: int = 0) -> int:
        """The first slot after an instant; none comes before the anchor and one period."""
        return anchor + max((instant - anchor) // self.period + 1, 1) * self.period

    def latest(self, instant: int, first: int, anchor: int = 0) -> int:
        """The last slot up to an instant, given that `first` is one of those."""
        return max(first, anchor + (instant - anchor) // self.period * self.period)

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"


Timing: TypeAlias = Cron | Every


def as_datetime(instant: int) -> dt.datetime:
    """An instant as Python knows it, in UTC."""
    return _EPOCH + dt.timedelta(milliseconds=instant)


def _checked_pattern(pattern: object) -> str:
    if not isinstance(pattern, str):
        raise InvalidOption(
            f'A cron pattern is a text of five fields such as "0 8 * * *", not {shown(pattern)}.'
        )
    if len(pattern) > MAX_PATTERN or not pattern.isascii():
        raise InvalidOption(
            f"A cron pattern is at most {MAX_PATTERN} ASCII characters, and {shown(pattern)} is not "
            f"({len(pattern)} characters): split it into several schedules."
        )
    if (same := _NICKNAMES.get(pattern.strip().lower())) is not None:
        raise InvalidOption(f'Cron("{pattern.strip()}") is not known here: write Cron("{same}").')
    fields = pattern.split()
    if len(fields) != 5:
        raise InvalidOption(
            f"A cron pattern has five fields ({_FIELDS}), and {shown(pattern)} has {len(fields)}; "
            "for seconds, use Every(…)."
        )
    pattern = " ".join(fields).upper()
    _parsed(pattern)
    if _next_day(pattern, _ALL_YEARS) is None:
        raise _never(pattern)
    return pattern


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> CronSim:
    """The pattern's fields as sets, and its rule for days."""
    from cronsim import CronSim, CronSimError  # only schedules need it

    try:
        return CronSim(pattern, dt.datetime.combine(_ALL_YEARS, dt.time()))
    except CronSimError as error:
        months = _field(pattern, 3)
        if str(error) == "Bad day-of-month" and months != "*" and _days_are_fine(pattern):
            raise _never(pattern) from None
        wrong = str(error).removeprefix("Bad ").replace("-", " ")
        raise InvalidOption(
            f"Cron pattern {shown(pattern)} has a wrong {wrong}: its fields are {_FIELDS}; each may be *, a list a,b, "
            "a range a-b or steps */n."
        ) from None


def _days_are_fine(pattern: str) -> bool:
    """True if the day of the month can be read, and only no month has it."""
    from cronsim import CronSim, CronSimError

    minute, hour, day, _, weekday = pattern.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", dt.datetime.combine(_ALL_YEARS, dt.time()))
    except CronSimError:
        return False
    return True


def _field(pattern: str, place: int) -> str:
    return pattern.split()[place]


def _never(pattern: str) -> InvalidOption:
    return InvalidOption(f"Cron pattern {shown(pattern)} never fires: no month has such a day.")


def check_zone(tz: object) -> None:
    """Refuse what is not the name of a time zone."""
    if not isinstance(tz, str):
        raise InvalidOption(f'tz=… must be the name of a time zone such as "Europe/Paris", not {shown(tz)}.')
    if tz == "UTC":
        return  # known everywhere, even without a database of zones
    from zoneinfo import ZoneInfo, available_timezones  # only schedules need it

    try:
        ZoneInfo(tz)
        known = tz not in _NO_ZONES and not tz.startswith(("posix/", "right/"))
    except (ValueError, OSError, LookupError):
        known = False
    if known:
        return
    from difflib import get_close_matches  # for mistakes only

    zones = available_timezones()
    if not zones:
        raise InvalidOption(
            f"tz={shown(tz)} cannot be read: this system has no time zones; install them with `pip install tzdata`."
        )
    # What is like an abbreviation is another one, and hours away.
    short = len(tz) <= LONGEST_ABBREVIATION and tz.isalpha() and tz.isupper()
    near = [] if short else get_close_matches(tz, zones - _NO_ZONES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else 'name a place, such as "Europe/Berlin", or "UTC".'
    raise InvalidOption(f"There is no time zone {shown(tz)}: {hint}")


@lru_cache(maxsize=64)
def zone_named(tz: str) -> dt.tzinfo:
    """A zone whose name has been checked."""
    if tz == "UTC":
        return dt.UTC
    from zoneinfo import ZoneInfo

    return ZoneInfo(tz)


def _next_day(pattern: str, day: dt.date) -> dt.date | None:
    """The first day from `day` on that the pattern's days and months allow; None if there is none."""
    parsed = _parsed(pattern)
    last = day + dt.timedelta(days=_HORIZON)
    while day <= last:
        if day.month not in parsed.months:
            day = (day.replace(day=1) + dt.timedelta(days=32)).replace(day=1)
        elif parsed.match_day(day):
            return day
        else:
            day += _DAY
    return None


@lru_cache(maxsize=256)
def _times(pattern: str) -> tuple[int, ...]:
    """The minutes of a day at which it fires."""
    parsed = _parsed(pattern)
    return tuple(hour * 60 + minute for hour in sorted(parsed.hours) for minute in sorted(parsed.minutes))


@lru_cache(maxsize=128)
def _slots(pattern: str, tz: str, day: dt.date) -> tuple[int, ...]:
    """The instants at which it fires on a day of the zone's calendar, in order."""
    parsed = _parsed(pattern)
    if day.month not in parsed.months or not parsed.match_day(day):
        return ()
    zone, times = zone_named(tz), _times(pattern)
    midnight = dt.datetime.combine(day, dt.time())
    offset = (midnight - _DAY).replace(tzinfo=zone).utcoffset()
    if offset == (midnight + 2 * _DAY).replace(tzinfo=zone).utcoffset():
        start = _instant(midnight.replace(tzinfo=dt.UTC) - cast("dt.timedelta", offset))
        return tuple(start + time * MINUTE for time in times)
    # The clocks are changed on this day or beside it.
    fixed = not _field(pattern, 0).startswith("*") and not _field(pattern, 1).startswith("*")
    moments = (midnight + dt.timedelta(minutes=time) for time in times)
    meant = (_fixed(moment, zone) if fixed else _shown(moment, zone) for moment in moments)
    return tuple(sorted({instant for instants in meant for instant in instants}))


def _fixed(moment: dt.datetime, zone: dt.tzinfo) -> tuple[int, ...]:
    """The one instant at which a local time counts: the first, or the end of the gap that leaves it out."""
    shown = _shown(moment, zone)
    return shown[:1] or (_end_of_gap(moment, zone),)


def _shown(moment: dt.datetime, zone: dt.tzinfo) -> tuple[int, ...]:
    """The instants at which clocks show a local time: none, one or two."""
    readings = (moment.replace(tzinfo=zone, fold=fold).astimezone(dt.UTC) for fold in (0, 1))
    real = {utc for utc in readings if utc.astimezone(zone).replace(tzinfo=None) == moment}
    return tuple(sorted(_instant(utc) for utc in real))


def _end_of_gap(moment: dt.datetime, zone: dt.tzinfo) -> int:
    """The first moment after the change of clocks that leaves a local time out, to the second."""
    before, after = (_instant(moment.replace(tzinfo=zone, fold=fold)) // 1000 for fold in (1, 0))
    changed = _offset(after, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, zone) == changed:
            after = middle
        else:
            before = middle
    return after * 1000


def _offset(second: int, zone: dt.tzinfo) -> dt.timedelta | None:
    return dt.datetime.fromtimestamp(second, zone).utcoffset()


def _instant(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def _local_date(instant: int, tz: str) -> dt.date:
    return as_datetime(instant).astimezone(zone_named(tz)).date()
