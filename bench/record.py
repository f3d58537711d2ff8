"""What a run leaves behind, as plain values: judged figures, every reading, and all that they depend on.

It is kept as JSON; tables and plots are made of it alone, so they can be made again without measuring.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.figures import Judgement, Reading, Trial, Unit, judge
from bench.machine import IDLE_ENOUGH
from bench.runner import Results

_PLACES = re.compile(r"\w+://[^\s'\"]+|host='[^']*'|(?<![\w.])/[\w.@-]+(?:/[\w.@+-]+)+")
"""Addresses and paths: they say nothing about a figure, only about whose machine it was."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of ours and one that it is held against, from the lowest to the highest of all runs."""

    store: str
    trial: str
    key: str
    title: str
    unit: Unit
    ours: list[float]
    beside: str | None
    theirs: list[float]
    ratio: float | None
    at_least: float | None
    at_most: float | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class Record:
    """One run of the benchmark."""

    machine: dict[str, str | int]
    settings: dict[str, str | int]
    notes: list[str]
    figures: list[Figure]
    readings: list[Reading]
    failures: list[str]
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """What each trial took, by store and trial."""

    def remarks(self) -> list[str]:
        """What one should know about the figures, a line each."""
        lines = [", ".join(f"{name} {value}" for name, value in self.machine.items())]
        lines += [f"{name}: {value}" for name, value in self.settings.items()]
        lines += [*self.notes, *_restlessness(self.readings)]
        return lines + [f"failed: {failure}" for failure in self.failures]


def recorded(
    trials: Sequence[Trial],
    results: Results,
    machine: Mapping[str, str | int],
    settings: Mapping[str, str | int],
    notes: Sequence[str],
) -> Record:
    """Judge what was found; what is left unsaid is where it was found."""
    return Record(
        dict(machine),
        dict(settings),
        [_placeless(note) for note in notes],
        [figure for trial in trials for figure in _figures(trial, results.readings)],
        list(results.readings),
        [_placeless(failure) for failure in results.failures],
        {trial: round(seconds, 1) for trial, seconds in results.seconds.items()},
    )


def save(record: Record, file: Path) -> None:
    """Write it so that it can be read, and compared line by line."""
    file.write_bytes(as_json(record) + b"\n")


def load(file: Path) -> Record:
    """Read what `save` wrote."""
    return msgspec.json.decode(file.read_bytes(), type=Record)


def as_json(record: Record) -> bytes:
    """All of it."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def _figures(trial: Trial, readings: Sequence[Reading]) -> list[Figure]:
    here = [reading for reading in readings if (reading.store, reading.trial) == (trial.store, trial.name)]
    judgements = [
        judgement
        for line in trial.lines
        for number, aim in enumerate(line.aims)
        for judgement in [judge(line, aim, here)]
        if number == 0 or _says_something(judgement)
    ]
    return [_figure(trial, judgement) for judgement in judgements]


def _figure(trial: Trial, judgement: Judgement) -> Figure:
    line, aim = judgement.line, judgement.aim
    return Figure(
        trial.store,
        trial.name,
        line.key,
        line.title,
        line.unit,
        _ends(judgement.ours),
        aim.beside,
        _ends(judgement.beside),
        judgement.ratio,
        aim.at_least,
        aim.at_most,
        judgement.met,
    )


def _says_something(judgement: Judgement) -> bool:
    """Nobody misses a figure that is for information only."""
    aim = judgement.aim
    return bool(judgement.beside) or aim.at_least is not None or aim.at_most is not None


def _ends(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)] if values else []


def _restlessness(readings: Sequence[Reading]) -> list[str]:
    busy = [reading.idle for reading in readings if reading.idle < IDLE_ENOUGH]
    if not busy:
        return []
    return [
        f"the machine was not idle for {len(busy)} of {len(readings)} figures "
        f"({min(busy):.0%} to {max(busy):.0%} idle): compare only what stands in one line, and with care"
    ]


def _placeless(text: str) -> str:
    return _PLACES.sub("…", text)
