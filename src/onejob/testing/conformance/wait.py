"""`wait`: a hint that something may have happened; nothing depends on it but latency."""

from __future__ import annotations

import asyncio

from onejob.core.lifecycle import Move
from onejob.store import JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import finish, job, put, start_one

PATIENCE = 20.0


class TestWait:
    async def test_a_wait_ends_when_its_time_is_up(self, store: JobStore) -> None:
        assert await store.wait(frozenset({"work:q"}), 0.01) is False

    async def test_new_work_wakes_those_who_wait_for_it(self, store: JobStore) -> None:
        waiting = asyncio.create_task(store.wait(frozenset({"work:q", "work:r"}), PATIENCE))
        await asyncio.sleep(0)
        await put(store, job())
        assert await waiting is True

    async def test_an_ended_job_wakes_those_who_wait_for_it(self, store: JobStore) -> None:
        await put(store, job())
        claimed = await start_one(store)
        waiting = asyncio.create_task(store.wait(frozenset({"done:q"}), PATIENCE))
        await asyncio.sleep(0)
        await finish(store, claimed)
        assert await waiting is True

    async def test_a_retry_that_is_due_at_once_is_new_work(self, store: JobStore) -> None:
        await put(store, job())
        claimed = await start_one(store)
        waiting = asyncio.create_task(store.wait(frozenset({"work:q"}), PATIENCE))
        await asyncio.sleep(0)
        await finish(store, claimed, Move.RETRY)
        assert await waiting is True

    async def test_several_can_wait_at_once(self, store: JobStore, clock: FakeClock) -> None:
        waiting = [asyncio.create_task(store.wait(frozenset({"work:q"}), PATIENCE)) for _ in range(5)]
        await asyncio.sleep(0)
        await put(store, job())
        assert await asyncio.gather(*waiting) == [True] * 5

    async def test_an_abandoned_wait_leaves_nothing_behind(self, store: JobStore) -> None:
        waiting = asyncio.create_task(store.wait(frozenset({"work:q"}), PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await put(store, job())
        assert waiting.cancelled()
