"""The peers on Valkey (all made for Redis): what each needs, and when its jobs count as settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import valkey

from bench.peers import installed, installed_node
from bench.peers.contender import Kind, Question
from bench.peers.huey import REQUIREMENT


def _while(are_left: Callable[[Any], Any]) -> Callable[[str], AbstractContextManager[Question]]:
    """Jobs are left while that holds."""

    @contextmanager
    def left(url: str) -> Iterator[Question]:
        with valkey.Valkey.from_url(url) as client:
            yield lambda: bool(are_left(client))

    return left


def _stream_is_left(client: Any) -> bool:
    """taskiq leaves what is done in its stream."""
    groups = client.xinfo_groups("taskiq")
    return any(group["pending"] or group["lag"] for group in groups)


_BULLMQ_LISTS = "bull:nothing:wait", "bull:nothing:active"

BULLMQ = Kind(
    "BullMQ on Node",
    lambda: installed_node("bullmq", "bullmq@>=5", "ioredis@>=5", folder_name="bullmq-node"),
    "bullmq.mjs",
    _while(lambda client: client.exists(*_BULLMQ_LISTS)),
    "ioredis, finished jobs removed",
    single=3_000,
    concurrent=20_000,
    bulk=40_000,
    drained={10: 10_000, 100: 20_000},
    pairs=True,
)
BULLMQ_PYTHON = Kind(
    "BullMQ for Python",
    lambda: installed("bullmq", "bullmq>=2.15", "hiredis", "uvloop"),
    "bullmq_app",
    _while(lambda client: client.exists(*_BULLMQ_LISTS)),
    "hiredis, uvloop, finished jobs removed",
    drained={10: 2_000, 100: 2_000},
)
SAQ = Kind(
    "SAQ",
    lambda: installed("saq", "saq[redis,hiredis]>=0.26", "uvloop", "orjson", "typing_extensions"),
    "saq_app",
    _while(lambda client: client.exists("saq:default:incomplete")),
    "hiredis, uvloop, orjson, 100 operations at once",
    drained={10: 2_500, 100: 2_500},
    bulks=False,
    keyed=5_000,
)
STREAQ = Kind(
    "streaq",
    lambda: installed("streaq", "streaq>=6", "uvloop"),
    "streaq_app",
    _while(lambda client: client.xlen("streaq:default:queues:normal")),
    "coredis, uvloop",
    bulk=10_000,
    drained={10: 1_500, 100: 1_500},
)
TASKIQ = Kind(
    "taskiq-redis",
    lambda: installed("taskiq-redis", "taskiq-redis>=1.1", "hiredis", "uvloop", "orjson"),
    "taskiq_app",
    _while(_stream_is_left),
    "stream broker, hiredis, uvloop, orjson, prefetches as many as run",
    drained={10: 4_000, 100: 4_000},
    bulks=False,
    keyed=0,
)
HUEY = Kind(
    "huey",
    lambda: installed("huey", REQUIREMENT, "redis", "hiredis", "uvloop", folder_name="huey-valkey"),
    "huey_valkey_app",
    _while(lambda client: client.exists("huey.redis.bench")),
    "hiredis, blocking pops, threads, no results",
    concurrent=0,
    drained={10: 3_000},
    bulks=False,
    keyed=0,
)
ARQ = Kind(
    "arq",
    lambda: installed("arq", "arq>=0.26", "hiredis", "uvloop"),
    "arq_app",
    _while(lambda client: client.exists("arq:queue")),
    "hiredis, uvloop, no results, polls every 10 ms",
    drained={10: 1_000, 100: 2_000},
    bulks=False,
    keyed=5_000,
    stamped=60,
)
DRAMATIQ = Kind(
    "dramatiq",
    lambda: installed("dramatiq", "dramatiq[redis]>=2", "hiredis", "uvloop"),
    "dramatiq_app",
    _while(lambda client: client.exists("dramatiq:default.msgs")),
    "hiredis, one process, threads",
    concurrent=0,
    drained={10: 2_500, 100: 2_500},
    bulks=False,
    keyed=0,
)
CELERY = Kind(
    "Celery",
    lambda: installed("celery", "celery[redis]>=5.4", "hiredis", "uvloop"),
    "celery_app",
    _while(lambda client: client.exists("celery", "unacked")),
    "hiredis, threads, prefetches ten times the concurrency, no results, no gossip",
    single=800,
    concurrent=0,
    drained={10: 1_000, 100: 1_000},
    bulks=False,
    keyed=0,
    loaded=1_000,
)
RQ = Kind(
    "RQ",
    lambda: installed("rq", "rq>=2", "hiredis", "uvloop"),
    "rq_app",
    _while(lambda client: client.exists("rq:queue:default", "rq:wip:default")),
    "hiredis, a worker that does not fork, one job at a time, no results",
    single=1_000,
    concurrent=0,
    bulk=5_000,
    drained={1: 400},
    keyed=2_000,
    stamped=60,
    loaded=400,
)
KINDS = (BULLMQ, TASKIQ, SAQ, BULLMQ_PYTHON, STREAQ, HUEY, ARQ, DRAMATIQ, CELERY, RQ)
