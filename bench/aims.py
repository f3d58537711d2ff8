"""What each figure aims at, store by store: bounds on our own, or on its ratio to somebody's in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from bench.figures import BARE, Aim
from bench.peers import huey
from bench.peers.postgres import GRAPHILE_WORKER, PG_BOSS, PGQUEUER, PROCRASTINATE
from bench.peers.valkey import BULLMQ, BULLMQ_PYTHON, SAQ, STREAQ, TASKIQ

FLAT = 1.5
UNDISTURBED = 0.83  # within 1.2 times
LITTLE_DISTURBED = 1.2
LANELESS = "without"
PLAIN = "plain jobs"
ALONE = "alone"
KEYLESS = "without keys"
ALL_NEW = "all new"
BARE_100 = "bare, 100 a batch"
BARE_LIKE = "bare, as many a batch"
BARE_TASKS = "bare, 100 tasks"
BARE_PIPELINE = "bare, pipelines of 100"
A_KEY_EACH = "a key each"

Aims: TypeAlias = Mapping[str, tuple[Aim, ...]]
"""By line. A trial of which no line is here is left out."""

_ALIKE: Aims = {
    "lanes-ordered": (Aim(LANELESS, at_least=0.5),),
    "lanes-wide": (Aim(LANELESS, at_least=0.5),),
    "lanes-rated": (Aim(LANELESS),),
    "lanes-limited": (Aim(LANELESS),),
    "crowd": (Aim(ALONE, at_least=UNDISTURBED),),
    "chains": (Aim(PLAIN),),
    "latency-p50": (Aim(at_most=3.0),),
    "latency-p99": (Aim(),),
    "rest-memory": (Aim(at_most=60.0),),
    "rest-load": (Aim(at_most=0.5),),
    "stored": (Aim(),),
}

SQLITE: Aims = {
    **_ALIKE,
    "bulk": (Aim(BARE, at_least=0.35),),
    "concurrent": (Aim(BARE, at_least=0.15),),
    "one-by-one": (Aim(BARE, at_least=0.6),),
    "keys-0": (Aim(KEYLESS, at_least=0.7), Aim(BARE)),
    "keys-90": (Aim(ALL_NEW, at_least=1.0), Aim(BARE)),
    "drain": (Aim(BARE, at_least=0.2), Aim(huey.WITHOUT_FSYNC, at_least=4), Aim(huey.WITH_FSYNC)),
}

_PEERS = (PGQUEUER.name, PROCRASTINATE.name, GRAPHILE_WORKER.name, PG_BOSS.name)

POSTGRES: Aims = {
    **_ALIKE,
    "bulk": (
        Aim(BARE, at_least=0.6),
        Aim(PGQUEUER.name, at_least=1.3),
        Aim(PROCRASTINATE.name),
        Aim(GRAPHILE_WORKER.name),
        Aim(PG_BOSS.name),
    ),
    "concurrent": (*[Aim(peer, at_least=10) for peer in _PEERS], Aim(BARE)),
    "one-by-one": (Aim(BARE, at_least=0.6), *[Aim(peer) for peer in _PEERS]),
    "keys-0": (
        Aim(KEYLESS, at_least=0.6),
        Aim(PG_BOSS.name, at_least=1.0),
        Aim(PGQUEUER.name),
        Aim(BARE),
    ),
    "keys-90": (
        Aim(ALL_NEW, at_least=1.0),
        Aim(PG_BOSS.name, at_least=1.0),
        Aim(PGQUEUER.name),
        Aim(BARE),
    ),
    "hot-kept": (Aim(A_KEY_EACH, at_most=LITTLE_DISTURBED),),
    "hot-latest": (Aim(A_KEY_EACH, at_most=LITTLE_DISTURBED),),
    "drain": (
        Aim(BARE, at_least=0.6),
        Aim(GRAPHILE_WORKER.name, at_least=1.0),
        Aim(PGQUEUER.name, at_least=2.0),
        Aim(PROCRASTINATE.name),
        Aim(PG_BOSS.name),
        Aim(BARE_100),
    ),
    "drain-10": (
        Aim(BARE_LIKE),
        Aim(GRAPHILE_WORKER.name),
        Aim(PGQUEUER.name),
        Aim(PROCRASTINATE.name),
    ),
    "drain-1": (Aim(BARE_LIKE),),
    "latency-p50": (
        Aim(at_most=3.0),
        Aim(GRAPHILE_WORKER.name),
        Aim(PGQUEUER.name),
        Aim(PROCRASTINATE.name),
    ),
    "crowded-p50": (Aim("empty", at_most=FLAT),),
    "crowded-p99": (Aim("empty", at_most=FLAT),),
}

_PYTHON = (TASKIQ.name, SAQ.name, BULLMQ_PYTHON.name, STREAQ.name)

VALKEY: Aims = {
    **_ALIKE,
    "bulk": (
        Aim(BULLMQ.name, at_least=2.0),
        Aim(BULLMQ_PYTHON.name),
        Aim(STREAQ.name),
        Aim(BARE),
        Aim(BARE_PIPELINE),
    ),
    "concurrent": (
        Aim(BULLMQ.name, at_least=1.0),
        *[Aim(peer, at_least=4) for peer in _PYTHON],
        Aim(BARE_TASKS),
        Aim(BARE),
    ),
    "one-by-one": (Aim(BARE, at_least=0.6), Aim(BULLMQ.name), *[Aim(peer) for peer in _PYTHON]),
    "keys-0": (
        Aim(KEYLESS, at_least=0.7),
        Aim(BULLMQ.name),
        Aim(SAQ.name),
        Aim(BULLMQ_PYTHON.name),
        Aim(STREAQ.name),
        Aim(BARE),
    ),
    "keys-90": (
        Aim(ALL_NEW, at_least=1.0),
        Aim(BULLMQ.name),
        Aim(SAQ.name),
        Aim(BULLMQ_PYTHON.name),
        Aim(STREAQ.name),
        Aim(BARE),
    ),
    "hot-kept": (Aim(A_KEY_EACH, at_most=LITTLE_DISTURBED),),
    "hot-latest": (Aim(A_KEY_EACH, at_most=LITTLE_DISTURBED),),
    "drain": (
        Aim(BULLMQ.name, at_least=2.0),
        *[Aim(peer, at_least=10) for peer in _PYTHON],
        Aim(BARE),
        Aim(BARE_100),
    ),
    "drain-10": (Aim(BARE_LIKE), Aim(BULLMQ.name), *[Aim(peer) for peer in _PYTHON]),
    "drain-1": (Aim(BARE_LIKE),),
    "latency-p50": (Aim(at_most=1.5), Aim(BULLMQ.name), *[Aim(peer) for peer in _PYTHON]),
    "crowded-p50": (Aim("empty", at_most=FLAT),),
    "crowded-p99": (Aim("empty", at_most=FLAT),),
}
