"""Somebody else's transaction that stays open: on a key, on a job, or on nothing but a snapshot. It delays whom it must,
nobody else, and it can be found.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner
from servers.pooler import Pooler
from stage import eventually

from onejob import App, KeyBusy, State, Unique
from onejob.cli.program import program
from onejob.stores.postgres import checkup, portions
from onejob.testing.conformance.steps import look

PATIENCE = 60.0
LONG_ENOUGH = 1.1
"""Seconds after which a transaction is no longer taken for one of our own, which are short."""


@pytest.fixture(params=["straight", "through a pooler"])
def app_url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """How the app comes to its store; the user comes straight."""
    if request.param == "straight":
        yield postgres_url
        return
    with Pooler(postgres_url, size=6) as pooler:
        yield f"{pooler.url}&pooler=transaction"


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
    postgres_url: str, app_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_patience_soon(monkeypatch)
    async with App(app_url) as app, session(postgres_url) as user, asyncio.timeout(PATIENCE):

        @app.task(name="task", unique=Unique())
        async def task(key: str) -> None: ...

        named = rf"session {user.get_server_pid()} \(application 'billing'.* idle now\)"

        async def refused() -> None:
            with pytest.raises(KeyBusy, match=f"transactions that have taken keys: {named}"):
                await task.aenqueue("busy")

        async with app.worker(), user.transaction():
            held = await task.using(connection=user).aenqueue("busy")
            waits = asyncio.create_task(took(refused()))
            receipts = await app.aenqueue_many([task.job(str(number)) for number in range(20)])
            for receipt in receipts:
                await receipt.aresult(timeout=10)
            assert await waits < 5
            told = str(await task.aexplain("busy"))
            assert re.search(rf"That is so unless an open transaction has taken it: {named}", told)
            assert await took((await task.aenqueue("another")).aresult()) < 5, "workers wait for nobody"
            assert "unless an open transaction" in (await asyncio.to_thread(why, app_url, "busy"))
        assert "it is free." in await asyncio.to_thread(why, app_url, "another one")
        again = await task.aenqueue("busy")
        assert again.outcome == "created" or again.id == held.id
        async with app.worker():
            await held.aresult(timeout=10)


def why(url: str, key: str) -> str:
    """What the command says."""
    return CliRunner().invoke(program, ["why", key, "--url", url], prog_name="onejob").stderr


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
    postgres_url: str, app_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_patience_soon(monkeypatch)
    async with App(app_url) as app, session(postgres_url) as user, asyncio.timeout(PATIENCE):

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


async def test_a_transaction_that_holds_back_vacuum_is_found(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it costs is in test_postgres_held_back."""
    monkeypatch.setattr(checkup, "OLD_TRANSACTION", 1)
    async with App(postgres_url) as app, session(postgres_url) as user:
        await app.store.open()
        async with user.transaction(isolation="repeatable_read"):
            await user.fetchval("select 1 from pg_class limit 1")  # from now on it has a snapshot
            await asyncio.sleep(LONG_ENOUGH)
            [found] = [one for one in await app.store.checkup() if one.name == "long_transaction"]
            assert f"Session {user.get_server_pid()} (billing)" in found.what
            assert f"pg_terminate_backend({user.get_server_pid()})" in found.remedy
