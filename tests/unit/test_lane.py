"""Lanes and rates as users write them, and the arithmetic of a rate's window."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from onejob.core.errors import InvalidOption
from onejob.core.lane import (
    Lane,
    LanePlan,
    QueueChange,
    QueueLimits,
    Rate,
    check_lane_key,
    starts_until_opening,
)


def test_a_rate_is_the_same_however_its_time_is_written() -> None:
    assert Rate(10, 60) == Rate(10, per=dt.timedelta(minutes=1)) == Rate(10, 60.0)
    assert Rate(10, 0.25).window == 250
    assert str(Rate(10, 60)) == "10 per 60 s"


@pytest.mark.parametrize("number", [0, -1, 10_001, 1.5, True, "3", None])
def test_a_rate_lets_from_1_to_10000_start(number: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Rate\(max=…\) must be a whole number from 1 to 10000"):
        Rate(number, 60)


@pytest.mark.parametrize("per", [0, -1, "60", None, float("inf"), float("nan"), True])
def test_a_rates_window_is_a_span_of_time(per: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Rate\(per=…\) must be"):
        Rate(1, per)


@pytest.mark.accepts("G19")
def test_a_key_of_more_than_256_characters_is_refused_in_these_words() -> None:
    with pytest.raises(InvalidOption) as caught:
        Lane("x" * 300)
    assert str(caught.value).startswith("Ordering key exceeds maximum length (300 > 256).")
    assert Lane("x" * 256).key == "x" * 256


@pytest.mark.parametrize(
    ("key", "says"), [("", "must not be empty"), (7, "must be a text"), ("\ud800", "lone surrogate")]
)
def test_a_key_is_a_text_that_can_be_stored(key: Any, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        check_lane_key(key)


@pytest.mark.parametrize("number", [0, -1, 10_001, 1.5, True, "3", None])
def test_a_lane_lets_from_1_to_10000_run(number: Any) -> None:
    with pytest.raises(InvalidOption, match=r"Lane\(concurrency=…\) must be a whole number from 1 to 10000"):
        Lane("a", concurrency=number)


def test_a_lane_has_a_key_or_says_what_it_is_made_of() -> None:
    assert Lane(by="user").by == ("user",)
    assert Lane(by=["user", "shop"]).by == ("user", "shop")
    assert callable(Lane(by=lambda user: user).by)
    for wrong in ({}, {"key": "a", "by": "user"}):
        with pytest.raises(InvalidOption, match="needs a key, or by=…, not both"):
            Lane(**wrong)
    for empty in ((), 7, (7,), ("",)):
        with pytest.raises(InvalidOption, match=r"Lane\(by=…\) names arguments"):
            Lane(by=empty)  # type: ignore[arg-type]


def test_what_else_a_lane_takes_is_checked() -> None:
    with pytest.raises(InvalidOption, match='must be "release" or "hold"'):
        Lane("a", on_retry="keep")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"Lane\(rate=…\) must be Rate\(max, per=seconds\)"):
        Lane("a", rate=(10, 60))  # type: ignore[arg-type]


def test_a_plan_says_what_the_lane_allows() -> None:
    lane = Lane(by="user", concurrency=3, rate=Rate(10, 60), on_retry="hold")
    assert lane.plan("u7") == LanePlan("u7", 3, Rate(10, 60), hold=True)
    assert str(lane.plan("u7")) == "3 at a time, 10 per 60 s, held over retries"
    assert Lane("a").plan("a").ordered
    assert not lane.plan("u7").ordered


def test_a_change_of_a_queue_leaves_alone_what_it_does_not_name() -> None:
    limits = QueueLimits(20, Rate(5, 1), paused=True)
    assert QueueChange().applied(limits) == limits
    assert QueueChange(concurrency=0).applied(limits) == QueueLimits(None, Rate(5, 1), paused=True)
    assert QueueChange(concurrency=3).applied(limits) == QueueLimits(3, Rate(5, 1), paused=True)
    assert QueueChange(remove_rate=True).applied(limits) == QueueLimits(20, None, paused=True)
    assert QueueChange(rate=Rate(1, 9)).applied(limits) == QueueLimits(20, Rate(1, 9), paused=True)
    assert QueueChange(paused=False).applied(limits) == QueueLimits(20, Rate(5, 1))


@pytest.mark.parametrize(
    ("started", "reserved", "number"),
    [
        (3, 0, 1),  # full: the oldest must go
        (2, 1, 1),  # what is left is spoken for: the oldest again
        (5, 0, 3),  # the limit was lowered: the oldest three
        (2, 0, 0),  # there is room now
        (0, 3, None),  # nothing that could grow old
        (1, 3, None),
    ],
)
def test_which_start_must_grow_old_before_another_is_allowed(
    started: int, reserved: int, number: int | None
) -> None:
    assert starts_until_opening(started, Rate(3, 60), reserved) == number
