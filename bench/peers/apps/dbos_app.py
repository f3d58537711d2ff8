"""DBOS, in its own environment: its client enqueues, its executor polls ten times a second. It has no call for many."""

import asyncio
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig
from measured import URL, Notes, at_once, main

QUEUE = "nothing"
VERSION = "1"
AT_ONCE = 20
OPTIONS = {"queue_name": QUEUE, "workflow_name": "nothing", "app_version": VERSION}
CONFIG: DBOSConfig = {
    "name": "bench",
    "system_database_url": URL,
    "application_version": VERSION,
    "sys_db_pool_size": AT_ONCE,
    "log_level": "ERROR",
}
notes = Notes()


@DBOS.workflow(name="nothing")
async def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


def _launch(queues: list[str], concurrency: int) -> None:
    DBOS(config=CONFIG)
    DBOS.listen_queues(queues)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=concurrency, polling_interval_sec=0.1)


class Peer:
    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=URL, system_database_pool_size=AT_ONCE)

    async def close(self) -> None:
        self._client.destroy()

    async def install(self) -> None:
        await asyncio.to_thread(_launch, [], 10)
        DBOS.destroy()

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._client.enqueue_async(OPTIONS, payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        await at_once(AT_ONCE, self.one, payloads)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        await at_once(AT_ONCE, self._offer_one, keyed)

    async def _offer_one(self, keyed: tuple[str, dict[str, Any]]) -> object:
        key, payload = keyed
        options = {**OPTIONS, "deduplication_id": key, "duplication_policy": "return-existing"}
        return await self._client.enqueue_async(options, payload)

    async def work(self, concurrency: int) -> None:
        await asyncio.to_thread(_launch, [QUEUE], concurrency)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(Peer())
