"""Who is measured beside ours, store by store: the bare engine, and the peers that can be installed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import aims
from bench.engines import Engine
from bench.engines.sqlite import SqliteEngine
from bench.figures import BARE, Measure, Samples, figure
from bench.peers import PeerMissing, huey, postgres, valkey
from bench.peers.contender import Kind, Peer

STORES = {
    "sqlite": frozenset({"drain"}),
    "postgres": frozenset({"bulk", "concurrent", "one-by-one", "keys", "drain", "drain-10", "latency"}),
    "valkey": frozenset({"bulk", "concurrent", "one-by-one", "keys", "drain", "drain-10", "latency"}),
}
"""The stores, and in which of their trials there are peers."""
BATCH = 500
"""Of a bare drain."""

Rivals = dict[str, list[Measure]]
"""By trial."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One store's engine, what we aim at on it, and who else runs."""

    engine: Engine
    aims: aims.Aims
    rivals: Mapping[str, list[Measure]]


def contest(store: str, home: Path, notes: list[str], stamped: int, *, with_peers: bool) -> Contest:
    """The contest on that store; what is left out is said in `notes`."""
    match store:
        case "sqlite":
            return _sqlite(notes, with_peers=with_peers)
        case "valkey":
            return _valkey(home, notes, stamped, with_peers=with_peers)
        case _:
            return _postgres(home, notes, stamped, with_peers=with_peers)


def _sqlite(notes: list[str], *, with_peers: bool) -> Contest:
    engine = SqliteEngine()
    rivals = _bare(engine)
    rivals["concurrent"] = [figure("concurrent", BARE, engine.bulk)]
    if not with_peers:
        notes.append("huey is left out, as asked")
        return Contest(engine, aims.SQLITE, rivals)
    try:
        found = huey.environment()
    except PeerMissing as error:
        notes.append(f"huey is left out: it {error}")
    else:
        notes.append(f"huey {found.version}, SQLite, one thread, its best")
        kinds = huey.WITHOUT_FSYNC, huey.WITH_FSYNC
        rivals["drain"] += [figure("drain", who, huey.drain(found, who)) for who in kinds]
    return Contest(engine, aims.SQLITE, rivals)


def _postgres(home: Path, notes: list[str], stamped: int, *, with_peers: bool) -> Contest:
    from bench.engines.postgres import PostgresEngine

    engine = PostgresEngine(home)
    rivals = _bare(engine)
    _add_bare_drains(rivals, engine)
    _enter_all(rivals, postgres.KINDS if with_peers else (), engine, notes, stamped)
    return Contest(engine, aims.POSTGRES, rivals)


def _valkey(home: Path, notes: list[str], stamped: int, *, with_peers: bool) -> Contest:
    from bench.engines.valkey import ValkeyEngine

    engine = ValkeyEngine(home)
    rivals = _bare(engine)
    _add_bare_drains(rivals, engine)
    rivals["bulk"].append(figure("bulk", aims.BARE_PIPELINE, engine.pipeline))
    rivals["concurrent"].append(figure("concurrent", aims.BARE_TASKS, engine.tasks))
    _enter_all(rivals, valkey.KINDS if with_peers else (), engine, notes, stamped)
    return Contest(engine, aims.VALKEY, rivals)


def _add_bare_drains(rivals: Rivals, engine: Engine) -> None:
    """What a server does bare in the batches that a worker has with less to do at once."""
    rivals["drain"].append(figure("drain", aims.BARE_100, lambda folder: engine.drain(folder, 100)))
    for batch in (10, 1):
        line = f"drain-{batch}"
        rivals[line] = [figure(line, aims.BARE_LIKE, lambda folder, batch=batch: engine.drain(folder, batch))]
    rivals["concurrent"] = [figure("concurrent", BARE, engine.bulk)]
    rivals["latency"] = []


def _enter_all(rivals: Rivals, kinds: Sequence[Kind], engine: Engine, notes: list[str], stamped: int) -> None:
    if not kinds:
        notes.append("peers are left out, as asked")
    for kind in kinds:
        try:
            peer = Peer(kind, kind.install(), engine)
        except PeerMissing as error:
            notes.append(f"{kind.name} is left out: it {error}")
            continue
        notes.append(f"{kind.name} {peer.environment.version}: {kind.best}")
        _enter(rivals, peer, stamped)


def _bare(engine: Engine) -> Rivals:
    return {
        "bulk": [figure("bulk", BARE, engine.bulk)],
        "one-by-one": [figure("one-by-one", BARE, engine.one_by_one)],
        "keys": [
            figure("keys-0", BARE, lambda folder: engine.deduplicated(folder, 1)),
            figure("keys-90", BARE, lambda folder: engine.deduplicated(folder, 10)),
        ],
        "drain": [figure("drain", BARE, lambda folder: engine.drain(folder, BATCH))],
    }


def _enter(rivals: Rivals, peer: Peer, stamped: int) -> None:
    """Add a peer to all trials that it can take part in."""
    kind = peer.kind

    def enter(trial: str, line: str, measure: Callable[[Path], float]) -> None:
        rivals[trial].append(figure(line, kind.name, measure))

    def latency(folder: Path) -> Samples:
        p50, p99 = peer.latency(folder, stamped)
        return {("latency-p50", kind.name): p50, ("latency-p99", kind.name): p99}

    if kind.bulks:
        enter("bulk", "bulk", peer.bulk)
    enter("concurrent", "concurrent", peer.concurrent)
    enter("one-by-one", "one-by-one", peer.one_by_one)
    if kind.keys:
        enter("keys", "keys-0", lambda folder: peer.deduplicated(folder, 1))
        enter("keys", "keys-90", lambda folder: peer.deduplicated(folder, 10))
    if 100 in kind.drained:
        enter("drain", "drain", lambda folder: peer.drain(folder, 100))
    if 10 in kind.drained:
        enter("drain-10", "drain-10", lambda folder: peer.drain(folder, 10))
    if kind.stamps:
        rivals["latency"].append(latency)
