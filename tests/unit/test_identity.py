"""Digests of keys: frozen values, and every pair that must, or must not, be the same key.

The golden digests are a published format. If one of these tests fails, the change would orphan every key in
every store: raise the version byte and write a migration, or undo the change.
"""

import datetime as dt
import decimal
import enum
import hashlib
import subprocess
import sys
import threading
import unicodedata
import uuid
import zoneinfo
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.core.errors import InvalidOption
from onejob.core.identity import MAX_TEXT, Realm, call_text, encode_part, fingerprint, key_text
from onejob.core.payload import MAX_DEPTH, survey


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class User:
    name: str
    age: int


class Point(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    x: int


REALM = Realm("hooks", "send_webhook")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOON = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)

GOLDEN: list[tuple[tuple[Any, ...], str]] = [
    ((), "10b9318067aa1c096166782fd3467120"),
    ((None,), "29b53367a699bb839ff62e126b26b2a7"),
    (("task-123", "task"), "4ea33f02f822e35bcc73340f01c56772"),
    (("é",), "e4a38125c9be723d322f20a6961298cf"),
    (("e\u0301",), "83f0cec5c8c0e8ac0e5f87ce0c7891ea"),
    (("a:b", "c"), "663552edcb211aa26c98e7d980f8093a"),
    (("a", "b:c"), "2977afc7ca98ffeb79eb0c016b69c04c"),
    ((True,), "759e4fa7094aa65a90135eeba5ab153c"),
    ((False,), "4331cbdb744e7e53635a41badf45ea62"),
    ((0,), "bd49c4709e727daedda118d2c081c41c"),
    ((-1,), "ae02a1676f9c4a672c6d3b8128f8f68b"),
    ((2**70,), "dd13361cc37f7ff8d5c3210bd799efe5"),
    (("1",), "74d384ea35a9fef745168bfef94c0260"),
    ((1.0,), "deb5a2f6301c1e96d40b6300ca03e5da"),
    ((-0.0,), "32c2112cc25db8e2350c016a71ec8ba9"),
    ((1e308,), "e5a3f99ccce4402141a81bf9dd9258a0"),
    ((b"\x00\xff",), "731cd7d77193b52806cdbd7fe47110a3"),
    ((uuid.UUID("12345678-1234-5678-1234-567812345678"),), "7983f0ca6ed22f27d620db8c75652de2"),
    ((NOON,), "f31f75e94b880dfb8020938c9c84cab8"),
    ((NOON.replace(tzinfo=None),), "270c85110cf03fef806daaa05de35ab3"),
    ((dt.date(2024, 2, 29),), "e9f3a970dd32d1136bedfac3d1d287dc"),
    ((dt.time(23, 59, 59, 999999),), "2ad2aba312cd16569f8d790193f3fcd1"),
    ((dt.timedelta(days=-1, microseconds=3),), "fe6b9bd27fdeca3ab4408f2bff574093"),
    ((decimal.Decimal("-12.3400"),), "c993ca01f7398129aad0056031668ebf"),
    ((decimal.Decimal("0.0"),), "0da5676fded2757bf2947c95ec47c4fa"),
    ((Color.RED,), "8da09fbac54afd07e891ca4d0d23dd33"),
    ((Level.LOW,), "6ed54e7f9fc12fd6d27de5a7c648ae9e"),
    (([],), "b2e2e222c29424816d884376a9b80ac4"),
    (([1, "a", None, [2.5]],), "dd2ffad55ec8295074f7821b4a8e2af8"),
    (({"b", "a"},), "720c4e26f839c84f6083b12be4dab4ac"),
    (({},), "91d99640e4dc4ea5e2e93bce54cadcf6"),
    (({"b": {"c": [True]}, "a": ""},), "8b3c9d3125ac2fd023ca9f605438a15c"),
    ((User("ann", 30),), "499a778a4dfa04423ae19d2d58c47624"),
    ((Point(7),), "be837d092b6bc0ba2bea720064cd89a8"),
    (("x" * 1024,), "f0a518fd8577afe6b0f3d352477bfd9e"),
]


