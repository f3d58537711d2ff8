"""A mixed load: a producer that calls at a fixed rate, whatever the store makes of it, and one worker beside it.

Seven calls in ten have a key of which one in five is a duplicate, two are plain, one goes through a lane.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.engines import Engine
from bench.jobs import Jobs, arguments, define
from bench.working import pages, serving, until_drained
from onejob import Lane, State, Unique

RATE = 500
"""Calls per second."""
CONCURRENCY = 50
LANES = 50
_REPEATED = 10
"""Keys that come again and again."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds: of each job from before its enqueue to its first line, and of each call."""

    starts: list[float]
    calls: list[float]


def waits(engine: Engine, folder: Path, count: int) -> Waits:
    """Send `count` calls, one every 1/RATE seconds."""
    url = engine.url(folder)
    with serving(url, CONCURRENCY):
        calls = engine.run(_send(url, count))
        return Waits(_starts(url), calls)


async def _send(url: str, count: int) -> list[float]:
    jobs = define(url)
    taken: list[float] = []

    async def timed(sent: float, call: Awaitable[object]) -> None:
        await call
        taken.append(time.monotonic() - sent)

    async with jobs.app:
        await jobs.nothing.aenqueue(**arguments(0))  # opens the store
        began = time.monotonic()
        async with asyncio.TaskGroup() as under_way:
            for number, sender in zip(range(count), _senders(jobs), strict=False):
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                sent = time.monotonic()
                under_way.create_task(timed(sent, sender.aenqueue(sent=sent)))
    return taken


def _senders(jobs: Jobs) -> Iterator[Any]:
    """Who sends the next call."""
    lanes = [jobs.stamp.using(lane=Lane(f"lane-{number}")) for number in range(LANES)]
    number = 0
    while True:
        match number % 10:
            case 0:
                yield lanes[number // 10 % LANES]
            case 1 | 2:
                yield jobs.stamp
            case 3 | 8:
                yield jobs.stamp.using(unique=Unique.in_flight(key=f"again-{number // 10 % _REPEATED}"))
            case _:
                yield jobs.stamp.using(unique=Unique.in_flight(key=f"key-{number}"))
        number += 1


def _starts(url: str) -> list[float]:
    with define(url).app as app:
        until_drained(app, "stamp")
        return [
            msgspec.json.decode(job.result, type=float)
            for job in pages(app, "task:stamp")
            if job.state is State.COMPLETED and job.result is not None
        ]
