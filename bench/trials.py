"""All trials of one engine, and what each figure aims at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import chains, lanes, producing, working
from bench.engines import Engine, Filling
from bench.figures import BARE, OURS, Aim, Line, Samples, Trial, Unit, figure
from bench.growth import OPERATIONS, SIZES, Growth, line_key, name_of
from bench.peers import Environment, huey

FLAT = 1.5
UNDISTURBED = 0.83  # within 1.2 times
LANELESS = "without"
PLAIN = "plain jobs"
ALONE = "alone"
KEYLESS = "without keys"
ALL_NEW = "all new"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of each is measured."""

    bulk: int = 60_000
    concurrent: int = 20_000
    single: int = 2_500
    drained: int = 30_000
    stamped: int = 200
    resting: float = 10.0
    batches: int = 60


QUICK = Scale(bulk=40_000, stamped=100, batches=40)


@dataclass(frozen=True, slots=True)
class Trials:
    """What is measured of one engine; `home` is where filled stores are kept meanwhile."""

    engine: Engine
    scale: Scale
    peer: Environment | None
    home: Path

    def __iter__(self) -> Iterator[Trial]:
        yield self._bulk()
        yield self._concurrent()
        yield self._one_by_one()
        yield self._keys()
        yield self._drain()
        yield self._lanes()
        yield self._crowd()
        yield self._chains()
        yield self._fan_in()
        yield self._latency()
        for filling in Filling:
            yield self._growth(filling)
        yield self._rest()

    def _bulk(self) -> Trial:
        line = Line("bulk", "bulk enqueue, 1,000 a call", Unit.RATE, (Aim(BARE, at_least=0.35),))
        return Trial(
            "bulk", (line,), (figure("bulk", OURS, self._our_bulk), figure("bulk", BARE, self.engine.bulk))
        )

    def _concurrent(self) -> Trial:
        def ours(folder: Path) -> float:
            return producing.concurrent(self.engine.url(folder), self.scale.concurrent)

        title = f"{producing.WAITERS} concurrent aenqueue (bare: bulk)"
        line = Line("concurrent", title, Unit.RATE, (Aim(BARE, at_least=0.15),))
        measures = figure("concurrent", OURS, ours), figure("concurrent", BARE, self.engine.bulk)
        return Trial("concurrent", (line,), measures)

    def _one_by_one(self) -> Trial:
        def ours(folder: Path) -> float:
            return producing.one_by_one(self.engine.url(folder), self.scale.single)

        line = Line("one-by-one", "enqueue one by one", Unit.RATE, (Aim(BARE, at_least=0.6),))
        measures = figure("one-by-one", OURS, ours), figure("one-by-one", BARE, self.engine.one_by_one)
        return Trial("one-by-one", (line,), measures)

    def _keys(self) -> Trial:
        def ours(folder: Path, repeats: int) -> float:
            return producing.deduplicated(self.engine.url(folder), self.scale.bulk, repeats)

        def all_new(folder: Path) -> Samples:
            rate = ours(folder, 1)
            return {("keys-0", OURS): rate, ("keys-90", ALL_NEW): rate}

        new = Aim(KEYLESS, at_least=0.7), Aim(BARE)
        kept = Aim(ALL_NEW, at_least=1.0), Aim(BARE)
        return Trial(
            "keys",
            (
                Line("keys-0", "bulk enqueue, all keys new", Unit.RATE, new),
                Line("keys-90", "bulk enqueue, 90 % duplicates kept", Unit.RATE, kept),
            ),
            (
                all_new,
                figure("keys-0", KEYLESS, self._our_bulk),
                figure("keys-90", OURS, lambda folder: ours(folder, 10)),
                figure("keys-0", BARE, lambda folder: self.engine.deduplicated(folder, 1)),
                figure("keys-90", BARE, lambda folder: self.engine.deduplicated(folder, 10)),
            ),
        )

    def _drain(self) -> Trial:
        def ours(folder: Path) -> float:
            return working.drain(self.engine.url(folder), self.scale.drained, concurrency=100)

        aims = Aim(BARE, at_least=0.2), Aim(huey.WITHOUT_FSYNC, at_least=4), Aim(huey.WITH_FSYNC)
        measures = [figure("drain", OURS, ours), figure("drain", BARE, self.engine.drain)]
        if self.peer is not None:
            kinds = huey.WITHOUT_FSYNC, huey.WITH_FSYNC
            measures += [figure("drain", who, huey.drain(self.peer, who)) for who in kinds]
        line = Line("drain", "drain of no-op jobs, concurrency 100", Unit.RATE, aims)
        return Trial("drain", (line,), tuple(measures))

    def _lanes(self) -> Trial:
        drains = lanes.Drains(self.engine, self.scale.drained)

        def without(folder: Path) -> Samples:
            rate = drains.without(folder)
            return {(key, LANELESS): rate for key in measures}

        measures = {
            "lanes-ordered": (f"drain, {lanes.LANES} lanes, one at a time", drains.ordered, 0.5),
            "lanes-wide": (f"drain, {lanes.LANES} lanes, three at a time", drains.wide, 0.5),
            "lanes-rated": (f"drain, {lanes.LANES} lanes, each with a rate", drains.rated, None),
            "lanes-limited": ("drain, limits of the queue", drains.limited, None),
        }
        lines = tuple(
            Line(key, title, Unit.RATE, (Aim(LANELESS, at_least=aim),))
            for key, (title, _, aim) in measures.items()
        )
        ours = (figure(key, OURS, measure) for key, (_, measure, _) in measures.items())
        return Trial("lanes", lines, (without, *ours))

    def _crowd(self) -> Trial:
        drains = lanes.Drains(self.engine, self.scale.drained)
        title = f"drain, {lanes.LANES} lanes beside one with {lanes.CROWD:,} parked"
        line = Line("crowd", title, Unit.RATE, (Aim(ALONE, at_least=UNDISTURBED),))
        measures = figure("crowd", OURS, drains.beside_a_crowd), figure("crowd", ALONE, drains.ordered)
        return Trial("crowd", (line,), measures)

    def _chains(self) -> Trial:
        def plain(folder: Path) -> float:
            return working.drain(self.engine.url(folder), self.scale.drained, concurrency=100)

        def ours(folder: Path) -> float:
            return chains.drain(self.engine.url(folder), self.scale.drained, concurrency=100)

        title = f"drain, chains of {chains.LENGTH}"
        line = Line("chains", title, Unit.RATE, (Aim(PLAIN),))
        return Trial("chains", (line,), (figure("chains", OURS, ours), figure("chains", PLAIN, plain)))

    def _fan_in(self) -> Trial:
        def measure(folder: Path, size: int) -> Samples:
            name = OURS if size == chains.LARGE else f"{size:,}"
            costs = chains.fan_in(self.engine.url(folder), size)
            return {(f"fan-in-{phase}", name): cost for phase, cost in costs.items()}

        aims = (Aim(f"{chains.SMALL:,}", at_most=FLAT),)
        lines = tuple(
            Line(f"fan-in-{phase}", f"fan-in over {chains.LARGE:,}, {phase} it", Unit.COST, aims)
            for phase in chains.PHASES
        )
        sizes = chains.SMALL, chains.LARGE
        measures = tuple(lambda folder, size=size: measure(folder, size) for size in sizes)
        return Trial("fan-in", lines, measures)

    def _latency(self) -> Trial:
        def ours(folder: Path) -> Samples:
            p50, p99 = working.latency(self.engine.url(folder), self.scale.stamped)
            return {("latency-p50", OURS): p50, ("latency-p99", OURS): p99}

        lines = (
            Line("latency-p50", "idle, enqueue to start, p50", Unit.LATENCY, (Aim(at_most=3.0),)),
            Line("latency-p99", "idle, enqueue to start, p99", Unit.LATENCY),
        )
        return Trial("latency", lines, (ours,), most_runs=2)

    def _growth(self, filling: Filling) -> Trial:
        smallest, *others = [name_of(size) for size in SIZES[:-1]]
        aims = Aim(smallest, at_most=FLAT), *[Aim(other) for other in others]
        lines = tuple(
            Line(line_key(filling, operation), f"{operation}, {SIZES[-1]:,} {filling}", Unit.COST, aims)
            for operation in OPERATIONS
        )
        growth = Growth(self.engine, filling, self.home, self.scale.batches)
        return Trial(f"growth-{filling}", lines, (growth,), most_runs=2)

    def _rest(self) -> Trial:
        def ours(folder: Path) -> Samples:
            memory, load = working.at_rest(self.engine.url(folder), self.scale.resting)
            return {("rest-memory", OURS): memory, ("rest-load", OURS): load}

        lines = (
            Line("rest-memory", "worker at rest, memory", Unit.MEMORY, (Aim(at_most=60.0),)),
            Line("rest-load", "worker at rest, load", Unit.LOAD, (Aim(at_most=0.5),)),
        )
        return Trial("rest", lines, (ours,), most_runs=1)

    def _our_bulk(self, folder: Path) -> float:
        return producing.bulk(self.engine.url(folder), self.scale.bulk)
