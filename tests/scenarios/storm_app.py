"""The app of the storm: one task per policy, and a producer with many threads. Run by test_storm."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path

from onejob import App, Unique

app = App()
KEYS = 30
FEWEST = 60
"""Calls of each thread, however slow the machine is."""


@app.task(unique=Unique.in_flight(by="key"))
async def in_flight(key: int) -> None: ...


@app.task(unique=Unique.once(by="key", within=0.5, hold=True))
async def once(key: int) -> None: ...


@app.task(unique=Unique.throttle(0.5, by="key", hold=True))
async def throttle(key: int) -> None: ...


@app.task(unique=Unique.throttle(0.5, trailing=True, by="key", hold=True))
async def trailing(key: int, value: int) -> None: ...


@app.task(unique=Unique.coalesce(by="key"))
async def coalesce(key: int) -> None: ...


@app.task(unique=Unique.latest(by="key"))
async def latest(key: int, value: int) -> None: ...


@app.task(unique=Unique.debounce(0.05, 0.2, by="key"))
async def debounce(key: int, value: int) -> None: ...


@app.task(unique=Unique.collect(wait=0.05, max_items=20, by="key"))
async def collect(key: int, items: list[int]) -> int:
    return len(items)


@app.task(unique=Unique.restart(by="key"))
async def restart(key: int) -> None: ...


def call(policy: str, key: int, value: int) -> object:
    """One call of the task of that policy."""
    match policy:
        case "trailing":
            return trailing.job(key, value)
        case "latest":
            return latest.job(key, value)
        case "debounce":
            return debounce.job(key, value)
        case "collect":
            return collect.job(key, [value])
        case _:
            return app.task_named(f"storm_app.{policy}").job(key)


def produce(policies: list[str], threads: int, seconds: float, seed: int) -> list[list[str]]:
    """Enqueue from many threads at once; every acknowledged (policy, id, outcome)."""
    receipts: list[list[str]] = []
    app.counts()  # opens the store: the clock starts once everyone can enqueue
    end = time.monotonic() + seconds

    def storm(number: int) -> None:
        dice = random.Random(seed * 1000 + number)
        value = first = number * 1_000_000
        while time.monotonic() < end or value < first + FEWEST:
            value += 1
            policy = dice.choice(policies)
            [receipt] = app.enqueue_many([call(policy, dice.randrange(KEYS), value)])
            receipts.append([policy, receipt.id, str(receipt.outcome)])

    crew = [threading.Thread(target=storm, args=(number,)) for number in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    app.close()
    return receipts


if __name__ == "__main__":
    policies, threads, seconds, seed, report = sys.argv[1:]
    Path(report).write_text(json.dumps(produce(policies.split(","), int(threads), float(seconds), int(seed))))
