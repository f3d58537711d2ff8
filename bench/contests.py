"""Who is measured beside ours, store by store: the bare engine, and the peers that can be installed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from bench import aims
from bench.engines import Engine
from bench.engines.sqlite import SqliteEngine
from bench.figures import BARE, Measure, Samples, drained, figure, percentiles
from bench.jobs import ALL_KNOWN, ALL_UNKNOWN, NINE_IN_TEN, Repetition
from bench.peers import Environment, PeerMissing, huey, postgres, valkey
from bench.peers.contender import Kind, Peer
from bench.runner import Progress

_ON_SERVERS = (
    "bulk",
    "concurrent",
    "one-by-one",
    "keys",
    "drain",
    "drain-10",
    "drain-1",
    "drain-two",
    "latency",
    "load",
)
STORES = {
    "sqlite": frozenset({"one-by-one", "drain"}),
    "postgres": frozenset(_ON_SERVERS),
    "valkey": frozenset(_ON_SERVERS),
}
"""The stores, and in which of their trials there are peers."""
BATCH = 500
"""Of a bare drain."""
_SHARES = {"0": ALL_UNKNOWN, "90": NINE_IN_TEN, "100": ALL_KNOWN}
"""Of duplicates, in percent."""

Rivals = dict[str, list[Measure]]
"""By trial."""


class Company(StrEnum):
    """Who is measured."""

    ALL = "ours, the bare engines and the peers"
    NO_PEERS = "ours and the bare engines"
    OURS = "ours alone"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs a latency is taken of."""

    stamped: int
    loaded: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Who is let in, for how many jobs, and who is told of it."""

    company: Company
    counts: Counts = Counts(1, 1)
    peers: frozenset[str] | None = None
    """Only these."""
    notes: list[str] = field(default_factory=list[str])
    progress: Progress = lambda _: None
    """Told before each peer, which may have to be installed."""

    def lets_in(self, peer: str) -> bool:
        """Whether a peer of that name is to be measured."""
        return self.company is Company.ALL and (self.peers is None or peer in self.peers)


@dataclass(frozen=True, slots=True)
class Contest:
    """One store's engine, what we aim at on it, and who else runs."""

    engine: Engine
    aims: aims.Aims
    rivals: Mapping[str, list[Measure]]


def contest(store: str, home: Path, entry: Entry) -> Contest:
    """The contest on that store; a peer that cannot take part is named in the notes, with the reason."""
    match store:
        case "sqlite":
            whole = _sqlite(entry)
        case "valkey":
            whole = _valkey(home, entry)
        case _:
            whole = _postgres(home, entry)
    if entry.company is not Company.OURS:
        return whole
    return Contest(whole.engine, aims.among_ourselves(whole.aims), {})


def peers(store: str) -> list[str]:
    """The names of those who may be measured on that store."""
    kinds = {"postgres": postgres.KINDS, "valkey": valkey.KINDS}
    return [kind.name for kind in kinds[store]] if store in kinds else [huey.NAME]


def _sqlite(entry: Entry) -> Contest:
    engine = SqliteEngine()
    rivals = _bare(engine)
    _add_bare_like(rivals, engine)
    rivals["concurrent"] = [figure("concurrent", BARE, engine.bulk)]
    found = _environment(huey.NAME, huey.environment, "one thread, no results", entry)
    if found is not None:
        kinds = huey.WITHOUT_FSYNC, huey.WITH_FSYNC
        rivals["drain"] += [figure("drain", who, huey.drain(found, who)) for who in kinds]
        rivals["one-by-one"] += [figure("one-by-one", who, huey.one_by_one(found, who)) for who in kinds]
    return Contest(engine, aims.SQLITE, rivals)


def _postgres(home: Path, entry: Entry) -> Contest:
    from bench.engines.postgres import PostgresEngine

    engine = PostgresEngine(home)
    rivals = _bare(engine)
    _add_bare_drains(rivals, engine)
    _enter_all(rivals, postgres.KINDS, engine, entry)
    return Contest(engine, aims.POSTGRES, rivals)


