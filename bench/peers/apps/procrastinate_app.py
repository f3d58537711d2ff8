"""Procrastinate, in its own environment; finished jobs are deleted, which is what it does fastest."""

from typing import Any

from measured import URL, Notes, main
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=URL, min_size=4, max_size=20))
notes = Notes()


@app.task(name="nothing", queue="default")
async def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


class Peer:
    async def open(self) -> None:
        await app.open_async()

    async def close(self) -> None:
        await app.close_async()

    async def install(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def one(self, payload: dict[str, Any]) -> object:
        return await nothing.defer_async(payload=payload)

    async def many(self, payloads: list[dict[str, Any]]) -> object:
        return await nothing.batch_defer_async(*[{"payload": payload} for payload in payloads])

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        raise NotImplementedError("a batch with one duplicate in it is refused as a whole")

    async def work(self, concurrency: int) -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency, delete_jobs="successful")


if __name__ == "__main__":
    main(Peer())
