"""Oban for Python, in its own environment. Unique jobs are in its paid edition only."""

import asyncio
from typing import Any

from measured import URL, Notes, main
from oban import Oban, worker
from oban.job import Job
from oban.schema import install_sql
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

notes = Notes()


@worker(queue="default")
class Nothing:
    async def process(self, job: Job) -> None:
        notes.take(job.args)


def _pool(most: int) -> AsyncConnectionPool[Any]:
    return AsyncConnectionPool(URL, min_size=4, max_size=most, open=False)


class Peer:
    async def open(self) -> None:
        self._pool = _pool(20)
        await self._pool.open()
        self._oban = await Oban(pool=self._pool).start()

    async def close(self) -> None:
        await self._oban.stop()
        await self._pool.close()

    async def install(self) -> None:
        async with await AsyncConnection.connect(URL, autocommit=True) as connection:
            await connection.execute(install_sql().encode())

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._oban.enqueue(Nothing.new(payload))

    async def many(self, payloads: list[dict[str, Any]]) -> object:
        return await self._oban.enqueue_many([Nothing.new(payload) for payload in payloads])

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        raise NotImplementedError("it has no keys")

    async def work(self, concurrency: int) -> None:
        async with _pool(10) as pool:
            await Oban(pool=pool, queues={"default": concurrency}).start()
            await asyncio.Event().wait()


if __name__ == "__main__":
    main(Peer())
