"""Date-named tables: which of the tables that exist are those of the days that matter now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Final

from onejob.core.errors import InvalidOption, shown
from onejob.intake.due import DueTimes
from onejob.intake.sources import Table
from onejob.keys import near

_DAY: Final = dt.timedelta(days=1)
MAX_LISTED: Final = 10


def table_of(source: Table, day: dt.date) -> str:
    """The table of a day."""
    return source.name.format(day=day)


def tables_between(source: Table, now: int, horizon: int) -> list[str]:
    """The tables of all days that matter at an instant, whether or not they exist, the oldest first."""
    if not source.by_day:
        return [source.name]
    times = DueTimes(source.tz)
    last = times.local(horizon).date()
    day = times.local(now).date() - dt.timedelta(days=source.days_back)
    names: dict[str, None] = {}
    while day <= last:
        names[table_of(source, day)] = None
        day += _DAY
    return list(names)


def existing(source: Table, names: Collection[str], now: int, horizon: int) -> list[str]:
    """Those of the tables that exist; raises `InvalidOption` where no table can ever be meant."""
    wanted = tables_between(source, now, horizon)
    found = [name for name in wanted if name in names]
    if found or (source.by_day and any(_is_of_a_day(source, name) for name in names)):
        return found
    listed = sorted(names)[:MAX_LISTED]
    more = ", …" if len(names) > MAX_LISTED else ""
    known = f"there are {', '.join(listed) + more if listed else 'none'}."
    hint = near(wanted[-1], sorted(names), otherwise=known)
    if source.by_day:
        raise InvalidOption(f"No table in the database is named like {source.name!r}: {hint}")
    raise InvalidOption(f"There is no table {shown(source.name)} in the database: {hint}")


def _is_of_a_day(source: Table, name: str) -> bool:
    """True if a table is that of some day, past or to come."""
    from string import Formatter

    pattern = "".join(
        literal.replace("%", "%%") + (code or "") for literal, _, code, _ in Formatter().parse(source.name)
    )
    try:
        day = dt.datetime.strptime(name, pattern)  # noqa: DTZ007 - only its date is wanted
    except ValueError:
        return False
    return table_of(source, day.date()) == name
