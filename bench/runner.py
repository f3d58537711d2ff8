"""Takes the figures: trial after trial, each contender right after the other, and all of it again for each run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Measure, Reading, Trial
from bench.machine import Idleness

Progress = Callable[[str], None]


@dataclass(slots=True)
class Results:
    """What was found, and what went wrong."""

    readings: list[Reading] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Runner:
    """Takes every figure in a fresh folder, on a machine as idle as it gets."""

    scratch: Path
    forget: Callable[[Path], None]
    """Called with a folder that is no longer needed."""
    idleness: Idleness
    progress: Progress

    def run(self, trials: Sequence[Trial], runs: int) -> Results:
        """Take all figures; one that fails is reported and keeps no other from being taken."""
        results = Results()
        for run in range(runs):
            for trial in trials:
                if run < (trial.most_runs or runs):
                    self._run_trial(trial, run, results)
        return results

    def _run_trial(self, trial: Trial, run: int, results: Results) -> None:
        # Another one goes first in each run, so that going first helps nobody.
        first = run % len(trial.measures)
        for measure in (*trial.measures[first:], *trial.measures[:first]):
            self.progress(f"run {run + 1}: {trial.name}")
            try:
                results.readings += self._take(trial, measure, run)
            except Exception as error:
                results.failures.append(f"{trial.name}, run {run + 1}: {type(error).__name__}: {error}")

    def _take(self, trial: Trial, measure: Measure, run: int) -> list[Reading]:
        with tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True) as folder:
            idle = self.idleness.wait()
            try:
                found = measure(Path(folder))
            finally:
                self.forget(Path(folder))
        return [Reading(trial.name, line, who, run, value, idle) for (line, who), value in found.items()]


def steps(trials: Sequence[Trial], runs: int) -> int:
    """How many measurements that makes."""
    return sum(len(trial.measures) * min(runs, trial.most_runs or runs) for trial in trials)
