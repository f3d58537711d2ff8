"""taskiq on Redis streams, in its own environment. It has no call for many, so many are sent at once; it has no keys."""

from typing import Any

from measured import URL, Notes, at_once, main
from taskiq.api import run_receiver_task
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import RedisStreamBroker

AT_ONCE = 50
broker = RedisStreamBroker(
    URL.replace("valkey://", "redis://"), consumer_id="0", max_connection_pool_size=200
).with_serializer(ORJSONSerializer())
notes = Notes()


@broker.task(task_name="nothing")
async def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


class Peer:
    async def open(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return await nothing.kiq(payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        await at_once(AT_ONCE, self.one, payloads)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        raise NotImplementedError("it has no keys")

    async def work(self, concurrency: int) -> None:
        await run_receiver_task(
            broker, max_async_tasks=concurrency, max_prefetch=concurrency, run_startup=True
        )


if __name__ == "__main__":
    main(Peer())
