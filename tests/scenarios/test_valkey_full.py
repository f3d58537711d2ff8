"""A Valkey server whose memory is full: what brings new work is refused, and what is there is worked off to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from servers.layout_checks import inspect_layout, left_over
from servers.valkey import ValkeyServer
from stage import PATIENCE, Stage, eventually

from onejob import App, StoreFull, current_job
from onejob.core.chain import continuation_id
from onejob.core.job import ChainId, Claimed, State, WorkerId
from onejob.core.lane import QueueChange
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Amended, Amendment, Ask, Settled
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import AT_ONCE, LEASE, beat, digest_of, job, new_id, put

W = WorkerId("w")


def fill(server: ValkeyServer) -> None:
    """From now on it has no memory to give."""
    server.execute("CONFIG", "SET", "maxmemory", 1)


@asynccontextmanager
async def stored(server: ValkeyServer, clock: FakeClock) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(server.url, clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def test_a_live_worker_keeps_its_leases_and_works_off_what_is_there(
    own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(own_valkey.url) as app:
        stage = Stage(app, dead_letter="graves", retry=1)

        @app.task(queue="onward")
        async def onward() -> str:
            return "went on"

        @app.task
        async def first(name: str) -> None:
            await stage.work.function(name)
            current_job().continue_with(onward)

        async with asyncio.timeout(PATIENCE * 2), app.worker(lease=0.6, concurrency=2):
            [fails] = await stage.send("fails")
            chain = await first.aenqueue("chain")
            [waits] = await stage.send("waits")
            await stage.until(lambda: len(stage.running) == 2)
            seen = (await app.store.workers())[0].seen
            fill(own_valkey)
            with pytest.raises(StoreFull):
                await stage.work.aenqueue("refused")
            with pytest.raises(StoreFull):
                await app.aenqueue_many([stage.work.job("refused"), stage.work.job("too")])
            await eventually(lambda: _seen_after(app, seen + 1_200))  # twice as long as its leases last
            assert stage.running == ["fails", "chain"]
            stage.fails["fails"] = ValueError("no")
            stage.release("fails", "chain", "waits")
            assert await chain.aresult(timeout=PATIENCE) == "went on"
            assert await waits.aresult(timeout=PATIENCE) == "waits"
            await eventually(lambda: _is_dead(app, "graves"))
        assert (await app.store.prune(AT_ONCE, 100)).jobs == 4
        assert await app.ajob(fails) is None
        assert inspect_layout(own_valkey.url) == []
    events = [getattr(record, "event", "") for record in caplog.records]
    assert [event for event in events if event.startswith(("store.", "lease."))] == []
    assert stage.started == ["fails", "chain", "waits"], "each once"


async def _seen_after(app: App, at: int) -> bool:
    return (await app.store.workers())[0].seen > at


async def _is_dead(app: App, queue: str) -> bool:
    return (await app.store.counts()).get(queue, {}).get(State.WAITING) == 1


async def test_everything_but_new_work_passes(own_valkey: ValkeyServer) -> None:
    clock = FakeClock()
    async with stored(own_valkey, clock) as store:
        jobs = [job() for _ in range(6)]
        await store.enqueue(jobs)
        waiting = job(queue="waiting")
        await put(store, waiting)
        await beat(store)
        fill(own_valkey)
        with pytest.raises(StoreFull):
            await put(store, job())
        claimed = await claims(store, 5)
        pulse = await beat(store)
        assert pulse.held == {one.id: one.lease.token for one in claimed}
        then = job(id=continuation_id(ChainId(claimed[0].id), 1), queue="onward")
        ends = [
            Settlement(claimed[0].lease, Move.COMPLETE, then=then),
            Settlement(claimed[1].lease, Move.FAIL, error="no", dead_letter="graves"),
            Settlement(claimed[2].lease, Move.RETRY, delay=1_000, error="again"),
            Settlement(claimed[3].lease, Move.COMPLETE, result=b"1"),
        ]
        assert (await store.settle(ends)).settled == [Settled.DONE] * 4
        counts = await store.counts()
        assert counts["onward"][State.WAITING] == counts["graves"][State.WAITING] == 1
        assert await store.amend([claimed[1].id], Amendment.RETRY) == [Amended.RETRIED]
        assert await store.amend([waiting.id], Amendment.REVOKE) == [Amended.REVOKED]
        assert (await store.set_queue("q", QueueChange(concurrency=5))).concurrency == 5
        assert await store.release(digest_of("none")) is None
        clock.advance(LEASE)
        assert [lost.job.id for lost in await store.expired(10)] == [claimed[4].id]
        await store.leave(W)
        assert (await store.prune(AT_ONCE, 100)).jobs >= 2
        assert inspect_layout(own_valkey.url) == []
        own_valkey.execute("CONFIG", "SET", "maxmemory", 0)
        assert (await put(store, job(id=new_id()))).outcome == "created"
        await beat(store)
        for _ in range(4):
            await store.settle(
                [
                    Settlement(one.lease, Move.COMPLETE)
                    for one in await claims(store, 10, "q", "onward", "graves")
                ]
            )
            clock.advance(1_000)
        await store.settle([Settlement(lost.job.lease, Move.COMPLETE) for lost in await store.expired(10)])
        clock.advance(1)
        await store.prune(AT_ONCE, 100)
        assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])


async def claims(store: ValkeyStore, limit: int, *queues: str) -> list[Claimed]:
    return (await store.claim(Ask(W, queues or ("q",), limit))).jobs
