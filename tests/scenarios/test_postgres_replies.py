"""A connection that is cut just before or just after the server has done what it was asked to: it is done exactly once,
and the answer is the right one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from servers.proxy import Act, Proxy
from stage import eventually

from onejob import App, State, StoreBusy, StoreUnavailable, Unique, current_job
from onejob.core.chain import continuation_id
from onejob.core.job import ChainId, NewJob, WorkerId
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask, JobStore, Settled
from onejob.stores import open_store
from onejob.testing.conformance.steps import beat, job, look, put, start_one, total

CUTS: list[Act] = ["cut before", "cut after"]
PATIENCE = 15.0
HASTE = "statement_timeout=0.1"
"""A statement that finds the tables locked is cancelled before it is refused the lock."""
WORDS = b"the words of this call"
CHANGING = [Unique.collect(by=(), wait=30), Unique.latest(by=()), Unique.debounce(30, by=())]


@asynccontextmanager
async def behind(url: str) -> AsyncIterator[tuple[Proxy, JobStore]]:
    """A store on a network that misbehaves when told to."""
    async with Proxy(url) as proxy:
        store = open_store(proxy.url)
        await store.open()
        try:
            yield proxy, store
        finally:
            await store.close()


def newcomer(kind: str) -> NewJob:
    payload = b'{"v":"' + WORDS + b'"}'
    match kind:
        case "plain":
            return job(payload=payload)
        case "laned":
            return job(payload=payload, lane=LanePlan("x"))
        case "in flight":
            return job(payload=payload, unique=Unique.in_flight())
        case _:
            return job(payload=payload, unique=Unique.latest(), lane=LanePlan("x"))


@pytest.mark.parametrize("kind", ["plain", "laned", "in flight", "latest in a lane"])
@pytest.mark.parametrize("cut", CUTS)
async def test_a_call_whose_answer_is_lost_makes_one_job(cut: Act, kind: str, postgres_url: str) -> None:
    async with behind(postgres_url) as (proxy, store), asyncio.timeout(PATIENCE):
        trap = proxy.trap(WORDS, cut)
        answer = await put(store, newcomer(kind))
        assert trap.sprung.is_set()
        assert (answer.outcome, await total(store)) == ("created", 1)
        assert (await look(store, answer.id)).id == answer.id


@pytest.mark.parametrize("cut", CUTS)
async def test_a_batch_whose_answer_is_lost_is_there_once(cut: Act, postgres_url: str) -> None:
    async with behind(postgres_url) as (proxy, store), asyncio.timeout(PATIENCE):
        trap = proxy.trap(WORDS, cut)
        jobs = [newcomer("plain"), newcomer("in flight"), newcomer("plain")]
        answers = await store.enqueue(jobs)
        assert trap.sprung.is_set()
        assert [(answer.id, answer.outcome) for answer in answers] == [(one.id, "created") for one in jobs]
        assert await total(store) == len(jobs)


async def test_a_call_that_is_cut_short_says_that_nothing_was_stored(postgres_url: str) -> None:
    async with App(f"{postgres_url}&{HASTE}") as app, locked_tables(postgres_url):
        with pytest.raises(StoreBusy, match=r"was cancelled.*nothing was stored"):
            await put(app.store, newcomer("plain"))


async def test_a_call_that_is_cut_short_after_its_answer_was_lost_does_not_say_that_nothing_was_stored(
    postgres_url: str,
) -> None:
    async with (
        Proxy(postgres_url) as proxy,
        App(f"{proxy.url}&{HASTE}") as app,
        asyncio.timeout(PATIENCE),
    ):
        await app.store.open()
        trap = proxy.trap(WORDS, "hold")
        call = asyncio.create_task(put(app.store, newcomer("plain")))
        await trap.sprung.wait()
        async with locked_tables(postgres_url):
            # They are locked, so the call, whose answer is held back, has let go of them.
            proxy.cut()
            with pytest.raises(StoreBusy, match=r"was cancelled.*not known whether the call counted"):
                await call
        assert await total(app.store) == 1


@asynccontextmanager
async def locked_tables(url: str) -> AsyncIterator[None]:
    """Nobody writes jobs while somebody else holds on to all of them."""
    server, _, schema = url.partition("?schema=")
    connection = await asyncpg.connect(server)
    try:
        async with connection.transaction():
            await connection.execute(f"lock table {schema}.job in exclusive mode")
            yield
    finally:
        await connection.close()


@pytest.mark.parametrize("unique", CHANGING, ids=lambda unique: unique.row.name)
@pytest.mark.parametrize("cut", CUTS)
async def test_a_call_that_changes_a_queued_job_changes_it_once(
    cut: Act, unique: Unique, postgres_url: str
) -> None:
    async with Proxy(postgres_url) as proxy, App(proxy.url) as app, asyncio.timeout(PATIENCE):

        @app.task(name="gather", unique=unique)
        async def gather(items: list[str]) -> None: ...

        first = await gather.aenqueue(["the first"])
        trap = proxy.trap(WORDS, cut)
        second = await gather.aenqueue([WORDS.decode()])
        assert trap.sprung.is_set()
        assert second.id == first.id
        assert second.outcome != "created"
        payload = (await look(app.store, first.id)).payload
        assert payload.count(WORDS) == 1
        assert payload.count(b"the first") == (1 if unique.into else 0)


@pytest.mark.parametrize("cut", CUTS)
async def test_a_follower_whose_commit_is_not_answered_is_made_once_and_let_go_once(
    cut: Act, postgres_url: str
) -> None:
    async with behind(postgres_url) as (proxy, store), asyncio.timeout(PATIENCE):
        first = await put(store, job(unique=Unique.coalesce()))
        running = await start_one(store)
        making = proxy.trap(b"commit\0", cut)
        second = await put(store, job(unique=Unique.coalesce()))
        assert making.sprung.is_set()
        assert (second.outcome, await total(store)) == ("created", 2)
        assert await store.followers(ChainId(first.id)) == [second.id]
        ending = proxy.trap(b"commit\0", cut)
        assert await settled(store, running.lease) == [Settled.DONE]
        assert ending.sprung.is_set()
        assert [claimed.id for claimed in (await store.claim(Ask(WorkerId("w"), ("q",), 5))).jobs] == [
            second.id
        ]


@pytest.mark.parametrize("cut", CUTS)
async def test_a_chain_that_goes_on_without_an_answer_goes_on_once(cut: Act, postgres_url: str) -> None:
    async with behind(postgres_url) as (proxy, store), asyncio.timeout(PATIENCE):
        first = await put(store, job())
        running = await start_one(store)
        trap = proxy.trap(b"commit\0", cut)
        then = job(id=continuation_id(ChainId(first.id), 1))
        reply = await store.settle([Settlement(running.lease, Move.COMPLETE, then=then)])
        assert trap.sprung.is_set()
        assert reply.settled == [Settled.DONE]
        assert [(one.id, one.state) for one in await store.chain(first.id)] == [
            (first.id, State.COMPLETED),
            (then.id, State.WAITING),
        ]


@pytest.mark.parametrize("cut", CUTS)
async def test_a_claim_whose_answer_is_lost_starts_a_job_once(cut: Act, postgres_url: str) -> None:
    async with behind(postgres_url) as (proxy, store), asyncio.timeout(PATIENCE):
        answer = await put(store, job())
        await beat(store, "the claiming worker")
        trap = proxy.trap(b"the claiming worker", cut)
        claims = await store.claim(Ask(WorkerId("the claiming worker"), ("q",), 5))
        assert trap.sprung.is_set()
        assert [(claimed.id, claimed.attempt) for claimed in claims.jobs] == [(answer.id, 1)]
        assert await settled(store, claims.jobs[0].lease) == [Settled.DONE]


async def settled(store: JobStore, *leases: Any, ask: Ask | None = None) -> list[Settled]:
    return (await store.settle([Settlement(lease, Move.COMPLETE) for lease in leases], ask)).settled


@pytest.mark.parametrize("kind", ["plain", "laned", "in flight", "latest in a lane"])
@pytest.mark.parametrize("move", [Move.COMPLETE, Move.RETRY, Move.FAIL])
@pytest.mark.parametrize("cut", CUTS)
async def test_a_settlement_whose_answer_is_lost_is_never_said_to_be_lost(
    cut: Act, move: Move, kind: str, postgres_url: str
) -> None:
    async with behind(postgres_url) as (proxy, store), asyncio.timeout(PATIENCE):
        await put(store, newcomer(kind))
        claimed = await start_one(store)
        following = await put(store, job())
        trap = proxy.trap(uuid.UUID(claimed.id).bytes, cut)
        reply = await store.settle(
            [Settlement(claimed.lease, move, 60_000 if move is Move.RETRY else 0)],
            Ask(WorkerId("w"), ("q",), 5),
        )
        assert trap.sprung.is_set()
        assert reply.settled == [Settled.DONE]
        assert [(one.id, one.attempt) for one in reply.claims.jobs] == [(following.id, 1)]
        stands = await look(store, claimed.id)
        states = {Move.COMPLETE: State.COMPLETED, Move.RETRY: State.DELAYED, Move.FAIL: State.FAILED}
        assert (stands.state, stands.attempt) == (states[move], 1)
        assert stands.failures == (0 if move is Move.COMPLETE else 1)


@pytest.mark.parametrize("cut", CUTS)
async def test_a_transaction_whose_commit_is_not_answered_says_so(cut: Act, postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy, App(proxy.url) as app, asyncio.timeout(PATIENCE):
        task = app.task(name="task")(nothing)
        await app.store.open()

        async def enqueue() -> None:
            async with app.transaction():
                await task.aenqueue()
                proxy.trap(b"commit\0", cut)

        with pytest.raises(StoreUnavailable, match="not known whether it was committed"):
            await enqueue()
        assert await app.acount("") == (0 if cut == "cut before" else 1)


async def test_a_transaction_whose_session_was_gone_before_its_commit_says_that_it_is_rolled_back(
    postgres_url: str,
) -> None:
    async with behind(postgres_url) as (proxy, store), asyncio.timeout(PATIENCE):

        async def enqueue() -> None:
            async with store.transaction(PATIENCE) as tx:
                await tx.enqueue([newcomer("plain")])
                connection = tx._link.connection  # type: ignore[attr-defined]
                proxy.cut()
                await eventually(lambda: is_closed(connection))

        with pytest.raises(StoreUnavailable, match="rolled back, and nothing of it is stored"):
            await enqueue()
        assert await total(store) == 0


async def is_closed(connection: Any) -> bool:
    return connection.is_closed()


@pytest.mark.parametrize("cut", CUTS)
async def test_a_job_that_completes_itself_without_an_answer_leaves_one_row(
    cut: Act, postgres_url: str
) -> None:
    async with Proxy(postgres_url) as proxy, App(proxy.url) as app, asyncio.timeout(PATIENCE):
        rows = await asyncpg.connect(postgres_url.partition("?")[0])
        await rows.execute("create table paid (job text primary key)")

        @app.task(name="pay")
        async def pay() -> None:
            current = current_job()
            async with current.complete() as tx:
                await tx.execute("insert into paid values ($1)", (current.id,))
                if current.attempt == 1:
                    proxy.trap(b"commit\0", cut)

        receipt = await pay.using(retry=2).aenqueue()
        async with app.worker():
            await eventually(lambda: completed(app, receipt.id))
        assert await rows.fetchval("select count(*) from paid") == 1
        assert (await look(app.store, receipt.id)).attempt == (2 if cut == "cut before" else 1)
        await rows.close()


async def completed(app: App, id: str) -> bool:
    return (await look(app.store, id)).state is State.COMPLETED


async def nothing() -> None: ...
