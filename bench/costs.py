"""What one job costs on each side: round trips, commits, bytes, and the processor time of the server and of the client.

Everything of ours runs in this process, the worker too, so that its time is all that the client takes. Processor time is the
least of all rounds, since whatever is above that was somebody else's; what is counted is the median.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from bench.engines import Engine
from bench.gauges import Gauge, Gauges, postgres, sqlite, valkey
from bench.jobs import Jobs, arguments, define
from bench.producing import CHUNK, WAITERS
from onejob.core.lifecycle import Move
from onejob.loops import new_loop

CONCURRENCY = 100
_SETTLING_DOWN = 0.5
_LOOKS = 0.02
_TRIPS = 300
_SYNCED = 8_192
"""Bytes of a small commit."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one job."""

    calls: float
    commits: float
    bytes: float
    server: float
    """Microseconds."""
    client: float
    """Microseconds."""


@dataclass(frozen=True, slots=True)
class StoreCosts:
    """All that one store costs, by what is done, and what it takes to wait for it, in microseconds."""

    store: str
    costs: dict[str, Cost]
    durable: float
    """To make a small write durable; 0 where nothing is."""
    round_trip: float


@dataclass(slots=True)
class Meter:
    """Reads a gauge around what is to be measured."""

    gauge: Gauge
    found: list[Cost] = field(default_factory=list[Cost])

    @contextmanager
    def around(self, count: int) -> Iterator[None]:
        """Measure the block, which deals with `count` jobs."""
        written, before = self.gauge.written(), self.gauge.spent()
        client = time.process_time()
        yield
        client = time.process_time() - client
        after = self.gauge.spent()
        server = after.server - before.server
        client -= after.gauge - before.gauge
        self.found.append(
            Cost(
                (after.calls - before.calls) / count,
                (after.commits - before.commits) / count,
                (self.gauge.written() - written) / count,
                1e6 * server / count,
                1e6 * (client if self.gauge.apart else client - server) / count,
            )
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a round is taken: a fresh store."""

    engine: Engine
    folder: Path
    meter: Meter

    @property
    def jobs(self) -> Jobs:
        """An app for it."""
        return define(self.engine.url(self.folder))


Work: TypeAlias = Callable[[Place, int], None]


def one_by_one(place: Place, count: int) -> None:
    """One thread that calls `enqueue`."""
    jobs = place.jobs
    with jobs.app:
        for number in range(CHUNK // 10):
            jobs.nothing.enqueue(**arguments(number))
        with place.meter.around(count):
            for number in range(count):
                jobs.nothing.enqueue(**arguments(number))


def together(place: Place, count: int) -> None:
    """Coroutines that each await one `aenqueue` after the other."""
    place.engine.run(_together(place, count))


def in_bulk(place: Place, count: int) -> None:
    """`enqueue_many` of plain jobs."""
    jobs = place.jobs
    with jobs.app:
        _send(jobs, jobs.nothing, range(CHUNK))
        with place.meter.around(count):
            _send(jobs, jobs.nothing, range(count))


def with_new_keys(place: Place, count: int) -> None:
    """The same of jobs whose keys nobody holds."""
    jobs = place.jobs
    with jobs.app:
        _send(jobs, jobs.unique, range(-CHUNK, 0))
        with place.meter.around(count):
            _send(jobs, jobs.unique, range(count))


def with_held_keys(place: Place, count: int) -> None:
    """The same of jobs whose keys are held by waiting ones."""
    jobs = place.jobs
    with jobs.app:
        _send(jobs, jobs.unique, range(count))
        place.engine.analyze(place.folder)
        _send(jobs, jobs.unique, range(CHUNK))
        with place.meter.around(count):
            _send(jobs, jobs.unique, range(count))


def drain(place: Place, count: int) -> None:
    """A worker that has enough to do from its first claim to its last."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_drain(place, count))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tables."""

    title: str
    work: Work
    count: int


GAUGES: dict[str, Gauges] = {"sqlite": sqlite.gauge, "postgres": postgres.gauge, "valkey": valkey.gauge}
BULK = f"enqueue in bulk, {CHUNK:,} a call"
DRAIN = f"claim, run and settle, concurrency {CONCURRENCY}"
ROWS = (
    Row("enqueue one by one", one_by_one, 500),
    Row(f"enqueue, {WAITERS} at once", together, 10_000),
    Row(BULK, in_bulk, 20_000),
    Row("the same, key new", with_new_keys, 20_000),
    Row("the same, duplicate kept", with_held_keys, 20_000),
    Row(DRAIN, drain, 20_000),
)


def measured(
    engine: Engine, scratch: Path, rounds: int, share: float, progress: Callable[[str], None]
) -> StoreCosts:
    """Take all rows in turn, round by round; `share` is how much of each."""
    found: dict[str, list[Cost]] = {}
    trips, synced = list[float](), [0.0]
    for number in range(rounds):
        for row in ROWS:
            progress(f"round {number + 1}: {row.title}, {engine.name}")
            count = max(CHUNK // 10, round(row.count * share))
            with _fresh(engine, scratch) as folder, GAUGES[engine.name](engine.url(folder)) as gauge:
                place = Place(engine, folder, Meter(gauge))
                row.work(place, count)
                found.setdefault(row.title, []).extend(place.meter.found)
                trips.append(_taken(gauge.round_trip))
                if gauge.durable:
                    synced.append(_durable(folder))
    costs = {title: summary(each) for title, each in found.items()}
    return StoreCosts(engine.name, costs, min(synced[1:] or synced), min(trips))


def summary(costs: list[Cost]) -> Cost:
    """What several rounds have found."""
    return Cost(
        median(cost.calls for cost in costs),
        median(cost.commits for cost in costs),
        median(cost.bytes for cost in costs),
        min(cost.server for cost in costs),
        min(cost.client for cost in costs),
    )


@contextmanager
def _fresh(engine: Engine, scratch: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            engine.forget(Path(name))


def _send(jobs: Jobs, sender: Any, numbers: range) -> None:
    for start in range(0, len(numbers), CHUNK):
        chunk = [
            sender.job(**arguments(number, f"ord_{number:010d}")) for number in numbers[start : start + CHUNK]
        ]
        jobs.app.enqueue_many(chunk)


async def _together(place: Place, count: int) -> None:
    jobs = place.jobs

    async def send_on(numbers: Iterator[int]) -> None:
        for number in numbers:
            await jobs.nothing.aenqueue(**arguments(number))

    async def send(count: int) -> None:
        numbers = iter(range(count))
        await asyncio.gather(*[send_on(numbers) for _ in range(WAITERS)])

    async with jobs.app:
        await send(CHUNK)
        with place.meter.around(count):
            await send(count)


async def _drain(place: Place, count: int) -> None:
    jobs = place.jobs
    async with jobs.app as app:
        queue = app.queue("default")
        await queue.apause()
        for start in range(0, count, CHUNK):
            await app.aenqueue_many(
                [jobs.nothing.job(**arguments(number)) for number in range(start, min(start + CHUNK, count))]
            )
        place.engine.analyze(place.folder)
        async with app.worker(concurrency=CONCURRENCY) as worker:
            await asyncio.sleep(_SETTLING_DOWN)
            with place.meter.around(count):
                await queue.aresume()
                while worker.counts[Move.COMPLETE.value] < count:  # noqa: ASYNC110 - an event would be a hook, which costs
                    await asyncio.sleep(_LOOKS)


def _taken(trip: Callable[[], None]) -> float:
    """The median of many, in microseconds."""
    taken: list[float] = []
    for _ in range(_TRIPS):
        started = time.perf_counter()
        trip()
        taken.append(time.perf_counter() - started)
    return 1e6 * median(taken)


def _durable(folder: Path) -> float:
    """Microseconds until a small write is on disk, in a file that is long enough already, as a log mostly is."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(_SYNCED * _TRIPS))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)

        def write() -> None:
            os.write(file.fileno(), b"1" * _SYNCED)
            os.fdatasync(file.fileno())

        return _taken(write)
