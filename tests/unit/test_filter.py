"""The filter grammar: what a text means, and how a wrong one is refused."""

from __future__ import annotations

import pytest

from onejob.core.contents import calls_in, holds, scalar_text
from onejob.core.errors import InvalidOption
from onejob.core.filter import ArgumentIs, JobFilter, as_filter, looks_like_id, parse, span, steps
from onejob.core.job import ENDED, LIVE, QUEUED, State


def test_every_term_has_its_field() -> None:
    text = "state:failed,revoked task:sync queue:mail key:task/7 id:0198ab schedule:daily error:timeout args.user_id:7 older:1h newer:2d ended:10m"
    assert parse(text) == JobFilter(
        states=frozenset({State.FAILED, State.REVOKED}),
        tasks=frozenset({"sync", "*.sync"}),
        queues=frozenset({"mail"}),
        keys=frozenset({"task/7"}),
        ids=frozenset({"0198ab"}),
        schedules=frozenset({"daily"}),
        errors=frozenset({"timeout"}),
        args=(ArgumentIs("user_id", frozenset({"7"})),),
        older=3_600_000,
        newer=172_800_000,
        ended=600_000,
    )


def test_no_terms_match_everything() -> None:
    assert parse("") == parse("  \n ") == JobFilter()


def test_quotes_hold_spaces_commas_colons_and_each_other_together() -> None:
    assert parse('error:"not found, sorry"').errors == {"not found, sorry"}
    assert parse("error:'say \"no\"'").errors == {'say "no"'}
    assert parse('key:"a b",c,"d,e"').keys == {"a b", "c", "d,e"}
    assert parse(r'key:"back\\slash \"quoted\""').keys == {'back\\slash "quoted"'}
    assert parse('"error:not found" state:failed').errors == {"not found"}
    assert parse("key:urn:isbn:1").keys == {"urn:isbn:1"}
    assert parse('"args.a b:7"').args == (ArgumentIs("a b", frozenset({"7"})),)


@pytest.mark.parametrize(
    ("word", "states"),
    [("queued", QUEUED), ("live", LIVE), ("ended", ENDED), ("failed,queued", QUEUED | {State.FAILED})],
)
def test_groups_of_states_have_names(word: str, states: frozenset[State]) -> None:
    assert parse(f"state:{word}").states == states


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stat:failed", r"knows no 'stat': did you mean 'state'\?"),
        (
            "colour:red",
            "there are state, queue, origin, task, key, lane, chain, id, schedule, error, older, newer, ended, args.NAME",
        ),
        ("state:faild", r"no state 'faild': did you mean 'failed'\?"),
        ("failed", "'failed' has no name; write name:value"),
        ("state:", "'state' has an empty value"),
        ("state:failed,", "'state' has an empty value"),
        ('key:""', "'key' has an empty value"),
        ('error:"open', 'opens a quote " that it does not close'),
        ("state:failed state:revoked", "takes state: once"),
        ("args.a:1 args.a:2", "takes args.a: once"),
        ("older:1h,2h", "one length of time"),
        ("older:soon", "such as 90s, 10m, 1h30m or 7d, not 'soon'"),
        ("older:11000000d", "at most ten years"),
        ("queue:a/b", "Queue 'a/b' cannot match"),
        ("task:a[b]", r"Task 'a\[b\]' cannot match|Task '\*\.a\[b\]' cannot match"),
        ("id:0198", "6 or more of its characters"),
        ("id:not-an-id", "is no id"),
        ("chain:order-9", "'order-9' is no id"),
        ("args.:1", "is no path"),
        ("args.a[x]:1", r"args.a\[x\] is no path"),
    ],
)
def test_a_wrong_filter_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse(text)


def test_a_filter_is_text_or_a_job_filter() -> None:
    made = JobFilter(keys=frozenset({"k"}))
    assert as_filter(made) is made
    assert as_filter("key:k") == made
    with pytest.raises(InvalidOption, match="not 7"):
        as_filter(7)


def test_a_filter_can_be_narrowed_to_states() -> None:
    assert JobFilter().within(ENDED).states == ENDED
    assert parse("state:failed,running").within(ENDED).states == {State.FAILED}
    assert parse("state:running").within(ENDED).states == frozenset()


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90", 90_000),
        ("1.5", 1_500),
        ("250ms", 250),
        ("90s", 90_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("2w", 1_209_600_000),
        ("0s", 0),
    ],
)
def test_a_span_is_read_as_people_write_it(text: str, milliseconds: int) -> None:
    assert span("--delay", text) == milliseconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1h30", "1 h", "1e9", "inf", "1hm", "٣s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="--delay takes a length of time"):
        span("--delay", text)


def test_an_id_may_be_given_by_its_beginning() -> None:
    assert looks_like_id("0198f3ab-1234-7000-8000-000000000001")
    assert looks_like_id("0198f3")
    assert not looks_like_id("0198f")
    assert not looks_like_id("------")
    assert not looks_like_id("order-9")


def test_paths_lead_through_names_and_places() -> None:
    assert steps("user.tags[3].name") == ("user", "tags", 3, "name")
    assert steps("rows[0][1]") == ("rows", 0, 1)


def test_scalars_are_compared_as_json_writes_them() -> None:
    texts = [scalar_text(value) for value in ("a", 7, 7.0, 1e300, True, None, [1], {})]
    assert texts == ["a", "7", "7.0", "1e300", "true", "null", None, None]


def test_bytes_that_are_no_payload_hold_nothing() -> None:
    wanted = [ArgumentIs("a", frozenset({"1"}))]
    deep = b'{"a":' * 100_000
    for payload in (b"", b"\x80\x04.", b"[1", b"\xff", deep, b'{"a":1}' + b" " * 1_048_576, b"\x1f\x8b\x08"):
        assert not holds(payload, wanted)
    assert calls_in(b"\xff") is None
    assert calls_in(b'{"a":1}\n{"a":2}') == [{"a": 1}, {"a": 2}]
    assert not holds(b'[1]\n7\n"a"', wanted)
