"""The app of the soak: few keys, few lanes, every policy, chains and blockers; and a producer. Run by test_postgres_soak.

Handlers bear witness in the user's own tables of the same database, see `soak_oracle`. With $SOAK_FAULTY it breaks its
own promises, one of each kind, so that a test can see that the oracle notices.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from onejob import App, Fixed, JobRevoked, Lane, LeaseLost, Receipt, Retry, StoreBusy, Unique, current_job
from onejob.stores.postgres.failures import is_lost
from onejob.stores.postgres.statements import FILES

app = App(unique=None)
FAULTY = "SOAK_FAULTY" in os.environ
PATIENCE = 60.0
FEWEST = 25
"""Calls that each hand makes, however slow the machine is and however long its server is away."""
HANDS = 5
"""Calls under way at once, in each producing process."""
HOT = 1 if FAULTY else 3
"""Keys of each policy, and lanes of each kind."""
EPOCHS_PER_SECOND = 2
"""How often the keys of those policies change that promise freshness: a later call would hide what was lost."""
JOINING = 0
"""The producer that enqueues on connections of its own, and what fails there is not acknowledged."""
WIDTH = 2
LINKS = 3
OPTIONS: dict[str, Any] = {"retry": Retry(attempts=40, backoff=Fixed(0.02)), "max_crashes": 1_000}
ENTER = "select soak_enter($1::uuid, $2, $3, $4, $5, $6)"
LEAVE = "select soak_leave($1::uuid, $2, $3, $4)"
CHANGE = "insert into soak_change (subject, number) values ($1, $2)"
DONE = "select soak_done($1::text::uuid, $2::text, $3::bigint, $4::bigint[])"

if FAULTY:
    FILES.read_all()
    for name, text in FILES.statements("claim").items():  # a claim that starts what runs already
        FILES.statements("claim")[name] = text.replace(
            "where j.state = 'waiting' and j.queue = q.name",
            "where (j.state = 'waiting' or j.state = 'running' and random() < 0.02) and j.queue = q.name",
            1,
        )


class Notes:
    """The way to the user's own tables, which is tried again for as long as the server is away."""

    def __init__(self) -> None:
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def note(self, statement: str, *values: object) -> Any:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if self._pool is None:
                    url = os.environ["ONEJOB_URL"].partition("?")[0]
                    self._pool = await asyncpg.create_pool(url, min_size=0, max_size=HANDS)
                return await self._pool.fetchval(statement, *values)
            except Exception as error:
                if not _server_is_gone(error) or time.monotonic() > end:
                    raise
                await asyncio.sleep(0.05)  # the server is being restarted


def _server_is_gone(error: Exception) -> bool:
    return is_lost(error) or isinstance(error, ConnectionError)  # or somebody heard his own echo


notes = Notes()


async def run(
    value: int, *, name: str | None = None, items: list[int] | None = None, ends: bool = True
) -> None:
    """What every handler does: be seen, work a little, fail now and then, and end in one of two ways."""
    job = current_job()
    task, lane = job.task.rpartition(".")[2], job.lane
    subject = None if name is None else f"{task}/{name}"
    slots = WIDTH if lane is not None and lane.startswith("wide") else 1
    if FAULTY:
        await asyncio.sleep(random.uniform(0, 0.1))  # so that there is time to do wrong, and to be late
    seen = await notes.note(ENTER, job.id, job.attempt, task, subject, lane, slots)
    if seen is None:
        return  # the lease was lost before we could say a word: nothing of this run counts
    await asyncio.sleep(random.uniform(0, 0.1 if FAULTY else 0.004))
    await notes.note(LEAVE, job.id, job.attempt, subject, seen)
    if value % 17 == 0 and job.failures == 0:
        raise ValueError("the first attempt fails")
    if ends:
        async with job.complete() as tx:
            await tx.execute(DONE, (job.id, task, value, items or []))


@app.task(**OPTIONS)
async def plain(value: int) -> None:
    await run(value, ends=value % 2 == 0)


@app.task(unique=Unique.in_flight(by="key"), **OPTIONS)
async def in_flight(key: str, value: int) -> None:
    await run(value, name=key)


@app.task(unique=Unique.once(by="key", within=0.5, hold=True), **OPTIONS)
async def once(key: str, value: int) -> None:
    await run(value, name=key, ends=False)


