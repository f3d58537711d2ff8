"""Compression: smaller where it helps, and nothing but our own bytes is ever unpacked."""

from __future__ import annotations

import functools
import gzip
import os
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.codec import CallCodec, decode_result
from onejob.core.compression import SMALLEST, NotUnpackable, compressed, unpacked
from onejob.core.errors import Undecodable
from onejob.core.options import MAX_PAYLOAD

MEBIBYTE = 1_048_576
REPETITIVE = b'{"text":"' + b"again and " * 1_500 + b'"}'


@functools.cache
def bomb() -> bytes:
    """256 MiB of nothing as gzip: one block, again and again."""
    engine, zeros = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(MEBIBYTE)
    first, again = (engine.compress(zeros) + engine.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    checksum = 0
    for _ in range(256):
        checksum = zlib.crc32(zeros, checksum)
    return first + again * 255 + b"\x03\x00" + struct.pack("<II", checksum, 256 * MEBIBYTE)


def test_what_repeats_itself_gets_small_and_comes_back() -> None:
    packed = compressed(REPETITIVE)
    assert len(packed) < 300
    assert unpacked(packed) == gzip.decompress(packed) == REPETITIVE


def test_the_same_data_gives_the_same_bytes() -> None:
    packed = compressed(REPETITIVE)
    assert packed == compressed(REPETITIVE)
    assert packed[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # no name, no time


@pytest.mark.parametrize("data", [b"", b"{}", b"x" * (SMALLEST - 1), os.urandom(4_000)])
def test_what_does_not_get_smaller_stays_as_it_is(data: bytes) -> None:
    assert compressed(data) is data


def test_a_tenth_must_be_saved() -> None:
    noise = os.urandom(10_000)
    assert compressed(noise + bytes(900)) == noise + bytes(900)
    assert len(compressed(noise + bytes(2_000))) < 10_500


@given(st.lists(st.tuples(st.binary(max_size=40).map(lambda data: data.hex().encode()), st.integers(1, 60))))
def test_lines_come_back_whichever_of_them_were_compressed(pieces: list[tuple[bytes, int]]) -> None:
    lines = [b'{"v":"%s"}' % (text * times) for text, times in pieces] or [b"{}"]
    stored = b"\n".join(compressed(line) for line in lines)
    assert unpacked(stored) == b"\n".join(lines)


def test_newlines_inside_compressed_data_part_no_lines() -> None:
    numbers = iter(range(100_000))
    packed = next(
        packed for number in numbers if b"\n" in (packed := compressed(b'{"n":%d,%s}' % (number, REPETITIVE)))
    )
    assert unpacked(packed + b"\n{}\n" + packed) == unpacked(packed) + b"\n{}\n" + unpacked(packed)


def test_a_bomb_is_refused_with_flat_memory() -> None:
    packed = bomb()
    assert len(packed) < MAX_PAYLOAD
    tracemalloc.start()
    try:
        with pytest.raises(NotUnpackable, match="holds more than"):
            unpacked(packed)
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_PAYLOAD
    finally:
        tracemalloc.stop()


def test_many_lines_together_are_bounded_too() -> None:
    line = compressed(b'"%s"' % (b"x" * 400_000))
    assert len(unpacked(b"\n".join([line] * 2))) == 800_005
    with pytest.raises(NotUnpackable, match="holds more than"):
        unpacked(b"\n".join([line] * 3))
    with pytest.raises(NotUnpackable, match="holds more than"):
        unpacked(b"\n".join([line] * 500))


@pytest.mark.parametrize("size", [MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1])
def test_the_limit_is_exact(size: int) -> None:
    packed = compressed(bytes(size))
    if size <= MAX_PAYLOAD:
        assert len(unpacked(packed)) == size
    else:
        with pytest.raises(NotUnpackable):
            unpacked(packed)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda packed: packed[:-9],
    "cut to the magic": lambda packed: packed[:2],
    "without its checksum": lambda packed: packed[:-8],
    "with another checksum": lambda packed: packed[:-8] + bytes(8),
    "with a byte changed": lambda packed: packed[:30] + bytes([packed[30] ^ 0xFF]) + packed[31:],
    "with garbage behind it": lambda packed: packed + b"garbage",
    "twice without a newline": lambda packed: packed + packed,
    "not gzip at all": lambda _: b"\x1f\x8b" + os.urandom(100),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_data_is_refused(how: str) -> None:
    with pytest.raises(NotUnpackable):
        unpacked(DAMAGE[how](compressed(REPETITIVE)))


def collect(items: list[str], note: str = "") -> None: ...


CODEC = CallCodec(collect, "collect")


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("place", ["alone", "first", "last"])
def test_damaged_payloads_are_undecodable(how: str, place: str) -> None:
    payload = DAMAGE[how](compressed(CODEC.encode(CODEC.bind((["again"] * 500,), {}))))
    stored = {"alone": payload, "first": payload + b'\n{"items":[]}', "last": b'{"items":[]}\n' + payload}
    with pytest.raises(Undecodable):
        CODEC.decode(stored[place], "items")


def test_compressed_and_plain_calls_are_collected_in_order() -> None:
    lists = [["a"] * 300, ["b"], ["c"] * 300, ["d"]]
    calls = [compressed(CODEC.encode(CODEC.bind((items,), {"note": items[0]}))) for items in lists]
    assert [call[:1] == b"\x1f" for call in calls] == [True, False, True, False]
    arguments = CODEC.decode(b"\n".join(calls), "items")
    assert CODEC.mapping(arguments) == {"items": list(chain(*lists)), "note": "a"}


@pytest.mark.parametrize(
    "data", [bomb(), compressed(compressed(REPETITIVE) * 40), b"\x1f\x8b", b"\x80\x04N."]
)
def test_hostile_results_are_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable):
        decode_result(data)


def test_compressed_results_come_back() -> None:
    assert decode_result(compressed(REPETITIVE), dict[str, str])["text"].startswith("again and again")


@pytest.mark.parametrize(
    "data",
    [
        b"\n".join([gzip.compress(b"{}")] * 50_000),
        b"\n" * 1_000_000 + b"\x1f\x8b",
        b"{}\n\x1f\x8b\n" * 200_000,
    ],
    ids=["tiny-members", "empty-lines", "beginnings"],
)
def test_what_would_take_long_is_refused_at_once(data: bytes) -> None:
    before = time.process_time()
    with pytest.raises(NotUnpackable):
        unpacked(data)
    assert time.process_time() - before < 1


def test_lines_as_they_are_stand_between_packed_ones() -> None:
    packed = gzip.compress(b"[1]")
    data = b"\n".join([b"{}", b"[2]", packed, packed, b"[3]", b"[4]", packed])
    assert unpacked(data).split(b"\n") == [b"{}", b"[2]", b"[1]", b"[1]", b"[3]", b"[4]", b"[1]"]
