"""absurd, in its own environment: one connection for each process, which is how its client is made. It has no call for many."""

from typing import Any

from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from measured import URL, Notes, main
from psycopg import AsyncConnection

QUEUE = "nothing"
notes = Notes()


class Peer:
    async def open(self) -> None:
        self._connection = await AsyncConnection.connect(URL, autocommit=True)
        self._client = AsyncAbsurd(self._connection, queue_name=QUEUE)

        @self._client.register_task("nothing")
        async def nothing(payload: dict[str, Any], _context: Any) -> None:
            notes.take(payload)

    async def close(self) -> None:
        await self._connection.close()

    async def install(self) -> None:
        await self.open()
        await self._connection.execute(BUNDLED_SCHEMA_SQL.encode())
        await self._client.create_queue()
        await self.close()

    async def one(self, payload: dict[str, Any]) -> object:
        return await self._client.spawn("nothing", payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        for payload in payloads:
            await self.one(payload)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        for key, payload in keyed:
            await self._client.spawn("nothing", payload, idempotency_key=key)

    async def work(self, concurrency: int) -> None:
        await self.open()
        await self._client.start_worker(concurrency=concurrency, poll_interval=0.05)


if __name__ == "__main__":
    main(Peer())
