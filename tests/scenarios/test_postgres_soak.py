"""The soak: many processes enqueue and work for a while on few keys and lanes, and nothing may ever go wrong.

Also with a server that is killed every few seconds, and workers that are. `soak_oracle` says what "wrong" is.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers.postgres import PostgresServer
from soak_oracle import Oracle, PostgresResult
from soak_result import shown

from onejob import App
from onejob.store import Retention

HERE = Path(__file__).parent
KEEP = Retention(2**40, 2**40, 2**40)
Disturb = Callable[["Crew", float], Awaitable[None]]


@dataclass(frozen=True)
class Soak:
    """How much, and for how long (seconds)."""

    seconds: float
    producers: int = 4
    workers: int = 4
    lease: float = 30.0
    patience: float = 60.0
    """Until everything must have ended after the last call."""


class Crew:
    """The processes of a soak."""

    def __init__(self, soak: Soak, url: str, folder: Path, **environment: str) -> None:
        self._soak = soak
        path = os.pathsep.join((str(HERE), str(HERE.parent)))
        self._env = {**os.environ, "ONEJOB_URL": url, "PYTHONPATH": path, **environment}
        self.reports = [folder / f"report-{number}.json" for number in range(soak.producers)]
        self.workers = [self._work() for _ in range(soak.workers)]
        self.killed = 0

    def produce(self) -> list[subprocess.Popen[bytes]]:
        seconds = str(self._soak.seconds)
        return [
            self._start("soak_app.py", seconds, str(number), str(report))
            for number, report in enumerate(self.reports)
        ]

    def kill_a_worker(self) -> None:
        """Without a word; another takes its place."""
        victim = self.workers.pop(random.randrange(len(self.workers)))
        victim.kill()
        victim.wait()
        self.killed += 1
        self.workers.append(self._work())

    def stop(self) -> list[int]:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        return [worker.wait(60) for worker in self.workers]

    def _work(self) -> subprocess.Popen[bytes]:
        lease = ("--lease", str(self._soak.lease))
        command = ("-c", "from onejob.cli import main; main()", "worker", "soak_app:app", "--quiet", *lease)
        return self._start(*command)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *arguments], env=self._env, cwd=HERE)


async def soaked(
    soak: Soak, url: str, folder: Path, *, disturb: Disturb | None = None, faulty: bool = False
) -> PostgresResult:
    """Let everybody work, wait until all is done, and judge."""
    oracle = Oracle(url)
    async with App(url) as app:
        await app.store.open()
        oracle.set_up()
        crew = Crew(soak, url, folder, **({"SOAK_FAULTY": "1"} if faulty else {}))
        try:
            while len(await app.store.workers()) < soak.workers:
                await app.store.wait(frozenset(), 0.05)
            producers = crew.produce()
            disturbed = None if disturb is None else asyncio.create_task(disturb(crew, soak.seconds))
            for producer in producers:
                assert await asyncio.to_thread(producer.wait, soak.seconds + 90) == 0
            if disturbed is not None:
                await disturbed
            await all_ended(app, soak.patience)
            result = oracle.judge(crew.reports, at_least_once=disturb is not None)
            await app.store.prune(
                KEEP, 1_000
            )  # as workers do now and then; flags of the last moment go with it
            result.leaks = await nothing_leaks(oracle, 0 if faulty else 8)
        finally:
            ends = crew.stop()
        assert ends == [0] * len(ends)
        later = await app.store.time() + 3_600_000
        await app.store.prune(Retention(0, 0, 0), 1_000_000, now=later)
        result.leaks += oracle.left_over()
    return result


async def all_ended(app: App, patience: float) -> None:
    """Wait for the last job; what has not ended in time is for the oracle to name."""
    end = time.monotonic() + patience
    topics = frozenset({"done:default"})
    while time.monotonic() < end:
        mark = app.store.mark()
        if not await app.acount("state:live"):
            return
        await app.store.wait(topics, 0.2, since=mark)


async def nothing_leaks(oracle: Oracle, patience: float) -> list[str]:
    """What workers have not cleared away though they had time to."""
    end = time.monotonic() + patience
    while (found := oracle.leaks()) and time.monotonic() < end:  # noqa: ASYNC110 - it happens elsewhere
        await asyncio.sleep(0.1)
    return found


class Killing:
    """Kills the server every few seconds, and starts it again; now and then a worker as well."""

    def __init__(
        self, server: PostgresServer, every: float, *, workers: bool = False, least: int = 2
    ) -> None:
        self._server = server
        self._every = every
        self._least = least
        self._workers = workers
        self.kills = 0

    async def __call__(self, crew: Crew, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() + self._every / 2 < end or self.kills < self._least:
            await asyncio.sleep(self._every * random.uniform(0.7, 1.3))
            if self._workers and random.random() < 0.5:
                crew.kill_a_worker()
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.start)
            self.kills += 1


async def test_a_short_soak_shows_no_violation(postgres_url: str, tmp_path: Path) -> None:
    result = await soaked(Soak(seconds=3), postgres_url, tmp_path)
    shown("A short soak", result)
    assert result.violations() == {}
    assert result.reruns == 0
    assert result.acknowledged == result.attempted > 300


async def test_a_server_killed_during_a_short_soak_loses_and_doubles_nothing(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    killing = Killing(own_postgres, every=1)
    result = await soaked(Soak(seconds=3), own_postgres.url, tmp_path, disturb=killing)
    shown("A short soak with a server that is killed", result, kills=killing.kills)
    assert result.violations() == {}
    assert killing.kills >= 2
    assert result.acknowledged > 300


@pytest.mark.torture  # a fault of every kind takes its time to show
async def test_the_oracle_sees_a_broken_promise_of_every_kind(postgres_url: str, tmp_path: Path) -> None:
    soak = Soak(seconds=20, patience=3)
    result = await soaked(soak, postgres_url, tmp_path, faulty=True)
    shown("A soak of an app that breaks its promises", result)
    assert result.violations().keys() >= {"lost", "doubled", "overlaps", "slots", "order", "stale", "early"}


def test_the_oracle_sees_what_is_left_behind(postgres_url: str) -> None:
    oracle = Oracle(postgres_url)
    assert oracle.leaks() == []
    oracle.run("insert into SCHEMA.flag values (gen_random_uuid(), 0)")
    oracle.run("insert into SCHEMA.recheck (chain) values (gen_random_uuid())")
    oracle.run("insert into SCHEMA.touch (queue, lane) values ('default', 'x')")
    assert oracle.leaks() == ["flag: 1", "recheck: 1", "touch: 1"]
    assert oracle.left_over() == ["flag after prune: 1", "recheck after prune: 1", "touch after prune: 1"]


@pytest.mark.torture
async def test_a_long_soak_shows_no_violation(postgres_url: str, tmp_path: Path) -> None:
    result = await soaked(Soak(seconds=90, patience=300), postgres_url, tmp_path)
    shown("A long soak", result)
    assert result.violations() == {}
    assert result.reruns == 0


@pytest.mark.torture
async def test_servers_and_workers_killed_during_a_long_soak_lose_and_double_nothing(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    killing = Killing(own_postgres, every=5, workers=True, least=10)
    soak = Soak(seconds=90, lease=6, patience=300)
    result = await soaked(soak, own_postgres.url, tmp_path, disturb=killing)
    shown("A long soak with servers and workers that are killed", result, kills=killing.kills)
    assert result.violations() == {}
    assert killing.kills >= 10
