"""The app of the lane storm: every kind of lane, jobs that fail, snooze and replace each other, and a producer.

Handlers bear witness: who runs in a lane holds one of as many file locks as the lane has slots, and a lock dies
with its process. Run by test_lane_storm.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onejob import App, Fail, Fixed, Lane, Rate, Retry, Snooze, Unique, current_job

app = App(unique=None)
QUEUE = "default"
RATE = Rate(5, per=0.7)
MOST_IN_BATCH = 40
KEYS = 40
NO_LIMIT = 1_000
WITNESS = os.environ.get("STORM_WITNESS")
OPTIONS: dict[str, Any] = {"retry": Retry(attempts=3, backoff=Fixed(0.02)), "max_crashes": NO_LIMIT}


def lane(number: int, rated: bool, dice: random.Random) -> Lane:
    """The lane of that number: its kind, and so its limits, follow from the number; but some are moody."""
    rate = RATE if rated else None
    match number % 5:
        case 0:
            return Lane(f"ordered-{number}", rate=rate)
        case 1:
            return Lane(f"ordered-held-{number}", rate=rate, on_retry="hold")
        case 2:
            return Lane(f"wide-{number}", concurrency=3, rate=rate)
        case 3:
            return Lane(f"wide-held-{number}", concurrency=2, rate=rate, on_retry="hold")
        case _:
            return Lane(f"moody-{number}", concurrency=dice.randint(1, 3), rate=rate)


@app.task(**OPTIONS)
async def work(number: int) -> None:
    """Takes a few milliseconds; some fail at first, some for good, some want to come back later."""
    with witness():
        await asyncio.sleep(random.uniform(0, 0.004))
        job = current_job()
        if number % 11 == 0 and job.failures == 0:
            raise ValueError("the first attempt fails")
        if number % 97 == 0:
            raise Fail("for good")
        if number % 13 == 0 and job.attempt == 1:
            raise Snooze(0.03)


@app.task(unique=Unique.latest(by="key"), **OPTIONS)
async def latest(key: int, number: int) -> None:
    await work.function(number)


@app.task(unique=Unique.debounce(0.03, 0.2, by="key"), **OPTIONS)
async def debounce(key: int, number: int) -> None:
    await work.function(number)


@app.task(unique=Unique.restart(by="key"), **OPTIONS)
async def restart(key: int, number: int) -> None:
    await work.function(number)


@app.task(unique=Unique.in_flight(by="key"), **OPTIONS)
async def in_flight(key: int, number: int) -> None:
    await work.function(number)


@app.task(unique=Unique.collect(into="items", wait=0.03, max_items=10, by="key"), **OPTIONS)
async def collect(key: int, items: list[int]) -> None:
    await work.function(items[0])


@contextmanager
def witness() -> Iterator[None]:
    """Hold one of the lane's locks, or write down that all of them were held."""
    key = current_job().lane
    slots = 3 if key is None or key.startswith(("wide-", "moody-")) else 1
    if key is None or WITNESS is None:
        yield
        return
    folder = Path(WITNESS)
    locks = [(folder / f"{key}.{slot}").open("w") for slot in range(slots)]
    try:
        if not any(_locked(lock.fileno()) for lock in locks):
            with (folder / "overlaps").open("a") as file:
                file.write(f"{key}: {current_job().id}\n")
        yield
    finally:
        for lock in locks:
            lock.close()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def call(number: int, lanes: int, rated: bool, dice: random.Random) -> Any:
    """One call in a random lane; a third of them have a key, and that decides their lane."""
    settings: dict[str, Any] = {"priority": dice.choice((0, 0, 0, 7))}
    unique = dice.choice((None,) * 10 + (latest, debounce, restart, in_flight, collect))
    if unique is None:
        settings["lane"] = lane(dice.randrange(lanes), rated, dice)
        if dice.random() < 0.1:
            settings["delay"] = dice.uniform(0.001, 0.3)
        if dice.random() < 0.02:
            settings["expires"] = dice.uniform(0.05, 1)
        return work.using(**settings).job(number)
    key = dice.randrange(KEYS)
    settings["lane"] = lane(key % lanes, rated, dice)
    return unique.using(**settings).job(key, [number] if unique is collect else number)


def produce(jobs: int, lanes: int, rated: bool, seed: int) -> list[list[str]]:
    """Enqueue in small batches and revoke now and then; every acknowledged (id, outcome)."""
    dice = random.Random(seed)
    receipts: list[list[str]] = []
    while len(receipts) < jobs:
        size = min(dice.randint(1, MOST_IN_BATCH), jobs - len(receipts))
        first = seed * 1_000_000 + len(receipts)
        calls = [call(first + number, lanes, rated, dice) for number in range(size)]
        receipts += [[receipt.id, str(receipt.outcome)] for receipt in app.enqueue_many(calls)]
        if dice.random() < 0.5:
            app.revoke(dice.choice(receipts[-200:])[0])
    app.close()
    return receipts


if __name__ == "__main__":
    jobs, lanes, rated, seed, report = sys.argv[1:]
    made = produce(int(jobs), int(lanes), rated == "rated", int(seed))
    Path(report).write_text(json.dumps(made))
