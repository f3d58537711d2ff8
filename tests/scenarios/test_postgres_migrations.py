"""Migrations of a store that is in use: several processes at once, and workers of the version before."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import asyncpg
import pytest
from servers.postgres import PostgresServer
from stage import eventually

from onejob import App, SchemaMismatch, StoreBusy, Unique
from onejob.diagnosis import diagnose
from onejob.first_answer import FirstAnswer
from onejob.store import Level, Settled
from onejob.stores import open_store
from onejob.stores.postgres import migrate
from onejob.stores.postgres.statements import FILES
from onejob.testing.conformance.steps import finish, job, put, start_one, total

PATIENCE = 30.0
NEXT = """
alter table onejob.job add column colour text;
alter table onejob.key add column colour text;
create index job_colour on onejob.job (colour) where colour is not null;
"""
"""A step as the next version may have one: it adds, and takes nothing away."""


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From now on this process is of the next version."""
    known = list(FILES.migrations)
    return lambda: monkeypatch.setitem(FILES.__dict__, "migrations", [*known, NEXT])


async def version(url: str) -> str:
    address, _, query = url.partition("?schema=")
    connection = await asyncpg.connect(address)
    try:
        return await connection.fetchval(f"select value from {query}.meta where name = 'schema'")
    finally:
        await connection.close()


async def test_of_many_stores_that_come_first_one_migrates(new_postgres_url: str) -> None:
    stores = [open_store(new_postgres_url) for _ in range(8)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(put(store, job()) for store in stores))
        assert await total(stores[0]) == len(stores)
    for store in stores:
        await store.close()
    assert await version(new_postgres_url) == str(migrate.known())


def test_of_many_processes_that_come_first_one_migrates(new_postgres_url: str) -> None:
    program = f"""
from onejob import App
app = App({new_postgres_url!r})
@app.task(name="welcome")
def welcome() -> None: ...
print(welcome.enqueue().outcome)
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(4)
    ]
    assert [process.communicate(timeout=PATIENCE)[0] for process in started] == ["created\n"] * 4


async def test_a_table_of_the_users_own_is_named_and_left_alone(new_postgres_url: str) -> None:
    address, _, schema = new_postgres_url.partition("?schema=")
    connection = await asyncpg.connect(address)
    await connection.execute(f"create schema {schema}; create table {schema}.job (title text)")
    store = open_store(new_postgres_url)
    refusal = rf"Schema {schema} .* has a table job that is not onejob's.*\?schema="
    with pytest.raises(SchemaMismatch, match=refusal):
        await put(store, job())
    with pytest.raises(SchemaMismatch, match=refusal):
        await store.migration_script()
    [finding] = [one for one in await store.checkup() if one.level is Level.ERROR]
    assert (finding.name, "?schema=" in finding.remedy, finding.blocking) == ("not_ours", True, True)
    assert "job" in finding.what
    tables = await connection.fetch("select tablename from pg_tables where schemaname = $1", schema)
    assert [row["tablename"] for row in tables] == ["job"]
    await asyncio.gather(store.close(), connection.close())


@pytest.mark.parametrize("word", ["order", "user"])
async def test_a_schema_may_be_called_by_a_reserved_word(word: str, own_postgres: PostgresServer) -> None:
    store = open_store(f"{own_postgres.url}?schema={word}")
    waiting = await put(store, job())
    assert (await start_one(store)).id == waiting.id
    assert [one.name for one in await store.checkup() if one.level is Level.ERROR] == []
    other = open_store(f"{own_postgres.url}?schema=select")
    own_postgres.execute((await other.migration_script()).replace("%", "%%"))
    assert (await put(other, job())).outcome == "created"
    await asyncio.gather(store.close(), other.close())


async def test_who_may_not_migrate_is_told_by_a_checkup(new_postgres_url: str, upgrade: Any) -> None:
    older = open_store(new_postgres_url)
    await put(older, job())
    upgrade()
    newer = open_store(f"{new_postgres_url}&migrate=never")
    found = [one.name for one in await diagnose(newer) if one.level is Level.ERROR]
    assert found == ["schema_older"]
    await asyncio.gather(older.close(), newer.close())


async def test_who_migrates_waits_for_who_is_at_it(
    new_postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two that looked before the first one's commit do not both make tables; and the server has answered."""
    awaited: list[FirstAnswer] = []
    watch_it = FirstAnswer.watch

    def remembering(self: FirstAnswer) -> asyncio.TimerHandle | None:
        awaited.append(self)
        return watch_it(self)

    monkeypatch.setattr(FirstAnswer, "watch", remembering)
    store = open_store(new_postgres_url)
    address, _, schema = new_postgres_url.partition("?schema=")
    other, watch = await asyncpg.connect(address), await asyncpg.connect(address)

    async def is_waited_for() -> bool:
        return await watch.fetchval(
            "select exists (select from pg_locks where not granted and $1 = any(pg_blocking_pids(pid)))",
            other.get_server_pid(),
        )

    async with asyncio.timeout(PATIENCE):
        async with other.transaction():
            await other.execute(
                "select pg_advisory_xact_lock(hashtextextended('onejob migrates ' || $1::text, 0))", schema
            )
            opening = asyncio.create_task(store.open())
            await eventually(is_waited_for)
            assert not opening.done()
            [first] = awaited
            first._silent()  # as it does after some seconds
        await opening
    assert caplog.messages == []
    await asyncio.gather(other.close(), watch.close(), store.close())


