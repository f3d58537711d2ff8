"""Which jobs a filter means on Valkey: the predicate, what scripts are told beforehand, and where the next page starts."""

from __future__ import annotations

import gzip
import re
from typing import Any

import msgspec
import pytest

from onejob.core.errors import InvalidOption
from onejob.core.filter import JobFilter, parse
from onejob.core.job import ChainId, Job, JobId, Millis, State
from onejob.stores.valkey import cursors
from onejob.stores.valkey.matching import Matching, whole_ids

ID = JobId("0198ab12-0000-7000-8000-0000000000f7")
NOW = 1_800_000_000_000


def job(**fields: Any) -> Job:
    """A job as a script shows it."""
    made = Job(
        id=ID,
        queue="q",
        task="shop.sync",
        state=State.WAITING,
        payload=b'{"v":1}',
        priority=0,
        accepted=Millis(NOW - 60_000),
        updated=Millis(NOW),
        due=Millis(NOW),
        chain=ChainId(ID),
    )
    return msgspec.structs.replace(made, **fields)


def holds(text: str, **fields: Any) -> bool:
    return Matching(parse(text), NOW).holds(job(**fields))


class TestMatching:
    def test_an_empty_filter_matches_everything(self) -> None:
        assert Matching(JobFilter()).holds(job())

    @pytest.mark.parametrize(
        "field",
        ["states", "queues", "origins", "tasks", "keys", "lanes", "chains", "ids", "schedules", "errors"],
    )
    def test_a_field_without_values_matches_nothing(self, field: str) -> None:
        fields: dict[str, Any] = {field: frozenset()}
        matching = Matching(JobFilter(**fields))
        assert matching.is_vain
        assert not matching.holds(job())
        assert not Matching(JobFilter()).is_vain

    def test_names_match_whole_or_by_a_star(self) -> None:
        assert holds("queue:q")
        assert not holds("queue:Q")
        assert not holds("queue:q", queue="qq")
        assert holds("queue:a*c", queue="abbc")
        assert not holds("queue:a.c", queue="abc"), "a dot is a dot"
        assert holds("queue:*")
        assert holds("task:sync")
        assert not holds("task:sync", task="shop.resync")
        assert holds("task:x,shop.*")

    def test_origins_are_those_of_dead_letters(self) -> None:
        assert not holds("origin:*")
        assert holds("origin:q*", origin_queue="q2")
        assert not holds("origin:q", origin_queue="r")

    def test_states_keys_and_lanes_match_exactly(self) -> None:
        assert holds("state:queued")
        assert not holds("state:ended")
        assert holds('key:"a,b",c', key="a,b")
        assert not holds("key:a", key="a,b")
        assert not holds("key:a")
        assert holds("lane:x", lane="x")
        assert not holds("lane:x")

    def test_ids_match_from_their_beginning(self) -> None:
        for text in (ID, ID.upper(), ID.replace("-", ""), "0198ab", "0198AB1", "0198ab12-0000-7"):
            assert holds(f"id:{text}")
            assert holds(f"chain:{text}")
        assert not holds("id:0198ab13")
        assert not holds("chain:0198ab13")
        assert not holds(f"id:{ID.replace('-', '')}0000"), "longer than an id is none"
        assert holds("chain:aaaaaa", chain=ChainId("aaaaaaaa-0000-7000-8000-000000000000"))

    def test_schedules_are_read_from_the_options(self) -> None:
        daily = b'{"schedule":"daily","slot":7}'
        assert holds("schedule:daily", options=daily)
        assert holds("schedule:d*", options=daily)
        assert not holds("schedule:dai", options=daily)
        assert not holds("schedule:*", options=b'{"timeout":5}')
        assert not holds("schedule:*", options=daily[:-1]), "what cannot be read matches nothing"
        assert not holds("schedule:*")

    def test_errors_match_by_a_part_whatever_the_case_of_a_to_z(self) -> None:
        error = "TimeoutError: 100% over\nTraceback Ä"
        assert holds("error:timeout", error=error)
        assert holds('error:x,"100% OVER"', error=error)
        assert holds("error:Ä", error=error)
        assert not holds("error:ä", error=error)
        assert not holds("error:timeout")

    def test_ages_are_counted_from_now(self) -> None:
        assert holds("older:1m")
        assert not holds("newer:1m")
        assert holds("newer:61s")
        assert not holds("older:61s")
        assert not holds("ended:0s")
        assert holds("ended:5s", ended=Millis(NOW - 5_000))
        assert not holds("ended:5s", ended=Millis(NOW - 4_999))

    def test_arguments_are_looked_for_in_the_payload(self) -> None:
        assert holds("args.v:1")
        assert not holds("args.v:2")
        assert holds("args.v:2", payload=gzip.compress(b'{"v":2}'))
        assert not holds("args.v:1", payload=b"\x80")

    def test_every_field_must_match(self) -> None:
        assert holds("queue:q state:waiting args.v:1 older:1s")
        assert not holds("queue:q state:waiting args.v:1 older:1h")