@pytest.mark.parametrize(("parts", "digest"), GOLDEN, ids=[str(number) for number in range(len(GOLDEN))])
def test_the_digest_of_a_key_never_changes(parts: tuple[Any, ...], digest: str) -> None:
    assert REALM.digest(parts).hex() == digest


def test_golden_digests_are_all_different() -> None:
    assert len({digest for _, digest in GOLDEN}) == len(GOLDEN)


def test_a_digest_is_128_bits_of_sha256_over_the_published_bytes() -> None:
    data = b"\x01t5:hooks12:send_webhook" + b"s3:a:bs1:c-i2:42"
    assert REALM.digest(("a:b", "c", None, 42)) == hashlib.sha256(data).digest()[:16]
    data = b"\x01q5:hooks0:" + b"c" + b"m16:s1:ai1:1s1:bs1:x"
    assert Realm("hooks", None).call_digest({"b": "x", "a": 1}) == hashlib.sha256(data).digest()[:16]


def test_the_digest_of_a_whole_call_never_changes() -> None:
    arguments = {"entity_id": "task-123", "entity_type": "task", "data": {"v": 2, "tags": ["a", None]}}
    assert REALM.call_digest(arguments).hex() == "8acd165fd1ff125608e308f38ee9f457"
    assert REALM.call_digest({}).hex() == "e7fb339e36fe8fa6b7c9d789198231e5"
    assert REALM.call_digest(dict(reversed(arguments.items()))) == REALM.call_digest(arguments)
    assert REALM.call_digest({}) != REALM.digest(())


def test_queue_task_and_scope_are_part_of_the_identity() -> None:
    realms = [
        Realm("hooks", "send_webhook"),
        Realm("hooks", "send"),
        Realm("hook", "send_webhook"),
        Realm("hooks", None),
        Realm("hookss", "end_webhook"),
    ]
    assert len({realm.digest(("a",)) for realm in realms}) == len(realms)


def different(*keys: tuple[Any, ...]) -> None:
    assert len({REALM.digest(key) for key in keys}) == len(keys)


def same(*keys: tuple[Any, ...]) -> None:
    assert len({REALM.digest(key) for key in keys}) == 1


def test_parts_are_length_prefixed() -> None:
    different(("a:b", "c"), ("a", "b:c"), ("a:b:c",), ("abc",), ("a", "b", "c"))
    different(("s1:a",), ("a",), ("1:a",))
    different(([1], [2]), ([1, 2],), ([[1], [2]],), ([1, [2]],))


def test_one_and_its_lookalikes_differ() -> None:
    different((1,), (1.0,), (True,), ("1",), (b"1",), (decimal.Decimal(1),), ("True",), ([1],))
    different((0,), (0.0,), (False,), ("0",), (None,))


@pytest.mark.accepts("N7", "F3", "F10")
def test_none_and_the_empty_string_are_one_missing_value() -> None:
    same((None,), ("",))
    same(("a", None), ("a", ""))
    different(("a", None), ("a",), (None, "a"), ("a", "-"), ("a", "None"))
    different((), (None,), (None, None))


def test_inside_a_value_none_and_the_empty_string_differ() -> None:
    different(([None],), ([""],), ([],))


def test_text_is_not_normalised() -> None:
    composed, decomposed = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    different((composed,), (decomposed,), ("e",))


def test_case_and_whitespace_count() -> None:
    different(("a",), ("A",), ("a ",), (" a",))


def test_minus_zero_is_zero_and_floats_are_exact() -> None:
    same((0.0,), (-0.0,))
    same((decimal.Decimal("-0"),), (decimal.Decimal("0.00"),))
    different((0.1,), (0.1 + 2**-56,), (0.30000000000000004,), (0.3,))


def test_whole_numbers_of_any_size() -> None:
    different((2**63,), (-(2**63),), (2**64,), (2**64 + 1,), (10**4000,))


