"""`python -m bench.acknowledgement`: what it takes until an enqueue is acknowledged, by what that means on each store; and how
far a replica of Valkey is behind.

One call after the other, each a job of 100 bytes. Settings take turns, round by round, so that a busy moment of the machine
is in all of them. Every file is on the disk that the project lies on.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import valkey

from bench import servers
from onejob import App
from onejob.tasks import AsyncTask
from tests.servers.postgres import PostgresServer

HERE = Path(__file__).parent
ROUNDS = 10
CALLS = 50
ARGUMENT = "x" * 86
"""With what is around it, 100 bytes of payload."""
SYNCHRONOUS = "synchronous_commit"
Prepare = Callable[[], None]
Call = Callable[[], Awaitable[object]]


@dataclass
class Measured:
    """Milliseconds that calls took, round by round."""

    title: str
    prepare: Prepare
    call: Call
    rounds: list[list[float]] = field(default_factory=list[list[float]])

    async def take(self) -> None:
        self.prepare()
        for _ in range(5):
            await self.call()
        taken: list[float] = []
        for _ in range(CALLS):
            began = time.perf_counter()
            await self.call()
            taken.append((time.perf_counter() - began) * 1000)
        self.rounds.append(taken)

    def line(self) -> str:
        every = [one for taken in self.rounds for one in taken]
        best = min(median(taken) for taken in self.rounds)
        return f"{self.title:<52}{best:>10.2f}{median(every):>10.2f}{quantiles(every, n=100)[98]:>10.2f}"


async def main() -> None:
    """Take all figures, and print them."""
    logging.getLogger("onejob").setLevel(logging.ERROR)
    print(f"{ROUNDS} rounds of {CALLS} calls, ms{'':<28}{'best p50':>10}{'p50':>10}{'p99':>10}")
    with _scratch() as home:
        for measured in await _stores(home):
            print(measured.line())
        for measured in await _replicas(home):
            print(measured.line())


async def _stores(home: Path) -> list[Measured]:
    with (
        _running(servers.postgres(home)) as synchronous,
        _running(servers.postgres(home, **{SYNCHRONOUS: "off"})) as asynchronous,
        closing(_Valkey(home)) as server,
    ):
        urls = (f"sqlite:///{home}/jobs.db", synchronous.url, asynchronous.url, server.url)
        apps = [App(url) for url in urls]
        lite, synced, unsynced, memory = (_task(app) for app in apps)
        every = [
            Measured("SQLite, synchronous=FULL", _nothing, lambda: lite.aenqueue(ARGUMENT)),
            Measured(f"PostgreSQL, {SYNCHRONOUS} on", _nothing, lambda: synced.aenqueue(ARGUMENT)),
            Measured(f"PostgreSQL, {SYNCHRONOUS} off", _nothing, lambda: unsynced.aenqueue(ARGUMENT)),
            *(
                Measured(
                    f"Valkey, {title}",
                    lambda setting=setting: server.set(setting),
                    lambda: memory.aenqueue(ARGUMENT),
                )
                for title, setting in (
                    ("appendonly no", None),
                    ("appendfsync no", "no"),
                    ("appendfsync everysec", "everysec"),
                    ("appendfsync always", "always"),
                )
            ),
        ]
        await _in_turns(every)
        for app in apps:
            await app.aclose()
    return every


async def _replicas(home: Path) -> list[Measured]:
    """By bare commands: it is the server's doing. `SET` is acknowledged before a replica has it, unless one waits."""
    with closing(_Valkey(home)) as primary, closing(_Valkey(home)) as replica:
        replica.follow(primary)
        leads, follows = primary.client, replica.client
        number = 0

        def put() -> bytes:
            nonlocal number
            number += 1
            leads.set("number", number)
            return b"%d" % number

        async def plain() -> None:
            put()

        async def waiting() -> None:
            put()
            assert leads.execute_command("WAIT", 1, 5_000) >= 1

        lag = Measured("  until the replica has it, from there on", _nothing, plain)

        async def arrival() -> None:
            expected = put()
            acknowledged = time.perf_counter()
            while follows.get("number") != expected:
                pass
            lags.append((time.perf_counter() - acknowledged) * 1000)

        lags: list[float] = []
        every = [
            Measured("a bare SET, acknowledged by the primary", _nothing, plain),
            Measured("the same, and WAIT 1", _nothing, waiting),
            Measured("", _nothing, arrival),
        ]
        await _in_turns(every)
        every.pop()
        lag.rounds = [lags[at : at + CALLS] for at in range(0, len(lags), CALLS)]
    return [*every, lag]


async def _in_turns(every: list[Measured]) -> None:
    for _ in range(ROUNDS):
        for measured in every:
            await measured.take()


class _Valkey:
    """A server that logs its writes or not."""

    def __init__(self, home: Path) -> None:
        self._server = servers.valkey(home, 1)
        self.url = self._server.url
        self.client = self._server.client()

    def set(self, fsync: str | None) -> None:
        self.client.config_set("appendonly", "no" if fsync is None else "yes")
        if fsync is not None:
            self.client.config_set("appendfsync", fsync)
        while self._rewrites(self.client):
            time.sleep(0.01)

    def follow(self, primary: _Valkey) -> None:
        self._server.follow(primary._server)

    def close(self) -> None:
        self.client.close()
        self._server.remove()

    def _rewrites(self, client: valkey.Valkey) -> bool:
        info = client.info("persistence")
        return bool(info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])


@contextmanager
def _running(server: PostgresServer) -> Iterator[PostgresServer]:
    try:
        yield server
    finally:
        server.remove()


def _task(app: App) -> AsyncTask[..., None]:
    @app.task(name="measured")
    async def measured(argument: str) -> None: ...

    return measured


def _nothing() -> None: ...


@contextmanager
def _scratch() -> Iterator[Path]:
    home = HERE / ".scratch"
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


if __name__ == "__main__":
    asyncio.run(main())
