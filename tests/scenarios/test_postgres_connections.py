"""Enqueues on a user's own connection to PostgreSQL, by every driver: they are there when he commits, and only then."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.exc
from connection_kinds import KINDS, Hand, Kind, of_dialect
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import onejob
from onejob import (
    App,
    DuplicateJob,
    InvalidOption,
    Lane,
    Outcome,
    Receipt,
    ResultGone,
    State,
    Unique,
    UnknownBlocker,
    WrongCall,
)
from onejob.stores.postgres import adapters, signals
from onejob.stores.postgres.failures import sqlstate
from onejob.stores.postgres.joined import Whereabouts

PATIENCE = 20.0


@pytest.fixture
def server(postgres_url: str) -> str:
    """The store's server and database, as drivers take it."""
    return postgres_url.partition("?")[0]


@pytest.fixture
def app(postgres_url: str) -> Iterator[App]:
    with App(postgres_url) as app:
        yield app


@pytest.fixture
def tasks(app: App) -> SimpleNamespace:
    @app.task(name="plain")
    def plain(order: int) -> int:
        return order

    @app.task(name="once", unique=Unique.once(by="order"))
    def once(order: int, note: str = "") -> int:
        return order

    @app.task(name="strict", unique=Unique.in_flight(by="order", queued="raise"))
    def strict(order: int) -> int:
        return order

    @app.task(name="newest", unique=Unique.latest(by="order"))
    def newest(order: int, note: str = "") -> str:
        return note

    return SimpleNamespace(plain=plain, once=once, strict=strict, newest=newest)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


async def test_a_job_is_there_when_the_user_commits(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind
) -> None:
    async with kind(server) as hand:
        await hand.begin()
        await hand.execute("create table bill (number int)")
        await hand.execute("insert into bill values (7)")
        plain = await hand.enqueue(tasks.plain, 7)
        keyed = await hand.enqueue(tasks.once, 7)
        assert (plain.outcome, keyed.outcome) == (Outcome.CREATED, Outcome.CREATED)
        assert await app.acount() == 0
        await hand.commit()
        assert {job.id for job in (await app.ajobs()).jobs} == {plain.id, keyed.id}
        assert await hand.execute("select number from bill") == [(7,)]
    assert (await tasks.once.aenqueue(7)).id == keyed.id


async def test_rolled_back_nothing_remains(app: App, tasks: SimpleNamespace, server: str, kind: Kind) -> None:
    async with kind(server) as hand:
        await hand.begin()
        gone = await hand.enqueue(tasks.once, 7)
        await hand.enqueue_many(app, [tasks.plain.job(1), tasks.once.job(8)])
        await hand.rollback()
        assert await app.acount() == 0
        assert await app.store.keys() == []
        with pytest.raises(ResultGone, match="rolled back"):
            await gone.aresult(timeout=1)
        assert (await tasks.once.aenqueue(7)).outcome is Outcome.CREATED


async def test_a_duplicate_is_kept(app: App, tasks: SimpleNamespace, server: str, kind: Kind) -> None:
    first = await tasks.once.aenqueue(7)
    async with kind(server) as hand:
        await hand.begin()
        kept = await hand.enqueue(tasks.once, 7)
        assert (kept.outcome, kept.id) == (Outcome.KEPT, first.id)
        own = await hand.enqueue(tasks.once, 8)
        again = await hand.enqueue(tasks.once, 8)
        assert (again.outcome, again.id) == (Outcome.KEPT, own.id)
        await hand.commit()
    assert await app.acount() == 2


async def test_a_holder_is_updated(app: App, tasks: SimpleNamespace, server: str, kind: Kind) -> None:
    first = await tasks.newest.aenqueue(7, "old")
    async with kind(server) as hand:
        await hand.begin()
        updated = await hand.enqueue(tasks.newest, 7, "new")
        assert (updated.outcome, updated.id) == (Outcome.UPDATED, first.id)
        await hand.rollback()
        await hand.begin()
        assert [job.payload for job in (await app.ajobs()).jobs] == [b'{"order":7,"note":"old"}']
        await hand.enqueue(tasks.newest, 7, "newer")
        await hand.commit()
    assert [job.payload for job in (await app.ajobs()).jobs] == [b'{"order":7,"note":"newer"}']