def test_an_instant_is_the_same_in_every_zone_and_a_naive_time_is_none() -> None:
    same((NOON,), (NOON.astimezone(BERLIN),), (NOON.astimezone(dt.timezone(dt.timedelta(hours=-5))),))
    different((NOON,), (NOON.replace(tzinfo=None),), (NOON.replace(tzinfo=BERLIN),), (NOON.isoformat(),))
    different((NOON,), (NOON + dt.timedelta(microseconds=1),))


def test_both_sides_of_a_clock_change_differ() -> None:
    first = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
    different((first,), (first.replace(fold=1),))


def test_dates_times_and_spans_are_types_of_their_own() -> None:
    different(
        (dt.date(2024, 7, 1),),
        (dt.datetime(2024, 7, 1),),  # noqa: DTZ001 - the case
        ("2024-07-01",),
        (dt.time(12),),
        (dt.timedelta(hours=12),),
        (12 * 3600,),
    )


def test_decimals_are_compared_by_value_and_never_rounded() -> None:
    same((decimal.Decimal("1.50"),), (decimal.Decimal("1.5"),))
    same((decimal.Decimal("1E+2"),), (decimal.Decimal("100"),), (decimal.Decimal("100.00"),))
    different((decimal.Decimal("1." + "0" * 40 + "1"),), (decimal.Decimal(1),))
    different((decimal.Decimal(10**40 + 1),), (decimal.Decimal(10**40),))


def test_a_decimal_does_not_depend_on_the_threads_precision() -> None:
    value = decimal.Decimal("1.23456789")
    found: list[bytes] = []

    def in_another_context() -> None:
        decimal.getcontext().prec = 3
        found.append(REALM.digest((value,)))

    thread = threading.Thread(target=in_another_context)
    thread.start()
    thread.join()
    assert found == [REALM.digest((value,))]


def test_order_counts_in_lists_and_not_in_sets_and_mappings() -> None:
    same(([1, 2],), ((1, 2),))
    different(([1, 2],), ([2, 1],), ({1, 2},))
    same(({"a", "b", "c"},), (frozenset({"c", "b", "a"}),))
    same(({"a": 1, "b": 2},), ({"b": 2, "a": 1},), (MappingProxyType({"a": 1, "b": 2}),))
    different(({"a": 1},), ({"a": "1"},), ({1: "a"},), ({"a": 1, "b": None},), ([["a", 1]],))


def test_records_count_by_their_fields() -> None:
    same((User("ann", 1),), ({"name": "ann", "age": 1},), ({"age": 1, "name": "ann"},))
    same((Point(1),), ({"x": 1},), (Model(x=1),))
    different((User("ann", 1),), (User("ann", 2),))
    same(({"deep": [User("ann", 1), Point(2)]},), ({"deep": [{"name": "ann", "age": 1}, {"x": 2}]},))


def test_enums_count_by_value_but_are_not_their_value() -> None:
    different((Color.RED,), ("red",))
    different((Level.LOW,), (1,))


def test_bytes_like_values_are_equal() -> None:
    same((b"ab",), (bytearray(b"ab"),))
    different((b"ab",), ("ab",))


