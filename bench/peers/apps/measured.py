"""Runs a peer in its own environment: as a producer that prints its rate, or as a worker that notes what it starts.

A peer's app defines `Peer` and calls `main`. The store is in $BENCH_URL; a worker leaves its notes in $BENCH_NOTES.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import uvloop

URL = os.environ["BENCH_URL"]
CHUNK = 1_000
WAITERS = 100
Payload = dict[str, Any]
T = TypeVar("T")


class Peer(Protocol):
    """What a peer's app offers."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def install(self) -> None: ...
    async def one(self, payload: Payload) -> object: ...
    async def many(self, payloads: list[Payload]) -> object: ...
    async def offer(self, keyed: list[tuple[str, Payload]]) -> object: ...
    async def work(self, concurrency: int) -> None: ...


def main(peer: Peer) -> None:
    """Do what the command line says."""
    uvloop.run(_main(peer, sys.argv[1], [int(word) for word in sys.argv[2:]]))


class Notes:
    """When the first job started, and how long each took to get there, if it says when it was sent."""

    def __init__(self) -> None:
        self._folder = Path(os.environ.get("BENCH_NOTES", "."))
        self._started = False
        self._waits: list[float] = []

    def take(self, payload: Payload) -> None:
        """A job has started."""
        now = time.monotonic()
        if not self._started:
            self._started = True
            self._write("started", now)
        if "sent" in payload:
            self._waits.append(now - payload["sent"])
            if len(self._waits) == payload["of"]:
                self._write("waits", self._waits)

    def _write(self, name: str, found: Any) -> None:
        """Whoever sees the file sees all of it."""
        draft = self._folder / f"{name}.draft"
        draft.write_text(json.dumps(found))
        draft.rename(self._folder / name)


async def at_once(limit: int, send: Callable[[T], Awaitable[object]], calls: Iterable[T]) -> None:
    """Send all of them, so many at a time."""
    rest = iter(calls)

    async def send_on() -> None:
        for call in rest:
            await send(call)

    await asyncio.gather(*[send_on() for _ in range(limit)])


async def _main(peer: Peer, command: str, numbers: list[int]) -> None:
    if command == "work":
        await peer.work(*numbers)
        return
    if command == "install":
        await peer.install()
        return
    await peer.open()
    rates: dict[str, Callable[..., Awaitable[float | None]]] = {
        "one-by-one": _one_by_one,
        "concurrent": _concurrent,
        "bulk": _bulk,
        "keys": _keys,
        "stamps": _stamps,
        "load": _load,
    }
    print(json.dumps(await rates[command](peer, *numbers)))
    await peer.close()


async def _one_by_one(peer: Peer, count: int) -> float:
    await peer.one(_payload(0))
    started = time.perf_counter()
    for number in range(count):
        await peer.one(_payload(number))
    return count / (time.perf_counter() - started)


async def _concurrent(peer: Peer, count: int) -> float:
    payloads = [_payload(number) for number in range(count)]
    await peer.one(_payload(0))
    started = time.perf_counter()
    await at_once(WAITERS, peer.one, payloads)
    return count / (time.perf_counter() - started)


async def _bulk(peer: Peer, count: int) -> float:
    await peer.one(_payload(0))  # connects
    return await _in_chunks(peer.many, [_payload(number) for number in range(count)])


async def _keys(peer: Peer, count: int, repeats: int, known: int) -> float:
    distinct = count // repeats
    await peer.one(_payload(0))
    keyed = [(f"ord_{number % distinct:010d}", _payload(number)) for number in range(count)]
    if known:
        await _in_chunks(peer.offer, keyed[:distinct])
    return await _in_chunks(peer.offer, keyed)


async def _in_chunks(send: Callable[[list[Any]], Awaitable[object]], calls: list[Any]) -> float:
    started = time.perf_counter()
    for start in range(0, len(calls), CHUNK):
        await send(calls[start : start + CHUNK])
    return len(calls) / (time.perf_counter() - started)


async def _stamps(peer: Peer, count: int) -> None:
    await peer.one(_payload(0))  # connects
    for number in range(count):
        await asyncio.sleep(random.uniform(0.03, 0.06))
        await peer.one({**_payload(number), "sent": time.monotonic(), "of": count})


async def _load(peer: Peer, count: int, rate: int) -> None:
    """Calls at a fixed rate, whether or not those before have been answered."""
    await peer.one(_payload(0))  # connects
    began = time.monotonic()
    async with asyncio.TaskGroup() as under_way:
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            stamp = {"sent": time.monotonic(), "of": count}
            under_way.create_task(_send({**_payload(number), **stamp}, peer))


async def _send(payload: Payload, peer: Peer) -> None:
    await peer.one(payload)


def _payload(number: int) -> Payload:
    return {
        "user_id": 123456,
        "kind": "welcome_email",
        "ref": "ord_8f3b2c1d90",
        "amount": 19.99,
        "tags": ["a", "b"],
        "number": number,
    }