async def test_a_refused_call_leaves_the_transaction_usable(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind
) -> None:
    holder = await tasks.strict.aenqueue(7)
    async with kind(server) as hand:
        await hand.begin()
        with pytest.raises(DuplicateJob) as caught:
            await hand.enqueue(tasks.strict, 7)
        assert caught.value.holder == holder.id
        with pytest.raises(UnknownBlocker):
            await hand.enqueue(tasks.plain.using(blockers=["01990000-0000-7000-8000-000000000000"]), 1)
        await hand.enqueue(tasks.strict, 8)
        await hand.commit()
    assert await app.acount() == 2


async def test_many_calls_are_one_commit(app: App, tasks: SimpleNamespace, server: str, kind: Kind) -> None:
    held = await tasks.strict.aenqueue(3)
    async with kind(server) as hand:
        await hand.begin()
        calls = [
            tasks.once.job(1),
            tasks.plain.job(2),
            tasks.once.job(1),
            tasks.strict.job(3),
            tasks.newest.job(4),
        ]
        receipts = await hand.enqueue_many(app, calls)
        assert [receipt.outcome for receipt in receipts] == [
            "created",
            "created",
            "kept",
            "rejected",
            "created",
        ]
        assert receipts[2].id == receipts[0].id
        assert receipts[3].holder == held.id
        assert await app.acount() == 1
        await hand.commit()
    assert await app.acount() == 4


async def test_more_calls_than_a_store_takes_at_once(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind
) -> None:
    async with kind(server) as hand:
        await hand.begin()
        receipts = await hand.enqueue_many(app, [tasks.once.job(number) for number in range(1_200)])
        assert len({receipt.id for receipt in receipts}) == 1_200
        await hand.commit()
    assert await app.acount() == 1_200


@pytest.mark.parametrize("commits", [True, False])
async def test_a_twin_waits_for_the_end_of_the_transaction(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind, commits: bool
) -> None:
    async with kind(server) as hand, kind(server) as other:
        await hand.begin()
        first = await hand.enqueue(tasks.once, 7)
        await other.begin()
        twin = asyncio.create_task(other.enqueue(tasks.once, 7))
        await until_somebody_waits(server)
        assert not twin.done()
        await (hand.commit() if commits else hand.rollback())
        receipt = await asyncio.wait_for(twin, PATIENCE)
        assert receipt.outcome is (Outcome.KEPT if commits else Outcome.CREATED)
        assert (receipt.id == first.id) is commits
        await other.commit()
    assert [job.id for job in (await app.ajobs()).jobs] == [receipt.id]


async def test_a_plain_twin_waits_as_well(app: App, tasks: SimpleNamespace, server: str) -> None:
    async with KINDS["asyncpg"](server) as hand:
        await hand.begin()
        await hand.enqueue(tasks.once, 7)
        twin = asyncio.create_task(tasks.once.aenqueue(7))
        await until_somebody_waits(server)
        await hand.rollback()
        assert (await asyncio.wait_for(twin, PATIENCE)).outcome is Outcome.CREATED


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 10}], ids=str)
@pytest.mark.parametrize("name", [name for name in KINDS if name.startswith("sqlalchemy")])
async def test_how_the_user_reads_his_own_rows_does_not_matter(
    app: App, tasks: SimpleNamespace, server: str, name: str, options: dict[str, Any]
) -> None:
    async with KINDS[name](server) as hand:
        chosen = (
            hand.connection.connection(execution_options=options)
            if name.endswith("session")
            else hand.connection.execution_options(**options)
        )
        if isawaitable(chosen):
            await chosen
        await hand.begin()
        first, twin = await hand.enqueue(tasks.once, 7), await hand.enqueue(tasks.once, 7)
        assert (first.outcome, twin.outcome) == ("created", "kept")
        await hand.commit()
    assert await app.acount() == 1


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_transaction_of_two_phases_is_refused(
    app: App, tasks: SimpleNamespace, server: str, driver: str
) -> None:
    engine = create_async_engine(of_dialect(server, driver))
    async with AsyncSession(engine, twophase=True) as session:
        with pytest.raises(WrongCall, match=r"twophase=True.*one phase"):
            await tasks.once.using(connection=session).aenqueue(7)
    await engine.dispose()


