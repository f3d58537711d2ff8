"""arq, in its own environment; results are not kept, and it looks for work a hundred times a second. It has no call for many."""

from typing import Any
from urllib.parse import urlsplit

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker
from measured import URL, Notes, at_once, main

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
        await at_once(AT_ONCE, self.one, payloads)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        await at_once(AT_ONCE, self._offer_one, keyed)

    async def _offer_one(self, keyed: tuple[str, dict[str, Any]]) -> object:
        key, payload = keyed
        return await self._pool.enqueue_job("nothing", payload, _job_id=key)

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
