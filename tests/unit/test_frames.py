"""What is said between a worker and its processes: cut into messages, typed, bounded."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.core.chain import MAX_BLOCKERS
from onejob.core.job import ChainId, JobId, State
from onejob.core.lane import LanePlan
from onejob.core.options import MAX_PAYLOAD
from onejob.store import Blocker
from onejob.worker.frames import (
    MAX_FRAME,
    Broken,
    Ended,
    FromChild,
    Given,
    Line,
    Loaded,
    Next,
    Progress,
    Slept,
    Unframer,
    framed,
    in_parts,
    read_from_child,
    read_to_child,
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
    Ended(
        b"1",
        0,
        Next("q", "t", b"{}", -1, 60_000, None, 3, b"{}", LanePlan("a", 2), (JobId("x"), JobId("y")), True),
    ),
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


@given(st.lists(st.sampled_from([0, 1_000, 400_000, MAX_PAYLOAD]), max_size=6))
def test_what_a_job_waited_for_goes_over_in_order_in_messages_that_fit(sizes: list[int]) -> None:
    blockers = [Blocker(ChainId(str(n)), State.COMPLETED, "t", b"x" * size) for n, size in enumerate(sizes)]
    read: list[Blocker] = []
    for part in in_parts(blockers):
        frame = framed(part)
        assert len(frame) <= MAX_FRAME
        message = read_to_child(frame[4:])
        assert isinstance(message, Given)
        read += message.blockers
    assert read == blockers


def test_the_longest_end_fits_into_a_message() -> None:
    id = JobId("0198f000-0000-7000-8000-000000000000")
    payload = b"x" * MAX_PAYLOAD
    then = Next("q" * 200, "t" * 200, payload, 0, 0, 0, 3, b"{}", None, (id,) * MAX_BLOCKERS, False)
    assert len(framed(Ended(payload, 0, then))) <= MAX_FRAME
