"""Settings per queue, and how task, queue and app override each other."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from onejob import App, InvalidOption, Queue, Unique
from onejob.core.dead_letter import copy_id, dead_letter_of, with_dead_letter
from onejob.core.job import ChainId, Claimed, JobId, Lease, Millis
from onejob.core.lifecycle import Lost, Raised, Returned, Snoozed, Succeeded, Unknown, after_attempt
from onejob.core.options import JobOptions, decode_options, encode_options
from onejob.queues import Queues


def where(task: Any) -> str | None:
    """Where failed jobs of a task are buried."""
    return decode_options(task.planner.stored_options).dead_letter


def test_a_task_overrides_its_queue_which_overrides_the_app() -> None:
    app = App("memory:", dead_letter="dead", queues={"mail": Queue(dead_letter="lost-mail")})

    @app.task
    def plain() -> None: ...

    @app.task(queue="mail")
    def mail() -> None: ...

    @app.task(queue="mail", dead_letter="own")
    def own() -> None: ...

    assert (where(plain), where(mail), where(own)) == ("dead", "lost-mail", "own")
    assert (where(own.using(queue="other")), where(plain.using(queue="mail"))) == ("own", "lost-mail")
    assert (where(mail.using(dead_letter="once")), where(mail.using(dead_letter=None))) == ("once", None)


def test_a_queue_says_nothing_of_what_it_is_not_told() -> None:
    queues = Queues(
        {"a": Queue(compression="gzip"), "b": Queue(dead_letter=None), "c": Queue(compression=None)},
        compression=None,
        dead_letter="dead",
    )
    assert [queues.dead_letter(name) for name in ("a", "b", "c", "d")] == ["dead", None, "dead", "dead"]
    assert [queues.compresses(name) for name in ("a", "b", "c", "d")] == [True, False, False, False]
    assert not Queues({"c": Queue(compression=None)}, compression="gzip").compresses("c")
    assert Queues(compression="gzip").compresses("any")


def test_no_queue_is_its_own_dead_letter_queue() -> None:
    app = App("memory:", dead_letter="dead")

    @app.task(queue="dead")
    def repair() -> None: ...

    assert where(repair) is None
    with pytest.raises(InvalidOption, match="cannot be its own dead-letter queue"):
        app.task(name="t", queue="mail", dead_letter="mail")(lambda: None)
    with pytest.raises(InvalidOption, match="cannot be its own dead-letter queue"):
        repair.using(queue="mail", dead_letter="mail")
    with pytest.raises(InvalidOption, match="cannot be its own dead-letter queue"):
        App("memory:", queues={"mail": Queue(dead_letter="mail")})


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zip"},
        {"compression": True},
        {"dead_letter": ""},
        {"dead_letter": "a b"},
        {"dead_letter": 7},
        {"queues": {"mail": "gzip"}},
        {"queues": {"": Queue()}},
        {"queues": ["mail"]},
    ],
)
def test_bad_settings_are_refused_where_they_are_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        App("memory:", **options)


@pytest.mark.parametrize("options", [{"compression": "zip"}, {"dead_letter": "a b"}, {"dead_letter": 7}])
def test_a_queue_checks_itself(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Queue(**options)


def test_only_what_helps_is_compressed_and_the_key_and_fingerprint_do_not_change() -> None:
    calls: dict[str | None, list[Any]] = {}
    for compression in ("gzip", None):
        app = App("memory:", compression=compression)

        @app.task(name="t", unique=Unique.once(by="text"))
        def task(text: str, items: list[int]) -> None: ...

        calls[compression] = [task.job("x" * 15_000, [1]), task.job("short", [1])]
    packed, plain = calls["gzip"][0], calls[None][0]
    assert len(packed.payload) < 300
    assert packed.plan.size == len(plain.payload) > 15_000
    assert (packed.plan.digest, packed.plan.fingerprint) == (plain.plan.digest, plain.plan.fingerprint)
    assert calls["gzip"][1].payload == calls[None][1].payload
    assert calls["gzip"][1].plan.size == 0


def test_the_id_of_a_copy_is_made_from_the_originals() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    made = uuid.UUID(bytes=copy_id(first.bytes))
    assert made.bytes == copy_id(first.bytes) != copy_id(second.bytes)
    assert (made.version, made.variant, made.bytes[:6]) == (8, uuid.RFC_4122, first.bytes[:6])


def test_options_lose_and_regain_their_dead_letter() -> None:
    options = encode_options(JobOptions(attempts=3, dead_letter="dead"))
    without = with_dead_letter(options, None)
    assert decode_options(without) == JobOptions(attempts=3)
    assert with_dead_letter(without, "dead") == options
    assert with_dead_letter(encode_options(JobOptions(dead_letter="dead")), None) is None
    assert with_dead_letter(b"\x00", None) == b"\x00"


@pytest.mark.parametrize("options", [None, b"", b"\x00", b"[]", b'{"attempts":"x"}', b'{"dead_letter":7}'])
def test_without_readable_options_there_is_no_dead_letter(options: bytes | None) -> None:
    assert dead_letter_of(options, "q") is None


def claimed(options: JobOptions, *, crashes: int = 0, misses: int = 0) -> Claimed:
    """A job that has just been started."""
    return Claimed(
        lease=Lease(JobId(""), b""),
        queue="q",
        task="t",
        payload=b"{}",
        options=encode_options(options),
        attempt=1,
        failures=0,
        crashes=crashes,
        max_crashes=1,
        misses=misses,
        accepted=Millis(0),
        due=Millis(0),
        chain=ChainId(""),
        chain_index=0,
        key=None,
    )


def test_every_end_that_is_a_failure_names_the_dead_letter_queue() -> None:
    options = JobOptions(dead_letter="dead")
    ends = [
        after_attempt(claimed(options), Raised("no", attempts=1, retry_in=0)),
        after_attempt(claimed(options), Raised("no", attempts=9, retry_in=0, final=True)),
        after_attempt(claimed(options, crashes=1), Lost("w")),
        after_attempt(claimed(options, misses=40), Unknown("none")),
    ]
    assert [end.dead_letter for end in ends] == ["dead"] * 4
    others = [
        after_attempt(claimed(options), Raised("no", attempts=2, retry_in=0)),
        after_attempt(claimed(options), Lost("w")),
        after_attempt(claimed(options), Unknown("none")),
        *(after_attempt(claimed(options), outcome) for outcome in (Succeeded(None), Snoozed(1), Returned())),
        after_attempt(claimed(JobOptions(dead_letter="q")), Raised("no", attempts=1, retry_in=0)),
        after_attempt(claimed(JobOptions()), Raised("no", attempts=1, retry_in=0)),
    ]
    assert [end.dead_letter for end in others] == [None] * len(others)