async def test_workers_of_the_version_before_go_on_beside_a_migration(
    new_postgres_url: str, upgrade: Any
) -> None:
    """All the way: statements that they have prepared, jobs that run meanwhile, followers, keys and lanes."""
    ran: list[int] = []
    async with App(new_postgres_url) as app, asyncio.timeout(PATIENCE):

        @app.task(name="count", unique=Unique.latest(by="number"))
        async def count(number: int) -> None:
            ran.append(number)

        async with app.worker(concurrency=5):
            over = asyncio.Event()

            async def produce(number: int) -> None:
                while not over.is_set():
                    number += 10
                    await (await count.aenqueue(number)).aresult(timeout=PATIENCE)

            hands = [asyncio.create_task(produce(number)) for number in range(4)]
            await _until(ran, 40)
            upgrade()
            newer = open_store(new_postgres_url)
            await newer.open()
            assert await version(new_postgres_url) == str(migrate.known())
            await _until(ran, len(ran) + 100)
            over.set()
            await asyncio.gather(*hands)
        assert await app.acount("state:live") == 0
        await put(newer, job(unique=Unique.once()))
        await newer.close()
    assert len(ran) == len(set(ran))


async def test_a_job_that_ran_while_tables_changed_is_settled_by_its_old_worker(
    new_postgres_url: str, upgrade: Any
) -> None:
    older = open_store(new_postgres_url)
    await put(older, job(unique=Unique.coalesce()))
    claimed = await start_one(older)
    upgrade()
    newer = open_store(new_postgres_url)
    follower = await put(newer, job(unique=Unique.coalesce()))
    assert await finish(older, claimed) is Settled.DONE
    assert (await start_one(newer)).id == follower.id
    await older.close()
    await newer.close()


async def test_a_step_that_somebody_keeps_from_a_table_holds_up_nobody_and_names_him(
    new_postgres_url: str, upgrade: Any
) -> None:
    older = open_store(new_postgres_url)
    await put(older, job())
    upgrade()
    newer = open_store(f"{new_postgres_url}&patience=2")
    address, _, schema = new_postgres_url.partition("?schema=")
    user = await asyncpg.connect(address, server_settings={"application_name": "billing"})
    async with asyncio.timeout(PATIENCE):
        async with user.transaction():
            await user.execute(f"select from {schema}.job")
            migrating = asyncio.create_task(newer.migrate())
            calls = 0
            while not migrating.done():
                began = time.monotonic()
                await put(older, job())
                assert await finish(older, await start_one(older)) is Settled.DONE
                assert time.monotonic() - began < 1.5, "no call waits for the user"
                calls += 1
            with pytest.raises(
                StoreBusy, match=rf"locked: session {user.get_server_pid()} \(billing\), in a tr"
            ):
                await migrating
            assert calls > 2
            assert await version(new_postgres_url) == str(migrate.known() - 1)
            migrating = asyncio.create_task(newer.migrate())
            await eventually(lambda: is_seen_waiting(user, schema))
        await migrating
    assert await version(new_postgres_url) == str(migrate.known())
    await asyncio.gather(user.close(), older.close(), newer.close())


