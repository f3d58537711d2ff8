"""Trials of what operations cost as a store grows."""

from __future__ import annotations

from collections.abc import Iterator

from bench import crowding
from bench.aims import FLAT
from bench.engines import Filling
from bench.figures import Aim, Line, Trial, Unit
from bench.growth import OPERATIONS, Growth, line_key, size_name
from bench.trials.setting import Setting


def trials(setting: Setting) -> Iterator[Trial]:
    """All of them."""
    for filling in Filling:
        yield _growth(setting, filling)
    yield _crowded(setting)


def _growth(setting: Setting, filling: Filling) -> Trial:
    sizes = setting.scale.sizes
    smallest, *others = map(size_name, sizes[:-1])
    aims = Aim(smallest, at_most=FLAT), *[Aim(other) for other in others]
    lines = tuple(
        Line(line_key(filling, operation), f"{operation}, {sizes[-1]:,} {filling}", Unit.COST, aims)
        for operation in OPERATIONS
    )
    growth = Growth(setting.engine, filling, setting.home, sizes, setting.scale.batches)
    return setting.trial(f"growth-{filling}", lines, growth, most_runs=1)


def _crowded(setting: Setting) -> Trial:
    size = setting.scale.sizes[-1]
    full = f"{size:,} waiting and as many done"
    lines = (
        setting.line(crowding.P50, f"claim, {full}, p50", Unit.LATENCY),
        setting.line(crowding.P99, f"claim, {full}, p99", Unit.LATENCY),
    )
    measure = crowding.Crowding(setting.engine, setting.home, size, setting.scale.claims)
    return setting.trial("crowded", lines, measure, most_runs=2)
