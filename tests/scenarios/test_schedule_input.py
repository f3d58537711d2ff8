"""Schedules that make no sense are refused where they are written, and nothing is stored."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
from diary import Diary, utc

from onejob import App, Cron, Every, InvalidOption


def refused(app: App, *arguments: Any, **options: Any) -> str:
    """What both ways to make a schedule say; nothing is declared or stored."""
    texts: list[str] = []
    for make in (app.schedule, app.schedules.put):
        with pytest.raises(InvalidOption) as error:
            make(*arguments, **options)
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert not app.declared_schedules
    assert app.schedules.list() == []
    assert len(texts[0]) < 400
    return texts[0]


@pytest.mark.parametrize("id", ["", "a b", "é", "a" * 101, "-a", "a\0", "{a}", "a*", "a'", None, 7, b"a"])
def test_bad_ids_are_refused(app: App, id: object) -> None:
    text = refused(app, id, Every(5), Diary(app).report.job())
    assert text.startswith("Schedule name")
    for verb in (app.schedules.get, app.schedules.remove, app.schedules.pause, app.schedules.run):
        with pytest.raises(InvalidOption, match="Schedule name"):
            verb(id)  # type: ignore[arg-type]


@pytest.mark.parametrize("timing", ["0 8 * * *", 300, None, dt.timedelta(minutes=5), Cron, Every])
def test_what_is_no_timing_is_refused(app: App, timing: object) -> None:
    text = refused(app, "a", timing, Diary(app).report.job())
    assert 'Schedule \'a\' needs Cron("0 8 * * *", tz="Europe/Paris") or Every(300), not' in text


def test_what_is_no_call_is_refused(app: App) -> None:
    diary = Diary(app)
    for wrong in (
        diary.report,
        diary.report.using(priority=1),
        diary.report.enqueue(),
        "report",
        None,
        print,
    ):
        assert "Schedule 'a' needs a call made with task.job(…)" in refused(app, "a", Every(5), wrong)


@pytest.mark.parametrize("catch_up", ["all", None, True, 1, "One"])
def test_a_bad_catch_up_is_refused(app: App, catch_up: object) -> None:
    text = refused(app, "a", Every(5), Diary(app).report.job(), catch_up=catch_up)
    assert text.startswith('catch_up=… must be "one"')


def test_what_names_one_moment_is_refused(app: App) -> None:
    diary = Diary(app)
    at = diary.report.using(at=utc(2030, 1, 1)).job()
    assert "at=… names one moment, and schedule 'a' makes many jobs" in refused(app, "a", Every(5), at)
    behind = diary.report.using(blockers=[diary.report.enqueue()]).job()
    assert "blockers=… names one moment" in refused(app, "a", Every(5), behind)


def test_an_id_is_declared_once(app: App) -> None:
    diary = Diary(app)
    app.schedule("a", Every(5), diary.report.job())
    with pytest.raises(InvalidOption, match="Schedule 'a' is declared twice"):
        app.schedule("a", Every(6), diary.report.job())


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "has 0"),
        ("* * * *", "has 4"),
        ("0 0 8 * * *", "has 6; for seconds, use Every"),
        ("60 8 * * *", "wrong minute"),
        ("0 24 * * *", "wrong hour"),
        ("0 8 32 * *", "wrong day of month"),
        ("0 8 0 * *", "wrong day of month"),
        ("0 8 * 13 *", "wrong month"),
        ("0 8 * * 8", "wrong day of week"),
        ("5-1 8 * * *", "wrong minute"),
        ("*/0 * * * *", "wrong minute"),
        ("a b c d e", "wrong minute"),
        ("0 0 31 2 *", "never fires"),
        ("0 0 30 2 *", "never fires"),
        ("@daily", 'write Cron("0 0 * * *")'),
        ("1," * 60 + " * * * *", "at most 100 ASCII characters"),
        ("٣ * * * *", "at most 100 ASCII characters"),
        (None, "five fields"),
        (8, "five fields"),
    ],
)
def test_a_bad_pattern_is_refused(pattern: Any, why: str) -> None:
    with pytest.raises(InvalidOption) as error:
        Cron(pattern)
    assert why in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("zone", "why"),
    [
        ("Europe/Pariss", "did you mean 'Europe/Paris'?"),
        ("Nowhere", "There is no time zone 'Nowhere'"),
        ("CEST", "There is no time zone 'CEST': name a place, such as \"Europe/Berlin\""),
        ("PDT", "name a place"),
        ("", "There is no time zone"),
        ("../../etc/passwd", "There is no time zone"),
        ("localtime", "There is no time zone"),
        (None, "must be the name of a time zone"),
        (dt.UTC, "must be the name of a time zone"),
    ],
)
def test_a_bad_zone_is_refused(zone: Any, why: str) -> None:
    with pytest.raises(InvalidOption) as error:
        Cron("0 8 * * *", tz=zone)
    assert why in str(error.value)


@pytest.mark.parametrize(
    "seconds", [0, -5, 0.05, math.nan, math.inf, "5", None, True, 11 * 365 * 86_400, dt.timedelta(0), [5]]
)
def test_a_bad_interval_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidOption, match="Every"):
        Every(seconds)
    assert Every(dt.timedelta(minutes=5)) == Every(300)
