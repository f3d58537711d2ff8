"""SQLite through `apsw`: the loops that a queue without any features would be."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw

from bench.engines import Filling
from bench.engines.sqlite_fill import fill
from bench.jobs import ALL_UNKNOWN, Repetition, arguments
from onejob.stores.sqlite.connect import WAL_PAGES

BATCH = 500
ROWS = 100_000
SINGLE_ROWS = 2_500
DRAINED_ROWS = {1: 1_500, 10: 15_000, 500: 50_000}

_SCHEMA = """
create table job (
    id integer primary key, queue text not null default 'default', task text not null, payload text not null,
    state integer not null default 0, priority integer not null default 0, due real not null default 0,
    key text, attempt integer not null default 0, worker text, ended real
);
create index waiting on job (queue, priority, id) where state = 0;
create unique index live on job (key) where key is not null and state in (0, 1);
"""
_INSERT = "insert into job (task, payload, key) values (?, ?, ?)"
_OFFER = _INSERT + " on conflict do nothing returning id"
_CLAIM = """
update job set state = 1, attempt = attempt + 1, worker = 'w'
where id in (
    select id from job where queue = 'default' and state = 0 and due <= ? order by priority, id limit ?
)
returning id, task, payload
"""
_DELETE = "delete from job where id = ?"

Row = tuple[str, str, str]


class SqliteEngine:
    """Fits `Engine`. Every bare row has a unique key, as each of our jobs has its id."""

    name = "sqlite"
    durability = "WAL, synchronous=FULL"
    run: Callable[[Coroutine[Any, Any, Any]], Any] = staticmethod(asyncio.run)

    def url(self, folder: Path) -> str:
        """See `Engine`."""
        return f"sqlite:///{folder / 'jobs.db'}"

    def one_by_one(self, folder: Path) -> float:
        """See `Engine`."""
        connection = _fresh(folder)
        rows = _rows(SINGLE_ROWS)
        started = time.perf_counter()
        for row in rows:
            connection.execute(_INSERT, row)
        return _rate(connection, SINGLE_ROWS, started)

    def bulk(self, folder: Path) -> float:
        """See `Engine`."""
        connection = _fresh(folder)
        rows = _rows(ROWS)
        started = time.perf_counter()
        for batch in _batches(rows):
            connection.execute("begin immediate")
            connection.executemany(_INSERT, batch)
            connection.execute("commit")
        return _rate(connection, ROWS, started)

    def deduplicated(self, folder: Path, repetition: Repetition) -> float:
        """See `Engine`."""
        connection = _fresh(folder)
        rows = _rows(ROWS, repetition)
        _offer(connection, repetition.before(rows))
        started = time.perf_counter()
        _offer(connection, rows)
        return _rate(connection, ROWS, started)

    def drain(self, folder: Path, batch: int) -> float:
        """See `Engine`."""
        connection = _fresh(folder)
        count = DRAINED_ROWS[batch]
        connection.execute("begin immediate")
        connection.executemany(_INSERT, _rows(count))
        connection.execute("commit")
        started = time.perf_counter()
        while True:
            connection.execute("begin immediate")
            claimed = list(connection.execute(_CLAIM, (time.time(), batch)))
            connection.execute("commit")
            if not claimed:
                return _rate(connection, count, started)
            connection.execute("begin immediate")
            connection.executemany(_DELETE, [(row[0],) for row in claimed])
            connection.execute("commit")

    def fill(self, folder: Path, filling: Filling, count: int) -> None:
        """See `Engine`."""
        fill(self.url(folder), folder / "jobs.db", filling, count)

    def copy(self, source: Path, target: Path) -> None:
        """See `Engine`."""
        shutil.copyfile(source / "jobs.db", target / "jobs.db")

    def size(self, folder: Path) -> int:
        """See `Engine`."""
        connection = apsw.Connection(str(folder / "jobs.db"))
        connection.pragma("wal_checkpoint", "truncate")
        connection.close()
        return (folder / "jobs.db").stat().st_size

    def analyze(self, folder: Path) -> None:
        """Its planner needs no statistics for statements like ours."""

    def committed(self, folder: Path) -> int | None:
        """See `Engine`."""

    def forget(self, folder: Path) -> None:
        """All there is lies in the folder."""

    def close(self) -> None:
        """Nothing was started."""


def _offer(connection: apsw.Connection, rows: list[Row]) -> None:
    for batch in _batches(rows):
        connection.execute("begin immediate")
        for row in batch:
            list(connection.execute(_OFFER, row))
        connection.execute("commit")


def _fresh(folder: Path) -> apsw.Connection:
    connection = apsw.Connection(str(folder / "bare.db"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.pragma(
        "wal_autocheckpoint", WAL_PAGES
    )  # while a log grows, each commit has to make its file longer
    connection.execute(_SCHEMA)
    return connection


def _rows(count: int, repetition: Repetition = ALL_UNKNOWN) -> list[Row]:
    ref = repetition.ref(count)
    return [("nothing", str(arguments(number)), ref(number)) for number in range(count)]


def _batches(rows: list[Row]) -> Iterator[list[Row]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _rate(connection: apsw.Connection, count: int, started: float) -> float:
    taken = time.perf_counter() - started
    connection.close()
    return count / taken
