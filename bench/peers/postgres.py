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
    "psycopg, uvloop, finished jobs deleted",
    single=800,
    concurrent=2_500,
    bulk=10_000,
    drained={10: 1_000, 100: 1_000},
    keys=False,
)
GRAPHILE_WORKER = Kind(
    "graphile-worker",
    lambda: installed_node("graphile-worker", "graphile-worker@>=0.17"),
    "graphile-worker.mjs",
    _while("exists (select from graphile_worker._private_jobs)"),
    "localQueue of 5 times the concurrency, completions in batches, 20 connections",
    drained={10: 20_000, 100: 30_000},
    pairs=True,
    keys=False,
)
PG_BOSS = Kind(
    "pg-boss",
    lambda: installed_node("pg-boss", "pg-boss@>=10"),
    "pg-boss.mjs",
    _while("exists (select from pgboss.job where name = 'nothing' and state in ('created', 'active'))"),
    "batchSize = concurrency, polls every 0.5 s",
    drained={100: 1_000},
    stamps=False,
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
KINDS = (PGQUEUER, PROCRASTINATE, GRAPHILE_WORKER, PG_BOSS, CHANCY)
