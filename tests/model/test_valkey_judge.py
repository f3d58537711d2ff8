"""The judgement stands twice: in `core.judge`, and in `judge.lua` for the one store whose scripts must decide by themselves.
Both are given the same newcomers and holders, and must decide the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from valkey import Valkey

from onejob.core.dedup import Plan, Rules
from onejob.core.job import ENDED, ChainId, JobId, NewJob, State
from onejob.core.judge import Call, Change, Decision, Holder, Outcome, judge, may_revive
from onejob.core.lane import LanePlan
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.stores.valkey.forms import LETTERS, STATES, answer_of, calls_of
from onejob.stores.valkey.newcomers import newcomer, rules_form
from onejob.stores.valkey.scripts import assembled
from onejob.stores.valkey.wire import blob, blob_or_false, id_blob

PROBE = """
-- probe: what judge.lua decides. in: a newcomer and its key's holder, or none; an id and rules
--! reads

local text, found, id, rules = unpack(unpack_record(ARGV[3]))
local job = read_newcomer(text)
local holder
if found then
  local names = { 'id', 'state', 'since', 'completed_until', 'failed_until', 'accepted', 'due', 'attempt', 'priority', 'options',
    'expires', 'follows', 'fingerprint', 'items', 'size', 'calls', 'gone', 'lane' }
  holder = {}
  for place, name in ipairs(names) do holder[name] = found[place] end
