"""Date-named tables: which of those that exist matter at an instant."""

from __future__ import annotations

import datetime as dt

import pytest

from onejob import InvalidOption, Table
from onejob.intake.days import existing, tables_between

HOUR = 3_600_000


def at(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000)


def test_the_days_reach_from_so_many_back_to_where_the_look_ahead_ends() -> None:
    source = Table("sms_{day:%Y%m%d}", due="due", days_back=2)
    now = at("2027-01-15T23:30")
    assert tables_between(source, now, now) == ["sms_20270113", "sms_20270114", "sms_20270115"]
    assert tables_between(source, now, now + HOUR)[-1] == "sms_20270116"


def test_the_days_are_those_of_the_zone() -> None:
    source = Table("sms_{day:%d}", due="due", days_back=0, tz="Pacific/Auckland")
    now = at("2027-01-15T12:00")
    assert tables_between(source, now, now) == ["sms_16"]


def test_a_table_of_several_days_is_looked_into_once() -> None:
    source = Table("sms_{day:%Y_%m}", due="due", days_back=20)
    now = at("2027-01-15T12:00")
    assert tables_between(source, now, now) == ["sms_2026_12", "sms_2027_01"]


def test_only_tables_that_exist_are_looked_into() -> None:
    source = Table("sms_{day:%Y%m%d}", due="due")
    now = at("2027-01-15T12:00")
    names = {"sms_20270114", "sms_20270101", "sms_old", "others_20270115"}
    assert existing(source, names, now, now) == ["sms_20270114"]


def test_days_without_a_table_are_nothing_wrong_if_others_have_one() -> None:
    source = Table("sms_{day:%Y%m%d}", due="due", days_back=0)
    now = at("2027-01-15T12:00")
    assert existing(source, {"sms_20200101"}, now, now) == []


def test_a_pattern_that_no_table_fits_is_told_with_a_near_one() -> None:
    source = Table("smss_{day:%Y%m%d}", due="due")
    now = at("2027-01-15T12:00")
    with pytest.raises(InvalidOption, match=r"named like 'smss_{day:%Y%m%d}': did you mean 'sms_20270115'"):
        existing(source, {"sms_20270115", "users"}, now, now)


def test_a_table_that_is_not_there_is_told_with_a_near_one_or_with_all() -> None:
    now = at("2027-01-15T12:00")
    with pytest.raises(InvalidOption, match=r"no table 'messagse' in the database: did you mean 'messages'"):
        existing(Table("messagse", due="due"), {"messages", "users"}, now, now)
    with pytest.raises(InvalidOption, match=r"no table 'sms' in the database: there are orders, people\."):
        existing(Table("sms", due="due"), {"orders", "people"}, now, now)
    with pytest.raises(InvalidOption, match=r"in the database: there is only orders\."):
        existing(Table("sms", due="due"), {"orders", "onejob_jobs", "onejob_sms"}, now, now)
    with pytest.raises(InvalidOption, match=r"there are none\."):
        existing(Table("sms", due="due"), set(), now, now)


def test_a_code_may_stand_in_a_pattern_twice() -> None:
    source = Table("sms_{day:%Y}_{day:%Y%m%d}", due="due")
    now = at("2027-01-15T12:00")
    assert existing(source, ["sms_2027_20270114", "other"], now, now) == ["sms_2027_20270114"]
    assert existing(source, ["sms_2020_20200101"], now, now) == [], "an old one: the pattern is fine"
    with pytest.raises(InvalidOption, match="No table in the database is named like"):
        existing(source, ["other"], now, now)
