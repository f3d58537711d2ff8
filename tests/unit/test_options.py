"""Names, spans of time, whole numbers and the options that travel with a job: what is taken, what is refused."""

import datetime as dt
import math
from typing import Any

import msgspec
import pytest

from onejob.core.errors import InvalidOption, shown
from onejob.core.options import (
    MAX_SECONDS,
    JobOptions,
    check_name,
    decode_options,
    encode_options,
    millis,
    whole_number,
)
from onejob.core.retry import Exponential, Fixed


@pytest.mark.parametrize("name", ["a", "0", "A-Za.z_0:9", "send_webhook", "x" * 100, "pkg.mod:task"])
def test_a_good_name_is_returned(name: str) -> None:
    assert check_name("Queue", name) == name


BAD_NAMES = [
    "",
    " ",
    "a b",
    " a",
    "a\n",
    "a\0",
    "\x1b[31m",
    "{a}",
    "a{b}",
    "a*",
    "a?",
    "[ab]",
    "a'b",
    'a"b',
    "a/b",
    "a\\b",
    "a;b",
    "é",
    "a\u200b",
    "٣",
    "_a",
    ".a",
    ":a",
    "-a",
    "x" * 101,
    "\ud800",
    b"a",
    None,
    1,
    True,
    ["a"],
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_a_bad_name_is_refused_with_the_rule_and_what_was_given(name: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_name("Queue", name)
    message = str(caught.value)
    assert message.startswith(f"Queue name {shown(name)} is not valid: use 1 to 100 of")
    assert message.isprintable()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5_000),
        (0, 0),
        (-3, -3_000),
        (0.25, 250),
        (1.0006, 1_001),
        (1e-9, 1),
        (-1e-9, 0),
        (dt.timedelta(minutes=1), 60_000),
        (dt.timedelta(microseconds=1), 1),
        (dt.timedelta(0), 0),
        (MAX_SECONDS, MAX_SECONDS * 1000),
        (-1e300, -MAX_SECONDS * 1000),
        (-(10**400), -MAX_SECONDS * 1000),
        (dt.timedelta.min, -MAX_SECONDS * 1000),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_seconds_and_timedeltas_become_whole_milliseconds(value: Any, expected: int) -> None:
    found = millis("delay", value)
    assert (found, type(found)) == (expected, int)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "delay must be seconds (a number) or a timedelta, not True."),
        ("5", "delay must be seconds (a number) or a timedelta, not '5'."),
        (None, "delay must be seconds"),
        ([5], "delay must be seconds"),
        (dt.datetime(2024, 1, 1), "delay must be seconds"),  # noqa: DTZ001 - the case
        (5j, "delay must be seconds"),
        (math.nan, "delay must be finite, not nan."),
        (math.inf, "delay must be finite, not inf."),
        (-math.inf, "delay must be finite, not -inf."),
        (MAX_SECONDS + 1, "delay must be at most ten years"),
        (1e300, "delay must be at most ten years"),
        (10**400, "delay must be at most ten years"),
        (10**5000, "delay must be at most ten years, not <int>."),
        (dt.timedelta.max, "delay must be at most ten years"),
    ],
    ids=lambda value: ascii(value)[:40] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_finite_span_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        millis("delay", value)
    assert words in str(caught.value)


def test_a_minimum_is_kept() -> None:
    assert millis("lease", 1.5, minimum=1_500) == 1_500
    with pytest.raises(InvalidOption, match=r"lease must be at least 1\.5 seconds, not 1\.4\."):
        millis("lease", 1.4, minimum=1_500)


@pytest.mark.parametrize("value", [1, 2, 1000])
def test_a_whole_number_within_its_bounds_is_returned(value: int) -> None:
    assert whole_number("attempts", value, 1, 1000) == value


@pytest.mark.parametrize(
    "value", [0, 1001, -1, True, 1.0, "1", None, math.nan, 10**400, 2**31], ids=lambda value: repr(value)[:10]
)
def test_anything_else_is_refused_with_the_bounds(value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        whole_number("attempts", value, 1, 1000)
    assert str(caught.value) == f"attempts must be a whole number from 1 to 1000, not {shown(value)}."


def test_a_priority_fits_into_32_bits() -> None:
    low, high = -(2**31), 2**31 - 1
    assert whole_number("priority", low, low, high) == low
    with pytest.raises(InvalidOption):
        whole_number("priority", high + 1, low, high)


def test_options_that_are_the_defaults_take_no_bytes() -> None:
    assert encode_options(JobOptions()) is None
    assert decode_options(None) == JobOptions()


@pytest.mark.parametrize(
    "options",
    [
        JobOptions(attempts=3),
        JobOptions(attempts=3, backoff=Exponential(2.0, jitter=0.1)),
        JobOptions(backoff=Fixed(2.0)),
        JobOptions(backoff="named"),
        JobOptions(never=("builtins.ValueError",), timeout=1_500, into="items"),
    ],
    ids=repr,
)
def test_options_come_back_as_they_were(options: JobOptions) -> None:
    data = encode_options(options)
    assert data is not None
    assert decode_options(data) == options


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"unknown":1}',
        b'{"attempts":"3"}',
        b'{"backoff":{"type":"cubic"}}',
        b'{"backoff":{"type":"fixed","wait":-1}}',
    ],
    ids=ascii,
)
def test_options_of_another_kind_are_refused_loudly(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_options(data)


class Noisy:
    def __repr__(self) -> str:
        return "line\nbreak\x1b[31m"


class Broken:
    def __repr__(self) -> str:
        raise LookupError("no repr")


def test_what_a_message_shows_is_short_printable_and_never_fails() -> None:
    assert shown("a") == "'a'"
    assert shown("x" * 500) == "'" + "x" * 78 + "…"
    assert len(shown("x" * 500)) == 80
    assert shown(Broken()) == "<Broken>"
    assert shown(10**5000) == "<int>"
    assert shown(Noisy()) == "line\\nbreak\\x1b[31m"
