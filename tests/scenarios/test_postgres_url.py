"""What the parameters of a PostgreSQL URL do, seen from the server: connections, timeouts, TLS, names."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import asyncpg
import pytest
from servers import postgres as servers

from onejob import App, InvalidOption, OnejobError, StoreBusy, StoreUnavailable
from onejob.stores import open_store
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.driver import connect
from onejob.stores.postgres.store import PostgresStore
from onejob.testing.conformance.steps import job, put, total

PATIENCE = 30.0
CERTIFICATES = Path(servers.__file__).with_name("certificates")
CERTIFICATE = CERTIFICATES / "localhost.pem"
"""A certificate of localhost and its key, made for tests: they guard nothing."""
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@asynccontextmanager
async def tls_before(url: str) -> AsyncIterator[str]:
    """A server that speaks TLS and nothing else; the one behind it, which knows none, is reached through it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    parts = urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readexactly(8) != SSL_REQUEST:
                return
            writer.write(b"S")
            await writer.start_tls(context)
            back, forth = await asyncio.open_connection(parts.hostname, parts.port)
            ways = asyncio.gather(pour(reader, forth), pour(back, writer), return_exceptions=True)
            await ways
            forth.transport.abort()
        except (OSError, EOFError):
            pass  # who does not like the certificate hangs up
        finally:
            writer.transport.abort()

    async def pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                target.write(data)
        finally:
            target.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield parts._replace(netloc=f"{parts.username}@localhost:{port}").geturl()
    server.close()


