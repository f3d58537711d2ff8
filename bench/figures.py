"""What can be measured and what is aimed at, as plain values, and how an aim is judged. Nothing here measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TypeAlias

OURS = "ours"
BARE = "bare"
PERCENTS = (50, 75, 90, 95, 99, 99.9)
"""Of latencies; the table has the median and the 99th, the plot has all."""

Samples: TypeAlias = Mapping[tuple[str, str], float]
"""What one measurement found: by the line it belongs to and whose figure it is."""

Measure: TypeAlias = Callable[[Path], Samples]
"""Measures once, with files of its own in a fresh folder."""


class Unit(StrEnum):
    """What a figure counts."""

    RATE = "jobs/s"
    LATENCY = "ms"
    COST = "µs/job"
    MEMORY = "MB"
    LOAD = "% CPU"
    SIZE = "bytes/job"
    COMMITS = "commits/job"


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on our figure: on its ratio to somebody's in the same run, or else on the figure itself.

    Without a bound, the other's figure is shown for information.
    """

    beside: str | None = None
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of ours, and what it is held against."""

    key: str
    title: str
    unit: Unit
    aims: tuple[Aim, ...] = (Aim(),)


@dataclass(frozen=True, slots=True)
class Trial:
    """Measurements on one store that belong together and are taken one right after the other."""

    store: str
    name: str
    lines: tuple[Line, ...]
    measures: tuple[Measure, ...]
    most_runs: int | None = None
    """For what takes long and varies little."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample, and how it was taken."""

    store: str
    trial: str
    line: str
    who: str
    run: int
    value: float
    idle: float
    """The share of the machine that was idle just before."""
    seconds: float
    """What the whole measurement took, with all that had to be set up for it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How one aim of one line stands. An empty range was not measured."""

    line: Line
    aim: Aim
    ours: tuple[float, ...]
    beside: tuple[float, ...]
    ratio: float | None
    met: bool | None


def is_better(value: float, unit: Unit, *, than: float) -> bool:
    """Of rates the higher is better, of everything else the lower."""
    return value > than if unit is Unit.RATE else value < than


def figure(line: str, who: str, measure: Callable[[Path], float]) -> Measure:
    """A measurement that finds a single figure."""
    return lambda folder: {(line, who): measure(folder)}


def drained(line: str, who: str, rate: float, commits: float | None) -> Samples:
    """A drain's rate, and the transactions for each of its jobs where they were counted, as a reading of `line-commits`."""
    counted = {} if commits is None else {(f"{line}-commits", who): commits}
    return {(line, who): rate, **counted}


def percentiles(line: str, who: str, seconds: Sequence[float]) -> Samples:
    """How long it took, in milliseconds, from the median to the worst, as readings of `line-p50` and so on."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        (f"{line}-p{percent:g}", who): 1000 * ordered[min(last, int(len(ordered) * percent / 100))]
        for percent in PERCENTS
    }


def judge(line: Line, aim: Aim, readings: Sequence[Reading]) -> Judgement:
    """Compare run by run, and let the median run speak: a noisy neighbour spoils one, seldom all.

    The readings are those of the line's own store.
    """
    ours = _by_run(readings, line.key, OURS)
    beside = {} if aim.beside is None else _by_run(readings, line.key, aim.beside)
    ratios = [ours[run] / beside[run] for run in ours.keys() & beside.keys()]
    ratio = median(ratios) if ratios else None
    judged = ratio if aim.beside is not None else median(ours.values()) if ours else None
    return Judgement(line, aim, tuple(ours.values()), tuple(beside.values()), ratio, _met(aim, judged))


def _by_run(readings: Sequence[Reading], line: str, who: str) -> dict[int, float]:
    return {reading.run: reading.value for reading in readings if (reading.line, reading.who) == (line, who)}


def _met(aim: Aim, value: float | None) -> bool | None:
    if value is None or (aim.at_least is None and aim.at_most is None):
        return None
    return (aim.at_least is None or value >= aim.at_least) and (aim.at_most is None or value <= aim.at_most)
