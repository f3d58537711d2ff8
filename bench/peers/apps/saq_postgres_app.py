"""SAQ on PostgreSQL, in its own environment. It has no call for many, so many are sent at once."""

from typing import Any

import orjson
from measured import URL, Notes, at_once, main
from psycopg_pool import AsyncConnectionPool
from saq import Worker
from saq.queue.postgres import PostgresQueue

AT_ONCE = 20
notes = Notes()


async def nothing(_context: Any, *, payload: dict[str, Any]) -> None:
    notes.take(payload)


def _queue() -> PostgresQueue:
    settings = {"min_size": 4, "max_size": AT_ONCE, "open": False, "kwargs": {"autocommit": True}}
    pool = AsyncConnectionPool(URL, **settings)
    return PostgresQueue(pool=pool, manage_pool_lifecycle=True, dump=orjson.dumps, load=orjson.loads)


class Peer:
    async def open(self) -> None:
        self._queue = _queue()
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def install(self) -> None:
        await self.open()  # makes its tables
        await self.close()

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._queue.enqueue("nothing", payload=payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        await at_once(AT_ONCE, self.one, payloads)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        await at_once(AT_ONCE, self._offer_one, keyed)

    async def _offer_one(self, keyed: tuple[str, dict[str, Any]]) -> object:
        key, payload = keyed
        return await self._queue.enqueue("nothing", payload=payload, key=key)

    async def work(self, concurrency: int) -> None:
        queue = _queue()
        await queue.connect()
        await Worker(queue, functions=[nothing], concurrency=concurrency).start()


if __name__ == "__main__":
    main(Peer())
