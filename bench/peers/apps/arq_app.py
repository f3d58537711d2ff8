"""arq, in its own environment; results are not kept, and it looks for work a hundred times a second. It has no call for many."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
from measured import URL, Notes, main

AT_ONCE = 40
ADDRESS = urlsplit(URL)
SETTINGS = RedisSettings(
    host=ADDRESS.hostname or "", port=ADDRESS.port or 0, database=int(ADDRESS.path[1:] or 0)
)
notes = Notes()


async def nothing(_context: Any, payload: dict[str, Any]) -> None:
    notes.take(payload)


class Peer:
    async def open(self) -> None:
        self._pool = await create_pool(SETTINGS)

    async def close(self) -> None:
        await self._pool.aclose()

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._pool.enqueue_job("nothing", payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        for start in range(0, len(payloads), AT_ONCE):
            await asyncio.gather(*[self.one(payload) for payload in payloads[start : start + AT_ONCE]])

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        for start in range(0, len(keyed), AT_ONCE):
            calls = [
                self._pool.enqueue_job("nothing", payload, _job_id=key)
                for key, payload in keyed[start : start + AT_ONCE]
            ]
            await asyncio.gather(*calls)

    async def work(self, concurrency: int) -> None:
        worker = Worker(
            functions=[func(nothing, name="nothing", keep_result=0)],
            redis_settings=SETTINGS,
            max_jobs=concurrency,
            poll_delay=0.01,
            queue_read_limit=max(5 * concurrency, 100),
        )
        await worker.async_run()


if __name__ == "__main__":
    main(Peer())
