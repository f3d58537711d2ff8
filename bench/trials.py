"""All trials of a contest; those in which it aims at nothing are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import chains, crowding, hot_key, lanes, producing, working
from bench.aims import A_KEY_EACH, ALL_NEW, ALONE, FLAT, KEYLESS, LANELESS, PLAIN
from bench.contests import Contest
from bench.engines import Engine, Filling
from bench.figures import OURS, Aim, Line, Measure, Samples, Trial, Unit, figure
from bench.growth import OPERATIONS, SIZES, Growth, line_key, name_of


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
    claims: int = 300


QUICK = Scale(bulk=40_000, stamped=100, batches=40, claims=100)


@dataclass(frozen=True, slots=True)
class Trials:
    """What is measured in a contest; `home` is where filled stores are kept meanwhile."""

    contest: Contest
    scale: Scale
    home: Path

    @property
    def engine(self) -> Engine:
        """What is measured on."""
        return self.contest.engine

    def __iter__(self) -> Iterator[Trial]:
        return (trial for trial in self._all() if any(line.aims for line in trial.lines))

    def _all(self) -> Iterator[Trial]:
        yield self._bulk()
        yield self._concurrent()
        yield self._one_by_one()
        yield self._keys()
        yield self._hot_key()
        yield self._drain("drain", 100, self.scale.drained)
        yield self._drain("drain-10", 10, self.scale.drained // 3)
        yield self._drain("drain-1", 1, self.scale.drained // 20)
        yield self._lanes()
        yield self._crowd()
        yield self._chains()
        yield self._fan_in()
        yield self._latency()
        for filling in Filling:
            yield self._growth(filling)
        yield self._crowded()
        yield self._stored()
        yield self._rest()

    def _bulk(self) -> Trial:
        lines = (self._line("bulk", "bulk enqueue, 1,000 a call", Unit.RATE),)
        return self._beside_rivals("bulk", lines, figure("bulk", OURS, self._our_bulk))

    def _concurrent(self) -> Trial:
        def ours(folder: Path) -> float:
            return producing.concurrent(self.engine, folder, self.scale.concurrent)

        title = f"{producing.WAITERS} concurrent aenqueue (bare: bulk)"
        lines = (self._line("concurrent", title, Unit.RATE),)
        return self._beside_rivals("concurrent", lines, figure("concurrent", OURS, ours))

    def _one_by_one(self) -> Trial:
        def ours(folder: Path) -> float:
            return producing.one_by_one(self.engine.url(folder), self.scale.single)

        lines = (self._line("one-by-one", "enqueue one by one", Unit.RATE),)
        return self._beside_rivals("one-by-one", lines, figure("one-by-one", OURS, ours))

    def _keys(self) -> Trial:
        def ours(folder: Path, repeats: int) -> float:
            return producing.deduplicated(self.engine.url(folder), self.scale.bulk, repeats)

        def all_new(folder: Path) -> Samples:
            rate = ours(folder, 1)
            return {("keys-0", OURS): rate, ("keys-90", ALL_NEW): rate}

        lines = (
            self._line("keys-0", "bulk enqueue, all keys new", Unit.RATE),
            self._line("keys-90", "bulk enqueue, 90 % duplicates kept", Unit.RATE),
        )
        return self._beside_rivals(
            "keys",
            lines,
            all_new,
            figure("keys-0", KEYLESS, self._our_bulk),
            figure("keys-90", OURS, lambda folder: ours(folder, 10)),
        )

    def _hot_key(self) -> Trial:
        def measure(folder: Path, policy: str, keys: str) -> Samples:
            who = OURS if keys == hot_key.ONE else A_KEY_EACH
            cost = hot_key.cost(self.engine, folder, policy, keys, self.scale.single // 2)
            return {(f"hot-{policy}", who): cost}

        lines = tuple(
            self._line(f"hot-{policy}", f"other keys beside {hot_key.PRODUCERS} on one, {policy}", Unit.COST)
            for policy in hot_key.POLICIES
        )
        measures = [
            lambda folder, policy=policy, keys=keys: measure(folder, policy, keys)
            for policy in hot_key.POLICIES
            for keys in (hot_key.ONE, hot_key.EACH)
        ]
        return Trial("hot-key", lines, tuple(measures))

    def _drain(self, name: str, concurrency: int, count: int) -> Trial:
        def ours(folder: Path) -> float:
            return working.drain(self.engine, folder, count, concurrency)

        lines = (self._line(name, f"drain of no-op jobs, concurrency {concurrency}", Unit.RATE),)
        return self._beside_rivals(name, lines, figure(name, OURS, ours))

    def _lanes(self) -> Trial:
        drains = lanes.Drains(self.engine, self.scale.drained)

        def without(folder: Path) -> Samples:
            rate = drains.without(folder)
            return {(key, LANELESS): rate for key in measures}

        measures = {
            "lanes-ordered": (f"drain, {lanes.LANES} lanes, one at a time", drains.ordered),
            "lanes-wide": (f"drain, {lanes.LANES} lanes, three at a time", drains.wide),
            "lanes-rated": (f"drain, {lanes.LANES} lanes, each with a rate", drains.rated),
            "lanes-limited": ("drain, limits of the queue", drains.limited),
        }
        lines = tuple(self._line(key, title, Unit.RATE) for key, (title, _) in measures.items())
        ours = (figure(key, OURS, measure) for key, (_, measure) in measures.items())
        return Trial("lanes", lines, (without, *ours))

    def _crowd(self) -> Trial:
        drains = lanes.Drains(self.engine, self.scale.drained)
        title = f"drain, {lanes.LANES} lanes beside one with {lanes.CROWD:,} parked"
        measures = figure("crowd", OURS, drains.beside_a_crowd), figure("crowd", ALONE, drains.ordered)
        return Trial("crowd", (self._line("crowd", title, Unit.RATE),), measures)

    def _chains(self) -> Trial:
        def plain(folder: Path) -> float:
            return working.drain(self.engine, folder, self.scale.drained, concurrency=100)

        def ours(folder: Path) -> float:
            return chains.drain(self.engine, folder, self.scale.drained, concurrency=100)

        line = self._line("chains", f"drain, chains of {chains.LENGTH}", Unit.RATE)
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
            p50, p99 = working.latency(self.engine, folder, self.scale.stamped)
            return {("latency-p50", OURS): p50, ("latency-p99", OURS): p99}

        lines = (
            self._line("latency-p50", "idle, enqueue to start, p50", Unit.LATENCY),
            self._line("latency-p99", "idle, enqueue to start, p99", Unit.LATENCY),
        )
        return self._beside_rivals("latency", lines, ours, most_runs=2)

    def _growth(self, filling: Filling) -> Trial:
        smallest, *others = [name_of(size) for size in SIZES[:-1]]
        aims = Aim(smallest, at_most=FLAT), *[Aim(other) for other in others]
        lines = tuple(
            Line(line_key(filling, operation), f"{operation}, {SIZES[-1]:,} {filling}", Unit.COST, aims)
            for operation in OPERATIONS
        )
        growth = Growth(self.engine, filling, self.home, self.scale.batches)
        return Trial(f"growth-{filling}", lines, (growth,), most_runs=2)

    def _crowded(self) -> Trial:
        full = f"{crowding.SIZE:,} waiting and as many done"
        lines = (
            self._line(crowding.P50, f"claim, {full}, p50", Unit.LATENCY),
            self._line(crowding.P99, f"claim, {full}, p99", Unit.LATENCY),
        )
        measure = crowding.Crowding(self.engine, self.home, self.scale.claims)
        return Trial("crowded", lines, (measure,), most_runs=2)

    def _stored(self) -> Trial:
        def ours(folder: Path) -> float:
            producing.bulk(self.engine.url(folder), 1)
            before = self.engine.size(folder)
            self._our_bulk(folder)
            return (self.engine.size(folder) - before) / self.scale.bulk

        line = self._line("stored", "a waiting job in the store", Unit.SIZE)
        return Trial("stored", (line,), (figure("stored", OURS, ours),), most_runs=1)

    def _rest(self) -> Trial:
        def ours(folder: Path) -> Samples:
            memory, load = working.at_rest(self.engine.url(folder), self.scale.resting)
            return {("rest-memory", OURS): memory, ("rest-load", OURS): load}

        lines = (
            self._line("rest-memory", "worker at rest, memory", Unit.MEMORY),
            self._line("rest-load", "worker at rest, load", Unit.LOAD),
        )
        return Trial("rest", lines, (ours,), most_runs=1)

    def _our_bulk(self, folder: Path) -> float:
        return producing.bulk(self.engine.url(folder), self.scale.bulk)

    def _line(self, key: str, title: str, unit: Unit) -> Line:
        return Line(key, title, unit, self.contest.aims.get(key, ()))

    def _beside_rivals(
        self, name: str, lines: tuple[Line, ...], *ours: Measure, most_runs: int | None = None
    ) -> Trial:
        return Trial(name, lines, (*ours, *self.contest.rivals.get(name, ())), most_runs)
