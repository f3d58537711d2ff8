"""Procrastinate, in its own environment; finished jobs are deleted, which is what it does fastest.

A batch with one duplicate in it is refused as a whole, so that calls with keys are sent one by one, many at once.
"""

from contextlib import suppress
from typing import Any

from measured import URL, Notes, at_once, main
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued

AT_ONCE = 20
app = App(connector=PsycopgConnector(conninfo=URL, min_size=4, max_size=AT_ONCE))
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

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        await at_once(AT_ONCE, self._offer_one, keyed)

    async def _offer_one(self, keyed: tuple[str, dict[str, Any]]) -> None:
        key, payload = keyed
        with suppress(AlreadyEnqueued):
            await nothing.configure(queueing_lock=key).defer_async(payload=payload)

    async def work(self, concurrency: int) -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency, delete_jobs="successful")


if __name__ == "__main__":
    main(Peer())
