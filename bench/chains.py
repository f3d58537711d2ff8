"""What chains cost a worker that drains a queue, and what a fan-in costs for each job that it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path

from bench.engines import Engine
from bench.jobs import arguments, define
from bench.producing import CHUNK
from bench.working import drained
from onejob.core.job import NewJob, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.ids import new_ids
from onejob.store import Ask, JobStore

LENGTH = 5
PHASES = ("make", "release", "read")
_BATCH = 100
_WORKER = WorkerId("bench")


def drain(engine: Engine, folder: Path, count: int, concurrency: int) -> float:
    """Jobs per second of a queue of chains, from the first start to the last settled row."""
    jobs = define(engine.url(folder))
    with jobs.app:
        for start in range(0, count // LENGTH, CHUNK):
            numbers = range(start, min(start + CHUNK, count // LENGTH))
            jobs.app.enqueue_many([jobs.step.job(**arguments(number), left=LENGTH - 1) for number in numbers])
        return drained(jobs.app, engine, folder, count // LENGTH * LENGTH, concurrency, "step")


def fan_in(url: str, size: int) -> dict[str, float]:
    """Microseconds for each blocker of a job: to make both, to end the blockers, and to read what they returned."""
    return asyncio.run(_fan_in(url, size))


async def _fan_in(url: str, size: int) -> dict[str, float]:
    app = define(url).app
    async with app:
        *ids, last = new_ids(size + 1)
        jobs = [NewJob(id, "parts", "nothing", b"{}") for id in ids]
        whole = NewJob(last, "whole", "nothing", b"{}", blockers=tuple(ids))
        await app.store.open()
        costs = {
            "make": await _timed(_make(app.store, [*jobs, whole])),
            "release": await _timed(_run(app.store)),
            "read": await _timed(app.store.blockers(last)),
        }
        if not (await app.store.claim(Ask(_WORKER, ("whole",), 1))).jobs:
            raise RuntimeError("the fan-in was not released")
    return {phase: 1e6 * seconds / size for phase, seconds in costs.items()}


async def _make(store: JobStore, jobs: list[NewJob]) -> None:
    for start in range(0, len(jobs), CHUNK):
        await store.enqueue(jobs[start : start + CHUNK])


async def _run(store: JobStore) -> None:
    ask = Ask(_WORKER, ("parts",), _BATCH)
    started = (await store.claim(ask)).jobs
    while started:
        done = [Settlement(job.lease, Move.COMPLETE, result=b"1") for job in started]
        started = (await store.settle(done, ask)).claims.jobs


async def _timed(operation: Awaitable[object]) -> float:
    began = time.perf_counter()
    await operation
    return time.perf_counter() - began