end
local d = judge(job, holder)
local change = d.change
return {
  { d.id, d.outcome, d.verdict, d.holder or false, d.state or false, d.age or 0, d.payload_differs and 1 or 0,
    d.options_differ and 1 or 0, false },
  { d.creates and 1 or 0, d.creates and d.due or 0, d.creates and d.since or 0, d.creates and d.follows or false,
    d.creates and d.calls or '', d.end_holder and 1 or 0, d.flag_holder and 1 or 0, d.hurry_holder and 1 or 0,
    d.expire_holder and 1 or 0 },
  change and { change.due, change.append and 1 or 0, change.calls } or false,
  may_revive(id, rules, holder) and 1 or 0,
}
"""

NOW = 1_000_000
IDS = [JobId(f"01a1e1b0-0000-7000-8000-00000000000{number}") for number in range(4)]
ENDED_LETTERS = "rkl!"
RUNNING_LETTERS = "rkflx!"
QUEUED_LETTERS = "rkupcflx!"

spans = st.sampled_from([1, 500, 1_000, 5_000])
near = st.sampled_from([NOW - 5_001, NOW - 5_000, NOW - 1_000, NOW - 1, NOW])
soon = st.sampled_from([NOW - 1, NOW, NOW + 1, NOW + 5_000])


@st.composite
def tables(draw: st.DrawFn) -> str:
    columns = (QUEUED_LETTERS, RUNNING_LETTERS, RUNNING_LETTERS, ENDED_LETTERS, ENDED_LETTERS)
    return "".join(draw(st.sampled_from(letters)) for letters in itertools.chain(columns, columns))


rules = st.builds(
    Rules,
    tables(),
    window=st.none() | spans,
    wait=st.just(0) | spans,
    max_wait=st.none() | spans,
    max_items=st.sampled_from([0, 1, 3]),
    strict=st.booleans(),
    forced=st.booleans(),
)
calls = st.lists(
    st.builds(
        Call,
        st.sampled_from(IDS),
        st.sampled_from([Outcome.UPDATED, Outcome.POSTPONED]),
        st.sampled_from(IDS),
    ),
    max_size=9,
).map(tuple)
plans = st.builds(
    Plan,
    st.just(b"d" * 16),
    st.just("key"),
    rules,
    st.sampled_from([b"f", b"g"]),
    items=st.integers(0, 3),
    size=st.sampled_from([0, 5, 1_048_575]),
)


def new_job(*arguments: Any, **names: Any) -> NewJob:
    """A job; its own hints are there for type checkers only."""
    return NewJob(*arguments, **names)


jobs = st.builds(
    new_job,
    st.sampled_from(IDS[:2]),
    st.just("q"),
    st.just("t"),
    st.sampled_from([b"{}", b"x" * 40]),
    plan=plans,
    priority=st.integers(-1, 1),
    delay=st.just(0) | spans,
    options=st.sampled_from([None, b"{}"]),
    caller=st.none() | st.sampled_from(IDS[1:]).map(ChainId),
    lane=st.sampled_from([None, LanePlan("a"), LanePlan("b")]),
)
holders = st.builds(
    Holder,
    id=st.sampled_from(IDS).map(ChainId),
    state=st.sampled_from(State),
    since=near,
    completed_until=st.none() | soon | st.just(2**62),
    failed_until=st.none() | soon | st.just(2**62),
    accepted=near,
    due=soon,
    attempt=st.integers(0, 1),
    priority=st.integers(-1, 1),
    options=st.sampled_from([None, b"{}"]),
    expires=st.none() | soon,
    follows=st.none() | st.sampled_from(IDS).map(ChainId),
    fingerprint=st.sampled_from([b"f", b"g"]),
    items=st.integers(0, 4),
    size=st.sampled_from([2, 1_048_570]),
    calls=calls,
    gone=st.booleans(),
    lane=st.sampled_from([None, "a", "b"]),
)


@pytest.fixture(scope="module")
def decide(valkey: Any) -> Iterator[Callable[..., Any]]:
    client = Valkey(port=urlsplit(valkey.url).port)
    script = client.register_script(assembled(PROBE))

    def run(*arguments: object) -> Any:
        encoded = msgspec.msgpack.encode(arguments)
        return script(keys=["{judge}:data", "{judge}:index"], args=[b"q", str(NOW), encoded])

    yield run
    client.close()


@given(job=jobs, holder=st.none() | holders)
@settings(max_examples=settings().max_examples * 5)
def test_the_script_decides_as_the_core_does(
    decide: Callable[..., Any], job: NewJob, holder: Holder | None
) -> None:
    assert job.plan is not None
    reviving = IDS[2]
    answer, writes, change, revives = decide(
        newcomer(job), holder_form(holder), id_blob(reviving), rules_form(job.plan.rules)
    )
    decision = judge(job, holder, NOW)
    made, due, since, follows, remembered, ends, flags, hurries, expires = writes
    assert answer_of(answer, job) == decision.answer
    assert read_change(change) == decision.change
    found = Decision(
        decision.answer,
        creates=bool(made),
        due=due,
        since=since,
        follows=None if follows is None else ChainId(id_from_bytes(follows)),
        calls=calls_of(remembered),
        change=decision.change,
        end_holder=bool(ends),
        flag_holder=bool(flags),
        hurry_holder=bool(hurries),
        expire_holder=bool(expires),
    )
    assert found == decision
    assert bool(revives) == may_revive(reviving, job.plan.rules, holder, NOW)


@given(job=jobs)
def test_a_job_without_a_key_is_created(decide: Callable[..., Any], job: NewJob) -> None:
    bare = msgspec.structs.replace(job, plan=None)
    answer, writes, change, _ = decide(newcomer(bare), False, id_blob(IDS[0]), False)
    decision = judge(bare, None, NOW)
    assert answer_of(answer, bare) == decision.answer
    assert (writes[1], writes[2], change) == (decision.due, decision.since, None)


def test_every_state_has_a_letter() -> None:
    assert set(LETTERS) == set(State)
    assert {STATES[letter.encode()] for letter in LETTERS.values()} == set(State)
    assert {LETTERS[state] for state in ENDED} == {"c", "f", "v"}


def holder_form(holder: Holder | None) -> object:
    if holder is None:
        return False
    return (
        id_blob(holder.id),
        LETTERS[holder.state],
        holder.since,
        false(holder.completed_until),
        false(holder.failed_until),
        holder.accepted,
        holder.due,
        holder.attempt,
        holder.priority,
        blob_or_false(holder.options),
        false(holder.expires),
        false(None if holder.follows is None else id_blob(holder.follows)),
        blob(holder.fingerprint),
        holder.items,
        holder.size,
        blob(
            b"".join(
                id_to_bytes(call.id) + call.outcome[0].encode() + id_to_bytes(call.holder)
                for call in holder.calls
            )
        ),
        holder.gone,
        false(holder.lane),
    )


def false(value: object) -> object:
    return False if value is None else value


def read_change(row: Any) -> Change | None:
    return None if row is None else Change(row[0], bool(row[1]), calls_of(row[2]))


assert all(len(id_to_bytes(id)) == 16 for id in IDS)
