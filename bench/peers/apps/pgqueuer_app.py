"""PGQueuer, in its own environment. Its workers have no bound but the size of a batch."""

import json
from typing import Any

import asyncpg
from measured import URL, Notes, main
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


class Peer:
    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(URL, min_size=10, max_size=20)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def close(self) -> None:
        await self._pool.close()

    async def install(self) -> None:
        connection = await asyncpg.connect(URL)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._queries.enqueue("nothing", json.dumps(payload).encode())

    async def many(self, payloads: list[dict[str, Any]]) -> object:
        count = len(payloads)
        encoded = [json.dumps(payload).encode() for payload in payloads]
        return await self._queries.enqueue(["nothing"] * count, encoded, [0] * count)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        count = len(keyed)
        return await self._queries.enqueue(
            ["nothing"] * count,
            [json.dumps(payload).encode() for _, payload in keyed],
            [0] * count,
            dedupe_key=[key for key, _ in keyed],
            on_conflict="skip",
        )

    async def work(self, concurrency: int) -> None:
        notes = Notes()
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

        @queuer.entrypoint("nothing")
        async def nothing(job: Job) -> None:
            notes.take(json.loads(job.payload or b"{}"))

        await queuer.run(batch_size=concurrency)


if __name__ == "__main__":
    main(Peer())
