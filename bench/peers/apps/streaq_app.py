"""streaq, in its own environment; a key is a task's id, which is taken once."""

import sys
from typing import Any

from measured import URL, Notes, main
from streaq import Worker

CONCURRENCY = int(sys.argv[2]) if sys.argv[1] == "work" else 16
worker = Worker(redis_url=URL.replace("valkey://", "redis://"), concurrency=CONCURRENCY)
notes = Notes()


@worker.task()
async def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


class Peer:
    async def open(self) -> None:
        await worker.__aenter__()

    async def close(self) -> None:
        await worker.__aexit__(None, None, None)

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return await nothing.enqueue(payload)

    async def many(self, payloads: list[dict[str, Any]]) -> object:
        return await worker.enqueue_many([nothing.enqueue(payload) for payload in payloads])

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        tasks = [nothing.enqueue(payload) for _, payload in keyed]
        for task, (key, _) in zip(tasks, keyed, strict=True):
            task.id = key
        return await worker.enqueue_many(tasks)

    async def work(self, _concurrency: int) -> None:
        await worker.run_async()


if __name__ == "__main__":
    main(Peer())
