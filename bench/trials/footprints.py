"""Trials of what onejob takes of a machine: room, memory, processor time, and time to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import producing, starting, working
from bench.aims import PYTHON_ALONE
from bench.figures import OURS, Samples, Trial, Unit, figure
from bench.trials.enqueues import our_bulk
from bench.trials.setting import Setting


def trials(setting: Setting) -> Iterator[Trial]:
    """All of them."""
    yield _stored(setting)
    yield _rest(setting)
    yield _busy(setting)
    yield _start(setting)


def _stored(setting: Setting) -> Trial:
    engine, bulk = setting.engine, our_bulk(setting)

    def ours(folder: Path) -> float:
        producing.bulk(engine.url(folder), 1)
        before = engine.size(folder)
        bulk(folder)
        return (engine.size(folder) - before) / setting.scale.bulk

    line = setting.line("stored", "a waiting job in the store", Unit.SIZE)
    return setting.trial("stored", (line,), figure("stored", OURS, ours), most_runs=1)


def _rest(setting: Setting) -> Trial:
    def ours(folder: Path) -> Samples:
        memory, load = working.at_rest(setting.engine.url(folder), setting.scale.resting)
        return {("rest-memory", OURS): memory, ("rest-load", OURS): load}

    lines = (
        setting.line("rest-memory", "worker at rest, memory", Unit.MEMORY),
        setting.line("rest-load", "worker at rest, load", Unit.LOAD),
    )
    return setting.trial("rest", lines, ours, most_runs=1)


def _busy(setting: Setting) -> Trial:
    drained = setting.scale.drained

    def ours(folder: Path) -> float:
        return working.peak_memory(setting.engine, folder, drained, concurrency=100)

    line = setting.line("busy-memory", f"worker that drains {drained:,} jobs, memory at most", Unit.MEMORY)
    return setting.trial("busy", (line,), figure("busy-memory", OURS, ours), most_runs=1)


def _start(setting: Setting) -> Trial:
    def ours(folder: Path) -> Samples:
        taken = starting.times(folder, setting.scale.starts)
        alone = taken[starting.PYTHON]
        return {
            ("start-import", OURS): taken[starting.IMPORT],
            ("start-import", PYTHON_ALONE): alone,
            ("start-cli", OURS): taken[starting.COMMAND_LINE],
            ("start-cli", PYTHON_ALONE): alone,
        }

    lines = (
        setting.line("start-import", "a program that defines a task, from start to end", Unit.LATENCY),
        setting.line("start-cli", "onejob --help, from start to end", Unit.LATENCY),
    )
    return setting.trial("start", lines, ours, most_runs=1)
