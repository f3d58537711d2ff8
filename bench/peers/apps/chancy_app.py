"""Chancy, in its own environment, with its asyncio executor; it polls again at once while there is work."""

import logging
from typing import Any

from chancy import Chancy, Queue, Worker, job
from measured import URL, Notes, main

quiet = logging.getLogger("quiet")
quiet.setLevel(logging.ERROR)
notes = Notes()


@job(queue="default")
async def nothing(*, payload: dict[str, Any]) -> None:
    notes.take(payload)


def _queue(concurrency: int) -> Queue:
    executor = "chancy.executors.asyncex.AsyncExecutor"
    return Queue(
        "default", concurrency=concurrency, executor=executor, polling_interval=1, eager_polling=True
    )


class Peer:
    async def open(self) -> None:
        self._chancy = Chancy(URL, log=quiet)
        await self._chancy.__aenter__()

    async def close(self) -> None:
        await self._chancy.__aexit__(None, None, None)

    async def install(self) -> None:
        async with Chancy(URL, log=quiet) as chancy:
            await chancy.migrate()
            await chancy.declare(_queue(10), upsert=True)

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._chancy.push(nothing.job.with_kwargs(payload=payload))

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        async for _ in self._chancy.push_many(
            [nothing.job.with_kwargs(payload=payload) for payload in payloads]
        ):
            pass

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        jobs = [nothing.job.with_kwargs(payload=payload).with_unique_key(key) for key, payload in keyed]
        async for _ in self._chancy.push_many(jobs):
            pass

    async def work(self, concurrency: int) -> None:
        async with Chancy(URL, log=quiet) as chancy:
            await chancy.declare(_queue(concurrency), upsert=True)
            async with Worker(chancy) as worker:
                await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(Peer())
