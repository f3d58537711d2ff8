"""What is said between a worker and its processes: cut into messages, typed, bounded."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.worker.frames import (
    MAX_FRAME,
    Broken,
    Ended,
    FromChild,
    Line,
    Loaded,
    Progress,
    Slept,
    Unframer,
    framed,
    read_from_child,
)

MESSAGES: list[FromChild] = [
    Loaded(),
    Progress(b"\x00\xff"),
    Line("onejob.job", 30, "hello", {"job": "1", "attempt": 1, "ratio": 0.5, "flag": True, "key": None}),
    Ended(None, 0),
    Ended(b"x" * 100_000, 12),
    Broken("ValueError: no", None, False, 0),
    Broken("ValueError: no", 1_000, True, 0),
    Slept(60_000, 0),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), st.integers(1, 70_000))
def test_messages_come_out_whole_however_the_bytes_arrive(messages: list[FromChild], step: int) -> None:
    stream = b"".join(map(framed, messages))
    unframer = Unframer()
    read: list[FromChild] = []
    for at in range(0, len(stream), step):
        read += map(read_from_child, unframer.feed(stream[at : at + step]))
    assert read == messages


def test_a_message_that_claims_to_be_longer_than_any_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        Unframer().feed((MAX_FRAME + 1).to_bytes(4))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", pickle.dumps(print), b"\x91\xa4Boot", b"\x93\xa5Ended\xa1x\xa1y", b"\x92\xa5Slept\xc0"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_from_child(data)
