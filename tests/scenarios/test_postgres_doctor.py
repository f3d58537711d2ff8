"""What disturbs a PostgreSQL store from outside is found and named: by `doctor`, and by `why` for one job."""

from __future__ import annotations

import asyncio
import logging
import re
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.pq import ExecStatus, PGconn
from servers.postgres import PostgresServer
from servers.proxy import NOTIFICATION, Proxy
from stage import eventually

from onejob import App, Unique
from onejob.core.lane import LanePlan
from onejob.diagnosis import diagnose
from onejob.store import Finding, JobStore, Level
from onejob.stores import open_store
from onejob.stores.postgres import checkup, findings, signals
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


async def found(store: JobStore, name: str) -> list[Finding]:
    return [finding for finding in await store.checkup() if finding.name == name]


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


@asynccontextmanager
async def another_user(admin_url: str, owner_url: str) -> AsyncIterator[tuple[str, psycopg.AsyncConnection]]:
    """The URL of the same store for a user whom nobody gave anything, and a hand that may."""
    owner = owner_url.partition("//")[2].partition("@")[0]
    user = f"{owner}_app"
    async with await psycopg.AsyncConnection.connect(admin_url, autocommit=True) as admin:
        await admin.execute(f"create role {user} login")
        try:
            yield owner_url.replace(f"//{owner}@", f"//{user}@") + "&migrate=never", admin
        finally:
            await admin.execute(f"drop owned by {user}; drop role {user}")


async def test_a_user_of_few_rights_is_told_what_he_lacks_and_whom_he_cannot_see(
    postgres: Any, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "OLD_TRANSACTION", 0)
    monkeypatch.setattr(findings, "on_bloat", lambda _: iter((Finding(Level.WARNING, "bloat", "", ""),)))
    async with another_user(postgres.url, postgres_url) as (url, admin), stranger(postgres_url) as owner:
        store = open_store(url)
        user = url.partition("//")[2].partition("@")[0]
        [lacking] = await found(store, "no_rights")
        assert f"grant usage on schema {owner.schema} to {user}" in lacking.remedy
        await owner.say(f"grant usage on schema {{schema}} to {user}")
        [lacking] = await found(store, "no_rights")
        assert "job" in lacking.what
        await owner.say(f"grant select, insert, update, delete on all tables in schema {{schema}} to {user}")
        assert await errors(store) == []

        held = await put(store, job())
        pid = f"Session {owner.connection.get_server_pid()} "
        async with owner.connection.transaction():
            await owner.say("select from {schema}.job where id = $1::text::uuid for update", held.id)
            [delay] = await store.delays(held.id)
            assert (delay.session, delay.age, delay.query) == (owner.connection.get_server_pid(), None, "")
            [unseen] = await found(store, "unseen_sessions")
            assert unseen.remedy == f"As a superuser: grant pg_read_all_stats to {user}."
            assert not [one for one in await found(store, "long_transaction") if pid in one.what]
            await admin.execute(f"grant pg_read_all_stats to {user}")
            assert await found(store, "unseen_sessions") == []
            assert [one for one in await found(store, "long_transaction") if pid in one.what]
        await store.close()


async def test_sessions_that_wait_for_each_other_are_named(
    store: JobStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "LONG_WAIT", 0)
    held = await put(store, job())
    lock = "select from {schema}.job where id = $1::text::uuid for update"
    async with stranger(postgres_url) as one, stranger(postgres_url) as other:
        async with one.connection.transaction():
            await one.say(lock, held.id)
            waiting = asyncio.create_task(other.say(lock, held.id))

            async def is_found() -> bool:
                return len(await found(store, "lock_wait")) == 1

            async with asyncio.timeout(30):
                await eventually(is_found)
            [wait] = await found(store, "lock_wait")
            pids = (other.connection.get_server_pid(), one.connection.get_server_pid())
            assert wait.what.startswith(f"Session {pids[0]} (billing) has waited ")
            assert f"which session {pids[1]} (billing) holds (idle in transaction, in a" in wait.what
            assert f"pg_terminate_backend({pids[1]})" in wait.remedy
        await waiting
    assert await found(store, "lock_wait") == []


