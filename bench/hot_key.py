"""What enqueues under other keys cost while sixteen producers send the same one, beside sixteen with a key each.

Run as a program, this is the sixteen: each with a store of its own, as if in a process of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.engines import Engine
from bench.jobs import KEY, arguments, define
from bench.working import stop
from onejob import Unique

PRODUCERS = 16
PACE = 0.02
"""Seconds from one call of a producer to its next, so that both crowds are as busy."""
POLICIES = {"kept": Unique.in_flight(by=(KEY,)), "latest": Unique.latest(by=(KEY,))}
ONE, EACH = "one", "each"


def cost(engine: Engine, folder: Path, policy: str, keys: str, count: int) -> float:
    """Microseconds of an enqueue under a key of its own."""
    url = engine.url(folder)
    with _crowd(url, policy, keys):
        return engine.run(_send(url, count))


@contextmanager
def _crowd(url: str, policy: str, keys: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.hot_key", url, policy, keys],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the producers could not start")
        yield
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


async def _produce(url: str, policy: str, keys: str) -> None:
    ready = asyncio.Barrier(PRODUCERS)

    async def send_on(number: int) -> None:
        jobs = define(url)
        sender = jobs.nothing.using(unique=POLICIES[policy])
        key = "hot" if keys == ONE else f"hot-{number}"
        async with jobs.app:
            await sender.aenqueue(**arguments(0, key))
            if await ready.wait() == 0:
                print("ready", flush=True)
            while True:
                next_call = time.monotonic() + PACE
                await sender.aenqueue(**arguments(number, key))
                await asyncio.sleep(max(0.0, next_call - time.monotonic()))

    await asyncio.gather(*map(send_on, range(PRODUCERS)))


if __name__ == "__main__":
    import logging

    import uvloop

    logging.getLogger("onejob").setLevel(logging.ERROR)  # how durable the server is, the report says once
    uvloop.run(_produce(*sys.argv[1:]))