class TestChoice:
    def test_scripts_hear_of_what_is_cheap_to_tell(self) -> None:
        wanted = parse("state:failed,waiting task:shop.sync* key:b,a lane:x")
        states, ids, chains, tasks, keys, lanes, *others = Matching(wanted).choice()
        assert (states, ids, chains, keys, lanes) == ("fw", False, False, ["a", "b"], ["x"])
        assert tasks == ["^shop%.sync.*$"]
        assert others == [False, False, False, False, ""]
        *_, origins, older, newer, ended, _ = Matching(
            parse("origin:* older:1s newer:2s ended:3s"), NOW
        ).choice()
        assert (origins, older, newer, ended) == (["^.*$"], NOW - 1_000, NOW - 2_000, NOW - 3_000)

    def test_scripts_count_what_they_can_tell(self) -> None:
        assert Matching(parse("state:failed")).choice(counts=True)[-1] is False
        assert Matching(parse("error:x")).choice(counts=True)[-1] == "e"

    def test_beginnings_of_ids_are_whole_bytes_and_a_half(self) -> None:
        ids: Any
        chains: Any
        _, ids, chains, *_ = Matching(parse(f"id:0198abc,0198ab chain:{ID}")).choice()
        assert [(raw_of(raw), half) for raw, half in ids] == [
            (bytes.fromhex("0198ab"), False),
            (bytes.fromhex("0198ab"), 12),
        ]
        assert [(raw_of(raw), half) for raw, half in chains] == [(bytes.fromhex(ID.replace("-", "")), False)]

    def test_large_parts_are_read_only_where_a_filter_looks_into_them(self) -> None:
        assert Matching(parse("state:failed")).parts == ""
        assert Matching(parse("args.v:1")).parts == "p"
        assert Matching(parse("args.v:1 error:x schedule:y")).parts == "ope"

    def test_ids_are_looked_up_only_if_all_are_whole(self) -> None:
        raw = bytes.fromhex(ID.replace("-", ""))
        assert whole_ids(frozenset({ID})) == [raw]
        assert whole_ids(frozenset({ID, "0198ab"})) is None
        assert whole_ids(None) is None
        assert whole_ids(frozenset({ID.replace("-", "") + "00"})) == []


class TestCursors:
    def test_what_is_written_is_read(self) -> None:
        positions = {"q": 1, "mail": 281_474_976_710_655, "äöü": 70}
        cursor = cursors.written(positions)
        assert cursors.read(cursor) == {cursors.tag(queue): number for queue, number in positions.items()}

    def test_it_is_digits_alone(self) -> None:
        assert re.fullmatch("[0-9]+", cursors.written({"q": 5, "r": 6}))

    @pytest.mark.parametrize(
        "text", ["7", "x", "1" * 13, "1" * 14, "0" * 12 + "05" + "1234", "0" * 12 + "00"]
    )
    def test_what_is_no_cursor_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidOption, match="must be the cursor of a page before"):
            cursors.read(text)


def raw_of(text: msgspec.Raw) -> bytes:
    """The bytes that a script is given."""
    data = bytes(text)
    return data[1:]
