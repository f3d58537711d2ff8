"""Trials of workers that empty a queue: of plain jobs, through lanes and limits, along chains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench import chains, lanes, working
from bench.aims import ALONE, FLAT, LANELESS, ONE_WORKER, PLAIN
from bench.engines import per_job
from bench.figures import OURS, Aim, Line, Samples, Trial, Unit, drained, figure
from bench.jobs import define
from bench.trials.setting import Setting

WIDE = 100


def trials(setting: Setting) -> Iterator[Trial]:
    """All of them."""
    count = setting.scale.drained
    yield _drain(setting, "drain", WIDE, count)
    yield _drain(setting, "drain-10", 10, count // 3)
    yield _drain(setting, "drain-1", 1, count // 20)
    yield _two_workers(setting)
    yield _lanes(setting)
    yield _crowd(setting)
    yield _chains(setting)
    yield _fan_in(setting)


def _drain(setting: Setting, name: str, concurrency: int, count: int) -> Trial:
    def ours(folder: Path) -> Samples:
        engine = setting.engine
        jobs = define(engine.url(folder))
        with jobs.app:
            working.fill(jobs, count)
        before = engine.committed(folder)
        jobs = define(engine.url(folder))
        with jobs.app:
            rate = working.drained(jobs.app, engine, folder, count, concurrency)
        after = engine.committed(folder)
        return drained(name, OURS, rate, per_job(before, after, count))

    title = f"concurrency {concurrency}"
    lines = (
        setting.line(name, f"drain of no-op jobs, {title}", Unit.RATE),
        setting.line(f"{name}-commits", f"transactions of such a drain, {title}", Unit.COMMITS),
    )
    return setting.trial(name, lines, ours)


def _two_workers(setting: Setting) -> Trial:
    def ours(folder: Path, workers: int) -> float:
        return working.drain(setting.engine, folder, setting.scale.drained, WIDE, workers=workers)

    line = setting.line("drain-two", f"drain by two workers, concurrency {WIDE} each", Unit.RATE)
    return setting.trial(
        "drain-two",
        (line,),
        figure("drain-two", OURS, lambda folder: ours(folder, 2)),
        figure("drain-two", ONE_WORKER, lambda folder: ours(folder, 1)),
    )


def _lanes(setting: Setting) -> Trial:
    drains = lanes.Drains(setting.engine, setting.scale.drained)

    def without(folder: Path) -> Samples:
        rate = drains.without(folder)
        return {(key, LANELESS): rate for key in measures}

    measures = {
        "lanes-ordered": (f"drain, {lanes.LANES} lanes, one at a time", drains.ordered),
        "lanes-wide": (f"drain, {lanes.LANES} lanes, three at a time", drains.wide),
        "lanes-rated": (f"drain, {lanes.LANES} lanes, each with a rate", drains.rated),
        "lanes-limited": ("drain, limits of the queue", drains.limited),
    }
    lines = tuple(setting.line(key, title, Unit.RATE) for key, (title, _) in measures.items())
    ours = (figure(key, OURS, measure) for key, (_, measure) in measures.items())
    return setting.trial("lanes", lines, without, *ours)


def _crowd(setting: Setting) -> Trial:
    drains = lanes.Drains(setting.engine, setting.scale.drained)
    crowd = setting.scale.crowd

    def ours(folder: Path) -> float:
        return drains.beside_a_crowd(folder, crowd)

    line = setting.line("crowd", f"drain, {lanes.LANES} lanes beside one with {crowd:,} parked", Unit.RATE)
    return setting.trial(
        "crowd", (line,), figure("crowd", OURS, ours), figure("crowd", ALONE, drains.ordered)
    )


def _chains(setting: Setting) -> Trial:
    def plain(folder: Path) -> float:
        return working.drain(setting.engine, folder, setting.scale.drained, WIDE)

    def ours(folder: Path) -> float:
        return chains.drain(setting.engine, folder, setting.scale.drained, WIDE)

    line = setting.line("chains", f"drain, chains of {chains.LENGTH}", Unit.RATE)
    return setting.trial("chains", (line,), figure("chains", OURS, ours), figure("chains", PLAIN, plain))


def _fan_in(setting: Setting) -> Trial:
    small, large = setting.scale.fan_in

    def measure(folder: Path, size: int) -> Samples:
        name = OURS if size == large else f"{size:,}"
        costs = chains.fan_in(setting.engine.url(folder), size)
        return {(f"fan-in-{phase}", name): cost for phase, cost in costs.items()}

    aims = (Aim(f"{small:,}", at_most=FLAT),)
    lines = tuple(
        Line(f"fan-in-{phase}", f"fan-in over {large:,}, {phase} it", Unit.COST, aims)
        for phase in chains.PHASES
    )
    measures = [lambda folder, size=size: measure(folder, size) for size in (small, large)]
    return setting.trial("fan-in", lines, *measures)
