"""How fast our clients enqueue: in bulk, from many coroutines at once, and one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.engines import Engine
from bench.jobs import KEY, Jobs, Repetition, arguments, define
from onejob import Unique

CHUNK = 1_000
WAITERS = 100
POLICIES = {
    "kept": Unique.in_flight(by=(KEY,)),
    "latest": Unique.latest(by=(KEY,)),
    "debounce": Unique.debounce(3600, by=(KEY,)),
}
"""By what becomes of a duplicate of a queued job."""


def bulk(url: str, count: int) -> float:
    """Jobs per second through `enqueue_many`, from arguments to receipts."""
    jobs = define(url)
    with jobs.app:
        return _in_chunks(jobs, jobs.nothing, [arguments(number) for number in range(count)])


def deduplicated(url: str, count: int, policy: Unique, repetition: Repetition) -> float:
    """Calls per second through `enqueue_many`, each with a key."""
    jobs = define(url)
    ref = repetition.ref(count)
    calls = [arguments(number, ref(number)) for number in range(count)]
    sender = jobs.nothing.using(unique=policy)
    with jobs.app:
        _in_chunks(jobs, sender, repetition.before(calls))
        return _in_chunks(jobs, sender, calls)


def concurrent(engine: Engine, folder: Path, count: int) -> float:
    """Jobs per second of coroutines that each await one `aenqueue` after the other."""
    return engine.run(_concurrent(engine.url(folder), count))


def one_by_one(url: str, count: int) -> float:
    """Jobs per second of one thread that calls `enqueue`."""
    jobs = define(url)
    with jobs.app:
        jobs.nothing.enqueue(**arguments(0))  # opens the store
        started = time.perf_counter()
        for number in range(count):
            jobs.nothing.enqueue(**arguments(number))
        return count / (time.perf_counter() - started)


def _in_chunks(jobs: Jobs, sender: Any, calls: list[dict[str, Any]]) -> float:
    jobs.nothing.enqueue(**arguments(0))  # opens the store
    started = time.perf_counter()
    for start in range(0, len(calls), CHUNK):
        jobs.app.enqueue_many([sender.job(**call) for call in calls[start : start + CHUNK]])
    return len(calls) / (time.perf_counter() - started)


async def _concurrent(url: str, count: int) -> float:
    jobs = define(url)
    calls = iter([arguments(number) for number in range(count)])

    async def send_on(calls: Iterator[dict[str, Any]]) -> None:
        for call in calls:
            await jobs.nothing.aenqueue(**call)

    async with jobs.app:
        await jobs.nothing.aenqueue(**arguments(0))  # opens the store
        started = time.perf_counter()
        await asyncio.gather(*[send_on(calls) for _ in range(WAITERS)])
        return count / (time.perf_counter() - started)
