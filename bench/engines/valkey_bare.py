"""The loops on Valkey that a queue without any features would be: scripts on a connection like our store's, in uvloop.

A program of its own (`python -m bench.engines.valkey_bare URL LOOP NUMBER…` prints a rate), as a store's worker is.

What there is of a job: its payload, its rank among those that wait, until when it may run, and how it ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvloop

from bench.jobs import Repetition, arguments
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.connection import Connection, connect

BATCH = 1_000
ROWS = 50_000
SINGLE_ROWS = 5_000
TASKS = 100
TASK_ROWS = 20_000
PIPELINE = 100
DRAINED_ROWS = {1: 3_000, 10: 20_000, 100: 50_000, 500: 50_000}
LEASE = 60

PAYLOADS, WAITING, RUNNING, ENDED, KEYS = "payloads", "waiting", "running", "ended", "keys"
_ADD = """
local added = redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
if added == 1 then redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1]) end
return added
"""
_ADD_MANY = """
local payloads, ranks = {}, {}
for i = 1, #ARGV, 3 do
  payloads[#payloads + 1], payloads[#payloads + 2] = ARGV[i], ARGV[i + 1]
  ranks[#ranks + 1], ranks[#ranks + 2] = ARGV[i + 2], ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(payloads))
return redis.call('ZADD', KEYS[2], unpack(ranks))
"""
_OFFER = """
local held = {}
for i = 1, #ARGV, 4 do
  local n = (i + 3) / 4
  if redis.call('HSETNX', KEYS[3], ARGV[i + 3], ARGV[i]) == 1 then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    redis.call('ZADD', KEYS[2], ARGV[i + 2], ARGV[i])
    held[n] = ARGV[i]
  else
    held[n] = redis.call('HGET', KEYS[3], ARGV[i + 3])
  end
end
return held
"""
_CLAIM = """
local popped = redis.call('ZPOPMIN', KEYS[2], ARGV[1])
if not popped[1] then return {} end
local ids, leases = {}, {}
for i = 1, #popped, 2 do
  ids[#ids + 1] = popped[i]
  leases[#leases + 1], leases[#leases + 2] = ARGV[2], popped[i]
end
redis.call('ZADD', KEYS[3], unpack(leases))
return { ids, redis.call('HMGET', KEYS[1], unpack(ids)) }
"""
_END = """
local ended = {}
for i = 1, #ARGV do ended[#ended + 1], ended[#ended + 2] = ARGV[i], '1' end
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('HSET', KEYS[2], unpack(ended))
"""

Row = tuple[str, str, str]


async def one_by_one(connection: Connection) -> float:
    """One call after the other."""
    add = await _script(connection, _ADD, PAYLOADS, WAITING)
    rows = _rows(SINGLE_ROWS)
    started = time.perf_counter()
    for row in rows:
        await add(*row)
    return SINGLE_ROWS / (time.perf_counter() - started)


async def tasks(connection: Connection) -> float:
    """The same call, from tasks that each await one after the other."""
    add = await _script(connection, _ADD, PAYLOADS, WAITING)
    rows = iter(_rows(TASK_ROWS))

    async def send_on(rows: Iterator[Row]) -> None:
        for row in rows:
            await add(*row)

    started = time.perf_counter()
    await asyncio.gather(*[send_on(rows) for _ in range(TASKS)])
    return TASK_ROWS / (time.perf_counter() - started)


async def pipeline(connection: Connection) -> float:
    """The same call, many of them sent before the first is answered."""
    add = await _script(connection, _ADD, PAYLOADS, WAITING)
    rows = _rows(ROWS)
    started = time.perf_counter()
    for some in _batches(rows, PIPELINE):
        await asyncio.gather(*[add(*row) for row in some])
    return ROWS / (time.perf_counter() - started)


async def bulk(connection: Connection) -> float:
    """Many by one call."""
    add = await _script(connection, _ADD_MANY, PAYLOADS, WAITING)
    rows = _rows(ROWS)
    started = time.perf_counter()
    for some in _batches(rows, BATCH):
        await add(*[word for row in some for word in row])
    return ROWS / (time.perf_counter() - started)


async def deduplicated(connection: Connection, times: int, known: int) -> float:
    """Many by one call, each with a key."""
    offer = await _script(connection, _OFFER, PAYLOADS, WAITING, KEYS)
    repetition = Repetition(times, known=bool(known))
    ref = repetition.ref(ROWS)
    keyed = [(*row, ref(number)) for number, row in enumerate(_rows(ROWS))]

    async def offer_all(rows: list[Any]) -> None:
        for some in _batches(rows, BATCH):
            await offer(*[word for row in some for word in row])

    await offer_all(repetition.before(keyed))
    started = time.perf_counter()
    await offer_all(keyed)
    return ROWS / (time.perf_counter() - started)


async def drain(connection: Connection, size: int) -> float:
    """Claim some by one call, and end them by the next."""
    count = DRAINED_ROWS[size]
    add = await _script(connection, _ADD_MANY, PAYLOADS, WAITING)
    for some in _batches(_rows(count), BATCH):
        await add(*[word for row in some for word in row])
    claim = await _script(connection, _CLAIM, PAYLOADS, WAITING, RUNNING)
    end = await _script(connection, _END, RUNNING, ENDED)
    started = time.perf_counter()
    while claimed := await claim(str(size), str(time.time() + LEASE)):
        await end(*claimed[0])
    return count / (time.perf_counter() - started)


LOOPS: dict[str, Callable[..., Awaitable[float]]] = {
    "one-by-one": one_by_one,
    "tasks": tasks,
    "pipeline": pipeline,
    "bulk": bulk,
    "keys": deduplicated,
    "drain": drain,
}


async def _script(connection: Connection, text: str, *keys: str) -> Callable[..., Awaitable[Any]]:
    digest = await connection.ask(("SCRIPT", "LOAD", text))
    head = ("EVALSHA", digest, str(len(keys)), *keys)
    return lambda *words: connection.ask((*head, *words))


def _rows(count: int) -> list[Row]:
    """Ids, payloads, and ranks."""
    return [(f"{number:016x}", json.dumps(arguments(number)), str(number)) for number in range(count)]


def _batches(rows: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


async def _main(url: str, loop: str, *numbers: str) -> float:
    address = parse(url)
    connection = await connect(address, address.hosts[0])
    try:
        return await LOOPS[loop](connection, *map(int, numbers))
    finally:
        connection.close()


if __name__ == "__main__":
    print(uvloop.run(_main(*sys.argv[1:])))