async def is_seen_waiting(user: Any, schema: str) -> bool:
    return await user.fetchval(
        "select exists (select from pg_locks where relation = $1::text::regclass and not granted)",
        f"{schema}.job",
    )


async def test_the_script_brings_a_store_of_the_first_version_up_to_date(
    new_postgres_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = list(FILES.migrations)
    monkeypatch.setitem(FILES.__dict__, "migrations", known[:1])
    older = open_store(new_postgres_url)
    await put(older, job())
    claimed = await start_one(older)
    monkeypatch.setitem(FILES.__dict__, "migrations", known)
    newer = open_store(f"{new_postgres_url}&migrate=never")
    script = await newer.migration_script()
    address, _, schema = new_postgres_url.partition("?schema=")
    owner, user = await asyncpg.connect(address), await asyncpg.connect(address)
    async with user.transaction():
        await user.execute(f"lock table {schema}.job in share update exclusive mode")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await owner.execute(script)
        await owner.execute("rollback")
    assert await version(new_postgres_url) == "1"
    await owner.execute(script)
    assert await version(new_postgres_url) == str(len(known))
    assert await newer.migration_script() == ""
    there, *others = [
        await shape(user, url.partition("?schema=")[2]) for url in (new_postgres_url, postgres_url)
    ]
    assert others == [there]
    await put(newer, job())
    assert await finish(older, claimed) is Settled.DONE
    await asyncio.gather(owner.close(), user.close(), older.close(), newer.close())


async def shape(connection: Any, schema: str) -> list[tuple[Any, ...]]:
    """Tables and indexes with their settings, and the columns of each."""
    return [
        tuple(row)
        for row in await connection.fetch(
            """
            select c.relname, c.relkind, c.reloptions, array_agg(a.attname || ' ' || a.atttypid::regtype order by a.attnum)
            from pg_class c
            join pg_namespace n on n.oid = c.relnamespace
            join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
            where n.nspname = $1
            group by c.oid
            order by 1
            """,
            schema,
        )
    ]


@pytest.mark.parametrize("there", range(1, len(FILES.migrations)))
async def test_a_store_of_an_earlier_version_is_brought_up_to_date_while_its_jobs_run(
    new_postgres_url: str, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    known = list(FILES.migrations)
    monkeypatch.setitem(FILES.__dict__, "migrations", known[:there])
    older = open_store(new_postgres_url)
    running, waiting = await put(older, job(unique=Unique.once(), key="a")), await put(older, job())
    claimed = await start_one(older)
    assert claimed.id == running.id
    assert await version(new_postgres_url) == str(there)
    monkeypatch.setitem(FILES.__dict__, "migrations", known)
    newer = open_store(new_postgres_url)
    assert (await put(newer, job(unique=Unique.once(), key="a"))).id == running.id
    assert await version(new_postgres_url) == str(len(known))
    assert await finish(older, claimed) is Settled.DONE
    assert (await start_one(older)).id == waiting.id
    await older.close()
    await newer.close()


async def test_what_is_missing_is_not_made_where_the_url_forbids_it(
    new_postgres_url: str, upgrade: Any
) -> None:
    before = open_store(new_postgres_url)
    await before.open()
    await before.close()
    there = migrate.known()
    upgrade()
    store = open_store(f"{new_postgres_url}&migrate=never")
    message = rf"has version {there}, this onejob needs version {there + 1}\b.*`onejob migrate`"
    with pytest.raises(SchemaMismatch, match=message):
        await put(store, job())
    await store.close()
    assert await version(new_postgres_url) == str(there)


async def _until(ran: list[int], count: int) -> None:
    while len(ran) < count:  # noqa: ASYNC110 - the worker is busy, not we
        await asyncio.sleep(0.005)
