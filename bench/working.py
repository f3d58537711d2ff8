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
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import machine
from bench.engines import Engine
from bench.jobs import Jobs, arguments, define
from bench.producing import CHUNK
from onejob import App, Lane, State
from onejob.core.job import Job
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
    workers: int = 1,
) -> float:
    """Jobs per second from the first start to the last settled row, as the store recorded them.

    `lane` is that of the n-th job; `limit` sets limits of their queue.
    """
    jobs = define(engine.url(folder))
    with jobs.app:
        limit(jobs.app.queue("default"))
        fill(jobs, count, lane)
        return drained(jobs.app, engine, folder, count, concurrency, workers=workers)


def fill(jobs: Jobs, count: int, lane: Callable[[int], Lane | None] = lambda _: None) -> None:
    """Enqueue what is to be drained."""
    for start in range(0, count, CHUNK):
        numbers = range(start, min(start + CHUNK, count))
        jobs.app.enqueue_many(
            [jobs.nothing.using(lane=lane(number)).job(**arguments(number)) for number in numbers]
        )


def drained(
    app: App,
    engine: Engine,
    folder: Path,
    count: int,
    concurrency: int,
    task: str = "nothing",
    workers: int = 1,
) -> float:
    """The same, of the jobs of a task that are there or come of them."""
    engine.analyze(folder)
    os.sync()
    with ExitStack() as running:
        for _ in range(workers):
            running.enter_context(worker(engine.url(folder), concurrency))
        until_drained(app, task)
    return count / (_span(app, count, f"task:{task}") / 1000)


def peak_memory(engine: Engine, folder: Path, count: int, concurrency: int) -> float:
    """The most memory (MB) that a worker has had once it has drained a queue."""
    jobs = define(engine.url(folder))
    with jobs.app:
        fill(jobs, count)
        with worker(engine.url(folder), concurrency) as process:
            until_drained(jobs.app, "nothing")
            return machine.peak_memory(process.pid)


def latency(engine: Engine, folder: Path, count: int) -> list[float]:
    """Seconds from before the enqueue to the handler's first line in another process, of each job."""
    url = engine.url(folder)
    with serving(url, concurrency=10):
        return engine.run(_stamped(url, count))


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


def pages(app: App, filter: str) -> Iterator[Job]:
    """All jobs that a filter matches."""
    cursor = None
    while True:
        page = app.jobs(filter, limit=1_000, cursor=cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def until_drained(app: App, task: str) -> None:
    """Look until no job of a task is left; the newest is settled last, so that looking is cheap."""
    unsettled = f"task:{task} state:parked,waiting,running"
    until(lambda: not app.jobs(unsettled, limit=1).jobs, "the queue to be drained")


async def _stamped(url: str, count: int) -> list[float]:
    jobs = define(url)
    async with jobs.app:
        await jobs.nothing.aenqueue(**arguments(0))  # opens the store
        receipts = []
        for _ in range(count):
            await asyncio.sleep(random.uniform(0.03, 0.06))
            receipts.append(await jobs.stamp.aenqueue(sent=time.monotonic()))
        return [await receipt.aresult(timeout=PATIENCE) for receipt in receipts]


def _span(app: App, count: int, of: str) -> int:
    """Milliseconds between the first start and the last end, page by page."""
    started: list[int] = []
    ended: list[int] = []
    for job in pages(app, of):
        if job.started is not None:
            started.append(job.started)
        if job.state is State.COMPLETED and job.ended is not None:
            ended.append(job.ended)
    if len(ended) != count:
        raise RuntimeError(f"{len(ended)} of {count} jobs completed")
    return max(ended) - min(started)