def test_a_transaction_of_two_phases_is_refused_in_sync_code(
    app: App, tasks: SimpleNamespace, server: str
) -> None:
    engine = sqlalchemy.create_engine(of_dialect(server, "psycopg"))
    with Session(engine, twophase=True) as session, pytest.raises(WrongCall, match="twophase=True"):
        tasks.once.using(connection=session).enqueue(7)
    with (
        engine.connect() as connection,
        connection.begin_twophase(),
        pytest.raises(WrongCall, match="twophase=True"),
    ):
        tasks.once.using(connection=connection).enqueue(7)
    engine.dispose()


class AsText(psycopg.adapt.Loader):
    """Reads a value as somebody may want it for his own statements."""

    def load(self, data: Any) -> str:
        return bytes(data).decode()


class InCapitals(AsText):
    """The same of text, which is one already."""

    def load(self, data: Any) -> str:
        return super().load(data).upper()


@pytest.mark.parametrize("typed", ["bool", "int4", "int8", "text", "bytea"])
@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "psycopg-async", "sqlalchemy", "sqlalchemy-asyncpg"])
async def test_a_connection_that_reads_what_we_read_in_its_own_way_is_refused(
    app: App, tasks: SimpleNamespace, server: str, name: str, typed: str
) -> None:
    async with KINDS[name](server) as hand:
        await read_as_text(hand, name, typed)
        await hand.begin()
        for _ in range(2):
            with pytest.raises(WrongCall, match=rf"values of type {LONG.get(typed, typed)} are not read as"):
                await hand.enqueue(tasks.once, 7)
        await hand.rollback()
    assert await app.acount() == 0


@pytest.mark.parametrize("typed", ["json", "jsonb", "numeric", "int2", "uuid", "timestamptz"])
@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "psycopg-async", "sqlalchemy", "sqlalchemy-asyncpg"])
async def test_how_a_connection_reads_other_types_is_the_users_own(
    app: App, tasks: SimpleNamespace, server: str, name: str, typed: str
) -> None:
    async with KINDS[name](server) as hand:
        await read_as_text(hand, name, typed)
        await hand.begin()
        first, twin = await hand.enqueue(tasks.once, 7), await hand.enqueue(tasks.once, 7)
        newest = [await hand.enqueue(tasks.newest, 7, note) for note in "ab"]
        await hand.commit()
    assert (first.outcome, twin.outcome, twin.id) == ("created", "kept", first.id)
    assert [one.outcome for one in newest] == ["created", "updated"]
    assert (await app.ajob(first)) is not None


LONG = {"bool": "boolean", "int4": "integer", "int8": "bigint"}


async def read_as_text(hand: Hand, name: str, typed: str) -> None:
    """Have the driver give values of a type as the server writes them."""
    raw = hand.connection
    if name == "sqlalchemy":
        raw = raw.connection.driver_connection
    elif name == "sqlalchemy-asyncpg":
        raw = (await raw.get_raw_connection()).driver_connection
    if "asyncpg" in name:
        decoder = str.upper if typed == "text" else str
        await raw.set_type_codec(typed, schema="pg_catalog", encoder=str, decoder=decoder, format="text")
    else:
        raw.adapters.register_loader(typed, InCapitals if typed == "text" else AsText)


async def test_a_savepoint_takes_its_jobs_with_it(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind
) -> None:
    async with kind(server) as hand:
        await hand.begin()
        kept = await hand.enqueue(tasks.once, 1)
        await hand.execute("savepoint here")
        await hand.enqueue(tasks.once, 2)
        await hand.execute("rollback to savepoint here")
        await hand.commit()
    assert [job.id for job in (await app.ajobs()).jobs] == [kept.id]


