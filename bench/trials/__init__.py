"""All trials of a contest; those in which it aims at nothing are left out. Names of several at once are in `SUBSETS`."""

from __future__ import annotations

from collections.abc import Iterator

from bench.engines import Filling
from bench.figures import Trial
from bench.trials import drains, enqueues, footprints, latencies, sizes
from bench.trials.setting import Setting

SUBSETS = {
    "enqueues": ("bulk", "concurrent", "one-by-one"),
    "duplicates": ("keys", "updates", "debounces", "hot-key"),
    "drains": ("drain", "drain-10", "drain-1", "drain-two"),
    "orders": ("lanes", "crowd", "chains", "fan-in"),
    "latencies": ("latency", "load", "crowded"),
    "sizes": (*[f"growth-{filling}" for filling in Filling], "crowded"),
    "footprints": ("stored", "rest", "busy", "start"),
}
"""Trials by what they are about."""


def trials(setting: Setting) -> list[Trial]:
    """The trials of one store, in the order in which they are taken."""
    return [trial for trial in _all(setting) if any(line.aims for line in trial.lines)]


def _all(setting: Setting) -> Iterator[Trial]:
    yield from enqueues.trials(setting)
    yield from drains.trials(setting)
    yield from latencies.trials(setting)
    yield from sizes.trials(setting)
    yield from footprints.trials(setting)