def test_the_digest_is_the_same_in_every_process() -> None:
    code = (
        "from onejob.core.identity import Realm;"
        "print(Realm('q', 't').digest(({'a', 'b', 'c', 'd'}, {'z': 1, 'y': {'x'}})).hex())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def _cycle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (object, "A key cannot be made of <class 'object'> (type)"),
        ([1, {"a": 1j}], "A key cannot be made of 1j (complex)"),
        ("\ud800", "lone surrogates"),
        (["\ud800"], "lone surrogates"),
        (10**5000, "A key cannot be made of this value"),
        (_cycle(), "contains itself or is nested too deep: 64 levels"),  # not as many as the stack has
        (decimal.Decimal("NaN"), "not a finite number"),
        (decimal.Decimal("-Infinity"), "not a finite number"),
    ],
    ids=["type", "complex", "surrogate", "nested surrogate", "digits", "cycle", "nan", "infinity"],
)
def test_what_cannot_be_a_key_is_refused(part: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        REALM.digest((part,))
    assert words in str(caught.value)
    with pytest.raises(InvalidOption):
        REALM.call_digest({"part": part})


def test_a_key_is_made_of_what_is_nested_as_deep_as_a_payload_may_be() -> None:
    part = nested(MAX_DEPTH)
    survey(part)
    assert REALM.digest((part,)) != REALM.digest((nested(MAX_DEPTH - 1),))
    assert REALM.call_digest({"part": part}) != REALM.call_digest({"part": nested(MAX_DEPTH - 1)})
    for digest in (lambda: REALM.digest(([part],)), lambda: REALM.call_digest({"part": [part]})):
        with pytest.raises(InvalidOption, match="64 levels"):
            digest()


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels - 1):
        made = [made]
    return made


class Text(str):
    __slots__ = ()


PARTS = st.one_of(
    (
        st.text(),
        st.text(alphabet="ab/\x00\u00e9\u2028", max_size=250),
        st.integers(),
        st.sampled_from([2**63, 2**63 - 1, -(2**63), 1 - 2**63, 10**400]),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.none(),
        st.uuids(),
        st.dates(),
        st.binary(),
        st.lists(st.integers(), max_size=3),
        st.builds(Text, st.text()),
    )
)


@given(PARTS)
def test_a_key_of_one_part_is_what_it_is_as_one_of_several(part: Any) -> None:
    assert REALM.key(part) == (REALM.digest((part,)), key_text((part,)))


@given(st.lists(PARTS, max_size=4).map(tuple))
def test_a_key_of_text_and_numbers_is_what_it_is_as_one_of_anything(parts: tuple[Any, ...]) -> None:
    assert REALM.key_of(parts) == (REALM.digest(parts), key_text(parts))


def test_a_key_of_one_part_is_refused_where_one_of_several_is() -> None:
    for part in ("\ud800", 10**5000, object()):
        with pytest.raises(InvalidOption):
            REALM.key(part)
        with pytest.raises(InvalidOption):
            REALM.key_of(("a", part))


def test_one_part_as_bytes() -> None:
    assert encode_part("é") == b"s2:\xc3\xa9"
    assert encode_part("") == encode_part(None) == b"-"
    assert encode_part({"a": [1.0]}) == b"m16:s1:al9:f?\xf0\0\0\0\0\0\0"


def test_the_readable_key_joins_its_parts() -> None:
    assert key_text(("task", "task-123")) == "task/task-123"
    assert key_text(("a", None, "", 1, True)) == "a/-/-/1/True"
    assert (
        key_text((Color.RED, b"\xff\x00", uuid.UUID(int=1)))
        == "red/ff00/00000000-0000-0000-0000-000000000001"
    )
    assert key_text(()) == "(one per task)"


def test_the_readable_key_of_a_call_names_its_arguments() -> None:
    assert call_text({"order": 9, "note": "", "tags": ["a"]}) == "order=9, note=-, tags=['a']"
    assert call_text({}) == "()"


def test_the_readable_key_is_printable_and_bounded() -> None:
    text = key_text(("a\nb\0c\x1b[31m\u202e\ud800é",))
    assert text == "a\\nb\\x00c\\x1b[31m\\u202e\\ud800é"
    assert text.isprintable()
    assert key_text(("x" * 200,)) == "x" * 200
    long = key_text(("x" * 201,))
    assert len(long) == MAX_TEXT
    assert long == "x" * 199 + "…"


def test_a_fingerprint_is_eight_bytes_of_the_payload() -> None:
    assert fingerprint(b'{"a":1}').hex() == "1f8c00645b7df6ce"
    assert fingerprint(b'{"a":2}') != fingerprint(b'{"a":1}')
    assert len(fingerprint(b"")) == 8
