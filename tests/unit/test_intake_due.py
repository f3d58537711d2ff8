"""Due times: what columns hold, what it means, and the bounds by which a database compares."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from onejob.intake.due import BadDue, DueKind, DueTimes, easternmost

NOON = 1_784_635_200_000
"""2026-07-21T12:00:00Z"""
NAIVE = dt.datetime(2026, 7, 21, 12)  # noqa: DTZ001 - as columns have it


@pytest.mark.parametrize(
    "value",
    [
        "2026-07-21T12:00:00",
        "2026-07-21 12:00:00",
        "2026-07-21 12:00",
        "2026-07-21T12:00:00.000Z",
        "2026-07-21T14:00:00+02:00",
        NAIVE,
        dt.datetime(2026, 7, 21, 12, tzinfo=dt.UTC),
        dt.datetime(2026, 7, 21, 5, tzinfo=dt.timezone(dt.timedelta(hours=-7))),
    ],
)
def test_a_time_is_read_however_it_is_written(value: object) -> None:
    assert DueTimes().instant(value) == NOON


@pytest.mark.parametrize("value", ["2026-07-21 14:00:00", NAIVE.replace(hour=14)])
def test_a_time_without_a_zone_is_one_of_the_sources(value: object) -> None:
    assert DueTimes("Europe/Paris").instant(value) == NOON


def test_a_day_begins_at_midnight() -> None:
    assert DueTimes().instant(dt.date(2026, 7, 21)) == NOON - 12 * 3_600_000
    assert DueTimes().instant("2026-07-21") == NOON - 12 * 3_600_000


@pytest.mark.parametrize(
    ("value", "due_as"),
    [
        (NOON // 1000, "seconds"),
        (NOON / 1000, "seconds"),
        (Decimal(NOON) / 1000, "seconds"),
        (NOON, "milliseconds"),
    ],
)
def test_numbers_count_from_1970(value: Any, due_as: Any) -> None:
    assert DueTimes(due_as=due_as).instant(value) == NOON


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ("tomorrow, perhaps", "'tomorrow, perhaps' cannot be read"),
        ("", "cannot be read"),
        ("2026-13-01", "cannot be read"),
        (True, "True, which is no time"),
        (b"2026", "is a bytes, not a time"),
        (5, 'the number 5: say due_as="seconds"'),
    ],
)
def test_what_is_no_time_is_told(value: object, pattern: str) -> None:
    with pytest.raises(BadDue, match=pattern):
        DueTimes().instant(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**18, Decimal("nan")])
def test_a_number_beyond_the_calendar_is_told(value: Any) -> None:
    with pytest.raises(BadDue):
        DueTimes(due_as="seconds").instant(value)


def test_a_key_names_the_time_as_people_do() -> None:
    assert DueTimes().written(NOON) == "2026-07-21T12:00:00"
    assert DueTimes().written(NOON + 250) == "2026-07-21T12:00:00.250"
    assert DueTimes("Europe/Paris").written(NOON) == "2026-07-21T14:00:00+02:00"


def test_bounds_are_of_the_kind_that_the_column_has() -> None:
    times = DueTimes("Europe/Paris")
    assert times.bound(NOON, DueKind.TEXT) == "2026-07-21 14:00:00.000"
    assert times.bound(NOON, DueKind.NAIVE) == NAIVE.replace(hour=14)
    assert times.bound(NOON, DueKind.AWARE) == dt.datetime(2026, 7, 21, 12, tzinfo=dt.UTC)
    assert times.bound(NOON, DueKind.SECONDS) == NOON / 1000
    assert times.bound(NOON, DueKind.MILLISECONDS) == NOON


def test_no_row_is_passed_over_in_the_hour_that_comes_twice() -> None:
    """At 02:15 the second time, a row of 02:50 the first time is past due, whatever the clock shows."""
    times = DueTimes("Europe/Paris")
    second = dt.datetime(2026, 10, 25, 1, 15, tzinfo=dt.UTC)
    instant = round(second.timestamp() * 1000)
    assert times.local(instant).strftime("%H:%M") == "02:15"
    assert str(times.bound(instant, DueKind.TEXT)) > "2026-10-25 02:50"
    assert times.instant("2026-10-25 02:50") < instant


def test_the_latest_text_of_an_instant_is_that_of_the_easternmost_zone() -> None:
    latest = easternmost(NOON)
    for hours in range(-12, 15):
        zone = dt.timezone(dt.timedelta(hours=hours))
        assert dt.datetime.fromtimestamp(NOON / 1000, zone).isoformat() <= latest + "+14:00"


@pytest.mark.parametrize("written", ["2027-01-15_08:00:00", "2027-01-15x08:00"])
def test_date_and_time_are_separated_as_databases_compare_them(written: str) -> None:
    with pytest.raises(BadDue, match="no T or space"):
        DueTimes().instant(written)
