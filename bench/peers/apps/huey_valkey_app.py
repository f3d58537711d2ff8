"""huey on Valkey, in its own environment: one call after the other, served by its own consumer's threads."""

import logging
import sys
from typing import Any

from huey import RedisHuey
from measured import URL, Notes, main

app = RedisHuey("bench", url=URL.replace("valkey://", "redis://"), results=False, blocking=True)
notes = Notes()


@app.task(name="nothing")
def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


class Peer:
    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return nothing(payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        for payload in payloads:
            nothing(payload)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        raise NotImplementedError("it has no keys")

    async def work(self, concurrency: int) -> None:
        raise NotImplementedError("its consumer is no coroutine")


def consume(threads: int) -> None:
    """As `huey_consumer -w THREADS -k thread -n -q -d 0.01 -m 0.1` does."""
    logging.getLogger("huey").setLevel(logging.ERROR)
    options = {"workers": threads, "worker_type": "thread", "periodic": False}
    app.create_consumer(**options, initial_delay=0.01, max_delay=0.1).run()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        consume(int(sys.argv[2]))
    else:
        main(Peer())
