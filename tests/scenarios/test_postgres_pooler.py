"""A store behind a pooler that gives every transaction another session: what is set there reaches each statement."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest
from servers.pooler import Pooler
from servers.proxy import Proxy

from onejob import App, OnejobError, Unique
from onejob.stores import open_store
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.driver import connect
from onejob.stores.postgres.engine import PROBES
from onejob.testing.conformance.steps import job, put


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_url) as pooler:
        yield pooler


async def test_two_transactions_in_a_row_are_in_two_sessions_where_things_stay(pooler: Pooler) -> None:
    """Of the pooler itself, without which the rest says nothing."""
    connection = await asyncpg.connect(pooler.url.partition("?")[0], statement_cache_size=0)
    try:
        pids = [await connection.fetchval("select pg_backend_pid()") for _ in range(6)]
        assert pids[:3] == pids[3:]
        assert len(set(pids)) == 3
        await connection.execute("set lock_timeout = 4711")
        left = [await connection.fetchval("show lock_timeout") for _ in range(3)]
        assert sorted(left) == ["0", "0", "4711ms"]
        async with connection.transaction():
            assert len({await connection.fetchval("select pg_backend_pid()") for _ in range(3)}) == 1
    finally:
        await connection.close()


async def test_without_a_word_of_the_pooler_one_is_told_what_to_say(pooler: Pooler) -> None:
    store = open_store(pooler.url)

    async def go_on() -> None:
        for _ in range(5):  # it is prepared by the first, in one session, and missed by another
            await put(store, job())

    with pytest.raises(OnejobError, match=r"Add \?pooler=transaction to the store's URL"):
        await go_on()
    await store.close()


async def test_a_statement_by_itself_has_all_settings_and_leaves_none_behind(pooler: Pooler) -> None:
    link = await connect(parse(f"{pooler.url}&pooler=transaction&statement_timeout=7"), settings=PROBES)
    try:
        for _ in range(4):
            assert await link.fetch("enqueue.be_patient", ("2s",)) == [("250ms", "2s")]
        await link.execute(link.begin)
        said = {name: await link.connection.fetch(f"show {name}") for name in (*PROBES, "statement_timeout")}
        await link.roll_back()
        assert {name: row[0] for name, [row] in said.items()} == {**PROBES, "statement_timeout": "7s"}
        left = [await link.connection.fetch("show lock_timeout") for _ in range(3)]
        assert [row[0] for [row] in left] == ["0"] * 3
    finally:
        await link.close()


async def test_a_statement_that_fails_leaves_its_session_fit_for_others(pooler: Pooler) -> None:
    link = await connect(parse(f"{pooler.url}_gone&pooler=transaction"))
    try:
        for _ in range(4):
            with pytest.raises(asyncpg.UndefinedTableError):
                await link.fetch("migrate.version", ())
            assert link.is_sound()
    finally:
        await link.close()


async def test_a_commit_whose_answer_is_lost_counts_once(pooler: Pooler) -> None:
    async with Proxy(f"{pooler.url}&pooler=transaction") as proxy, App(proxy.url) as app:

        @app.task(name="task", unique=Unique.once(by="key"))
        async def task(key: str) -> None: ...

        await app.store.open()
        trap = proxy.trap(b"commit\0", "cut after")  # the first there is: hints come after it
        receipt = await task.aenqueue("key")
        assert trap.sprung.is_set()
        assert receipt.outcome == "created"
        assert (await task.aenqueue("key")).id == receipt.id
        assert await app.acount() == 1