@app.task(unique=Unique.throttle(0.5, by="key", hold=True), **OPTIONS)
async def throttle(key: str, value: int) -> None:
    await run(value, name=key)


@app.task(unique=Unique.coalesce(by="key"), **OPTIONS)
async def coalesce(key: str, value: int) -> None:
    await run(value, name=key)


@app.task(unique=Unique.latest(by="key"), **OPTIONS)
async def latest(key: str, value: int) -> None:
    await run(value, name=key, ends=value % 2 == 0)


@app.task(unique=Unique.debounce(0.05, 0.2, by="key"), **OPTIONS)
async def debounce(key: str, value: int) -> None:
    await run(value, name=key)


@app.task(unique=Unique.collect(wait=0.05, max_items=20, by="key"), **OPTIONS)
async def collect(key: str, items: list[int]) -> None:
    await run(items[0], name=key, items=items)


@app.task(unique=Unique.restart(by="key"), **OPTIONS)
async def restart(key: str, value: int) -> None:
    try:
        await run(value, name=key, ends=value % 2 == 0)
    except (JobRevoked, LeaseLost):
        return  # as it was told; what it returns no longer counts


@app.task(**OPTIONS)
async def ordered(value: int) -> None:
    await run(value)


@app.task(**OPTIONS)
async def wide(value: int) -> None:
    await run(value, ends=False)


@app.task(**OPTIONS)
async def link(value: int) -> None:
    if current_job().chain_index + 1 < LINKS:
        current_job().continue_with(link, value)
    await run(value, ends=value % 2 == 0)


@app.task(**OPTIONS)
async def join(value: int) -> None:
    """Starts once its two blockers have completed, each with its own row."""
    blockers = [blocker.id for blocker in current_job().blockers] or [current_job().id]
    await notes.note("select soak_joined($1::uuid, $2::uuid[])", current_job().id, blockers)
    await run(value)


FRESH = (coalesce, latest, debounce)
KEYED = (in_flight, once, throttle, restart)


