"""What all trials of a store have in common: whom they are held against, and how much of each is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.contests import Contest
from bench.engines import Engine
from bench.figures import Line, Measure, Trial, Unit


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of each is measured."""

    bulk: int = 60_000
    concurrent: int = 20_000
    single: int = 2_500
    drained: int = 30_000
    stamped: int = 200
    loaded: int = 5_000
    resting: float = 10.0
    batches: int = 60
    claims: int = 1_000
    starts: int = 20
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Of stores, from small to large."""
    crowd: int = 100_000
    """Jobs parked in one lane."""
    fan_in: tuple[int, int] = (1_000, 10_000)


QUICK = Scale(bulk=40_000, stamped=100, loaded=2_000, batches=40, claims=100, starts=10)
SMALL = Scale(
    bulk=8_000,
    concurrent=5_000,
    single=400,
    drained=2_000,
    stamped=30,
    loaded=500,
    resting=1.5,
    batches=12,
    claims=30,
    starts=4,
    sizes=(1_000, 20_000),
    crowd=5_000,
    fan_in=(500, 2_000),
)
"""So little that all stores are done in three minutes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One store's contest; `home` is where filled stores are kept meanwhile."""

    store: str
    contest: Contest
    scale: Scale
    home: Path

    @property
    def engine(self) -> Engine:
        """What is measured on."""
        return self.contest.engine

    def line(self, key: str, title: str, unit: Unit) -> Line:
        """A line with what this store aims at."""
        return Line(key, title, unit, self.contest.aims.get(key, ()))

    def trial(
        self, name: str, lines: tuple[Line, ...], *ours: Measure, most_runs: int | None = None
    ) -> Trial:
        """Ours, and beside it whoever else takes part."""
        return Trial(self.store, name, lines, (*ours, *self.contest.rivals.get(name, ())), most_runs)
