"""Somebody else's transaction that stays open: on a key, on a job, or on nothing but a snapshot. It delays whom it must,
nobody else, and it can be found.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from stage import eventually

from onejob import App, KeyBusy, State, Unique
from onejob.core.job import WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask, JobStore
from onejob.stores.postgres import checkup, portions
from onejob.testing.conformance.steps import beat, job, look

PATIENCE = 60.0
LONG_ENOUGH = 1.1
"""Seconds after which a transaction is no longer taken for one of our own, which are short."""
BATCH = 100
JOBS = 20_000


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Any]:
    """A user's own connection to the store's database."""
    connection = await asyncpg.connect(url.partition("?")[0], server_settings={"application_name": "billing"})
    try:
        yield connection
    finally:
        await connection.close()


def lose_patience_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert portions.Portions.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(portions.Portions.__init__.__kwdefaults__, "patience", 0.5)


async def took(call: Awaitable[object]) -> float:
    began = time.monotonic()
    await call
    return time.monotonic() - began


async def test_a_key_in_an_open_transaction_is_busy_within_bounds_and_no_other_key_is(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_patience_soon(monkeypatch)
    async with App(postgres_url) as app, session(postgres_url) as user, asyncio.timeout(PATIENCE):

        @app.task(name="task", unique=Unique())
        async def task(key: str) -> None: ...

        async def refused() -> None:
            with pytest.raises(KeyBusy):
                await task.aenqueue("busy")

        async with app.worker(), user.transaction():
            held = await task.using(connection=user).aenqueue("busy")
            waits = asyncio.create_task(took(refused()))
            receipts = await app.aenqueue_many([task.job(str(number)) for number in range(20)])
            for receipt in receipts:
                await receipt.aresult(timeout=10)
            assert await waits < 5
            assert await took((await task.aenqueue("another")).aresult()) < 5, "workers wait for nobody"
        again = await task.aenqueue("busy")
        assert again.outcome == "created" or again.id == held.id
        async with app.worker():
            await held.aresult(timeout=10)


async def test_calls_of_one_process_do_not_queue_up_behind_a_busy_key(postgres_url: str) -> None:
    async with App(postgres_url) as app, session(postgres_url) as user, asyncio.timeout(PATIENCE):

        @app.task(name="task", unique=Unique())
        async def task(key: str) -> None: ...

        await app.store.open()
        async with user.transaction():
            held = await task.using(connection=user).aenqueue("busy")
            waiting = asyncio.create_task(task.aenqueue("busy"))
            await eventually(lambda: waits_for_a_lock(postgres_url))
            for number in range(5):
                assert await took(task.aenqueue(str(number))) < 3
            assert not waiting.done()
        assert (await waiting).id == held.id


async def waits_for_a_lock(url: str) -> bool:
    async with session(url) as other:
        waiting = """
            select exists (
                select from pg_stat_activity
                where application_name = 'onejob' and usename = current_user and wait_event_type = 'Lock'
            )
            """
        return await other.fetchval(waiting)


async def test_a_batch_with_one_busy_key_says_so_and_the_others_are_stored(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_patience_soon(monkeypatch)
    async with App(postgres_url) as app, session(postgres_url) as user, asyncio.timeout(PATIENCE):

        @app.task(name="task", unique=Unique())
        async def task(key: str) -> None: ...

        await app.store.open()
        async with user.transaction():
            await task.using(connection=user).aenqueue("busy")
            with pytest.raises(KeyBusy):
                await app.aenqueue_many([task.job(key) for key in ("one", "busy", "two")])
        assert await app.acount("state:waiting") == 3


async def test_why_names_the_session_that_has_a_job_and_workers_go_on(postgres_url: str) -> None:
    async with App(postgres_url) as app, session(postgres_url) as user, asyncio.timeout(PATIENCE):

        @app.task(name="task", unique=Unique.latest(by="key"))
        async def task(key: str, value: int) -> int:
            return value

        held = await task.aenqueue("held", 1)
        transaction = user.transaction()
        await transaction.start()
        await task.using(connection=user).aenqueue("held", 2)
        async with app.worker():
            for number in range(10):
                assert await (await task.aenqueue("free", number)).aresult(timeout=10) == number
            await asyncio.sleep(LONG_ENOUGH)
            assert (await look(app.store, held.id)).state is State.WAITING
            why = str(await app.aexplain(held))
            assert f"session {user.get_server_pid()}" in why
            assert "billing" in why
            await transaction.commit()
            assert await held.aresult(timeout=10) == 2


async def claimed_and_ended(store: JobStore, times: list[float], jobs: int) -> None:
    """Send jobs through the store, and write down how long each claim took."""
    for _ in range(jobs // 1_000):
        await store.enqueue([job() for _ in range(1_000)])
        left = 1_000
        while left:
            began = time.perf_counter()
            claims = await store.claim(Ask(WorkerId("w"), ("q",), BATCH))
            times.append(time.perf_counter() - began)
            await store.settle([Settlement(claimed.lease, Move.COMPLETE) for claimed in claims.jobs])
            left -= len(claims.jobs)


async def test_claims_stay_bounded_behind_a_transaction_that_holds_back_vacuum(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "OLD_TRANSACTION", 1)
    async with App(postgres_url) as app, session(postgres_url) as user:
        store = app.store
        await beat(store, "w", 3_600_000)
        before: list[float] = []
        await claimed_and_ended(store, before, 2_000)
        async with user.transaction(isolation="repeatable_read"):
            await user.fetchval("select 1 from pg_class limit 1")  # from now on it has a snapshot
            await claimed_and_ended(store, [], JOBS - 2_000)
            after: list[float] = []
            await claimed_and_ended(store, after, 2_000)
            await asyncio.sleep(LONG_ENOUGH)
            [found] = [one for one in await store.checkup() if one.name == "long_transaction"]
            assert f"Session {user.get_server_pid()} (billing)" in found.what
            assert f"pg_terminate_backend({user.get_server_pid()})" in found.remedy
        print(  # noqa: T201 - a figure to be read with pytest -s
            f"\nclaims of {BATCH} with vacuum held back for {JOBS:,} jobs: median {_ms(statistics.median, before)} -> "
            f"{_ms(statistics.median, after)} ms, p99 {_ms(_p99, before)} -> {_ms(_p99, after)} ms"
        )
        assert statistics.median(after) < max(5 * statistics.median(before), 0.05)


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def _ms(of: Callable[[list[float]], float], times: list[float]) -> str:
    return f"{of(times) * 1000:.1f}"
