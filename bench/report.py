"""The figures as a table for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.figures import Aim, Judgement, Reading, Trial, Unit, judge
from bench.machine import IDLE_ENOUGH
from bench.runner import Results

_HEAD = ("", "ours", "beside", "ratio", "aim", "")


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark."""

    trials: Sequence[Trial]
    results: Results
    machine: Mapping[str, str | int]
    settings: Mapping[str, Any]
    notes: Sequence[str]

    def as_text(self) -> str:
        """The table, and below it what one should know about it."""
        rows = [_HEAD]
        for judgements in self._by_line():
            rows += [_row(judgement, first=index == 0) for index, judgement in enumerate(judgements)]
        return "\n".join([*_aligned(rows), "", *self._remarks()])

    def as_data(self) -> dict[str, Any]:
        """Everything, raw figures included."""
        return {
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "notes": self._remarks(),
            "figures": [_judged(judgement) for line in self._by_line() for judgement in line],
            "readings": [asdict(reading) for reading in self.results.readings],
            "failures": self.results.failures,
        }

    def _by_line(self) -> list[list[Judgement]]:
        readings = self.results.readings
        judged = (
            [judge(line, aim, readings) for aim in line.aims] for trial in self.trials for line in trial.lines
        )
        return [
            [judgement for index, judgement in enumerate(line) if index == 0 or _says_something(judgement)]
            for line in judged
        ]

    def _remarks(self) -> list[str]:
        versions = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        remarks = [versions, settings, *self.notes, *_restlessness(self.results.readings)]
        return remarks + [f"failed: {failure}" for failure in self.results.failures]


def _restlessness(readings: Sequence[Reading]) -> list[str]:
    busy = [reading.idle for reading in readings if reading.idle < IDLE_ENOUGH]
    if not busy:
        return []
    return [
        f"the machine was not idle for {len(busy)} of {len(readings)} figures "
        f"({min(busy):.0%} to {max(busy):.0%} idle): compare only what stands in one line, and with care"
    ]


def _says_something(judgement: Judgement) -> bool:
    """Nobody misses a figure that is for information only."""
    aim = judgement.aim
    return bool(judgement.beside) or aim.at_least is not None or aim.at_most is not None


def _row(judgement: Judgement, *, first: bool) -> tuple[str, ...]:
    line, aim = judgement.line, judgement.aim
    beside = ""
    if aim.beside is not None:
        beside = f"{aim.beside}: {_range(judgement.beside, line.unit)}"
    return (
        line.title if first else "",
        _range(judgement.ours, line.unit, f" {line.unit}") if first else "",
        beside,
        "" if judgement.ratio is None else f"{judgement.ratio:.3g}",
        _aim(aim, line.unit),
        {True: "ok", False: "miss", None: ""}[judgement.met],
    )


def _range(values: Sequence[float], unit: Unit, suffix: str = "") -> str:
    if not values:
        return "not measured"
    low, high = _number(min(values), unit), _number(max(values), unit)
    return f"{low}{suffix}" if low == high else f"{low} to {high}{suffix}"


def _number(value: float, unit: Unit) -> str:
    match unit:
        case Unit.RATE:
            return f"{value / 1000:.1f}k"
        case Unit.LATENCY | Unit.LOAD:
            return f"{value:.2f}"
        case Unit.SIZE:
            return f"{value:.0f}"
        case Unit.COST | Unit.MEMORY:
            return f"{value:.1f}"


def _aim(aim: Aim, unit: Unit) -> str:
    suffix = "" if aim.beside is not None else f" {unit}"
    if aim.at_least is not None:
        return f">= {aim.at_least:g}{suffix}"
    return "" if aim.at_most is None else f"<= {aim.at_most:g}{suffix}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _judged(judgement: Judgement) -> dict[str, Any]:
    line, aim = judgement.line, judgement.aim
    return {
        "figure": line.key,
        "title": line.title,
        "unit": line.unit,
        "ours": _ends(judgement.ours),
        "beside": aim.beside,
        "theirs": _ends(judgement.beside),
        "ratio": judgement.ratio,
        "at_least": aim.at_least,
        "at_most": aim.at_most,
        "met": judgement.met,
    }


def _ends(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)] if values else []
