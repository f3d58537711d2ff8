"""Jobs that the SQLite store writes, starts and ends by one statement: each is still itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from onejob.core.dedup import Plan, Unique, compile_rules
from onejob.core.filter import JobFilter
from onejob.core.job import Claimed, JobId, NewJob, State, WorkerId
from onejob.core.judge import Outcome
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Amendment, Ask, Settled
from onejob.stores.sqlite.connect import LARGE
from onejob.stores.sqlite.store import SqliteStore
from onejob.testing import FakeClock

MANY = 8
ASK = Ask(WorkerId("w"), ("q",), 100)
_numbers = count(1)


def new_id() -> JobId:
    return JobId(str(UUID(int=next(_numbers))))


def job(payload: bytes = b"{}", plan: Plan | None = None, **changes: object) -> NewJob:
    return NewJob(new_id(), "q", "t", payload, plan, **changes)  # pyright: ignore[reportArgumentType]


def plan(number: int, text: str | None = None, fingerprint: bytes = b"12345678") -> Plan:
    rules = compile_rules(Unique.in_flight(), None)
    assert rules is not None
    return Plan(b"%016d" % number, f"key {number}" if text is None else text, rules, fingerprint)


def completed(claims: list[Claimed]) -> list[Settlement]:
    return [Settlement(each.lease, Move.COMPLETE) for each in claims]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, clock=FakeClock())
    yield opened
    asyncio.run(opened.close())


async def started(store: SqliteStore, jobs: list[NewJob]) -> list[Claimed]:
    await store.enqueue(jobs)
    return (await store.claim(ASK)).jobs


async def test_each_new_job_has_its_own_payload_in_the_order_of_the_calls(store: SqliteStore) -> None:
    payloads = [b"", b"\0", b"{}", b"x" * LARGE, b"\0" * 20, b"y" * (LARGE + 1), b"1", b"2", b"3", b"4"]
    jobs = [job(payload) for payload in payloads]
    claims = await started(store, jobs)
    assert [(each.id, each.payload) for each in claims] == [(each.id, each.payload) for each in jobs]


async def test_jobs_of_several_kinds_keep_the_order_of_the_calls(store: SqliteStore) -> None:
    kinds = [{}, {"max_crashes": 5}, {}, {"options": b"{}"}, {"expires": 1_000}]
    jobs = [
        job(**kind) for kind, times in zip(kinds, (1, MANY, 2, MANY, 5), strict=True) for _ in range(times)
    ]
    claims = await started(store, jobs)
    assert [(each.id, each.max_crashes, each.options) for each in claims] == [
        (each.id, each.max_crashes, each.options) for each in jobs
    ]


async def test_an_id_that_is_there_already_is_left_alone_among_new_ones(store: SqliteStore) -> None:
    known = job(b"old")
    await store.enqueue([known])
    again = NewJob(known.id, "q", "t", b"new")
    claims = await started(store, [*[job() for _ in range(MANY)], again])
    assert len(claims) == MANY + 1
    assert claims[0].payload == b"old"


@pytest.mark.parametrize("text", ["", "é/\N{SNOWMAN}", "a\0b", "k" * 200])
@pytest.mark.parametrize("fingerprint", [b"", b"12345678", b"\0" * 8, b"123456789"])
async def test_each_new_key_is_as_it_was_given(store: SqliteStore, text: str, fingerprint: bytes) -> None:
    jobs = [job(b"\0%d" % number, plan(number, text, fingerprint)) for number in range(MANY)]
    answers = await store.enqueue(jobs)
    assert [answer.id for answer in answers] == [each.id for each in jobs]
    for each in jobs:
        assert each.plan is not None
        found, stored = await store.key(each.plan.digest), await store.job(each.id)
        assert found is not None
        assert stored is not None
        assert (found.text, found.holder.id) == (text, each.id)
        assert (stored.key, stored.digest, stored.payload) == (text, each.plan.digest, each.payload)
    kept = await store.enqueue([job(b"", each.plan) for each in jobs])
    assert {(answer.outcome, answer.payload_differs) for answer in kept} == {(Outcome.KEPT, False)}


async def test_a_key_that_comes_twice_in_one_call_is_taken_once(store: SqliteStore) -> None:
    jobs = [job(plan=plan(number // 2)) for number in range(MANY)]
    answers = await store.enqueue(jobs)
    assert [answer.outcome for answer in answers] == [Outcome.CREATED, Outcome.KEPT] * (MANY // 2)


async def test_one_that_was_asked_to_stop_ends_revoked_among_completed_ones(store: SqliteStore) -> None:
    claims = await started(store, [job() for _ in range(MANY)])
    await store.amend([claims[2].id], Amendment.REVOKE)
    settled = (await store.settle(completed(claims))).settled
    assert settled == [Settled.DONE] * 2 + [Settled.REVOKED] + [Settled.DONE] * (MANY - 3)
    assert await store.count(JobFilter(states=frozenset({State.COMPLETED}))) == MANY - 1


async def test_who_settles_a_second_time_is_told_that_it_is_lost(store: SqliteStore, path: str) -> None:
    claims = await started(store, [job() for _ in range(MANY)])
    other = SqliteStore(path, clock=FakeClock())
    assert (await other.settle(completed(claims[:3]))).settled == [Settled.DONE] * 3
    await other.close()
    twice = completed([*claims, claims[5]])
    assert (await store.settle(twice)).settled == [Settled.LOST] * 3 + [Settled.DONE] * (MANY - 3) + [
        Settled.LOST
    ]
    assert (await store.settle(twice)).settled == [Settled.LOST] * (MANY + 1)


async def test_what_is_said_first_of_an_attempt_holds(store: SqliteStore) -> None:
    claims = await started(store, [job() for _ in range(MANY)])
    failed = Settlement(claims[0].lease, Move.FAIL, error="broken")
    assert (await store.settle([failed, *completed(claims)])).settled == [
        Settled.DONE,
        Settled.LOST,
        *[Settled.DONE] * (MANY - 1),
    ]
    found = await store.job(claims[0].id)
    assert found is not None
    assert (found.state, found.error) == (State.FAILED, "broken")


@pytest.mark.parametrize("laned", [False, True])
async def test_results_go_to_their_own_jobs(store: SqliteStore, laned: bool) -> None:
    lanes = [LanePlan(f"lane {number}") if laned else None for number in range(MANY)]
    claims = await started(store, [job(lane=lane) for lane in lanes])
    results = [b"1", b"", b"\0", None, b"x" * LARGE, None, b"y" * (LARGE + 1), None]
    done = [
        Settlement(each.lease, Move.COMPLETE, result=result)
        for each, result in zip(claims, results, strict=True)
    ]
    assert (await store.settle(done)).settled == [Settled.DONE] * MANY
    for each, result in zip(claims, results, strict=True):
        found = await store.job(each.id)
        assert found is not None
        assert (found.state, found.result) == (State.COMPLETED, result)
    assert await store.lanes("q") == []


async def test_keys_lanes_and_plain_jobs_that_end_together_leave_nothing_behind(store: SqliteStore) -> None:
    keyed = [job(plan=plan(number)) for number in range(MANY)]
    laned = [job(lane=LanePlan(f"lane {number}")) for number in range(MANY)]
    claims = await started(store, [*keyed, *laned, *[job() for _ in range(MANY)]])
    assert len(claims) == 3 * MANY
    assert (await store.settle(completed(claims))).settled == [Settled.DONE] * 3 * MANY
    assert await store.keys("q") == []
    assert await store.lanes("q") == []
    assert (await store.claim(ASK)).jobs == []


async def test_a_job_to_which_a_key_came_while_it_ran_lets_its_follower_go(store: SqliteStore) -> None:
    """Its key still remembered it, but it was made again from a dead letter, and knew of no key until then."""
    rules = compile_rules(Unique.coalesce(failed="keep"), None)
    assert rules is not None
    keys = [Plan(b"%016d" % number, "k", rules, b"12345678") for number in range(MANY)]
    claims = await started(store, [job(plan=key) for key in keys])
    failed = [Settlement(each.lease, Move.FAIL, error="broken", dead_letter="dead") for each in claims]
    await store.settle(failed)
    await store.amend([each.id for each in claims], Amendment.DELETE)
    await store.amend([each.id for each in await store.dead(None, 0, MANY)], Amendment.RETRY)
    again = (await store.claim(ASK)).jobs
    assert {each.id for each in again} == {each.id for each in claims}
    followers = [job(plan=key) for key in keys]
    assert {answer.outcome for answer in await store.enqueue(followers)} == {Outcome.CREATED}
    assert (await store.claim(ASK)).jobs == []
    assert (await store.settle(completed(again))).settled == [Settled.DONE] * MANY
    assert [each.id for each in (await store.claim(ASK)).jobs] == [each.id for each in followers]
