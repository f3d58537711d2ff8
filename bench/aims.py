"""What each figure aims at, store by store: bounds on our own, or on its ratio to somebody's in the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from bench.figures import BARE, Aim
from bench.peers import huey, postgres, valkey
from bench.peers.contender import Kind

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
ONE_WORKER = "one worker"
PYTHON_ALONE = "Python alone"
EMPTY = "empty"
OUR_OWN = frozenset({LANELESS, PLAIN, ALONE, KEYLESS, ALL_NEW, A_KEY_EACH, ONE_WORKER, PYTHON_ALONE, EMPTY})
"""Other figures of ours."""

Aims: TypeAlias = Mapping[str, tuple[Aim, ...]]
"""By line. A trial of which no line is here is left out."""

_ALIKE: Aims = {
    "lanes-ordered": (Aim(LANELESS, at_least=0.5),),
    "lanes-wide": (Aim(LANELESS, at_least=0.5),),
    "lanes-rated": (Aim(LANELESS),),
    "lanes-limited": (Aim(LANELESS),),
    "crowd": (Aim(ALONE, at_least=UNDISTURBED),),
    "chains": (Aim(PLAIN),),
    "updates-0": (Aim(),),
    "updates-90": (Aim(ALL_NEW),),
    "updates-100": (Aim(ALL_NEW),),
    "debounces-0": (Aim(),),
    "debounces-90": (Aim(ALL_NEW),),
    "debounces-100": (Aim(ALL_NEW),),
    "hot-kept": (Aim(A_KEY_EACH, at_most=LITTLE_DISTURBED),),
    "hot-latest": (Aim(A_KEY_EACH, at_most=LITTLE_DISTURBED),),
    "hot-debounce": (Aim(A_KEY_EACH, at_most=LITTLE_DISTURBED),),
    "hot-kept-own": (Aim(A_KEY_EACH),),
    "hot-latest-own": (Aim(A_KEY_EACH),),
    "hot-debounce-own": (Aim(A_KEY_EACH),),
    "drain-1": (Aim(BARE_LIKE),),
    "drain-10": (Aim(BARE_LIKE),),
    "drain-two": (Aim(ONE_WORKER),),
    "load-p50": (Aim(),),
    "load-p99": (Aim(),),
    "load-call-p50": (Aim(),),
    "load-call-p99": (Aim(),),
    "crowded-p50": (Aim(EMPTY, at_most=FLAT),),
    "crowded-p99": (Aim(EMPTY, at_most=FLAT),),
    "busy-memory": (Aim(),),
    "latency-p50": (Aim(at_most=3.0),),
    "latency-p99": (Aim(),),
    "rest-memory": (Aim(at_most=60.0),),
    "rest-load": (Aim(at_most=0.5),),
    "stored": (Aim(),),
    "stored-keyed": (Aim(),),
    "stored-laned": (Aim(),),
}

SQLITE: Aims = {
    **_ALIKE,
    "bulk": (Aim(BARE, at_least=0.35),),
    "concurrent": (Aim(BARE, at_least=0.15),),
    "one-by-one": (Aim(BARE, at_least=0.6), Aim(huey.WITH_FSYNC), Aim(huey.WITHOUT_FSYNC)),
    "keys-0": (Aim(KEYLESS, at_least=0.7), Aim(BARE)),
    "keys-90": (Aim(ALL_NEW, at_least=1.0), Aim(BARE)),
    "keys-100": (Aim(ALL_NEW), Aim(BARE)),
    "drain": (Aim(BARE, at_least=0.2), Aim(huey.WITHOUT_FSYNC, at_least=4), Aim(huey.WITH_FSYNC)),
    # The same on every store, so it is measured once.
    "start-import": (Aim(PYTHON_ALONE),),
    "start-cli": (Aim(PYTHON_ALONE),),
}


def _peers(kinds: Sequence[Kind], trial: str, bounds: Mapping[str, float] | None = None) -> tuple[Aim, ...]:
    """Beside all that take part in a trial, those first against whom there is a bound."""
    bounds = bounds or {}
    names = sorted((kind.name for kind in kinds if trial in kind.trials), key=lambda name: name not in bounds)
    return tuple(Aim(name, at_least=bounds.get(name)) for name in names)


_ON_POSTGRES = partial(_peers, postgres.KINDS)

POSTGRES: Aims = {
    **_ALIKE,
    "bulk": (Aim(BARE, at_least=0.6), *_ON_POSTGRES("bulk", {postgres.PGQUEUER.name: 1.3})),
    "concurrent": (
        *_ON_POSTGRES("concurrent", {kind.name: 10 for kind in postgres.KINDS}),
        Aim(BARE),
    ),
    "one-by-one": (Aim(BARE, at_least=0.6), *_ON_POSTGRES("one-by-one")),
    "keys-0": (
        Aim(KEYLESS, at_least=0.6),
        *_ON_POSTGRES("keys", {postgres.PG_BOSS.name: 1.0}),
        Aim(BARE),
    ),
    "keys-90": (
        Aim(ALL_NEW, at_least=1.0),
        *_ON_POSTGRES("keys", {postgres.PG_BOSS.name: 1.0}),
        Aim(BARE),
    ),
    "keys-100": (Aim(ALL_NEW), *_ON_POSTGRES("keys"), Aim(BARE)),
    "drain": (
        Aim(BARE, at_least=0.6),
        *_ON_POSTGRES("drain", {postgres.GRAPHILE_WORKER.name: 1.0, postgres.PGQUEUER.name: 2.0}),
        Aim(BARE_100),
    ),
    "drain-commits": (Aim(), *_ON_POSTGRES("drain")),
    "drain-10": (Aim(BARE_LIKE), *_ON_POSTGRES("drain-10")),
    "drain-10-commits": (Aim(), *_ON_POSTGRES("drain-10")),
    "drain-1": (Aim(BARE_LIKE), *_ON_POSTGRES("drain-1")),
    "drain-two": (Aim(ONE_WORKER), *_ON_POSTGRES("drain-two")),
    "latency-p50": (Aim(at_most=3.0), *_ON_POSTGRES("latency")),
    "latency-p99": (Aim(), *_ON_POSTGRES("latency")),
    "load-p50": (Aim(), *_ON_POSTGRES("load")),
    "load-p99": (Aim(), *_ON_POSTGRES("load")),
}

_BULLMQ = valkey.BULLMQ.name
_PYTHON = [kind.name for kind in valkey.KINDS if kind.name != _BULLMQ]
_ON_VALKEY = partial(_peers, valkey.KINDS)

VALKEY: Aims = {
    **_ALIKE,
    "bulk": (*_ON_VALKEY("bulk", {_BULLMQ: 2.0}), Aim(BARE), Aim(BARE_PIPELINE)),
    "concurrent": (
        *_ON_VALKEY("concurrent", {_BULLMQ: 1.0, **dict.fromkeys(_PYTHON, 4.0)}),
        Aim(BARE_TASKS),
        Aim(BARE),
    ),
    "one-by-one": (Aim(BARE, at_least=0.6), *_ON_VALKEY("one-by-one")),
    "keys-0": (Aim(KEYLESS, at_least=0.7), *_ON_VALKEY("keys"), Aim(BARE)),
    "keys-90": (Aim(ALL_NEW, at_least=1.0), *_ON_VALKEY("keys"), Aim(BARE)),
    "keys-100": (Aim(ALL_NEW), *_ON_VALKEY("keys"), Aim(BARE)),
    "drain": (
        *_ON_VALKEY("drain", {_BULLMQ: 2.0, **dict.fromkeys(_PYTHON, 10.0)}),
        Aim(BARE),
        Aim(BARE_100),
    ),
    "drain-10": (Aim(BARE_LIKE), *_ON_VALKEY("drain-10")),
    "drain-1": (Aim(BARE_LIKE), *_ON_VALKEY("drain-1")),
    "drain-two": (Aim(ONE_WORKER), *_ON_VALKEY("drain-two")),
    "latency-p50": (Aim(at_most=1.5), *_ON_VALKEY("latency")),
    "latency-p99": (Aim(), *_ON_VALKEY("latency")),
    "load-p50": (Aim(), *_ON_VALKEY("load")),
    "load-p99": (Aim(), *_ON_VALKEY("load")),
}


PEERS = frozenset(
    {kind.name for kind in (*postgres.KINDS, *valkey.KINDS)} | {huey.WITH_FSYNC, huey.WITHOUT_FSYNC}
)
"""Whoever a figure of ours can be behind."""


def among_ourselves(aims: Aims) -> Aims:
    """The same where nobody else is measured: bounds on our own figures, and on their ratios to each other."""
    return {line: tuple(filter(_is_our_own, all_aims)) or (Aim(),) for line, all_aims in aims.items()}


def _is_our_own(aim: Aim) -> bool:
    return aim.beside is None or aim.beside in OUR_OWN