async def test_who_has_a_table_to_himself_is_named_without_waiting_for_him(
    store: JobStore, postgres_url: str
) -> None:
    await put(store, job())
    async with stranger(postgres_url) as other, asyncio.timeout(20):
        await other.say("begin")
        await other.say("lock table {schema}.job")
        await asyncio.sleep(LONG_ENOUGH)
        found = [finding for finding in await diagnose(store) if finding.level is Level.ERROR]
        await other.say("rollback")
    [locked] = found
    assert (locked.name, locked.blocking) == ("locked", True)
    pid = other.connection.get_server_pid()
    assert f"Session {pid} (billing) has table job of schema" in locked.what
    assert f"pg_terminate_backend({pid})" in locked.remedy
    assert "locked" not in await errors(store)


async def test_an_index_that_was_left_half_built_is_found(store: JobStore, postgres_url: str) -> None:
    await put(store, job())
    await put(store, job())
    async with stranger(postgres_url) as other:
        with pytest.raises(asyncpg.UniqueViolationError):
            await other.say("create unique index concurrently half on {schema}.job (task)")
        [broken] = await found(store, "invalid_index")
        assert broken.remedy == f"reindex index concurrently {other.schema}.half; and so on."
        await other.say("drop index {schema}.half")


async def test_what_holds_back_vacuum_without_a_session_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that was prepared and left, and the slot of a replica that is gone."""
    monkeypatch.setattr(checkup, "OLD_TRANSACTION", 0)
    with PostgresServer(max_prepared_transactions="2", wal_level="replica", max_wal_senders="2") as server:
        store = open_store(server.url)
        await put(store, job())
        assert await found(store, "long_transaction") == []
        server.execute("begin; create table left_open (); prepare transaction 'forgotten'")
        [prepared] = await found(store, "long_transaction")
        assert "The prepared transaction 'forgotten' of postgres has been open for" in prepared.what
        assert "rollback prepared 'forgotten'" in prepared.remedy
        await leave_a_slot(server, "copy")
        [slot] = [one for one in await found(store, "long_transaction") if "slot" in one.what]
        assert slot.what.startswith("The replication slot copy (not in use) is ")
        server.execute("select pg_drop_replication_slot('copy')")
        server.execute("rollback prepared 'forgotten'")
        assert await found(store, "long_transaction") == []
        await store.close()


async def test_a_prepared_transaction_that_delays_a_job_is_named() -> None:
    """A call that only found its twin has nothing to tell, so that PostgreSQL prepares its transaction."""
    with PostgresServer(max_prepared_transactions="2") as server:
        async with App(server.url) as app:

            @app.task(name="sync", unique=Unique.coalesce())
            async def sync() -> None: ...

            receipt = await sync.aenqueue()
            with psycopg.connect(server.url) as connection:
                answer = await asyncio.to_thread(sync.using(connection=connection).enqueue)
                assert answer.outcome == "kept"
                connection.execute("prepare transaction 'left open'")
            await asyncio.sleep(LONG_ENOUGH)
            assert await started_ids(app.store, queues=["default"]) == []
            [delay] = await app.store.delays(receipt.id)
            assert (delay.what, delay.session, delay.gid) == ("its row", None, "left open")
            said = str(await app.aexplain(receipt))
            assert re.search(
                r"The transaction 'left open', which was prepared \S+ s ago, has locked its row", said
            )
            assert "rollback prepared 'left open'" in said
            server.execute("rollback prepared 'left open'")
            assert await app.store.delays(receipt.id) == []
            assert await started_ids(app.store, queues=["default"]) == [receipt.id]


async def leave_a_slot(server: PostgresServer, name: str) -> None:
    """Be a replica that has said which transactions its own readers see, and goes."""
    [(xmin, place)] = server.execute(
        "select pg_snapshot_xmin(pg_current_snapshot()), pg_current_wal_lsn()::text"
    )
    server.execute(f"select pg_create_physical_replication_slot('{name}')")
    replica = PGconn.connect(f"{server.url}?replication=true".encode())
    try:
        started = replica.exec_(f"START_REPLICATION SLOT {name} PHYSICAL {place}".encode())
        assert started.status == ExecStatus.COPY_BOTH, started.error_message
        replica.put_copy_data(struct.pack("!cqiiii", b"h", 0, int(str(xmin)), 0, 0, 0))
        replica.flush()
        await eventually(
            lambda: says(server, "select exists (select from pg_replication_slots where xmin is not null)")
        )
    finally:
        replica.finish()
    await eventually(lambda: says(server, "select not active from pg_replication_slots"))


async def says(server: PostgresServer, question: str) -> bool:
    [(answer,)] = server.execute(question)
    return answer


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
        [bloat] = await found(store, "bloat")
    assert "Table flag has 30 dead rows beside 0 live ones" in bloat.what
    await store.close()
