"""How fast sixteen producers are who send the same key, and what enqueues under others cost meanwhile; beside a key each.

Run as a program, this is the sixteen: each with a store of its own, as if in a process of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engines import Engine
from bench.jobs import arguments, define
from bench.producing import POLICIES
from bench.working import stop

PRODUCERS = 16
PACE = 0.02
"""Seconds from one call of a producer to its next, so that both crowds are as busy."""
ONE, EACH = "one", "each"


@dataclass(frozen=True, slots=True)
class Crowd:
    """What sixteen producers on one key reach, and what becomes of somebody beside them."""

    rate: float
    """Their own calls per second, as fast as they can."""
    others: float
    """Microseconds of an enqueue under a key of its own, while they call at a pace."""


def crowd(engine: Engine, folder: Path, policy: str, keys: str, count: int) -> Crowd:
    """Measure both, each of about so many calls."""
    url = engine.url(folder)
    with _producers(url, policy, keys, count) as rate:
        return Crowd(rate, engine.run(_send(url, count)))


@contextmanager
def _producers(url: str, policy: str, keys: str, count: int) -> Iterator[float]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.hot_key", url, policy, keys, str(count // PRODUCERS)],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        rate = process.stdout.readline()
        if not rate:
            raise RuntimeError("the producers could not start")
        yield float(rate)
    finally:
        stop(process)


async def _send(url: str, count: int) -> float:
    jobs = define(url)
    async with jobs.app:
        await jobs.unique.aenqueue(**arguments(0, "first"))  # opens the store
        started = time.perf_counter()
        for number in range(count):
            await jobs.unique.aenqueue(**arguments(number, f"other-{number}"))
        return 1e6 * (time.perf_counter() - started) / count


async def _produce(url: str, policy: str, keys: str, calls: int) -> None:
    ready = asyncio.Barrier(PRODUCERS)
    done = asyncio.Barrier(PRODUCERS)
    started = 0.0

    async def send_on(number: int) -> None:
        nonlocal started
        jobs = define(url)
        sender = jobs.nothing.using(unique=POLICIES[policy])
        key = "hot" if keys == ONE else f"hot-{number}"
        async with jobs.app:
            await sender.aenqueue(**arguments(0, key))
            if await ready.wait() == 0:
                started = time.monotonic()
            for _ in range(calls):
                await sender.aenqueue(**arguments(number, key))
            if await done.wait() == 0:
                print(calls * PRODUCERS / (time.monotonic() - started), flush=True)
            while True:
                next_call = time.monotonic() + PACE
                await sender.aenqueue(**arguments(number, key))
                await asyncio.sleep(max(0.0, next_call - time.monotonic()))

    await asyncio.gather(*map(send_on, range(PRODUCERS)))


if __name__ == "__main__":
    import logging

    import uvloop

    logging.getLogger("onejob").setLevel(logging.ERROR)  # how durable the server is, the report says once
    uvloop.run(_produce(*sys.argv[1:4], int(sys.argv[4])))
