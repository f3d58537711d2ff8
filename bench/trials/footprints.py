"""Trials of what onejob takes of a machine: room, memory, processor time, and time to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench import lanes, producing, starting, working
from bench.aims import PYTHON_ALONE
from bench.figures import OURS, Samples, Trial, Unit, figure
from bench.jobs import ALL_UNKNOWN, define
from bench.trials.enqueues import our_bulk
from bench.trials.setting import Setting


def trials(setting: Setting) -> Iterator[Trial]:
    """All of them."""
    yield _stored(setting)
    yield _rest(setting)
    yield _busy(setting)
    yield _start(setting)


def _stored(setting: Setting) -> Trial:
    engine, count = setting.engine, setting.scale.bulk

    def keyed(folder: Path) -> None:
        producing.deduplicated(engine.url(folder), count, producing.POLICIES["kept"], ALL_UNKNOWN)

    def laned(folder: Path) -> None:
        jobs = define(engine.url(folder))
        with jobs.app:
            working.fill(jobs, count, lanes.lane)

    def measure(folder: Path, send: Callable[[Path], object]) -> float:
        producing.bulk(engine.url(folder), 1)
        before = engine.size(folder)
        send(folder)
        return (engine.size(folder) - before) / count

    kinds: dict[str, tuple[str, Callable[[Path], object]]] = {
        "stored": ("a waiting job in the store", our_bulk(setting)),
        "stored-keyed": ("the same with a key", keyed),
        "stored-laned": (f"the same in one of {lanes.LANES} lanes", laned),
    }
    lines = tuple(setting.line(key, title, Unit.SIZE) for key, (title, _) in kinds.items())
    ours = (
        figure(key, OURS, lambda folder, send=send: measure(folder, send)) for key, (_, send) in kinds.items()
    )
    return setting.trial("stored", lines, *ours, most_runs=1)


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
