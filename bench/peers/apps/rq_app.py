"""RQ, in its own environment: one call after the other, served by its worker that does not fork, one job at a time."""

import sys
from contextlib import suppress
from typing import Any

from measured import URL, Notes, main
from redis import Redis
from rq import Queue, SimpleWorker
from rq.exceptions import DuplicateJobError

TASK = "rq_app.nothing"
notes = Notes()


def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


def _queue() -> Queue:
    return Queue("default", connection=Redis.from_url(URL.replace("valkey://", "redis://")))


class Peer:
    async def open(self) -> None:
        self._queue = _queue()

    async def close(self) -> None: ...

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return self._queue.enqueue(TASK, payload, result_ttl=0)

    async def many(self, payloads: list[dict[str, Any]]) -> object:
        calls = [Queue.prepare_data(TASK, args=(payload,), result_ttl=0) for payload in payloads]
        return self._queue.enqueue_many(calls)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> None:
        for key, payload in keyed:
            with suppress(DuplicateJobError):
                self._queue.enqueue(TASK, payload, result_ttl=0, job_id=key, unique=True)

    async def work(self, concurrency: int) -> None:
        raise NotImplementedError("its worker is no coroutine")


def consume() -> None:
    """As `rq worker --worker-class rq.worker.SimpleWorker` does."""
    queue = _queue()
    SimpleWorker([queue], connection=queue.connection).work(logging_level="ERROR")


if __name__ == "__main__":
    if sys.argv[1] == "work":
        consume()
    else:
        main(Peer())
