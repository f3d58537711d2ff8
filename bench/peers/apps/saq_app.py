"""SAQ on Redis, in its own environment. It has no call for many, so many are sent at once."""

import asyncio
from typing import Any

import orjson
from measured import URL, Notes, main
from saq import Queue, Worker

notes = Notes()


async def nothing(_context: Any, *, payload: dict[str, Any]) -> None:
    notes.take(payload)


def _queue() -> Queue:
    url = URL.replace("valkey://", "redis://")
    return Queue.from_url(url, dump=orjson.dumps, load=orjson.loads, max_concurrent_ops=100)


class Peer:
    async def open(self) -> None:
        self._queue = _queue()
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._queue.enqueue("nothing", payload=payload)

    async def many(self, payloads: list[dict[str, Any]]) -> object:
        return await asyncio.gather(*[self.one(payload) for payload in payloads])

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        return await asyncio.gather(
            *[self._queue.enqueue("nothing", payload=payload, key=key) for key, payload in keyed]
        )

    async def work(self, concurrency: int) -> None:
        queue = _queue()
        await queue.connect()
        await Worker(queue, functions=[nothing], concurrency=concurrency).start()


if __name__ == "__main__":
    main(Peer())
