"""No call holds a Valkey server up for long, however much there is to be done: a script runs only so many commands, and the rest
comes with the next one. Commands are counted, and not seconds, which depend on the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import valkey as driver
from servers.layout_checks import inspect_layout, left_over
from servers.valkey import ValkeyServer

from onejob import Unique
from onejob.core.chain import continuation_id
from onejob.core.job import ChainId, JobId, NewJob, State, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Amended, Amendment, Ask, JobFilter, Settled
from onejob.stores.valkey.client import Client
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import AT_ONCE, beat, job, put

MANY = 1_300
"""Several times what one call deals with."""
MOST = 3_000
"""Commands of one call: a few milliseconds, at about a microsecond each."""


class Meter:
    """How many commands the calls of a store run on the server, the most of any one of them."""

    def __init__(self, server: ValkeyServer) -> None:
        self._client = driver.Valkey(port=server.port)
        self.most = 0

    def commands(self) -> int:
        """All that were run so far, inside scripts, too."""
        return self._client.info("stats")["total_commands_processed"]

    def note(self, before: int) -> None:
        self.most = max(self.most, self.commands() - before - 1)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def meter(own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    meter, ask = Meter(own_valkey), Client.ask

    async def metered(self: Client, *arguments: Any) -> Any:
        before = meter.commands()
        answer = await ask(self, *arguments)
        meter.note(before)
        return answer

    monkeypatch.setattr(Client, "ask", metered)
    yield meter
    meter.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(own_valkey: ValkeyServer, meter: Meter, clock: FakeClock) -> Iterator[ValkeyStore]:
    store = ValkeyStore(own_valkey.url, clock=clock)
    yield store
    asyncio.run(store.close())


async def filled(store: ValkeyStore, **settings: Any) -> list[NewJob]:
    """Many jobs, of which each may have a key."""
    jobs = [job(key=str(number), **settings) for number in range(MANY)]
    for at in range(0, MANY, 1_000):
        await store.enqueue(jobs[at : at + 1_000])
    return jobs


async def run_all(store: ValkeyStore, move: Move = Move.COMPLETE) -> int:
    """Start and end everything, as much at a time as there is."""
    await beat(store)
    ask = Ask(WorkerId("w"), ("q",), MANY)
    claims, count = await store.claim(ask), 0
    while claims.jobs:
        count += len(claims.jobs)
        reply = await store.settle([Settlement(one.lease, move) for one in claims.jobs], ask)
        assert set(reply.settled) == {Settled.DONE}
        claims = reply.claims
    return count


async def emptied(store: ValkeyStore, clock: FakeClock) -> None:
    """Prune until nothing is left."""
    clock.advance(1)
    while (await store.prune(AT_ONCE, 1_000)).more:
        pass


@pytest.mark.parametrize("kind", ["plain", "keyed", "delayed", "expiring"])
async def test_many_jobs_come_run_and_go(
    kind: str, store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    settings: dict[str, Any] = {
        "plain": {},
        "keyed": {"unique": Unique.latest()},
        "delayed": {"delay": 1_000},
        "expiring": {"expires": 1_000},
    }[kind]
    await filled(store, **settings)
    if kind == "keyed":
        await filled(store, **settings)
    clock.advance(2)
    assert await run_all(store) == (0 if kind == "expiring" else MANY)
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


def fan_in(jobs: list[NewJob]) -> NewJob:
    return msgspec.structs.replace(job(), blockers=tuple(one.id for one in jobs))


async def test_a_job_that_waits_for_many_is_made_let_go_and_forgotten(
    store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    waiting = fan_in(blockers)
    await put(store, waiting)
    assert inspect_layout(own_valkey.url) == []
    assert len(await store.blockers(waiting.id)) == MANY
    assert await run_all(store) == MANY + 1
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


async def test_a_job_that_waits_for_many_is_revoked_revived_and_waits_again(
    store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    waiting = fan_in(blockers)
    await put(store, waiting)
    for _ in range(2):
        assert await store.amend([waiting.id], Amendment.REVOKE) == [Amended.REVOKED]
        assert inspect_layout(own_valkey.url) == []
        assert await store.amend([waiting.id], Amendment.RETRY) == [Amended.RETRIED]
        assert inspect_layout(own_valkey.url) == []
        found = await store.job(waiting.id)
        assert found is not None
        assert found.state is State.BLOCKED
    assert await run_all(store) == MANY + 1
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


@pytest.mark.parametrize("ended", [0, 1, MANY - 1, MANY])
async def test_it_waits_for_those_only_that_have_not_ended(
    ended: int, store: ValkeyStore, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    await beat(store)
    ask = Ask(WorkerId("w"), ("q",), ended)
    done = (await store.claim(ask)).jobs
    await store.settle([Settlement(one.lease, Move.COMPLETE) for one in done])
    waiting = fan_in(blockers)
    await put(store, waiting)
    found = await store.job(waiting.id)
    assert found is not None
    assert found.state is (State.WAITING if ended == MANY else State.BLOCKED)
    assert inspect_layout(own_valkey.url) == []
    assert await run_all(store) == MANY - ended + 1


async def test_one_of_many_that_failed_before_ends_it_and_leaves_nothing(
    store: ValkeyStore, clock: FakeClock, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    await beat(store)
    [first] = (await store.claim(Ask(WorkerId("w"), ("q",), 1))).jobs
    await store.settle([Settlement(first.lease, Move.FAIL, error="no")])
    waiting = fan_in(blockers)
    await put(store, waiting)
    found = await store.job(waiting.id)
    assert found is not None
    assert found.state is State.FAILED
    assert inspect_layout(own_valkey.url) == []
    assert await run_all(store) == MANY - 1
    await emptied(store, clock)
    assert left_over(own_valkey.url) == []


async def test_a_long_chain_is_looked_through_revoked_and_dropped(
    store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    first = job()
    await put(store, first)
    await beat(store)
    ask = Ask(WorkerId("w"), ("q",), 1)
    for index in range(1, MANY):
        [running] = (await store.claim(ask)).jobs
        then = job(id=JobId(continuation_id(ChainId(first.id), index)))
        await store.settle([Settlement(running.lease, Move.COMPLETE, then=then)])
    assert len(await store.chain(first.id)) == MANY
    assert await store.amend([first.id], Amendment.REVOKE) == [Amended.REVOKED]
    assert await store.amend([first.id], Amendment.DELETE) == [Amended.DELETED]
    assert await store.count(JobFilter()) == 0
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST
