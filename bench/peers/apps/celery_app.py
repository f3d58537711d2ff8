"""Celery on Redis, in its own environment: one call after the other, served by its own worker's threads; results are ignored."""

import sys
from typing import Any

from celery import Celery
from measured import URL, Notes, main

app = Celery("bench", broker=URL.replace("valkey://", "redis://"))
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=10, worker_hijack_root_logger=False)
notes = Notes()


@app.task(name="nothing")
def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


class Peer:
    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return nothing.delay(payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        for payload in payloads:
            nothing.delay(payload)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        raise NotImplementedError("it has no keys")

    async def work(self, concurrency: int) -> None:
        raise NotImplementedError("its worker is no coroutine")


def consume(threads: int) -> None:
    """What several workers would tell each other is left away: there is one."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    app.worker_main(["worker", "--pool", "threads", "--concurrency", str(threads), *quiet])


if __name__ == "__main__":
    if sys.argv[1] == "work":
        consume(int(sys.argv[2]))
    else:
        main(Peer())
