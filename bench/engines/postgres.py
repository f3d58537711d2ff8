"""PostgreSQL through asyncpg: the loops that a queue without any features would be, on a server of our own."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncpg
import psycopg
import uvloop

from bench.engines import Filling
from bench.engines.postgres_fill import fill
from bench.jobs import ALL_UNKNOWN, Repetition, arguments
from bench.servers import SETTINGS, postgres

T = TypeVar("T")
BATCH = 1_000
ROWS = 50_000
SINGLE_ROWS = 2_500
DRAINED_ROWS = {1: 1_500, 10: 10_000, 100: 30_000, 500: 50_000}

_SCHEMA = """
create table job (
    id bigint generated always as identity primary key, queue text not null default 'default', task text not null,
    payload jsonb not null, state smallint not null default 0, priority smallint not null default 0,
    due timestamptz not null default now(), key text, attempt smallint not null default 0, worker text,
    ended timestamptz
);
create index waiting on job (queue, priority, id) where state = 0;
create unique index live on job (key) where key is not null and state in (0, 1);
"""
_ONE = "insert into job (task, payload, key) values ($1, $2, $3) returning id"
_MANY = """
insert into job (task, payload, key) select * from unnest($1::text[], $2::jsonb[], $3::text[])
"""
_OFFER = _MANY + "on conflict (key) where key is not null and state in (0, 1) do nothing returning id, key"
_CLAIM = """
update job set state = 1, attempt = attempt + 1, worker = 'w'
where id in (
    select id from job where queue = 'default' and state = 0 and due <= now()
    order by priority, id limit $1 for update skip locked
)
returning id, task, payload
"""
_END = "update job set state = 2, ended = now() where id = any($1::bigint[])"

Row = tuple[str, str, str]
Connection = Any  # asyncpg has no types


class PostgresEngine:
    """Fits `Engine`. Every bare row has a unique key, as each of our jobs has its id; a folder is a database."""

    name = "postgres"
    run: Callable[[Coroutine[Any, Any, Any]], Any] = staticmethod(uvloop.run)

    def __init__(self, home: Path) -> None:
        """The server is started in `home` when it is needed first."""
        self._home = home
        self._admin: psycopg.Connection[Any] | None = None
        self._made: set[str] = set()

    @property
    def durability(self) -> str:
        """Version and settings of the server."""
        settings = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
        return f"{self._ask('show server_version')[0][0]}, {settings}"

    def url(self, folder: Path) -> str:
        """See `Engine`."""
        name = _database(folder)
        if name not in self._made:
            self._ask(f"create database {name}")
            self._made.add(name)
        return self._url(name)

    def one_by_one(self, folder: Path) -> float:
        """See `Engine`."""

        async def insert(connection: Connection) -> float:
            statement = await connection.prepare(_ONE)
            rows = _rows(SINGLE_ROWS)
            started = time.perf_counter()
            for row in rows:
                await statement.fetchval(*row)
            return SINGLE_ROWS / (time.perf_counter() - started)

        return self._measured(folder, insert)

    def bulk(self, folder: Path) -> float:
        """See `Engine`."""
        return self._measured(folder, lambda connection: _in_batches(connection, _MANY, _rows(ROWS)))

    def deduplicated(self, folder: Path, repetition: Repetition) -> float:
        """See `Engine`."""

        async def offer(connection: Connection) -> float:
            rows = _rows(ROWS, repetition)
            if repetition.known:
                await _in_batches(connection, _OFFER, repetition.before(rows))
            return await _in_batches(connection, _OFFER, rows)

        return self._measured(folder, offer)

    def drain(self, folder: Path, batch: int) -> float:
        """See `Engine`."""

        async def work(connection: Connection) -> float:
            count = DRAINED_ROWS[batch]
            records = _rows(count)
            await connection.copy_records_to_table("job", columns=["task", "payload", "key"], records=records)
            await connection.execute("vacuum analyze")
            claim, end = await connection.prepare(_CLAIM), await connection.prepare(_END)
            started = time.perf_counter()
            while claimed := await claim.fetch(batch):
                await end.fetch([row[0] for row in claimed])
            return count / (time.perf_counter() - started)

        return self._measured(folder, work)

    def fill(self, folder: Path, filling: Filling, count: int) -> None:
        """See `Engine`."""
        fill(self.url(folder), filling, count)

    def copy(self, source: Path, target: Path) -> None:
        """See `Engine`."""
        name = _database(target)
        self._ask(f"create database {name} template {_database(source)} strategy file_copy")
        self._made.add(name)

    def size(self, folder: Path) -> int:
        """See `Engine`."""
        return self._ask(f"select pg_database_size('{_database(folder)}')")[0][0]

    def analyze(self, folder: Path) -> None:
        """See `Engine`."""
        with psycopg.connect(self.url(folder), autocommit=True) as connection:
            connection.execute("vacuum analyze")

    def committed(self, folder: Path) -> int | None:
        """See `Engine`."""
        of_database = f"from pg_stat_database where datname = '{_database(folder)}'"
        return self._ask(f"select xact_commit {of_database}")[0][0]

    def forget(self, folder: Path) -> None:
        """See `Engine`."""
        name = _database(folder)
        if name in self._made:
            self._made.discard(name)
            self._ask(f"drop database {name} with (force)")

    def close(self) -> None:
        """See `Engine`."""
        if self._admin is not None:
            self._admin.close()
            self._server.remove()
            self._admin = None

    def _measured(self, folder: Path, measure: Callable[[Connection], Awaitable[float]]) -> float:
        async def measured() -> float:
            connection = await asyncpg.connect(url)
            try:
                await connection.execute(_SCHEMA)
                return await measure(connection)
            finally:
                await connection.close()

        url = self.url(folder)
        return self.run(measured())

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._server.port}/{database}"

    def _ask(self, statement: str) -> list[Any]:
        if self._admin is None:
            self._server = postgres(self._home)
            self._admin = psycopg.connect(self._server.url, autocommit=True)
        cursor = self._admin.execute(cast("Any", statement))
        return cursor.fetchall() if cursor.description else []


async def _in_batches(connection: Connection, text: str, rows: list[Row]) -> float:
    statement = await connection.prepare(text)
    started = time.perf_counter()
    for batch in _batches(rows):
        await statement.fetch(*map(list, zip(*batch, strict=True)))
    return len(rows) / (time.perf_counter() - started)


def _database(folder: Path) -> str:
    return f"bench_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


def _rows(count: int, repetition: Repetition = ALL_UNKNOWN) -> list[Row]:
    ref = repetition.ref(count)
    return [("nothing", json.dumps(arguments(number)), ref(number)) for number in range(count)]


def _batches(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]
