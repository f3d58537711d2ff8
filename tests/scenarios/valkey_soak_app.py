"""The app of the soak on Valkey: few keys, few lanes, every policy, chains, blockers and dead letters over several queues.
Run by test_valkey_soak, with `valkey_producer`.

Everybody writes what he sees into a history of his own, one line at a time; `valkey_oracle` reads it. $SOAK_FAULT plants
a fault into the store's scripts, so that a test can see that the oracle notices.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

from onejob import (
    App,
    Fixed,
    JobRevoked,
    LeaseLost,
    Rate,
    Retry,
    Unique,
    current_job,
)
from onejob.stores.valkey import scripts

QUEUES = ("a", "b", "c")
GRAVES = "graves"
ENOUGH = "enough"
"""The file in the soak's folder that says that all is done which calls must be made beside."""
WIDTH = 2
RATE = Rate(8, 0.5)
LINKS = 4
OPTIONS: dict[str, Any] = {"retry": Retry(attempts=40, backoff=Fixed(0.02)), "max_crashes": 1_000}
FAULTS = {
    "lease": ("head[19] ~= token", "false"),
    "messages": ("post(QUEUE, unpack(unpack_record(messages[at][2])))", ""),
    "index": ("remove_later(holder[2] .. id)", ""),
}
"""A place in the scripts, once their constants are put in, and what stands there instead."""


def faulty(fault: str) -> scripts.Library:
    """The functions with a fault in them."""
    sound, (place, instead) = scripts.library(), FAULTS[fault]
    assert place in sound.text, "the fault has no place"
    name = f"{sound.name}_{fault}"
    return scripts.Library(name, sound.text.replace(place, instead).replace(sound.name, name))


if "SOAK_FAULT" in os.environ:
    with_fault = faulty(os.environ["SOAK_FAULT"])
    scripts.library = lambda: with_fault

app = App(unique=None)


class History:
    """Lines of one process, each written at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: int | None = None

    def write(self, event: str, **fields: Any) -> None:
        if self._file is None:
            folder = self._folder or Path(os.environ["SOAK_FOLDER"])
            path = folder / f"{os.getpid()}.history"
            self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        line = {"at": time.monotonic_ns(), "pid": os.getpid(), "event": event, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


history = History()


async def run(
    value: int, *, key: str | None = None, least: float = 0, lasts: float = 0.004, **more: Any
) -> int:
    """What every handler does: be seen, work a little, and fail now and then."""
    job = current_job()
    which = {"job": job.id, "attempt": job.attempt}
    task = job.task.rpartition(".")[2]
    subject = None if key is None else f"{task}/{key}"
    history.write(
        "begin", **which, task=task, value=value, subject=subject, lane=job.lane, queue=job.queue, **more
    )
    ended = "cancelled"
    try:
        await asyncio.sleep(random.uniform(least, lasts))
        ended = "failed" if (value % 17 == 0 and job.failures == 0) or task == "doomed" else "done"
        if ended == "failed":
            raise ValueError("this attempt fails")
    finally:
        history.write("end", **which, how=ended)
    return job.attempt


@app.task(queue="a", **OPTIONS)
async def plain(value: int) -> int:
    return await run(value)


@app.task(queue="a", unique=Unique.in_flight(by="key"), **OPTIONS)
async def in_flight(key: str, value: int) -> int:
    return await run(value, key=key)


@app.task(queue="a", unique=Unique.once(by="key", within=0.5, hold=True), **OPTIONS)
async def once(key: str, value: int) -> int:
    return await run(value, key=key)


@app.task(queue="b", unique=Unique.throttle(0.5, by="key", hold=True), **OPTIONS)
async def throttle(key: str, value: int) -> int:
    return await run(value, key=key)


@app.task(queue="b", unique=Unique.coalesce(by="key"), **OPTIONS)
async def coalesce(key: str, value: int) -> int:
    return await run(value, key=key)


@app.task(queue="c", unique=Unique.latest(by="key"), **OPTIONS)
async def latest(key: str, value: int) -> int:
    return await run(value, key=key)


@app.task(queue="c", unique=Unique.debounce(0.05, 0.2, by="key"), **OPTIONS)
async def debounce(key: str, value: int) -> int:
    return await run(value, key=key)


@app.task(queue="c", unique=Unique.collect(wait=0.05, max_items=20, by="key"), **OPTIONS)
async def collect(key: str, items: list[int]) -> int:
    return await run(items[0], key=key, items=items)


@app.task(queue="a", unique=Unique.restart(by="key"), **OPTIONS)
async def restart(key: str, value: int) -> int:
    try:
        return await run(value, key=key)
    except (JobRevoked, LeaseLost):
        return 0  # as it was told; what it returns no longer counts


@app.task(queue="b", **OPTIONS)
async def ordered(value: int) -> int:
    return await run(value)


@app.task(queue="b", **OPTIONS)
async def wide(value: int) -> int:
    return await run(value)


@app.task(queue="c", **OPTIONS)
async def paced(value: int) -> int:
    return await run(value)


@app.task(queue="a", unique=Unique.in_flight(by="key"), **OPTIONS)
async def trail(key: str, value: int) -> int:
    """A chain over three queues whose key is held until its last job has ended, far from where it began."""
    index = current_job().chain_index
    if index + 1 < LINKS:
        then = QUEUES[(index + 1) % len(QUEUES)]
        current_job().continue_with(trail.using(queue=then, unique=None), key, value)
    return await run(value, key=key, index=index)


@app.task(queue="a", **OPTIONS)
async def join(value: int) -> int:
    """Starts once its blockers in other queues have completed."""
    return await run(value, blockers=[blocker.id for blocker in current_job().blockers])


@app.task(queue="b", retry=Retry(attempts=2, backoff=Fixed(0.02)), dead_letter=GRAVES, max_crashes=1_000)
async def doomed(value: int) -> int:
    return await run(value)


@app.task(queue="b", **OPTIONS)
async def slow(value: int) -> int:
    """So slow the first time that it can be caught, and the second that whoever lost it can come back meanwhile."""
    return await run(value, least=0.3, lasts=0.5 if current_job().attempt == 1 else 1.5)


FRESH = (coalesce, latest, debounce)
KEYED = (in_flight, once, throttle, restart, trail)
