"""Jobs that have nothing beside themselves go short ways through the scripts (`swift.lua`, `plain.lua`). Whatever is done to a queue by these
and by the long ways, its records and its replies must be the same, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from valkey import Valkey

from onejob.core.dedup import Plan, Rules
from onejob.core.job import JobId, Lease, NewJob
from onejob.core.lane import LanePlan, Rate
from onejob.core.lifecycle import Move, Settlement
from onejob.sql.ids import id_to_bytes
from onejob.stores.valkey import scripts
from onejob.stores.valkey.forms import settlement
from onejob.stores.valkey.newcomers import newcomers
from onejob.stores.valkey.wire import blob

SHORT_WAYS = {
    "local said = accept_alone(ARGV[3])": "local said = nil",
    "at = accept_together(ARGV[3], at, rules, lanes, differ, answers)": "",
    "not let_simply(id, name)": "true",
    "if complete_plain(id, token, result) then": "if false then",
    "local said = claim_alone(ask[1], ask[2], ask[3], ask[4])": "local said = nil",
    "local text, lane = start_plain(id, members[place], started, held, running)": "local text, lane = nil",
}
"""Where they are taken, and what stands there instead so that they are not."""
IDS = [JobId(f"01a1e1b0-0000-7000-8000-00000000000{number}") for number in range(8)]
KINDS = [
    Rules("kkkrr" * 2),
    Rules("kkkkk" * 2, strict=True),
    Rules("kfkkl" * 2, window=1_000),
    Rules("ufrrr" * 2, wait=500),
    Rules("pfrrr" * 2, wait=500, max_wait=1_200),
]

RATED = LanePlan("c", 2, Rate(1, 1.5))
LANES = [
    LanePlan("a"),
    LanePlan("a", hold=True),
    LanePlan("b", 2),
    LanePlan("b", 1),
    RATED,
    LanePlan("b" * 300, 3),
]

plans = st.builds(
    Plan,
    st.sampled_from([b"d" * 16, b"e" * 16]),
    st.sampled_from(["", "key"]),
    st.sampled_from(KINDS),
    st.sampled_from([b"f", b"g"]),
)


def new_job(*arguments: Any, **names: Any) -> NewJob:
    """A job; its own hints are there for type checkers only."""
    return NewJob(*arguments, **names)


jobs = st.builds(
    new_job,
    st.sampled_from(IDS[:3] + IDS),  # those that come again, too, and again in the same call
    st.just("q"),
    st.sampled_from(["t", "other"]),
    st.sampled_from([b"{}", b"x" * 40]),
    plan=st.none() | st.none() | plans,
    priority=st.sampled_from([0, 0, -1, 2]),
    delay=st.sampled_from([0, 0, 500]),
    options=st.sampled_from([None, None, b"{}"]),
    expires=st.sampled_from([None, None, None, 700]),
    lane=st.sampled_from([None, None, None, *LANES]),
)
moves = st.sampled_from([Move.COMPLETE, Move.COMPLETE, Move.COMPLETE, Move.RETRY, Move.HAND_BACK, Move.FAIL])
steps = st.one_of(
    st.lists(jobs, min_size=1, max_size=1),
    st.lists(jobs, min_size=1, max_size=5),
    st.tuples(
        st.lists(st.tuples(st.integers(0, 7), moves, st.booleans()), max_size=4),
        st.integers(0, 4),
        st.integers(0, 3),
    ),
    st.integers(0, 1_000),
    st.just("prune"),
)
"""To enqueue some, to settle some of those that run and claim, to let time pass, or to remove what has ended."""


class Queue:
    """One queue, worked on by the functions of one library."""

    def __init__(self, client: Valkey, library: scripts.Library, name: str) -> None:
        self._client = client
        self._library = library
        self._keys = [f"{{{name}}}:data", f"{{{name}}}:index"]
        self._now = 1_000_000
        self._held: list[bytes] = []
        self._claims = 0
        client.delete(*self._keys)

    def take(self, step: Any) -> Any:
        """Do what a step says; the reply."""
        if isinstance(step, int):
            self._now += step
            return None
        if isinstance(step, list):
            return self._run("enqueue", newcomers(step, {}))
        if step == "prune":
            return self._run("prune", msgspec.msgpack.encode((self._now, self._now, self._now, 10)))
        return self._exchange(*step)

    def leave_message(self) -> None:
        """Let there be a message that whoever left it did not deliver."""
        self._client.zadd(self._keys[1], {b"oother\0" + bytes(6): 0})

    @property
    def records(self) -> tuple[Any, Any]:
        """All there is in it, but for when it came into being, which no two queues share."""
        data, index = self._keys
        known = self._client.hgetall(data)
        known.pop(b"mborn", None)
        return known, self._client.zrange(index, 0, -1)

    def _exchange(self, ends: list[tuple[int, Move, bool]], limit: int, stock: int) -> Any:
        done = [
            settlement(self._settlement(self._held[place], move, late))
            for place, move, late in ends
            if place < len(self._held)
        ]
        self._claims += 1
        alive_until = False if self._claims % 3 else self._now + 100_000
        ask = ("w1", limit, blob(self._claims.to_bytes(8, "big")), alive_until, stock)
        if done:
            reply = self._run("settle", msgspec.msgpack.encode((done, ask)))
            claims = reply[0][1]
        else:
            reply = self._run("claim", msgspec.msgpack.encode(ask))
            claims = reply[0]
        self._held = [row[0] + self._claims.to_bytes(8, "big") for row in claims[0]] + self._held
        return reply

    def _settlement(self, held: bytes, move: Move, late: bool) -> Settlement:
        id = next(id for id in IDS if id_to_bytes(id) == held[:16])
        lease = Lease(id, b"\0" * 8 if late else held[16:])
        if move is Move.COMPLETE:
            return Settlement(lease, move, result=b"done" if held[0] % 2 else None)
        return Settlement(lease, move, delay=100 if move is Move.RETRY else 0, error="no")

    def _run(self, operation: str, argument: bytes) -> Any:
        return self._client.fcall(
            self._library.function(operation), 2, *self._keys, "q", str(self._now), argument
        )


@pytest.fixture(scope="module")
def client(valkey: Any) -> Iterator[Valkey]:
    client = Valkey(port=urlsplit(valkey.url).port)
    for library in (scripts.library(), long_ways()):
        client.function_load(library.text, replace=True)
    yield client
    client.close()


def long_ways() -> scripts.Library:
    """The library without the short ways."""
    sound = scripts.library()
    text = sound.text
    for place, instead in SHORT_WAYS.items():
        assert text.count(place) == 1, f"the short way has no place: {place}"
        text = text.replace(place, instead)
    return scripts.Library(f"{sound.name}_long", text.replace(sound.name, f"{sound.name}_long"))


def lone(number: int, lane: LanePlan | None = None, expires: int | None = None) -> list[NewJob]:
    """A job that comes alone."""
    return [new_job(IDS[number], "q", "t", b"{}", lane=lane, expires=expires)]


def keyed(number: int) -> list[NewJob]:
    """A job that comes alone, with a key that is remembered."""
    return [new_job(IDS[number], "q", "t", b"{}", plan=Plan(b"d" * 16, "key", KINDS[1], b"f"))]


CLAIM: Any = ([], 1, 0)
OUTGOING = 1


@example([lone(0, LanePlan("a")), lone(1, LanePlan("a"), 700), CLAIM, lone(2), 1_000, CLAIM])
@example([keyed(0), CLAIM, ([(0, Move.COMPLETE, False)], 0, 0), "prune", keyed(0), keyed(1)])
@example([lone(0, RATED), CLAIM, lone(1, RATED), CLAIM, lone(2), CLAIM, 2_000, lone(3), CLAIM])
@given(course=st.lists(steps, min_size=1, max_size=12))
@settings(max_examples=500)
def test_short_ways_lead_where_the_long_ones_do(client: Valkey, course: list[Any]) -> None:
    short, long = Queue(client, scripts.library(), "short"), Queue(client, long_ways(), "long")
    for step in course:
        assert short.take(step) == long.take(step)
        assert short.records == long.records


def test_a_claim_of_one_job_says_that_messages_wait(client: Valkey) -> None:
    short, long = Queue(client, scripts.library(), "short"), Queue(client, long_ways(), "long")
    replies: list[Any] = []
    for queue in (short, long):
        queue.take(CLAIM)
        queue.take(lone(0))
        queue.leave_message()
        replies.append(queue.take(CLAIM))
    assert replies[0] == replies[1]
    assert replies[0][1] == OUTGOING
