"""Who is measured beside ours, store by store: the bare engine, and the peers that can be installed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bench import aims
from bench.engines import Engine
from bench.engines.sqlite import SqliteEngine
from bench.figures import BARE, Measure, Samples, figure, percentiles
from bench.jobs import ALL_KNOWN, ALL_UNKNOWN, NINE_IN_TEN, Repetition
from bench.peers import PeerMissing, huey, postgres, valkey
from bench.peers.contender import Kind, Peer

_ON_SERVERS = (
    "bulk",
    "concurrent",
    "one-by-one",
    "keys",
    "drain",
    "drain-10",
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
class Contest:
    """One store's engine, what we aim at on it, and who else runs."""

    engine: Engine
    aims: aims.Aims
    rivals: Mapping[str, list[Measure]]


def contest(store: str, home: Path, notes: list[str], counts: Counts, company: Company) -> Contest:
    """The contest on that store; a peer that cannot take part is named in `notes`, with the reason."""
    with_peers = company is Company.ALL
    match store:
        case "sqlite":
            whole = _sqlite(notes, with_peers=with_peers)
        case "valkey":
            whole = _valkey(home, notes, counts, with_peers=with_peers)
        case _:
            whole = _postgres(home, notes, counts, with_peers=with_peers)
    if company is not Company.OURS:
        return whole
    return Contest(whole.engine, aims.among_ourselves(whole.aims), {})


def _sqlite(notes: list[str], *, with_peers: bool) -> Contest:
    engine = SqliteEngine()
    rivals = _bare(engine)
    rivals["concurrent"] = [figure("concurrent", BARE, engine.bulk)]
    if not with_peers:
        return Contest(engine, aims.SQLITE, rivals)
    try:
        found = huey.environment()
    except PeerMissing as error:
        notes.append(f"huey is left out: it {error}")
    else:
        notes.append(f"huey {found.version}, SQLite, one thread, its best")
        kinds = huey.WITHOUT_FSYNC, huey.WITH_FSYNC
        rivals["drain"] += [figure("drain", who, huey.drain(found, who)) for who in kinds]
        rivals["one-by-one"] += [figure("one-by-one", who, huey.one_by_one(found, who)) for who in kinds]
    return Contest(engine, aims.SQLITE, rivals)


def _postgres(home: Path, notes: list[str], counts: Counts, *, with_peers: bool) -> Contest:
    from bench.engines.postgres import PostgresEngine

    engine = PostgresEngine(home)
    rivals = _bare(engine)
    _add_bare_drains(rivals, engine)
    _enter_all(rivals, postgres.KINDS if with_peers else (), engine, notes, counts)
    return Contest(engine, aims.POSTGRES, rivals)


def _valkey(home: Path, notes: list[str], counts: Counts, *, with_peers: bool) -> Contest:
    from bench.engines.valkey import ValkeyEngine

    engine = ValkeyEngine(home)
    rivals = _bare(engine)
    _add_bare_drains(rivals, engine)
    rivals["bulk"].append(figure("bulk", aims.BARE_PIPELINE, engine.pipeline))
    rivals["concurrent"].append(figure("concurrent", aims.BARE_TASKS, engine.tasks))
    _enter_all(rivals, valkey.KINDS if with_peers else (), engine, notes, counts)
    return Contest(engine, aims.VALKEY, rivals)


def _add_bare_drains(rivals: Rivals, engine: Engine) -> None:
    """What a server does bare in the batches that a worker has with less to do at once."""
    rivals["drain"].append(figure("drain", aims.BARE_100, lambda folder: engine.drain(folder, 100)))
    for batch in (10, 1):
        line = f"drain-{batch}"
        rivals[line] = [figure(line, aims.BARE_LIKE, lambda folder, batch=batch: engine.drain(folder, batch))]
    rivals["concurrent"] = [figure("concurrent", BARE, engine.bulk)]
    rivals["latency"] = []
    rivals["load"] = []
    rivals["drain-two"] = []


def _enter_all(
    rivals: Rivals, kinds: Sequence[Kind], engine: Engine, notes: list[str], counts: Counts
) -> None:
    for kind in kinds:
        try:
            peer = Peer(kind, kind.install(), engine)
        except PeerMissing as error:
            notes.append(f"{kind.name} is left out: it {error}")
            continue
        notes.append(f"{kind.name} {peer.environment.version}: {kind.best}")
        _enter(rivals, peer, counts)


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

    def latency(folder: Path) -> Samples:
        return percentiles("latency", name, peer.latency(folder, counts.stamped))

    def under_load(folder: Path) -> Samples:
        return percentiles("load", name, peer.under_load(folder, counts.loaded))

    measures: dict[str, list[Measure]] = {
        "one-by-one": [figure("one-by-one", name, peer.one_by_one)],
        "concurrent": [figure("concurrent", name, peer.concurrent)],
        "bulk": [figure("bulk", name, peer.bulk)],
        "keys": [keys(share, repetition) for share, repetition in _SHARES.items()],
        "drain": [figure("drain", name, lambda folder: peer.drain(folder, 100))],
        "drain-10": [figure("drain-10", name, lambda folder: peer.drain(folder, 10))],
        "drain-two": [figure("drain-two", name, lambda folder: peer.drain(folder, 100, workers=2))],
        "latency": [latency],
        "load": [under_load],
    }
    for trial in peer.kind.trials:
        rivals[trial] += measures[trial]
