"""From `Lane(…)` and a call's arguments to the lane of that call: readable, checked at the caller, never mistaken."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import itertools
import uuid
from typing import Any

import msgspec
import pytest

from onejob import App, InvalidOption, Lane, Rate
from onejob.core.lane import LanePlan
from onejob.lanes import parts_text


class Color(enum.Enum):
    RED = "red"
    CRIMSON = "CRIMSON"


class Tone(enum.StrEnum):
    RED = "red"


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int


@pytest.fixture
def app() -> App:
    return App("memory:")


def lane_of(app: App, lane: Lane | None, **arguments: Any) -> LanePlan | None:
    @app.task(name=f"task{len(app.tasks)}", lane=lane)
    def task(user: Any = None, kind: Any = None) -> None: ...

    return task.job(**arguments).lane


def key_of(app: App, lane: Lane, **arguments: Any) -> str:
    plan = lane_of(app, lane, **arguments)
    assert plan is not None
    return plan.key


def test_a_fixed_lane_is_planned_once_and_brings_its_limits(app: App) -> None:
    @app.task(lane=Lane("imports", concurrency=3, rate=Rate(10, per=60), on_retry="hold"))
    def load(number: int) -> None: ...

    first, second = load.job(1).lane, load.job(2).lane
    assert first == LanePlan("imports", 3, Rate(10, per=60), hold=True)
    assert first is second


def test_a_call_may_have_another_lane_than_its_task_or_none(app: App) -> None:
    @app.task(lane=Lane("imports"))
    def load(number: int) -> None: ...

    assert load.using(lane=Lane("other")).job(1).lane == LanePlan("other")
    assert load.using(lane=None).job(1).lane is None
    assert load.using(priority=3).job(1).lane == LanePlan("imports")


@pytest.mark.parametrize(
    ("by", "arguments", "key"),
    [
        ("user", {"user": "u1"}, "user:u1"),
        ("user", {"user": 42}, "user:42"),
        ("user", {"user": "42"}, 'user:"42"'),
        ("user", {}, "user:-"),
        ("user", {"user": ""}, "user:-"),
        (("kind", "user"), {"user": "u1", "kind": "order"}, "kind:order/user:u1"),
        ({"user", "kind"}, {"user": "u1", "kind": "order"}, "kind:order/user:u1"),
        ("user", {"user": "a\0b"}, r'user:"a\u0000b"'),
        (lambda user: user, {"user": "tenant/42"}, "tenant/42"),
        (lambda user: f"user:{user}", {"user": 42}, "user:42"),
        (lambda user, kind: (kind, user), {"user": 42, "kind": "order"}, "order/42"),
        (lambda user, kind: (kind, user), {"user": "a/b", "kind": "order"}, 'order/"a/b"'),
        (lambda user: user % 8, {"user": 42}, "2"),
        (lambda user: uuid.UUID(int=user), {"user": 7}, "UUID(00000000-0000-0000-0000-000000000007)"),
    ],
)
def test_what_arguments_make_of_a_key(app: App, by: Any, arguments: dict[str, Any], key: str) -> None:
    assert key_of(app, Lane(by=by), **arguments) == key


def test_a_function_that_returns_none_means_no_lane(app: App) -> None:
    lane = Lane(by=lambda user: None if user == "anyone" else user)
    assert lane_of(app, lane, user="anyone") is None
    assert key_of(app, lane, user="u1") == "u1"


def test_other_parts_never_make_the_same_key() -> None:
    values = [
        None, "-", "a", "b", "a/b", '"a"', '"a/b"', "a\n", "a\\n", "1", 1, 1.0, "1.0", "1e5", 1e5, True, "true", "True", False,
        "inf", float("inf"), -1, "-1", b"a", "(a)", uuid.UUID(int=1), str(uuid.UUID(int=1)), f"UUID({uuid.UUID(int=1)})",
        dt.date(2026, 1, 2), "2026-01-02", "date(2026-01-02)", dt.datetime(2026, 1, 2, tzinfo=dt.UTC), decimal.Decimal(1),
        Color.RED, Color.CRIMSON, Tone.RED, "red", "Color(red)", [1], ["1"], [1, 2], {"a": 1}, Point(1, 2), {"x": 1, "y": 2},
    ]  # fmt: skip
    tuples = [(value,) for value in values] + list(itertools.product(values, repeat=2))
    texts = [parts_text(parts) for parts in tuples]
    assert len(set(texts)) == len(texts)


def test_a_missing_part_and_an_empty_one_are_the_same() -> None:
    assert parts_text((None, "x")) == parts_text(("", "x")) == "-/x"
    assert parts_text((0.0,)) == parts_text((-0.0,))


@pytest.mark.accepts("G19")
@pytest.mark.parametrize("lane", [Lane(by="user"), Lane(by=lambda user: f"user:{user}")])
def test_a_key_that_is_too_long_is_refused_at_the_caller(app: App, lane: Lane) -> None:
    assert len(key_of(app, lane, user="x" * 251)) == 256
    with pytest.raises(
        InvalidOption, match=r"^Ordering key exceeds maximum length \(300 > 256\)\. Use a shorter"
    ):
        lane_of(app, lane, user="x" * 295)


@pytest.mark.accepts("G19")
def test_a_fixed_key_that_is_too_long_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidOption, match=r"^Ordering key exceeds maximum length \(300 > 256\)\."):
        Lane("x" * 300)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("", "must not be empty"),
        ((), "returned no parts"),
        ("\ud800", "lone surrogate"),
        (("\ud800", 1), "lone surrogate"),
        (("a", object()), "key cannot be made of"),
    ],
)
def test_what_a_function_must_not_return(app: App, made: object, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        lane_of(app, Lane(by=lambda user: made), user=1)


def test_what_a_function_raises_reaches_the_caller_with_a_note(app: App) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        lane_of(app, Lane(by=lambda user: 1 // user), user=0)
    assert raised.value.__notes__ == ["Raised by the key function (Lane(by=…)) of task 'task0'."]


@pytest.mark.parametrize(
    ("lane", "message"),
    [
        (Lane(by="usr"), r"Lane\(by=…\) names 'usr', which is no parameter of task 'task0': did you mean 'user'\?"),
        (Lane(by=lambda usr: usr), r"The function in Lane\(by=…\) names 'usr'.*did you mean 'user'"),
        ("imports", r"lane=… must be a lane such as Lane\(\"imports\"\), or None, not 'imports'"),
    ],
)  # fmt: skip
def test_a_wrong_lane_is_refused_where_the_task_is_defined(app: App, lane: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        lane_of(app, lane)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a key, or by="),
        ({"key": "a", "by": "user"}, "not both"),
        ({"key": ""}, "must not be empty"),
        ({"key": 7}, "must be a text"),
        ({"key": "a\0b"}, "must not hold NUL"),
        ({"key": "\ud800"}, "lone surrogate"),
        ({"by": ()}, r"Lane\(by=…\) names arguments"),
        ({"by": 7}, r"Lane\(by=…\) names arguments"),
        ({"key": "a", "concurrency": 0}, "from 1 to 10000, not 0"),
        ({"key": "a", "concurrency": -1}, "from 1 to 10000, not -1"),
        ({"key": "a", "concurrency": True}, "whole number"),
        ({"key": "a", "rate": 10}, r"must be Rate\(max, per=seconds\) or None, not 10"),
        ({"key": "a", "on_retry": "keep"}, '"release" or "hold", not \'keep\''),
    ],
)
def test_senseless_lanes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Lane(**options)


@pytest.mark.parametrize(
    ("most", "per"), [(0, 1), (-1, 1), (10_001, 1), (1.5, 1), (True, 1), (1, 0), (1, -3), (1, "1"), (1, float("nan"))]
)  # fmt: skip
def test_senseless_rates(most: Any, per: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^Rate\((max|per)=…\) must be"):
        Rate(most, per)