class TestTls:
    @pytest.mark.parametrize("mode", ["prefer", "require", "verify-ca", "verify-full"])
    async def test_a_store_behind_tls(self, postgres_url: str, mode: str) -> None:
        root = f"&sslrootcert={CERTIFICATE}" if mode.startswith("verify") else ""
        async with tls_before(postgres_url) as url, asyncio.timeout(PATIENCE):
            store = open_store(f"{url}&sslmode={mode}{root}")
            await put(store, job())
            assert await total(store) == 1
            await store.close()

    @pytest.mark.parametrize(
        ("name", "trusted"), [("localhost", "somebody-else.pem"), ("127.0.0.1", CERTIFICATE.name)]
    )
    async def test_the_server_must_be_who_it_says(self, postgres_url: str, name: str, trusted: str) -> None:
        """A certificate by somebody who is not trusted; and one of another name."""
        async with tls_before(postgres_url) as url, asyncio.timeout(PATIENCE):
            there = url.replace("localhost", name)
            store = open_store(f"{there}&sslmode=verify-full&sslrootcert={CERTIFICATES / trusted}")
            with pytest.raises(OnejobError, match="certificate verify failed"):
                await put(store, job())
            await store.close()

    @pytest.mark.parametrize("parameter", ["sslrootcert", "sslcrl", "sslcert", "sslkey"])
    @pytest.mark.parametrize("by", ["url", "environment"])
    async def test_a_file_that_is_not_there_is_named_at_once(
        self, postgres_url: str, parameter: str, by: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = {"sslrootcert": CERTIFICATE, "sslcert": CERTIFICATE, parameter: "/nowhere/it.pem"}
        if by == "environment":
            monkeypatch.setenv(f"PG{parameter.upper()}", str(files.pop(parameter)))
        given = "&".join(f"{name}={file}" for name, file in files.items())
        named = f"PG{parameter.upper()}" if by == "environment" else rf"\?{parameter}="
        async with tls_before(postgres_url) as url, asyncio.timeout(PATIENCE):
            store = open_store(f"{url}&sslmode=verify-full&{given}&patience=20")
            began = time.monotonic()
            with pytest.raises(OnejobError, match=rf"/nowhere/it\.pem.* cannot be read.*{named}") as caught:
                await put(store, job())
            assert not isinstance(caught.value, StoreUnavailable)
            assert time.monotonic() - began < 10, "the next try changes nothing"
            await store.close()

    async def test_without_tls_where_it_is_required_nothing_is_sent(self, postgres_url: str) -> None:
        store = open_store(f"{postgres_url}&sslmode=require")
        with pytest.raises(OnejobError, match=r"speaks no TLS.*\?sslmode="):
            await put(store, job())
        await store.close()

    async def test_a_server_that_insists_on_tls_refuses_who_has_none(self, postgres_url: str) -> None:
        async with tls_before(postgres_url) as url, asyncio.timeout(PATIENCE):
            store = open_store(f"{url}&sslmode=disable&patience=1")
            with pytest.raises(OnejobError):
                await put(store, job())
            await store.close()


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_another_default_isolation_is_not_for_our_statements(postgres_url: str, isolation: str) -> None:
    address = parse(
        f"{postgres_url}&options={quote(f'-cdefault_transaction_isolation={isolation}'.replace(' ', chr(92) + ' '))}"
    )
    link = await connect(address)
    shown = await link.connection.fetch("show default_transaction_isolation")
    assert [tuple(row) for row in shown] == [("read committed",)]
    own = await asyncpg.connect(**address.arguments)
    assert await own.fetchval("show default_transaction_isolation") == isolation
    await asyncio.gather(link.close(), own.close())


async def transactions(url: str, name: str) -> int:
    """How many transactions are open under an application's name."""
    connection = await asyncpg.connect(url.partition("?")[0])
    try:
        return await connection.fetchval(
            "select count(*) from pg_stat_activity "
            "where application_name = $1 and usename = current_user and state like '%in transaction'",
            name,
        )
    finally:
        await connection.close()


@pytest.mark.parametrize("size", [1, 3])
async def test_a_pool_is_no_larger_than_it_may_be(postgres_url: str, size: int) -> None:
    async with App(f"{postgres_url}&pool={size}&application_name=counted") as app:
        await app.store.open()
        entered = 0
        leave, full = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            nonlocal entered
            async with app.transaction() as tx:
                await tx.execute("select 1")
                entered += 1
                if entered == size:
                    full.set()
                await leave.wait()

        holding = [asyncio.create_task(hold()) for _ in range(size + 2)]
        async with asyncio.timeout(PATIENCE):
            await full.wait()
            assert await transactions(postgres_url, "counted") == size
            assert entered == size
            leave.set()
            await asyncio.gather(*holding)
        assert entered == size + 2, "the others had their turn"


async def test_who_finds_all_connections_in_use_is_told_so(postgres_url: str) -> None:
    async with App(f"{postgres_url}&pool=1&patience=0.3") as app:
        await app.store.open()
        inside, leave = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with app.transaction():
                inside.set()
                await leave.wait()

        holding = asyncio.create_task(hold())
        await inside.wait()
        with pytest.raises(StoreBusy, match=r"All 1 connections .* raise \?pool="):
            async with app.transaction():
                raise AssertionError("there is only one")
        leave.set()
        await holding


async def test_a_statement_takes_no_longer_than_it_may(postgres_url: str) -> None:
    store = PostgresStore(f"{postgres_url}&statement_timeout=0.2")
    began = time.monotonic()
    with pytest.raises(StoreBusy, match=r"statement timeout.* raise \?statement_timeout="):
        await store._engine.use(lambda link, _: link.execute("select pg_sleep(20)"))
    assert time.monotonic() - began < 5
    assert await total(store) == 0
    await store.close()


async def test_what_the_session_is_told(postgres_url: str) -> None:
    url = f"{postgres_url}&statement_timeout=7&application_name=shop&options=-c%20work_mem%3D5MB"
    told = {"statement_timeout": "7s", "application_name": "shop", "work_mem": "5MB"}
    store = PostgresStore(url)
    for name, value in told.items():
        rows = await store._engine.use(lambda link, _, name=name: link.connection.fetch(f"show {name}"))
        assert [tuple(row) for row in rows] == [(value,)]
    await store.close()


def test_defaults_and_what_follows_from_what() -> None:
    plain = parse("postgresql://me@db/shop")
    assert (plain.pool, plain.patience, plain.statement_timeout) == (8, 10, 10)
    assert (plain.schema, plain.pooled, plain.migrates) == ("onejob", False, True)
    assert parse("postgresql://me@db/shop?patience=3").statement_timeout == 3
    assert parse("postgresql://me@db/shop?patience=3&statement_timeout=9").patience == 3
    pooled = parse("postgres://me@db/shop?pooler=transaction&migrate=never")
    assert (pooled.pooled, pooled.migrates) == (True, False)
    several = parse("postgresql://me:h%40sh@db1:5433,db2/shop")
    assert (several.arguments["host"], several.arguments["port"]) == (["db1", "db2"], [5433, 5432])
    assert several.arguments["password"] == "h@sh"
    assert "h@sh" not in repr(several) + several.place


def test_a_port_that_is_left_out_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6543")
    for url in ("postgresql://me@db/shop", "postgresql://me@/shop?host=db"):
        assert parse(url).arguments["port"] == [6543]
        assert parse(url).place == "db:6543/shop"
    assert parse("postgresql://db1:5433,db2/shop").arguments["port"] == [5433, 6543]
    assert parse("postgresql://db:5433/shop").arguments["port"] == [5433]
    assert parse("postgresql://db/shop?port=5434").arguments["port"] == [5434]
    assert "port" not in parse("postgresql://db/shop?service=mine").arguments, "which may say one itself"


async def test_a_server_is_found_by_the_port_of_the_environment(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(postgres_url)
    monkeypatch.setenv("PGPORT", str(parts.port))
    store = open_store(parts._replace(netloc=f"{parts.username}@{parts.hostname}").geturl())
    await put(store, job())
    assert await total(store) == 1
    await store.close()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("pool=0", "from 1 to 100"),
        ("pool=many", "from 1 to 100"),
        ("patience=0", "patience"),
        ("statement_timeout=soon", "must be seconds"),
        ("pooler=session", "can be transaction"),
        ("migrate=maybe", "auto or never"),
        ("pool=1&pool=2", "twice"),
        ("statement_timout=3", "did you mean statement_timeout="),
        ("schema=Shop", "no name for a schema"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_app(query: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        App(f"postgresql://me:hush@db/shop?{query}")