async def test_the_hint_comes_with_the_commit(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for poll in ("POLL", "POLL_PROVEN"):
        monkeypatch.setattr(signals, poll, 2 * PATIENCE)  # else it would look by itself, hint or not
    await app.store.open()
    topic = frozenset({"work:default"})
    async with kind(server) as hand:
        await app.store.checkup()  # from now on it listens
        mark = app.store.mark()
        await hand.begin()
        await hand.enqueue(tasks.plain, 7)
        assert not await app.store.wait(topic, 0.2, since=mark)
        await hand.commit()
        assert await app.store.wait(topic, PATIENCE, since=mark)


async def test_lanes_and_blockers_go_along(app: App, tasks: SimpleNamespace, server: str, kind: Kind) -> None:
    async with kind(server) as hand:
        await hand.begin()
        first = await hand.enqueue(tasks.plain.using(lane=Lane("user:1")), 1)
        second = await hand.enqueue(tasks.plain.using(blockers=[first]), 2)
        await hand.commit()
    async with app.worker():
        assert await second.aresult(timeout=PATIENCE) == 2
    found = await app.store.job(first.id)
    assert found is not None
    assert (found.state, found.lane) == (State.COMPLETED, "user:1")


async def test_a_run_starts_after_the_commit_of_every_call_that_it_serves(
    app: App, server: str, kind: Kind
) -> None:
    seen: list[tuple[int, int]] = []

    @app.task(name="index", unique=Unique.coalesce(by="order"))
    async def index(order: int) -> None:
        async with KINDS["asyncpg"](server) as reader:
            [(total,)] = await reader.execute("select total from bill")
        seen.append((order, total))

    async with kind(server) as hand:
        await hand.begin()
        await hand.execute("create table bill (total int)")
        await hand.execute("insert into bill values (100)")
        await hand.commit()
        waiting = await index.aenqueue(7)
        await hand.begin()
        await hand.execute("update bill set total = 200")
        kept = await hand.enqueue(index, 7)
        assert (kept.outcome, kept.id) == (Outcome.KEPT, waiting.id)
        async with app.worker():
            other = await index.aenqueue(8)
            await other.aresult(timeout=PATIENCE)  # workers pass over what waits for the commit
            assert seen == [(8, 100)]
            await hand.commit()
            await waiting.aresult(timeout=PATIENCE)
    assert seen == [(8, 100), (7, 200)]


async def test_a_serialisation_failure_is_the_drivers_own(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind
) -> None:
    async with kind(server) as hand:
        await hand.begin("repeatable read")
        await hand.execute("select count(*) from pg_class")
        await tasks.once.aenqueue(7)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver has its own
            await hand.enqueue(tasks.once, 7)
        assert sqlstate(caught.value) == "40001"
        assert isinstance(caught.value, errors_of(hand))
        await hand.rollback()
    assert await app.acount() == 1


async def test_a_deadlock_is_the_drivers_own(postgres: Any, postgres_url: str, kind: Kind) -> None:
    """One has a lock of his own and wants a key, the other has the key and wants that lock."""
    server = postgres.url  # of a user who may say who finds a deadlock
    number = secrets.randbits(31)
    lock = f"select pg_advisory_xact_lock({number})"
    wanted = f"select 1 from pg_locks where locktype = 'advisory' and objid = {number} and not granted"
    async with App(f"{server}?{postgres_url.partition('?')[2]}") as app:

        @app.task(name="once", unique=Unique.once(by="order"))
        def once(order: int) -> None: ...

        async with KINDS["asyncpg"](server) as other, kind(server) as hand:
            await other.execute("set deadlock_timeout = '10min'")
            await other.begin()
            first = await other.enqueue(once, 7)
            await hand.begin()
            await hand.execute("set local deadlock_timeout = '10ms'")
            await hand.execute(lock)
            waiting = asyncio.create_task(other.execute(lock))
            async with asyncio.timeout(PATIENCE):
                while not await hand.execute(wanted):
                    pass
            with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver has its own
                await asyncio.wait_for(hand.enqueue(once, 7), PATIENCE)
            assert sqlstate(caught.value) == "40P01"
            assert isinstance(caught.value, errors_of(hand))
            await hand.rollback()
            await asyncio.wait_for(waiting, PATIENCE)
            await other.commit()
        assert [job.id for job in (await app.ajobs()).jobs] == [first.id]


async def test_in_an_aborted_transaction_the_driver_speaks(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind
) -> None:
    async with kind(server) as hand:
        await hand.begin()
        with pytest.raises(Exception, match="no_such_table"):
            await hand.execute("select * from no_such_table")
        with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver has its own
            await hand.enqueue(tasks.plain, 7)
        assert sqlstate(caught.value) == "25P02" or isinstance(caught.value, sqlalchemy.exc.SQLAlchemyError)
        await hand.rollback()
    assert await app.acount() == 0


async def test_a_closed_connection_is_told_as_such(tasks: SimpleNamespace, server: str) -> None:
    connection = await asyncpg.connect(server)
    await connection.close()
    with pytest.raises(WrongCall, match=r"using\(connection=…\) is closed"):
        await tasks.plain.using(connection=connection).aenqueue(1)


async def test_another_database_is_refused_by_name(
    app: App, tasks: SimpleNamespace, postgres: Any, kind: Kind
) -> None:
    async with other_database(postgres.url) as elsewhere, kind(elsewhere) as hand:
        await hand.begin()
        with pytest.raises(WrongCall, match=r'"elsewhere_\w+".*no onejob store.*database "postgres"'):
            await hand.enqueue(tasks.plain, 7)
        await hand.execute("select 1")
        await hand.commit()
    assert await app.acount() == 0


async def test_another_store_of_the_same_name_is_refused(
    app: App, tasks: SimpleNamespace, postgres: Any, postgres_url: str
) -> None:
    async with other_database(postgres.url) as elsewhere:
        async with App(f"{elsewhere}?{postgres_url.partition('?')[2]}") as twin:
            await twin.store.open()
        async with KINDS["asyncpg"](elsewhere) as hand:
            await hand.begin()
            with pytest.raises(
                WrongCall, match=r'"elsewhere_\w+".*another onejob store.*database "postgres"'
            ):
                await hand.enqueue(tasks.plain, 7)
            await hand.rollback()


async def test_a_copy_of_the_store_is_refused(
    app: App, tasks: SimpleNamespace, postgres: Any, postgres_url: str, server: str
) -> None:
    await app.store.open()
    name = postgres_url.partition("schema=")[2]
    async with KINDS["asyncpg"](server) as hand:
        [(identity,)] = await hand.execute(f"select value from {name}.meta where name = 'identity'")
    async with other_database(postgres.url) as elsewhere, KINDS["asyncpg"](elsewhere) as hand:
        await hand.execute(f"create schema {name}")
        await hand.execute(f"create table {name}.meta as select 'identity' as name, '{identity}' as value")
        await hand.begin()
        with pytest.raises(WrongCall, match=r'"elsewhere_\w+".*a copy of this store.*database "postgres"'):
            await hand.enqueue(tasks.plain, 7)
        await hand.rollback()


async def test_another_server_with_a_database_of_the_same_name_is_told_apart(
    app: App, tasks: SimpleNamespace, postgres: Any, postgres_url: str, own_postgres: Any
) -> None:
    places = {
        url: f"127.0.0.1, port {sqlalchemy.make_url(url).port}" for url in (postgres.url, own_postgres.url)
    }
    theirs, ours = (
        f'database "postgres" of the server at {places[url]}' for url in (own_postgres.url, postgres.url)
    )
    async with KINDS["asyncpg"](own_postgres.url) as hand:
        await hand.begin()
        with pytest.raises(
            WrongCall, match=rf"leads to {theirs}, where .* no onejob store .* in {ours}\. A job"
        ):
            await hand.enqueue(tasks.plain, 7)
        await hand.rollback()
        async with App(f"{own_postgres.url}?{postgres_url.partition('?')[2]}") as twin:
            await twin.store.open()
        await hand.begin()
        with pytest.raises(
            WrongCall, match=rf"leads to {theirs}, where .* another onejob store .* in {ours}\. A"
        ):
            await hand.enqueue(tasks.plain, 7)
        await hand.rollback()


def test_servers_of_one_place_are_told_apart_by_their_start() -> None:
    """As behind forwarded ports, or after one was put in the other's place."""
    ours, theirs = (
        Whereabouts("shop", start, "10.0.0.2, port 5432", "id") for start in ("1e9", "1000000060.5")
    )
    assert not theirs.is_store(ours)
    assert theirs.named_beside(ours).endswith("port 5432 (running since 2001-09-09 01:47:40+00:00)")
    assert ours.named_beside(theirs).endswith("port 5432 (running since 2001-09-09 01:46:40+00:00)")


async def test_a_restarted_server_is_the_same(own_postgres: Any) -> None:
    async with App(own_postgres.url) as app:

        @app.task(name="plain")
        def plain(order: int) -> None: ...

        for number in range(2):
            async with KINDS["asyncpg"](own_postgres.url) as hand:
                await hand.begin()
                await hand.enqueue(plain, number)
                await hand.commit()
            own_postgres.restart()
        assert await app.acount() == 2


async def test_a_connection_is_checked_once(
    app: App, tasks: SimpleNamespace, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    execute = adapters.AsyncpgConnection.execute

    async def watched(self: Any, text: str, parameters: Any) -> Any:
        seen.append(text)
        return await execute(self, text, parameters)

    monkeypatch.setattr(adapters.AsyncpgConnection, "execute", watched)
    async with asyncpg.create_pool(server, min_size=1, max_size=1) as pool:
        for number in range(3):
            async with pool.acquire() as connection, connection.transaction():
                await tasks.plain.using(connection=connection).aenqueue(number)
    assert sum("'identity'" in text for text in seen) == 1
    assert await app.acount() == 3


async def test_without_a_transaction_it_is_refused(app: App, tasks: SimpleNamespace, server: str) -> None:
    async with AsyncExitStack() as stack:
        bare: Hand = await stack.enter_async_context(KINDS["asyncpg"](server))
        psycopg_async = await stack.enter_async_context(
            await psycopg.AsyncConnection.connect(server, autocommit=True)
        )
        engine = create_async_engine(of_dialect(server, "asyncpg"), isolation_level="AUTOCOMMIT")
        alchemy = await stack.enter_async_context(engine.connect())
        session = await stack.enter_async_context(AsyncSession(engine))
        for connection in (bare.connection, psycopg_async, alchemy, session):
            with pytest.raises(WrongCall, match=r"No transaction is open.*plain enqueue"):
                await tasks.plain.using(connection=connection).aenqueue(7)
            with pytest.raises(WrongCall, match="No transaction is open"):
                await app.aenqueue_many([tasks.plain.job(7)], connection=connection)
        async with psycopg_async.transaction():
            await tasks.plain.using(connection=psycopg_async).aenqueue(8)
    await engine.dispose()
    assert await app.acount() == 1


def test_without_a_transaction_it_is_refused_in_sync_code(
    app: App, tasks: SimpleNamespace, server: str
) -> None:
    engine = sqlalchemy.create_engine(of_dialect(server, "psycopg"), isolation_level="AUTOCOMMIT")
    with psycopg.connect(server, autocommit=True) as bare, engine.connect() as alchemy:
        for connection in (bare, alchemy):
            with pytest.raises(WrongCall, match="No transaction is open"):
                tasks.plain.using(connection=connection).enqueue(7)
        with bare.transaction():
            tasks.plain.using(connection=bare).enqueue(8)
    engine.dispose()
    assert app.count() == 1


async def test_rights_are_those_of_the_connection(
    app: App, tasks: SimpleNamespace, postgres: Any, postgres_url: str, server: str
) -> None:
    await app.store.open()
    schema = postgres_url.partition("schema=")[2]
    guest = f"{schema}_guest"
    admin = await asyncpg.connect(postgres.url)
    await admin.execute(f"create role {guest} login")
    try:
        async with KINDS["asyncpg"](server.replace(f"//u_{schema[2:]}@", f"//{guest}@")) as hand:
            await hand.begin()
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await hand.enqueue(tasks.once, 7)
            await hand.rollback()
            # What the guide says that a user needs.
            await admin.execute(f"grant usage on schema {schema} to {guest}")
            await admin.execute(
                f"grant select, insert, update, delete on all tables in schema {schema} to {guest}"
            )
            await hand.begin()
            first = await hand.enqueue(tasks.newest.using(lane=Lane("a")), 7, "old")
            await hand.commit()
            await hand.begin()
            await hand.enqueue(tasks.newest, 7, "new")
            await hand.enqueue(tasks.once.using(blockers=[first]), 8)
            await hand.commit()
    finally:
        await admin.execute(f"drop owned by {guest}; drop role {guest}")
        await admin.close()
    assert await app.acount() == 2


async def test_the_wrong_colour_names_the_right_call(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind
) -> None:
    async with kind(server) as hand:
        await hand.begin()
        sender = tasks.plain.using(connection=hand.connection)
        if hand.is_async:
            with pytest.raises(WrongCall, match=r"await task\.using\(connection=…\)\.aenqueue"):
                sender.enqueue(7)
            with pytest.raises(WrongCall, match=r"await app\.aenqueue_many"):
                app.enqueue_many([tasks.plain.job(7)], connection=hand.connection)
        else:
            with pytest.raises(WrongCall, match=r"`task\.using\(connection=…\)\.enqueue"):
                await sender.aenqueue(7)
            with pytest.raises(WrongCall, match=r"`app\.enqueue_many"):
                await app.aenqueue_many([tasks.plain.job(7)], connection=hand.connection)
        await hand.rollback()


def test_what_is_no_connection_is_refused(app: App, tasks: SimpleNamespace, server: str) -> None:
    engine = sqlalchemy.create_engine(of_dialect(server, "psycopg"))
    secret = "postgresql://me:hush@db/shop"  # somebody's mistake
    for connection in (engine, secret, 7, object(), sqlite3):
        with pytest.raises(InvalidOption, match="asyncpg or psycopg 3") as caught:
            tasks.plain.using(connection=connection).enqueue(7)
        assert "hush" not in str(caught.value)
    with (
        sqlalchemy.create_engine("sqlite://").connect() as other,
        pytest.raises(InvalidOption, match=r"sqlite\+pysqlite"),
    ):
        tasks.plain.using(connection=other).enqueue(7)


async def test_inside_a_transaction_of_the_app_it_is_refused(
    app: App, tasks: SimpleNamespace, server: str
) -> None:
    async with KINDS["asyncpg"](server) as hand:
        await hand.begin()
        async with app.transaction():
            with pytest.raises(WrongCall, match="two do not commit as one"):
                await hand.enqueue(tasks.plain, 7)
        await hand.rollback()


async def test_a_session_inside_run_sync(app: App, tasks: SimpleNamespace, server: str) -> None:
    engine = create_async_engine(of_dialect(server, "asyncpg"))

    def work(session: Session) -> Receipt[int]:
        session.execute(sqlalchemy.text("select 1"))
        return tasks.once.using(connection=session).enqueue(7)

    async with AsyncSession(engine) as session, session.begin():
        receipt = await session.run_sync(work)
    await engine.dispose()
    assert [job.id for job in (await app.ajobs()).jobs] == [receipt.id]


def test_a_scoped_session(app: App, tasks: SimpleNamespace, server: str) -> None:
    engine = sqlalchemy.create_engine(of_dialect(server, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    tasks.once.using(connection=session).enqueue(7)
    session.commit()
    session.remove()
    engine.dispose()
    assert app.count() == 1


def test_a_connection_with_rows_and_cursors_of_its_own(app: App, tasks: SimpleNamespace, server: str) -> None:
    with psycopg.connect(
        server, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor
    ) as connection:
        assert tasks.once.using(connection=connection).enqueue(7).outcome is Outcome.CREATED
        assert tasks.once.using(connection=connection).enqueue(7).outcome is Outcome.KEPT
    with psycopg.connect(server) as connection, connection.pipeline():
        assert tasks.once.using(connection=connection).enqueue(8).outcome is Outcome.CREATED
    assert app.count() == 2


async def test_a_connection_is_for_enqueues_only(app: App, tasks: SimpleNamespace) -> None:
    sender = tasks.once.using(connection=object())
    for use in (sender.job, sender.explain, sender.release, sender.revoke):
        with pytest.raises(InvalidOption, match="enqueue_many"):
            use(7)
    with pytest.raises(InvalidOption, match="There is no option 'connection'"):
        app.task(connection=object())  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="connection"):
        tasks.once.using(conection=object())


async def test_no_connection_is_a_plain_enqueue(app: App, tasks: SimpleNamespace) -> None:
    await tasks.plain.using(connection=None, priority=3).aenqueue(7)
    await app.aenqueue_many([tasks.plain.job(8)], connection=None)
    assert await app.acount() == 2


async def test_options_and_connection_go_together(app: App, tasks: SimpleNamespace, server: str) -> None:
    async with KINDS["asyncpg"](server) as hand:
        await hand.begin()
        sender = tasks.plain.using(connection=hand.connection).using(priority=3)
        receipt = await sender.aenqueue(7)
        assert await app.acount() == 0
        await hand.commit()
    job = await app.store.job(receipt.id)
    assert job is not None
    assert job.priority == 3


async def test_hooks_and_the_log_see_it(
    app: App, tasks: SimpleNamespace, server: str, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    @app.before_enqueue
    def before(call: onejob.Call[Any]) -> None:
        seen.append(f"before {call.task}")

    @app.after_enqueue
    async def after(receipt: onejob.Receipt[Any]) -> None:
        seen.append(f"after {receipt.outcome}")

    with caplog.at_level(logging.INFO, "onejob"):
        async with kind(server) as hand:
            await hand.begin()
            await hand.enqueue(tasks.once, 7)
            await hand.enqueue_many(app, [tasks.once.job(7)])
            await hand.commit()
    assert seen == ["before once", "after created", "before once", "after kept"]
    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert events == ["job.created", "job.kept"]


def test_sqlite_names_its_own_way(tmp_path: Any) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db") as app, sqlite3.connect(":memory:") as connection:

        @app.task(name="plain")
        def plain(order: int) -> None: ...

        with pytest.raises(WrongCall, match=r"app\.transaction\(\)"):
            plain.using(connection=connection).enqueue(7)
        with pytest.raises(WrongCall, match=r"app\.transaction\(\)"):
            app.enqueue_many([plain.job(7)], connection=connection)
        assert app.count() == 0
    connection.close()


@asynccontextmanager
async def other_database(url: str) -> AsyncIterator[str]:
    """A database beside the store's, by its URL; named as no other test's."""
    name = f"elsewhere_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"create database {name}")
        yield f"{url.rpartition('/')[0]}/{name}"
        await connection.execute(f"drop database {name} with (force)")
    finally:
        await connection.close()


def errors_of(hand: Hand) -> tuple[type[Exception], ...]:
    """What users of that driver catch."""
    match type(hand).__name__:
        case "AsyncpgHand":
            return (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
        case "PsycopgHand" | "SyncPsycopgHand":
            return (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
        case _:
            return (sqlalchemy.exc.DBAPIError,)


async def until_somebody_waits(server: str) -> None:
    """Until a session of this user waits for a lock of another."""
    connection = await asyncpg.connect(server)
    try:
        async with asyncio.timeout(PATIENCE):
            while not await connection.fetch(  # noqa: ASYNC110 - the server tells nobody
                "select from pg_stat_activity where usename = current_user and wait_event_type = 'Lock'"
            ):
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def test_a_call_that_is_broken_off_leaves_no_half_of_it_to_be_committed(
    app: App, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is broken off: the statement has been answered, and the next one is never asked."""

    @app.task(name="half", unique=Unique.restart(by="key"), lane=Lane("one"))
    async def half(key: str) -> None: ...

    await half.aenqueue("a")
    execute, broken_off = adapters.AsyncpgConnection.execute, 0
    for last in itertools.count(1):
        left = last

        async def answered(self: Any, *asked: Any) -> Any:
            nonlocal left
            rows = await execute(self, *asked)
            left -= 1
            if not left:
                raise asyncio.CancelledError
            return rows

        connection = await asyncpg.connect(postgres_url.partition("?")[0])
        transaction = connection.transaction()
        await transaction.start()
        with monkeypatch.context() as patch:
            patch.setattr(adapters.AsyncpgConnection, "execute", answered)
            with suppress(asyncio.CancelledError):
                await half.using(connection=connection).aenqueue("a")
        await transaction.commit()
        await connection.close()
        jobs = (await app.ajobs("task:half")).jobs
        if len(jobs) > 1:
            break  # nothing was left to be done but the hint to workers
        broken_off += 1
        assert [job.state for job in jobs] == [State.PARKED], f"broken off after statement {last}"
    assert broken_off > 5
    assert [job.state for job in jobs] == [State.PARKED, State.REVOKED]
