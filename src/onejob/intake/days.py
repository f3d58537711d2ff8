"""Date-named tables: which of the tables that exist are those of the days that matter now."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection
from string import Formatter
from typing import Final

from onejob.core.errors import InvalidOption, shown
from onejob.intake.due import DueTimes
from onejob.intake.sources import Table
from onejob.keys import all_there_are, near

_DAY: Final = dt.timedelta(days=1)
MAX_LISTED: Final = 10
_OURS: Final = "onejob_"
"""How the tables of a store begin, which nobody means."""


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
    theirs = sorted(name for name in names if not name.startswith(_OURS))
    some = [*theirs[:MAX_LISTED], "…"] if len(theirs) > MAX_LISTED else theirs
    hint = near(wanted[-1], theirs, otherwise=all_there_are(some))
    if source.by_day:
        raise InvalidOption(f"No table in the database is named like {source.name!r}: {hint}")
    raise InvalidOption(f"There is no table {shown(source.name)} in the database: {hint}")


def _is_of_a_day(source: Table, name: str) -> bool:
    """True if a table is that of some day, past or to come."""
    pattern = "".join(
        literal.replace("%", "%%") + (code or "") for literal, _, code, _ in Formatter().parse(source.name)
    )
    try:
        day = dt.datetime.strptime(name, pattern)  # noqa: DTZ007 - only its date is wanted
    except ValueError:
        return False
    except re.error:  # a code stands in the pattern twice
        return re.fullmatch(_any_day(source.name), name) is not None
    return table_of(source, day.date()) == name


def _any_day(pattern: str) -> str:
    return "".join(
        re.escape(literal) + ("" if code is None else ".+")
        for literal, _, code, _ in Formatter().parse(pattern)
    )
