"""Takes the figures: trial after trial, store by store, each contender right after the other; and all of it again for each run."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Measure, Reading, Trial
from bench.machine import Idleness

Progress = Callable[[str], None]


@dataclass(slots=True)
class Results:
    """What was found, and what went wrong. It grows, so that a run that is cut short leaves what it had."""

    readings: list[Reading] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """What each trial took in all its runs, waiting for an idle machine included, by store and trial."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Takes every figure in a fresh folder, on a machine as idle as it gets."""

    scratch: Path
    forget: Mapping[str, Callable[[Path], None]]
    """By store, called with a folder that is no longer needed."""
    idleness: Idleness
    progress: Progress

    def run(self, trials: Sequence[Trial], runs: int, results: Results) -> None:
        """Take all figures; one that fails is reported and keeps no other from being taken."""
        for run in range(runs):
            for trial in trials:
                if run < (trial.most_runs or runs):
                    self._run_trial(trial, run, results)

    def _run_trial(self, trial: Trial, run: int, results: Results) -> None:
        # Another one goes first in each run, so that going first helps nobody.
        first = run % len(trial.measures)
        for measure in (*trial.measures[first:], *trial.measures[:first]):
            self.progress(f"run {run + 1}: {trial.name} on {trial.store}")
            began = time.monotonic()
            try:
                results.readings += self._take(trial, measure, run)
            except Exception as error:
                what = f"{trial.store}, {trial.name}, run {run + 1}"
                results.failures.append(f"{what}: {type(error).__name__}: {error}")
            results.seconds[f"{trial.store} {trial.name}"] += time.monotonic() - began

    def _take(self, trial: Trial, measure: Measure, run: int) -> list[Reading]:
        with tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True) as folder:
            idle = self.idleness.wait()
            began = time.monotonic()
            try:
                found = measure(Path(folder))
            finally:
                self.forget[trial.store](Path(folder))
        seconds = round(time.monotonic() - began, 2)
        return [
            Reading(trial.store, trial.name, line, who, run, value, idle, seconds)
            for (line, who), value in found.items()
        ]


def steps(trials: Sequence[Trial], runs: int) -> int:
    """How many measurements that makes."""
    return sum(len(trial.measures) * min(runs, trial.most_runs or runs) for trial in trials)
