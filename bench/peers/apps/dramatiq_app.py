"""dramatiq, in its own environment: one call after the other, served by the threads of its own worker."""

import signal
import sys
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.worker import Worker
from measured import URL, Notes, main

broker = RedisBroker(url=URL.replace("valkey://", "redis://"))
dramatiq.set_broker(broker)
notes = Notes()


@dramatiq.actor
def nothing(payload: dict[str, Any]) -> None:
    notes.take(payload)


class Peer:
    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def install(self) -> None: ...

    async def one(self, payload: dict[str, Any]) -> object:
        return nothing.send(payload)

    async def many(self, payloads: list[dict[str, Any]]) -> None:
        for payload in payloads:
            nothing.send(payload)

    async def offer(self, keyed: list[tuple[str, dict[str, Any]]]) -> object:
        raise NotImplementedError("it has no keys")

    async def work(self, concurrency: int) -> None:
        raise NotImplementedError("its worker is no coroutine")


def consume(threads: int) -> None:
    """As `dramatiq -p 1 -t THREADS` does in its one process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    worker = Worker(broker, worker_threads=threads)
    worker.start()
    signal.sigwait([signal.SIGTERM])
    worker.stop()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        consume(int(sys.argv[2]))
    else:
        main(Peer())
