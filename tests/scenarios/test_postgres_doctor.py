"""What disturbs a PostgreSQL store from outside is found and named: by `doctor`, and by `why` for one job."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from servers.proxy import NOTIFICATION, Proxy
from stage import eventually

from onejob.core.lane import LanePlan
from onejob.diagnosis import diagnose
from onejob.store import JobStore, Level
from onejob.stores import open_store
from onejob.stores.postgres import findings, signals
from onejob.testing.conformance.steps import job, put, started_ids

LONG_ENOUGH = 1.1
"""Seconds after which a transaction is no longer taken for one of our own, which are short."""


@pytest.fixture
def store(postgres_url: str) -> Iterator[JobStore]:
    opened = open_store(postgres_url)
    yield opened
    asyncio.run(opened.close())


class Stranger:
    """A session that is not ours."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], schema: str) -> None:
        self.connection = connection
        self.schema = schema

    async def say(self, statement: str, *parameters: object) -> None:
        await self.connection.execute(statement.format(schema=f'"{self.schema}"'), *parameters)


@asynccontextmanager
async def stranger(store_url: str) -> AsyncIterator[Stranger]:
    """Somebody else's session on the store's server."""
    url, _, query = store_url.partition("?")
    schema = dict(pair.split("=") for pair in query.split("&"))["schema"]
    connection = await asyncpg.connect(url, server_settings={"application_name": "billing"})
    try:
        yield Stranger(connection, schema)
    finally:
        await connection.close()


async def errors(store: JobStore) -> list[str]:
    return [finding.name for finding in await store.checkup() if finding.level is Level.ERROR]


@pytest.mark.parametrize(
    "statements",
    [
        ["update {schema}.job set updated = updated where id = '{job}'"],
        ["select from {schema}.job where id = '{job}' for update"],
        [
            "savepoint s",
            "update {schema}.job set updated = updated where id = '{job}'",
            "release savepoint s",
        ],
    ],
)
async def test_who_has_locked_a_job_is_named(
    store: JobStore, postgres_url: str, statements: list[str]
) -> None:
    locked, free = await put(store, job()), await put(store, job())
    async with stranger(postgres_url) as other, other.connection.transaction():
        for statement in statements:
            await other.say(statement.replace("{job}", locked.id))
        assert await started_ids(store) == [free.id], "nobody waits for a stranger"
        await asyncio.sleep(LONG_ENOUGH)
        [delay] = await store.delays(locked.id)
        assert (delay.what, delay.application, delay.idle) == ("its row", "billing", True)
        assert delay.session == other.connection.get_server_pid()
        assert await store.delays(free.id) == []
    assert await store.delays(locked.id) == []
    assert await started_ids(store) == [locked.id]


async def test_who_has_locked_the_head_of_a_lane_delays_the_others(
    store: JobStore, postgres_url: str
) -> None:
    lane = LanePlan("x")
    head, second = await put(store, job(lane=lane)), await put(store, job(lane=lane))
    async with stranger(postgres_url) as other, other.connection.transaction():
        await other.say("select from {schema}.job where id = $1::text::uuid for update", head.id)
        await asyncio.sleep(LONG_ENOUGH)
        assert [delay.what for delay in await store.delays(second.id)] == ["a job before it in its lane"]


async def test_a_checkup_reports_what_it_finds_and_makes_nothing(new_postgres_url: str) -> None:
    store = open_store(new_postgres_url)
    assert await errors(store) == ["no_schema"]
    assert not await store.exists()
    await store.close()


async def test_a_checkup_of_a_damaged_schema(store: JobStore, postgres_url: str) -> None:
    await put(store, job())
    async with stranger(postgres_url) as other:
        await other.say("drop index {schema}.job_waiting")
        assert await errors(store) == ["missing_index"]
        await other.say("drop table {schema}.flag")
        assert await errors(store) == ["missing_tables"]
        await other.say("update {schema}.meta set value = '99' where name = 'schema'")
        assert await errors(store) == ["schema_newer"]


async def test_a_server_that_is_not_there_is_a_finding() -> None:
    store = open_store("postgresql://me@127.0.0.1:1/nowhere?patience=1")
    assert await errors(store) == ["unreachable"]
    await store.close()


async def names(store: JobStore) -> list[str]:
    """What `onejob doctor` finds."""
    return [finding.name for finding in await diagnose(store)]


async def test_notifications_that_do_not_arrive_are_found_and_said_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a pooler that gives each transaction another session. Nobody has waited for anything before."""
    monkeypatch.setattr(signals, "PROOF", 0.3)
    swallowed = 0

    def swallow(data: bytes) -> bool:
        nonlocal swallowed
        swallowed += data.startswith(NOTIFICATION)
        return data.startswith(NOTIFICATION)

    async with Proxy(postgres_url) as proxy, asyncio.timeout(30):
        store = open_store(proxy.url)
        proxy.swallows = swallow
        with caplog.at_level(logging.WARNING, "onejob"):
            for number in (1, 2):

                async def is_found(tries: int = number) -> bool:
                    return "no_notify" in await names(store) and swallowed >= tries

                await eventually(is_found)
                proxy.cut()  # and it listens anew
        began = time.monotonic()
        assert await store.wait(frozenset({"work:q"}), 30), "time to look"
        assert time.monotonic() - began < 3
        await store.close()
    assert [record.message.partition(" from")[0] for record in caplog.records] == ["NOTIFY does not arrive"]


async def test_notifications_that_arrive_are_no_finding(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "POLL", 0.01)
    monkeypatch.setattr(signals, "POLL_PROVEN", 0.5)
    assert "no_notify" not in await names(store)
    began = time.monotonic()
    assert await store.wait(frozenset({"work:q"}), 30)
    assert time.monotonic() - began > 0.4, "they were seen to arrive, so that nobody has to look often"


async def test_a_table_full_of_dead_rows_is_found(
    new_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "MANY_DEAD", 20)
    store = open_store(new_postgres_url)  # whose tables no other test has used
    await put(store, job())
    assert "bloat" not in await names(store)
    async with stranger(new_postgres_url) as other:
        await other.say("insert into {schema}.flag select gen_random_uuid(), 0 from generate_series(1, 30)")
        await other.say("delete from {schema}.flag")
        await other.say("select pg_stat_force_next_flush()")
        await other.say("select")
        [found] = [one for one in await store.checkup() if one.name == "bloat"]
    assert "Table flag has 30 dead rows beside 0 live ones" in found.what
    await store.close()
