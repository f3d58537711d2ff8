"""The peers on PostgreSQL: what each needs, and when its jobs count as settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg

from bench.peers import installed, installed_node
from bench.peers.contender import Kind, Question


def _while(condition: str) -> Callable[[str], AbstractContextManager[Question]]:
    """Jobs are left while that holds."""
    question: Any = f"select {condition}"

    @contextmanager
    def left(url: str) -> Iterator[Question]:
        with psycopg.connect(url, autocommit=True) as connection:
            yield lambda: connection.execute(question).fetchall()[0][0]

    return left


PGQUEUER = Kind(
    "PGQueuer",
    lambda: installed("pgqueuer", "pgqueuer[asyncpg]>=1.6,<2", "uvloop"),
    "pgqueuer_app",
    _while("exists (select from pgqueuer)"),
    "asyncpg, uvloop, batch_size = concurrency",
    drained={10: 8_000, 100: 20_000},
    pairs=True,
)
PROCRASTINATE = Kind(
    "Procrastinate",
    lambda: installed("procrastinate", "procrastinate>=3.10,<4", "psycopg[binary]", "uvloop"),
    "procrastinate_app",
    _while("exists (select from procrastinate_jobs)"),
    "psycopg, uvloop, finished jobs deleted; calls with keys one by one, 20 at once",
    single=800,
    concurrent=2_500,
    bulk=10_000,
    drained={10: 1_000, 100: 1_000},
    keyed=1_000,
    loaded=1_000,
)
GRAPHILE_WORKER = Kind(
    "graphile-worker",
    lambda: installed_node("graphile-worker", "graphile-worker@>=0.17"),
    "graphile-worker.mjs",
    _while("exists (select from graphile_worker._private_jobs)"),
    "localQueue of 5 times the concurrency, completions in batches, 20 connections; a job with a key replaces",
    drained={10: 20_000, 100: 30_000},
    pairs=True,
)
PG_BOSS = Kind(
    "pg-boss",
    lambda: installed_node("pg-boss", "pg-boss@>=10"),
    "pg-boss.mjs",
    _while("exists (select from pgboss.job where name = 'nothing' and state in ('created', 'active'))"),
    "batchSize = concurrency, polls every 0.5 s",
    drained={10: 60, 100: 600},
    stamped=60,
    loaded=400,
)
CHANCY = Kind(
    "Chancy",
    lambda: installed("chancy", "chancy>=0.26", "psycopg[binary]", "uvloop"),
    "chancy_app",
    _while("exists (select from chancy_jobs where state in ('pending', 'running', 'retrying'))"),
    "asyncio executor, uvloop, eager polling",
    single=800,
    concurrent=2_000,
    bulk=5_000,
    drained={10: 2_000, 100: 4_000},
)
OBAN = Kind(
    "Oban",
    lambda: installed("oban", "oban>=0.7", "psycopg[binary]", "uvloop", python="3.12"),
    "oban_app",
    _while(
        "exists (select from oban_jobs where state in ('available', 'scheduled', 'executing', 'retryable'))"
    ),
    "psycopg, uvloop, Python 3.12 or newer",
    single=800,
    concurrent=2_000,
    bulk=5_000,
    drained={10: 2_000, 100: 4_000},
    keyed=0,
)
SAQ = Kind(
    "SAQ",
    lambda: installed(
        "saq",
        "saq[postgres]>=0.26",
        "psycopg[binary]",
        "uvloop",
        "orjson",
        "typing_extensions",
        folder_name="saq-postgres",
    ),
    "saq_postgres_app",
    _while("exists (select from saq_jobs where status in ('new', 'queued', 'active'))"),
    "psycopg, uvloop, orjson, 20 connections",
    single=800,
    concurrent=2_000,
    drained={10: 800, 100: 1_000},
    bulks=False,
    keyed=2_000,
    loaded=1_000,
)
ABSURD = Kind(
    "absurd",
    lambda: installed("absurd-sdk", "absurd-sdk>=0.5", "absurdctl>=0.5", "psycopg[binary]", "uvloop"),
    "absurd_app",
    _while("exists (select from absurd.t_nothing where state in ('pending', 'running', 'sleeping'))"),
    "psycopg, uvloop, one connection, polls every 50 ms",
    single=800,
    concurrent=1_500,
    drained={10: 1_200, 100: 1_500},
    bulks=False,
    keyed=1_500,
    loaded=1_000,
)
DBOS = Kind(
    "DBOS",
    lambda: installed("dbos", "dbos>=3", "psycopg[binary]", "uvloop"),
    "dbos_app",
    _while("exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING', 'DELAYED'))"),
    "psycopg, uvloop, 20 connections, polls every 100 ms",
    single=300,
    concurrent=400,
    drained={10: 150, 100: 400},
    bulks=False,
    keyed=400,
    stamped=60,
    loaded=300,
)
KINDS = (PGQUEUER, PROCRASTINATE, GRAPHILE_WORKER, PG_BOSS, CHANCY, OBAN, SAQ, ABSURD, DBOS)
