"""The app of the chain storm: chains of five jobs of every kind, with diamonds in between, and a producer.

Each job leaves an effect under its idempotency key. Some fail at first, some for good. Run by test_chain_storm.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import apsw
from chain_oracle import tell_commits

from onejob import App, Fail, Fixed, Lane, Retry, Unique, current_job
from onejob.tasks import Sender

if "STORM_RECORD" in os.environ:
    apsw.connection_hooks.append(tell_commits)

app = App(unique=None)
LENGTH = 5
HOT_KEYS = 4
LANES = 7
MOST_IN_BATCH = 25
ONCE, LATEST = Unique.once(by="number", within=3600, failed="keep"), Unique.latest(by="hot")
OPTIONS: dict[str, Any] = {"retry": Retry(attempts=4, backoff=Fixed(0.02)), "max_crashes": 1_000}
EFFECTS = "create table effects (key text primary key, task text not null)"
EFFECT = "insert into effects values (:key, :task)"
EFFECT_UNLESS_THERE = EFFECT + " on conflict do nothing"


@app.task(**OPTIONS)
async def plain(number: int, total: int, hot: int) -> int:
    """Leaves its effect first: if it runs again, the key tells that it is there."""
    total = begin(number, total)
    await asyncio.sleep(random.uniform(0, 0.01))
    async with app.transaction() as tx:
        await tx.execute(EFFECT_UNLESS_THERE, {"key": current_job().idempotency_key, "task": "plain"})
    go_on(number, total, hot)
    return total


@app.task(**OPTIONS)
def threaded(number: int, total: int, hot: int) -> int:
    """The same in a thread."""
    total = begin(number, total)
    go_on(number, total, hot)
    time.sleep(random.uniform(0, 0.01))
    with app.transaction() as tx:
        tx.execute(EFFECT_UNLESS_THERE, {"key": current_job().idempotency_key, "task": "threaded"})
    return total


@app.task(**OPTIONS)
async def completing(number: int, total: int, hot: int) -> int:
    """Its effect and its end are one commit: a second effect would be refused, and fail it."""
    total = begin(number, total)
    job = current_job()
    async with job.complete(total) as tx:
        await tx.execute(EFFECT, {"key": job.idempotency_key, "task": "completing"})
        go_on(number, total, hot)
    return tx.output


@app.task(**OPTIONS)
async def forking(number: int, total: int, hot: int) -> int:
    """Starts two sides, and goes on with a job that waits for both."""
    total = begin(number, total)
    job = current_job()
    async with job.complete(total) as tx:
        await tx.execute(EFFECT, {"key": job.idempotency_key, "task": "forking"})
        sides = [await side.aenqueue(number, which) for which in range(2)]
        go_on(number, total, hot, blockers=sides)
    return tx.output


@app.task(**OPTIONS)
async def side(number: int, which: int) -> int:
    if is_one_sided(number) and which == 1:
        raise Fail("for good")
    job = current_job()
    async with job.complete(1) as tx:
        await tx.execute(EFFECT, {"key": job.idempotency_key, "task": "side"})
    return tx.output


@app.task(**OPTIONS)
async def audit(number: int) -> list[str]:
    """Waits for some chains; says how they ended."""
    async with app.transaction() as tx:
        await tx.execute(EFFECT_UNLESS_THERE, {"key": current_job().idempotency_key, "task": "audit"})
    return [str(blocker.state) for blocker in current_job().blockers]


STYLES: tuple[Sender[..., int], ...] = (plain, completing, forking, threaded)


def style(number: int, index: int) -> Sender[..., int]:
    """The task at a place of a chain; every second job of a thread has a lane, too."""
    task = STYLES[(number + index) % len(STYLES)]
    if task is threaded and (number + index) % 8 == 3:
        return task.using(lane=Lane(f"lane-{number % LANES}", concurrency=1 + number % LANES % 2))
    return task


def is_doomed(number: int) -> bool:
    """True if the chain fails at its fourth job."""
    return number % 50 == 7


def is_one_sided(number: int) -> bool:
    """True if one side of each of its diamonds fails."""
    return number % 50 == 13


def forks(number: int) -> list[int]:
    """Where the chain has diamonds; a last job cannot wait for any."""
    return [index for index in range(LENGTH - 1) if STYLES[(number + index) % len(STYLES)] is forking]


def output(number: int) -> int:
    """What the chain returns: its length, and one for each side."""
    return LENGTH + 2 * len(forks(number))


def begin(number: int, total: int) -> int:
    """What a job starts with: its own one, and what its blockers bring."""
    job = current_job()
    if (number + job.chain_index) % 9 == 0 and job.failures == 0:
        raise ValueError("the first attempt fails")
    if is_doomed(number) and job.chain_index == 3:
        raise Fail("for good")
    return total + 1 + sum(blocker.output for blocker in job.blockers)


def go_on(number: int, total: int, hot: int, **settings: Any) -> None:
    """Continue the chain, unless this is its last job."""
    job = current_job()
    if job.chain_index + 1 < LENGTH:
        sender = style(number, job.chain_index + 1)
        job.continue_with(sender.using(**settings) if settings else sender, number, total, hot)


def call(number: int) -> Any:
    """The first job of a chain: unique by its number, or else one of those that follow each other."""
    hot = -1 - number % HOT_KEYS  # a key is its value, whatever argument it comes from
    return style(number, 0).using(unique=LATEST if number % 10 == 9 else ONCE).job(number, 0, hot)


def produce(chains: int, seed: int) -> list[list[str]]:
    """Start chains, some twice; let others wait for them; revoke a few. Every acknowledged (id, outcome, kind)."""
    dice = random.Random(seed)
    numbers = list(range(chains)) + dice.sample(range(chains), chains // 4)
    receipts: list[list[str]] = []
    made: list[str] = []
    for start in range(0, len(numbers), MOST_IN_BATCH):
        batch = numbers[start : start + MOST_IN_BATCH]
        for number, receipt in zip(batch, app.enqueue_many([call(number) for number in batch]), strict=True):
            receipts.append([receipt.id, str(receipt.outcome), str(number)])
            made.append(receipt.id)
            if is_doomed(number) or is_one_sided(number):
                waiting = audit.using(blockers=[receipt]).enqueue(number)
                receipts.append([waiting.id, str(waiting.outcome), "audit"])
        for which in range(3):
            waits = {"blockers": dice.sample(made[-60:], 3), "on_blocker_failure": ("run", "fail")[which % 2]}
            receipt = audit.using(**waits).enqueue(start + which)
            receipts.append([receipt.id, str(receipt.outcome), "audit"])
            made.append(receipt.id)
        revoked = dice.choice(made[-100:])
        receipts.append([revoked, str(app.revoke(revoked)), "revoked"])
    app.close()
    return receipts


if __name__ == "__main__":
    chains, seed, report = sys.argv[1:]
    Path(report).write_text(json.dumps(produce(int(chains), int(seed))))