def _valkey(home: Path, entry: Entry) -> Contest:
    from bench.engines.valkey import ValkeyEngine

    engine = ValkeyEngine(home)
    rivals = _bare(engine)
    _add_bare_drains(rivals, engine)
    rivals["bulk"].append(figure("bulk", aims.BARE_PIPELINE, engine.pipeline))
    rivals["concurrent"].append(figure("concurrent", aims.BARE_TASKS, engine.tasks))
    _enter_all(rivals, valkey.KINDS, engine, entry)
    return Contest(engine, aims.VALKEY, rivals)


def _add_bare_drains(rivals: Rivals, engine: Engine) -> None:
    """What a server does bare in the batches that a worker has with less to do at once."""
    rivals["drain"].append(figure("drain", aims.BARE_100, lambda folder: engine.drain(folder, 100)))
    _add_bare_like(rivals, engine)
    rivals["concurrent"] = [figure("concurrent", BARE, engine.bulk)]
    rivals["latency"] = []
    rivals["load"] = []
    rivals["drain-two"] = []


def _add_bare_like(rivals: Rivals, engine: Engine) -> None:
    for batch in (10, 1):
        line = f"drain-{batch}"
        rivals[line] = [figure(line, aims.BARE_LIKE, lambda folder, batch=batch: engine.drain(folder, batch))]


def _enter_all(rivals: Rivals, kinds: Sequence[Kind], engine: Engine, entry: Entry) -> None:
    for kind in kinds:
        environment = _environment(kind.name, kind.install, kind.best, entry)
        if environment is not None:
            _enter(rivals, Peer(kind, environment, engine), entry.counts)


def _environment(
    name: str, install: Callable[[], Environment], best: str, entry: Entry
) -> Environment | None:
    """Where a peer lives, if it is let in and can be had; how it is set or what is missing is noted."""
    if not entry.lets_in(name):
        return None
    entry.progress(f"looking for {name}")
    try:
        found = install()
    except (PeerMissing, OSError) as error:
        entry.notes.append(f"{name} is left out: it {error}")
        return None
    entry.notes.append(f"{name} {found.version}: {best}")
    return found


def _bare(engine: Engine) -> Rivals:
    return {
        "bulk": [figure("bulk", BARE, engine.bulk)],
        "one-by-one": [figure("one-by-one", BARE, engine.one_by_one)],
        "keys": [
            figure(
                f"keys-{share}",
                BARE,
                lambda folder, repetition=repetition: engine.deduplicated(folder, repetition),
            )
            for share, repetition in _SHARES.items()
        ],
        "drain": [figure("drain", BARE, lambda folder: engine.drain(folder, BATCH))],
    }


def _enter(rivals: Rivals, peer: Peer, counts: Counts) -> None:
    """Add a peer to all trials that it takes part in."""
    name = peer.kind.name

    def keys(share: str, repetition: Repetition) -> Measure:
        return figure(f"keys-{share}", name, lambda folder: peer.deduplicated(folder, repetition))

    def drain(line: str, folder: Path, concurrency: int, workers: int = 1) -> Samples:
        found = peer.drain(folder, concurrency, workers)
        return drained(line, name, found.rate, found.commits)

    def latency(folder: Path) -> Samples:
        return percentiles("latency", name, peer.latency(folder, counts.stamped))

    def under_load(folder: Path) -> Samples:
        return percentiles("load", name, peer.under_load(folder, counts.loaded))

    measures: dict[str, list[Measure]] = {
        "one-by-one": [figure("one-by-one", name, peer.one_by_one)],
        "concurrent": [figure("concurrent", name, peer.concurrent)],
        "bulk": [figure("bulk", name, peer.bulk)],
        "keys": [keys(share, repetition) for share, repetition in _SHARES.items()],
        "drain": [lambda folder: drain("drain", folder, 100)],
        "drain-10": [lambda folder: drain("drain-10", folder, 10)],
        "drain-1": [lambda folder: drain("drain-1", folder, 1)],
        "drain-two": [lambda folder: drain("drain-two", folder, 100, workers=2)],
        "latency": [latency],
        "load": [under_load],
    }
    for trial in peer.kind.trials:
        rivals[trial] += measures[trial]
