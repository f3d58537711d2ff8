"""Trials of how soon a job starts: when nothing else goes on, and when much does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import load, working
from bench.figures import OURS, Samples, Trial, Unit, percentiles
from bench.trials.setting import Setting


def trials(setting: Setting) -> Iterator[Trial]:
    """All of them."""
    yield _latency(setting)
    yield _load(setting)


def _latency(setting: Setting) -> Trial:
    def ours(folder: Path) -> Samples:
        return percentiles("latency", OURS, working.latency(setting.engine, folder, setting.scale.stamped))

    lines = (
        setting.line("latency-p50", "idle, enqueue to start, p50", Unit.LATENCY),
        setting.line("latency-p99", "idle, enqueue to start, p99", Unit.LATENCY),
    )
    return setting.trial("latency", lines, ours, most_runs=2)


def _load(setting: Setting) -> Trial:
    def ours(folder: Path) -> Samples:
        found = load.waits(setting.engine, folder, setting.scale.loaded)
        return {**percentiles("load", OURS, found.starts), **percentiles("load-call", OURS, found.calls)}

    mixed = f"{load.RATE} mixed jobs a second"
    lines = (
        setting.line("load-p50", f"{mixed}, enqueue to start, p50", Unit.LATENCY),
        setting.line("load-p99", f"{mixed}, enqueue to start, p99", Unit.LATENCY),
        setting.line("load-call-p50", f"{mixed}, the enqueue itself, p50", Unit.LATENCY),
        setting.line("load-call-p99", f"{mixed}, the enqueue itself, p99", Unit.LATENCY),
    )
    return setting.trial("load", lines, ours, most_runs=2)