class Producer:
    """Several hands that call at random and write down what was acknowledged, and when."""

    def __init__(self, seconds: float, number: int) -> None:
        self.attempted = 0
        self.acknowledged: list[dict[str, Any]] = []
        self._seconds = seconds
        self._joins = number == JOINING and not FAULTY
        self._dice = random.Random(number)
        self._value = number * 10_000_000
        self._belated: list[asyncio.Task[None]] = []

    async def produce(self) -> None:
        await app.store.open()  # the clock starts once everyone can enqueue
        end = time.monotonic() + self._seconds
        await asyncio.gather(*(self._hand(end) for _ in range(HANDS)))
        await asyncio.gather(*self._belated)
        await app.aclose()

    async def _hand(self, end: float) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            *(self._fresh, self._fresh, self._fresh_beside, self._keyed, self._keyed, self._collected),
            *(self._ordered, self._ordered, self._wide, self._many, self._chain, self._join),
        ]
        made = 0
        while time.monotonic() < end or made < FEWEST:
            try:
                await self._dice.choice(kinds)()
                made += 1
            except StoreBusy:  # not acknowledged: it may count or not, and nobody relies on it
                continue
            except Exception as error:
                if not (self._joins and _server_is_gone(error)):
                    raise
                await asyncio.sleep(0.05)  # it is being restarted

    def _next(self) -> int:
        self._value += 1
        return self._value

    def _next_even(self) -> int:
        self._value += 2 - self._value % 2
        return self._value

    def _hot(self) -> str:
        return str(self._dice.randrange(HOT))

    def _acknowledge(self, began: float, receipt: Receipt[Any], value: int, **more: Any) -> None:
        fields = {"id": receipt.id, "outcome": str(receipt.outcome), "value": value}
        self.acknowledged.append({**fields, "began": began, "ended": time.monotonic(), **more})

    async def _fresh(self) -> None:
        """A change and the call that tells of it, in one commit."""
        task, value = self._dice.choice(FRESH), self._next()
        key = f"{self._hot()}-{int(time.time() * EPOCHS_PER_SECOND)}"
        subject = f"{task.name.rpartition('.')[2]}/{key}"
        self.attempted += 1
        began = time.monotonic()
        if self._joins:
            async with own_transaction() as connection:
                await connection.execute(CHANGE, subject, value)
                receipt = await task.using(connection=connection).aenqueue(key, value)
                await asyncio.sleep(self._dice.uniform(0, 0.004))
        else:
            async with app.transaction() as tx:
                if not FAULTY:
                    await tx.execute(CHANGE, (subject, value))
                receipt = await task.aenqueue(key, value)
                await asyncio.sleep(self._dice.uniform(0, 0.004))
        if FAULTY:
            self._belated.append(asyncio.create_task(self._change_later(subject, value)))
        self._acknowledge(began, receipt, value)

    async def _change_later(self, subject: str, value: int) -> None:
        await asyncio.sleep(1)
        await notes.note(CHANGE, subject, value)

    async def _fresh_beside(self) -> None:
        """A change that is committed before the call, which therefore must not be given up."""
        task, value = self._dice.choice(FRESH), self._next()
        key = f"{self._hot()}-{int(time.time() * EPOCHS_PER_SECOND)}"
        await notes.note(CHANGE, f"{task.name.rpartition('.')[2]}/{key}", value)
        self.attempted += 1
        began = time.monotonic()
        self._acknowledge(began, await task.aenqueue(key, value), value)

    async def _keyed(self) -> None:
        value = self._next()
        task = self._dice.choice(KEYED)
        await self._call(task.using(force=True) if FAULTY else task, value, self._hot(), value)

    async def _collected(self) -> None:
        value = self._next()
        await self._call(collect, value, self._hot(), [value], item=value)

    async def _ordered(self) -> None:
        value, lane = self._next(), f"ordered-{self._hot()}"
        limits = Lane(lane, concurrency=3 if FAULTY else 1, on_retry="hold")
        await self._call(ordered.using(lane=limits), value, value, lane=lane, alone=True)

    async def _wide(self) -> None:
        value = self._next()
        await self._call(
            wide.using(lane=Lane(f"wide-{self._hot()}", concurrency=WIDTH)), value, value, alone=True
        )

    async def _chain(self) -> None:
        value = self._next()
        await self._call(link, value, value, links=LINKS)

    async def _many(self) -> None:
        values = [self._next() for _ in range(5)]
        self.attempted += len(values)
        began = time.monotonic()
        if FAULTY:
            await self._promise_in_vain(began)
        calls = [plain.job(value) for value in values]
        if self._joins:
            async with own_transaction() as connection:
                receipts = await app.aenqueue_many(calls, connection=connection)
        else:
            receipts = await app.aenqueue_many(calls)
        for receipt, value in zip(receipts, values, strict=True):
            self._acknowledge(began, receipt, value, alone=True)

    async def _promise_in_vain(self, began: float) -> None:
        """Acknowledge a call whose transaction is rolled back."""

        class Never(Exception): ...

        receipt = None
        try:
            async with app.transaction():
                receipt = await plain.aenqueue(0)
                raise Never
        except Never:
            assert receipt is not None
            self._acknowledge(began, receipt, 0)

    async def _join(self) -> None:
        values = [self._next_even() for _ in range(2)]  # those that leave a row
        self.attempted += len(values)
        began = time.monotonic()
        sides = await app.aenqueue_many([plain.job(value) for value in values])
        for receipt, value in zip(sides, values, strict=True):
            self._acknowledge(began, receipt, value)
        value = self._next()
        await self._call(join if FAULTY else join.using(blockers=sides), value, value, alone=True)

    async def _call(self, task: Any, value: int, *arguments: Any, **more: Any) -> None:
        self.attempted += 1
        began = time.monotonic()
        if self._joins:
            async with own_transaction() as connection:
                receipt = await task.using(connection=connection).aenqueue(*arguments)
        else:
            receipt = await task.aenqueue(*arguments)
        self._acknowledge(began, receipt, value, **more)


@asynccontextmanager
async def own_transaction() -> AsyncIterator[Any]:
    """A transaction of the user's on a connection of his own."""
    connection = await asyncpg.connect(os.environ["ONEJOB_URL"].partition("?")[0])
    try:
        async with connection.transaction():
            yield connection
    finally:
        connection.terminate()


if __name__ == "__main__":
    seconds, number, report = sys.argv[1:]
    producer = Producer(float(seconds), int(number))
    asyncio.run(producer.produce())
    Path(report).write_text(
        json.dumps({"attempted": producer.attempted, "acknowledged": producer.acknowledged})
    )
