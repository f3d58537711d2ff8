"""Who enqueues in the soak on Valkey: several hands that call at random and write down what was acknowledged, and when."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from valkey_soak_app import (
    ENOUGH,
    FRESH,
    KEYED,
    QUEUES,
    RATE,
    WIDTH,
    app,
    collect,
    doomed,
    history,
    join,
    latest,
    ordered,
    paced,
    plain,
    slow,
    wide,
)

from onejob import Lane, Receipt, StoreBusy, UnknownBlocker

HANDS = 3
"""Calls under way at once, in each producing process."""
BREATH = float(os.environ.get("SOAK_BREATH", "0.02"))
"""Seconds that a hand rests between two calls, at most."""
HOT = 3
"""Keys of each policy, and lanes of each kind."""
EPOCHS_PER_SECOND = 2
"""How often the keys of those policies change that promise freshness: a later call would hide what was lost."""

LEAST = 40
"""Calls that each hand makes, however long servers that are killed keep it waiting."""


class Producer:
    """Several hands that call at random and write down what was acknowledged, and when."""

    def __init__(self, seconds: float, number: int, seed: int) -> None:
        self._seconds = seconds
        self._number = number
        self._dice = random.Random(seed * 100 + number)
        self._value = number * 10_000_000
        self._keyed_tasks = cycle(KEYED)
        self._slow_calls = 0
        self._enough = Path(os.environ["SOAK_FOLDER"], ENOUGH)

    async def produce(self) -> None:
        await app.store.open()  # the clock starts once everyone can enqueue
        end = time.monotonic() + self._seconds
        await asyncio.gather(*(self._hand(end) for _ in range(HANDS)), self._own_key(end))
        await app.aclose()

    async def _hand(self, end: float) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            *(self._fresh, self._fresh, self._keyed, self._keyed, self._collected, self._doomed, self._slow),
            *(self._ordered, self._wide, self._paced, self._many, self._join),
        ]
        first = iter(kinds)  # of each kind at least one, however few calls are made
        made = 0
        while self._goes_on(end) or made < LEAST:
            call = next(first, None) or self._dice.choice(kinds)
            try:
                await call()
            except StoreBusy:  # not acknowledged: it may count or not, and nobody relies on it
                continue
            except UnknownBlocker:  # acknowledged, and lost with a server: where that may be, it is counted
                history.write("unknown")
            made += 1
            await asyncio.sleep(self._dice.uniform(0, BREATH))

    async def _own_key(self, end: float) -> None:
        """Calls one after the other on a key that nobody else calls: the last is the last."""
        key = f"own-{self._number}"
        while self._goes_on(end):
            value = self._next()
            try:
                await self._call(latest, value, key, value, subject=f"latest/{key}", alone=True)
            except StoreBusy:
                history.write("unsure", subject=f"latest/{key}")
            await asyncio.sleep(self._dice.uniform(0, BREATH * 2))

    def _goes_on(self, end: float) -> bool:
        return time.monotonic() < end or not self._enough.exists()

    def _next(self) -> int:
        self._value += 1
        return self._value

    def _hot(self) -> str:
        return str(self._dice.randrange(HOT))

    async def _fresh(self) -> None:
        task, value = self._dice.choice(FRESH), self._next()
        key = f"{self._hot()}-{int(time.time() * EPOCHS_PER_SECOND)}"
        await self._call(task, value, key, value, subject=f"{task.name.rpartition('.')[2]}/{key}")

    async def _keyed(self) -> None:
        value = self._next()
        await self._call(next(self._keyed_tasks), value, self._hot(), value)

    async def _collected(self) -> None:
        value = self._next()
        await self._call(collect, value, self._hot(), [value], item=value)

    async def _ordered(self) -> None:
        value, lane = self._next(), f"ordered-{self._hot()}"
        await self._call(ordered.using(lane=Lane(lane, on_retry="hold")), value, value, lane=lane)

    async def _wide(self) -> None:
        value = self._next()
        await self._call(wide.using(lane=Lane(f"wide-{self._hot()}", concurrency=WIDTH)), value, value)

    async def _paced(self) -> None:
        value = self._next()
        lane = Lane(f"paced-{self._hot()}", concurrency=4, rate=RATE)
        await self._call(paced.using(lane=lane), value, value)

    async def _doomed(self) -> None:
        value = self._next()
        await self._call(doomed, value, value)

    async def _slow(self) -> None:
        self._slow_calls += 1
        if self._slow_calls <= HANDS or self._dice.random() < 0.2:
            value = self._next()
            await self._call(slow, value, value)

    async def _many(self) -> None:
        values = [self._next() for _ in range(4)]
        await self._all([plain.using(queue=self._dice.choice(QUEUES)).job(value) for value in values], values)

    async def _join(self) -> None:
        values = [self._next() for _ in range(2)]
        sides = await self._all(
            [plain.using(queue=queue).job(value) for queue, value in zip("bc", values, strict=True)], values
        )
        value = self._next()
        await self._call(join.using(blockers=sides), value, value)

    async def _all(self, jobs: list[Any], values: list[int]) -> list[Receipt[Any]]:
        began = time.monotonic_ns()
        history.write("attempt", number=len(jobs))
        receipts = await app.aenqueue_many(jobs)
        for receipt, value in zip(receipts, values, strict=True):
            _acknowledged(began, receipt, value)
        return receipts

    async def _call(self, task: Any, value: int, *arguments: Any, **more: Any) -> None:
        began = time.monotonic_ns()
        history.write("attempt", number=1)
        _acknowledged(began, await task.aenqueue(*arguments), value, **more)


def _acknowledged(began: int, receipt: Receipt[Any], value: int, **more: Any) -> None:
    history.write("call", began=began, id=receipt.id, outcome=str(receipt.outcome), value=value, **more)


if __name__ == "__main__":
    seconds, number, seed = sys.argv[1:]
    asyncio.run(Producer(float(seconds), int(number), int(seed)).produce())
