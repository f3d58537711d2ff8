"""What PostgreSQL spends on us: the processor time of our connections' backends, transactions that wrote, bytes of WAL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg

from bench import machine
from bench.gauges import Spent
from onejob.stores.postgres.driver import Link

# Who flushes in the background does part of a commit's work. Checkpoints and vacuum come when they come, and are left out.
_PROCESSES = """
select pid from pg_stat_activity
where backend_type = 'walwriter' or (datname = current_database() and pid <> pg_backend_pid())
"""
_HINT = "signals.notify"
# Only who writes gets a number; asking for the next one takes none.
_TRANSACTIONS = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_LOGGED = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


class PostgresGauge:
    """Fits `Gauge`. A round trip is a statement; a hint commits by itself, beside the calls."""

    apart = True
    durable = True

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._calls = 0

    def spent(self) -> Spent:
        """See `Gauge`."""
        times = [
            machine.processor_time(pid) for (pid,) in self._ask(_PROCESSES) if Path(f"/proc/{pid}").exists()
        ]
        return Spent(self._calls, self._ask(_TRANSACTIONS)[0][0], sum(times))

    def written(self) -> int:
        """See `Gauge`."""
        return self._ask(_LOGGED)[0][0]

    def round_trip(self) -> None:
        """See `Gauge`."""
        self._ask("select 1")

    def count(self) -> None:
        """A statement is sent."""
        self._calls += 1

    def _ask(self, statement: Any) -> list[Any]:
        return self._connection.execute(statement).fetchall()


@contextmanager
def gauge(url: str) -> Iterator[PostgresGauge]:
    """Watch the database, and count what is sent to any in this block."""
    fetch, execute = Link.fetch, Link.execute
    with psycopg.connect(url, autocommit=True) as connection:
        made = PostgresGauge(connection)

        async def counted_fetch(link: Link, name: str, parameters: tuple[Any, ...]) -> Any:
            if name != _HINT:
                made.count()
            return await fetch(link, name, parameters)

        async def counted_execute(link: Link, text: str) -> str:
            made.count()
            return await execute(link, text)

        with patch.object(Link, "fetch", counted_fetch), patch.object(Link, "execute", counted_execute):
            yield made
