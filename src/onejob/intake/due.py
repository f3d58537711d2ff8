"""Due times of rows: what stands in a column, as an instant, and the bounds by which a database compares it."""

from __future__ import annotations

import datetime as dt
import decimal
from enum import Enum
from typing import TYPE_CHECKING, Final, assert_never

import msgspec

from onejob.core.errors import shown
from onejob.core.timing import as_datetime, zone_named

if TYPE_CHECKING:
    from onejob.intake.sources import DueAs

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_LONGEST_CHANGE: Final = dt.timedelta(hours=3)
"""No change of clocks sets them back by more."""
_EASTERNMOST: Final = dt.timedelta(hours=14)
"""By how much a local time can be ahead of UTC."""


class BadDue(ValueError):
    """What stands in the due column is no time."""


class DueKind(Enum):
    """What a due column holds, as far as comparing is concerned."""

    TEXT = "text"
    """ISO 8601, with `T` or a space; also whatever SQLite holds as a date."""
    NAIVE = "naive"
    """Dates and times without a zone."""
    AWARE = "aware"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"


class DueTimes(msgspec.Struct, frozen=True):
    """How the due times of one source are read."""

    tz: str = "UTC"
    due_as: DueAs | None = None

    def instant(self, value: object) -> int:
        """The milliseconds since 1970 that a value means; raises `BadDue`."""
        try:
            return self._read(value)
        except (ValueError, OverflowError, decimal.InvalidOperation) as error:
            if isinstance(error, BadDue):
                raise
            raise BadDue(f"its due time {shown(value)} cannot be read: write it as ISO 8601 does") from None

    def local(self, instant: int) -> dt.datetime:
        """An instant as clocks of the zone show it."""
        return as_datetime(instant).astimezone(zone_named(self.tz))

    def written(self, instant: int) -> str:
        """An instant as a key has it: local, to the second or millisecond, with its offset unless the zone is UTC."""
        local = self.local(instant)
        if self.tz == "UTC":
            local = local.replace(tzinfo=None)
        return local.isoformat(timespec="milliseconds" if instant % 1000 else "seconds")

    def bound(self, instant: int, kind: DueKind) -> str | dt.datetime | int | float:
        """What a column of that kind holds at most if its row is due by an instant.

        Where clocks were set back a moment ago, the bound is that of the clocks before: rather a row too many.
        """
        match kind:
            case DueKind.TEXT:
                return self._wall(instant).isoformat(sep=" ", timespec="milliseconds")
            case DueKind.NAIVE:
                return self._wall(instant)
            case DueKind.AWARE:
                return as_datetime(instant)
            case DueKind.SECONDS:
                return instant / 1000
            case DueKind.MILLISECONDS:
                return instant
            case _:
                assert_never(kind)

    def _wall(self, instant: int) -> dt.datetime:
        now, before = self.local(instant), (as_datetime(instant) - _LONGEST_CHANGE)
        earlier = before.astimezone(zone_named(self.tz))
        offset = max(now.utcoffset() or dt.timedelta(), earlier.utcoffset() or dt.timedelta())
        return (as_datetime(instant) + offset).replace(tzinfo=None)

    def _read(self, value: object) -> int:
        match value:
            case dt.datetime():
                return self._of_datetime(value)
            case dt.date():
                return self._of_datetime(dt.datetime.combine(value, dt.time()))
            case str():
                if len(value) > 10 and value[4] == value[7] == "-" and value[10] not in "Tt ":
                    raise BadDue(f"its due time {shown(value)} has no T or space between date and time")
                return self._of_datetime(dt.datetime.fromisoformat(value))
            case bool():
                raise BadDue(f"its due time is {value}, which is no time")
            case int() | float() | decimal.Decimal():
                return self._of_number(value)
            case _:
                raise BadDue(f"its due time {shown(value)} is a {type(value).__name__}, not a time")

    def _of_datetime(self, value: dt.datetime) -> int:
        aware = value if value.tzinfo is not None else value.replace(tzinfo=zone_named(self.tz))
        return (aware - _EPOCH) // _MILLISECOND

    def _of_number(self, value: float | decimal.Decimal) -> int:
        if self.due_as is None:
            raise BadDue(
                f'its due time is the number {shown(value)}: say due_as="seconds" or "milliseconds" since 1970'
            )
        instant = round(value * 1000 if self.due_as == "seconds" else value)
        as_datetime(instant)  # as far as the calendar goes
        return instant


def easternmost(instant: int) -> str:
    """The latest text that can mean a time up to an instant, whatever its offset; a `t` is the last of separators."""
    return (as_datetime(instant) + _EASTERNMOST).replace(tzinfo=None).isoformat("t", timespec="milliseconds")
