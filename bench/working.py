"""How a real worker process does: how fast it drains a queue, how soon it starts a job, and what it uses at rest."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import machine
from bench.engines import Engine
from bench.jobs import arguments, define
from bench.producing import CHUNK
from onejob import App, Lane, State
from onejob.queue_handle import QueueHandle

PATIENCE = 60.0
SETTLING_DOWN = 2.0


def drain(
    engine: Engine,
    folder: Path,
    count: int,
    concurrency: int,
    lane: Callable[[int], Lane | None] = lambda _: None,
    limit: Callable[[QueueHandle], object] = lambda _: None,
) -> float:
    """Jobs per second from the first start to the last settled row, as the store recorded them.

    `lane` is that of the n-th job; `limit` sets limits of their queue.
    """
    jobs = define(engine.url(folder))
    with jobs.app:
        limit(jobs.app.queue("default"))
        for start in range(0, count, CHUNK):
            numbers = range(start, min(start + CHUNK, count))
            calls = [jobs.nothing.using(lane=lane(number)).job(**arguments(number)) for number in numbers]
            jobs.app.enqueue_many(calls)
        return drained(jobs.app, engine, folder, count, concurrency)


def drained(
    app: App, engine: Engine, folder: Path, count: int, concurrency: int, task: str = "nothing"
) -> float:
    """The same, of the jobs of a task that are there or come of them."""
    engine.analyze(folder)
    os.sync()
    with worker(engine.url(folder), concurrency):
        # The newest job is settled last, so that looking is cheap.
        unsettled = f"task:{task} state:parked,waiting,running"
        until(lambda: not app.jobs(unsettled, limit=1).jobs, "the queue to be drained")
    return count / (_span(app, count, f"task:{task}") / 1000)


def latency(engine: Engine, folder: Path, count: int) -> tuple[float, float]:
    """Milliseconds from before the enqueue to the handler's first line in another process: p50 and p99."""
    url = engine.url(folder)
    with serving(url, concurrency=10):
        waits = sorted(engine.run(_stamped(url, count)))
    return waits[count // 2] * 1000, waits[count * 99 // 100] * 1000


def at_rest(url: str, seconds: float) -> tuple[float, float]:
    """The memory (MB) and the load (% of one core) of a worker that has nothing to do."""
    with serving(url, concurrency=10) as process:
        time.sleep(SETTLING_DOWN)
        used, started = machine.processor_time(process.pid), time.monotonic()
        time.sleep(seconds)
        used = machine.processor_time(process.pid) - used
        return machine.memory(process.pid), 100 * used / (time.monotonic() - started)


@contextmanager
def serving(url: str, concurrency: int) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that takes jobs."""
    with define(url).app as app, worker(url, concurrency) as process:
        until(lambda: bool(app.client.call(app.store.workers(), instead="")), "the worker to report")
        yield process


@contextmanager
def worker(url: str, concurrency: int) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process as a user would start it."""
    command = "from onejob.cli import main; main()"
    options = ["worker", "bench.jobs:app", "--concurrency", str(concurrency), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *options],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "ONEJOB_URL": url},
    )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process in good order, or else by force."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until(reached: Callable[[], bool], what: str) -> None:
    """Look now and then, seldom enough not to disturb."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:.0f} seconds in vain for {what}")
        time.sleep(0.1)


async def _stamped(url: str, count: int) -> list[float]:
    jobs = define(url)
    async with jobs.app:
        receipts = []
        for _ in range(count):
            await asyncio.sleep(random.uniform(0.03, 0.06))
            receipts.append(await jobs.stamp.aenqueue(sent=time.monotonic()))
        return [await receipt.aresult(timeout=PATIENCE) for receipt in receipts]


def _span(app: App, count: int, of: str) -> int:
    """Milliseconds between the first start and the last end, page by page."""
    started: list[int] = []
    ended: list[int] = []
    cursor = None
    while True:
        page = app.jobs(of, limit=1_000, cursor=cursor)
        started += [job.started for job in page.jobs if job.started is not None]
        ended += [job.ended for job in page.jobs if job.state is State.COMPLETED and job.ended is not None]
        cursor = page.cursor
        if cursor is None:
            break
    if len(ended) != count:
        raise RuntimeError(f"{len(ended)} of {count} jobs completed")
    return max(ended) - min(started)
