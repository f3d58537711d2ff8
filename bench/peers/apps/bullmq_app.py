"""BullMQ for Python, in its own environment; finished jobs are removed at once."""

import asyncio
from typing import Any

from bullmq import Queue, Worker
from measured import URL, Notes, main

CONNECTION = URL.replace("valkey://", "redis://")
QUEUE = "nothing"
OPTIONS = {"removeOnComplete": True}


class Peer:
    async def open(self) -> None:
        self._queue = Queue(QUEUE, {"connection": CONNECTION})

    async def close(self) -> None:
        await self._queue.close()

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._queue.add(QUEUE, payload, OPTIONS)

    async def many(self, payloads: list[dict[str, Any]]) -> object:
        return await self._queue.addBulk(
            [{"name": QUEUE, "data": payload, "opts": OPTIONS} for payload in payloads]
        )

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        jobs = [
            {"name": QUEUE, "data": payload, "opts": {**OPTIONS, "deduplication": {"id": key}}}
            for key, payload in keyed
        ]
        return await self._queue.addBulk(jobs)

    async def work(self, concurrency: int) -> None:
        notes = Notes()

        async def nothing(job: Any, _token: str) -> None:
            notes.take(job.data)

        Worker(QUEUE, nothing, {"connection": CONNECTION, "concurrency": concurrency})
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(Peer())
