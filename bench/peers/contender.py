"""A peer on a server: how it is installed, told what to do and timed. Which peers there are is in the store's module."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import load
from bench.engines import Engine, per_job
from bench.jobs import Repetition
from bench.peers import APPS, Environment
from bench.working import stop, until

LOOK = 0.02
SETTLING_DOWN = 0.5
PATIENCE = 120.0

Question = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """A peer: how to get it, and how much of it is measured, so that slow ones take no longer than fast ones."""

    name: str
    install: Callable[[], Environment]
    app: str
    left: Callable[[str], AbstractContextManager[Question]]
    """Asks the store at a URL, again and again, whether jobs are left."""
    best: str
    """The settings, in words."""
    single: int = 1_500
    concurrent: int = 4_000
    """0 for one whose calls cannot be awaited."""
    bulk: int = 20_000
    drained: Mapping[int, int] = field(default_factory=dict[int, int])
    """Jobs by concurrency."""
    bulks: bool = True
    """Whether it can send many in one call."""
    keyed: int | None = None
    """Calls with keys, as many as in bulk unless it says so; 0 for one that has none."""
    pairs: bool = False
    """Whether two workers of it are measured, too."""
    stamped: int = 100
    loaded: int = 2_000
    """At most so many calls when nothing else goes on, and under load."""

    @property
    def trials(self) -> frozenset[str]:
        """In which it takes part."""
        can = {
            "one-by-one": True,
            "concurrent": self.concurrent > 0,
            "bulk": self.bulks,
            "keys": self.keyed != 0,
            "drain": 100 in self.drained,
            "drain-10": 10 in self.drained,
            "drain-1": 1 in self.drained,
            "drain-two": self.pairs,
            "latency": True,
            "load": True,
        }
        return frozenset(trial for trial, possible in can.items() if possible)


@dataclass(frozen=True, slots=True)
class Drain:
    """How fast a queue was drained, in jobs per second, and the transactions for each job, where they are counted.

    Those of a worker's start and end are among them.
    """

    rate: float
    commits: float | None


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that is installed. Each measurement has a database of its own."""

    kind: Kind
    environment: Environment
    engine: Engine

    def one_by_one(self, folder: Path) -> float:
        """Jobs per second, each awaited before the next."""
        return self._rate(folder, "one-by-one", self.kind.single)

    def concurrent(self, folder: Path) -> float:
        """Jobs per second of 100 who each await one after the other."""
        return self._rate(folder, "concurrent", self.kind.concurrent)

    def bulk(self, folder: Path) -> float:
        """Jobs per second, 1,000 a call."""
        return self._rate(folder, "bulk", self.kind.bulk)

    def deduplicated(self, folder: Path, repetition: Repetition) -> float:
        """Calls per second, 1,000 a call, each with a key."""
        count = self.kind.bulk if self.kind.keyed is None else self.kind.keyed
        return self._rate(folder, "keys", count, repetition.times, int(repetition.known))

    def drain(self, folder: Path, concurrency: int, workers: int = 1) -> Drain:
        """From the first start to the last settled row."""
        count = self.kind.drained[concurrency]
        self._rate(folder, "bulk", count)
        self.engine.analyze(folder)
        os.sync()
        before = self.engine.committed(folder)
        with ExitStack() as running:
            for number in range(workers):
                running.enter_context(self._worker(folder, concurrency, number))
            ended, looks = self._settled(self.engine.url(folder))
            starts = [json.loads(note.read_text()) for note in folder.glob("*/started")]
        after = self.engine.committed(folder)
        own = None if after is None else after - looks
        return Drain(count / (ended - min(starts)), per_job(before, own, count))

    def latency(self, folder: Path, count: int) -> list[float]:
        """Seconds from before the enqueue to the handler's first line in another process, of each job."""
        return self._waits(folder, 10, "stamps", min(count, self.kind.stamped))

    def under_load(self, folder: Path, count: int) -> list[float]:
        """The same of calls that come as fast as ours do under load; but they are plain ones."""
        return self._waits(folder, load.CONCURRENCY, "load", min(count, self.kind.loaded), load.RATE)

    def _waits(self, folder: Path, concurrency: int, *words: object) -> list[float]:
        self._call(folder, "install")
        with self._worker(folder, concurrency):
            notes = folder / "worker-0"
            self._call(folder, "one-by-one", 0)  # sends a single one, to see that the worker is there
            until((notes / "started").exists, f"{self.kind.name} to start a job")
            time.sleep(SETTLING_DOWN)
            self._call(folder, *words)
            waits = notes / "waits"
            until(waits.exists, f"{self.kind.name} to start the last job")
            return json.loads(waits.read_text())

    def _rate(self, folder: Path, command: str, *numbers: int) -> float:
        self._call(folder, "install")
        return json.loads(self._call(folder, command, *numbers))

    def _call(self, folder: Path, *words: object) -> str:
        try:
            done = subprocess.run(
                self._command(*words),
                env=self._surroundings(folder),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(
                f"{self.kind.name} took more than {PATIENCE:.0f} seconds for {words}"
            ) from error
        if done.returncode != 0:
            raise RuntimeError(f"{self.kind.name} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout.strip().rpartition("\n")[2]

    @contextmanager
    def _worker(self, folder: Path, concurrency: int, number: int = 0) -> Iterator[None]:
        notes = folder / f"worker-{number}"
        notes.mkdir()
        with (notes / "log").open("wb") as log:
            process = subprocess.Popen(
                self._command("work", concurrency),
                env={**self._surroundings(folder), "BENCH_NOTES": str(notes)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            stop(process)

    def _settled(self, url: str) -> tuple[float, int]:
        """The instant at which no job was left, and how often that was asked."""
        deadline = time.monotonic() + PATIENCE
        looks = 1
        with self.kind.left(url) as are_left:
            while are_left():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self.kind.name} did not drain its queue")
                time.sleep(LOOK)
                looks += 1
        return time.monotonic(), looks

    def _command(self, *words: object) -> list[str]:
        app = self.kind.app
        if app.endswith(".mjs"):
            program = ["node", str(self.environment.folder / app)]
        else:
            program = [self.environment.program("python"), str(APPS / f"{app}.py")]
        return [*program, *map(str, words)]

    def _surroundings(self, folder: Path) -> dict[str, str]:
        settings = {
            "BENCH_URL": self.engine.url(folder),
            "BENCH_VERSION": self.environment.version,
        }
        return {**os.environ, **settings}
