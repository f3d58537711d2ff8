"""The processes of a soak on Valkey, what is done to them, and how a soak goes: work, disturb, wait for the last job, judge."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from servers.layout_checks import left_over
from valkey_oracle import Event, ValkeyResult, judged
from valkey_soak_app import ENOUGH, GRAVES, QUEUES, History

from onejob import App
from onejob.core.job import LIVE, State
from onejob.store import Retention

T = TypeVar("T")
R = TypeVar("R", bound=ValkeyResult)
HERE = Path(__file__).parent
Disturb = Callable[["Crew", float], Awaitable[None]]
PATIENCE = 30.0
"""Seconds within which what must happen happens, on a busy machine."""


@dataclass(frozen=True)
class Soak:
    """How much, and for how long (seconds)."""

    seconds: float
    producers: int = 3
    workers: int = 3
    lease: float = 30.0
    breath: float = 0.02
    fault: str = ""
    patience: float = 40.0
    """Until everything must have ended after the last call."""
    awaited: frozenset[State] = LIVE
    """States in which a job is waited for; where one may be blocked for ever, without that."""
    seed: int = 1


class Watch:
    """Follows the histories as they grow: which runs are open now, and how often a job has begun."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self.open: dict[tuple[str, int], Event] = {}
        self.attempts: Counter[str] = Counter()

    def look(self) -> None:
        for path in self._folder.glob("*.history"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] += len(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))

    def _take(self, event: Event) -> None:
        if event["event"] == "begin":
            self.open[event["job"], event["attempt"]] = event
            self.attempts[event["job"]] = max(self.attempts[event["job"]], event["attempt"])
        elif event["event"] == "end":
            self.open.pop((event["job"], event["attempt"]), None)


class Crew:
    """Those who enqueue and those who work."""

    def __init__(self, soak: Soak, url: str, folder: Path) -> None:
        self.soak = soak
        self.folder = folder
        self.dice = random.Random(soak.seed)
        path = os.pathsep.join((str(HERE), str(HERE.parent)))
        self._env = {**os.environ, "ONEJOB_URL": url, "PYTHONPATH": path, "SOAK_FOLDER": str(folder)}
        self._env["SOAK_BREATH"] = str(soak.breath)
        if soak.fault:
            self._env["SOAK_FAULT"] = soak.fault
        self._history = History(folder)
        self._watch = Watch(folder)
        self.workers = [self._work() for _ in range(soak.workers)]
        self._producers: list[subprocess.Popen[bytes]] = []
        self.killed = self.frozen = self.stunned = 0

    def note(self, event: str, **fields: object) -> None:
        """Write down what was done to them."""
        self._history.write(event, **fields)

    def produce(self) -> list[subprocess.Popen[bytes]]:
        seconds, seed = str(self.soak.seconds), str(self.soak.seed)
        self._producers = [
            self._start("valkey_producer.py", seconds, str(number), seed)
            for number in range(self.soak.producers)
        ]
        return self._producers

    async def until_jobs_flow(self) -> None:
        """Wait until somebody has enqueued, and somebody has run it."""
        await self._until(self._begun)

    async def kill_a_worker(self) -> None:
        """Without a word, the first one while it runs something, the others if possible; another takes its place."""
        place = self.dice.randrange(len(self.workers))
        with suppress(TimeoutError):
            place = await self._until(self._caught_busy, within=1 if self.killed else PATIENCE)
        victim = self.workers.pop(place)
        victim.kill()
        victim.wait()
        self._history.write("killed", victim=victim.pid)
        self.killed += 1
        self.workers.append(self._work())

    async def freeze_a_worker(self) -> None:
        """Stop one in the midst of a slow job, until another has begun that anew; it does not know when it wakes."""
        begun = await self._until(self._slow_run)
        victim = next((worker for worker in self.workers if worker.pid == begun["pid"]), None)
        if victim is None:
            return
        victim.send_signal(signal.SIGSTOP)
        try:
            self._watch.look()
            if (begun["job"], begun["attempt"]) not in self._watch.open:
                return  # it has ended meanwhile
            await self._until(lambda: self._begun_anew(begun))
            self.frozen += 1
        finally:
            victim.send_signal(signal.SIGCONT)

    async def stun_a_worker(self) -> None:
        """Stop any at any moment, for about as long as a lease: it may have lost all it had when it wakes, or nothing."""
        victim = self.dice.choice(self.workers)
        victim.send_signal(signal.SIGSTOP)
        self._history.write("stunned", victim=victim.pid)
        try:
            await asyncio.sleep(self.soak.lease * self.dice.uniform(0.6, 1.8))
        finally:
            victim.send_signal(signal.SIGCONT)
        self.stunned += 1

    def stop(self) -> list[int]:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        return [worker.wait(60) for worker in self.workers]

    def abandon(self) -> None:
        """Nobody survives the test."""
        for process in (*self.workers, *self._producers):
            process.kill()
            process.wait()

    def _begun(self) -> bool | None:
        self._watch.look()
        return bool(self._watch.attempts) or None

    def _caught_busy(self) -> int | None:
        """The place of a worker that is stopped, and was in the midst of a run."""
        places = self._busy()
        self.dice.shuffle(places)
        for place in places:
            self.workers[place].send_signal(signal.SIGSTOP)
            if place in self._busy():
                return place
            self.workers[place].send_signal(signal.SIGCONT)
        return None

    def _busy(self) -> list[int]:
        """The places of workers that run something."""
        self._watch.look()
        pids = {begun["pid"] for begun in self._watch.open.values()}
        return [place for place, worker in enumerate(self.workers) if worker.pid in pids]

    def _slow_run(self) -> Event | None:
        """A run that lasts, and that a worker of ours has just begun for the first time."""
        self._watch.look()
        pids = {worker.pid for worker in self.workers}
        slow = [begun for begun in self._watch.open.values() if begun["task"] == "slow"]
        return next((begun for begun in slow if begun["pid"] in pids and begun["attempt"] == 1), None)

    def _begun_anew(self, begun: Event) -> bool | None:
        self._watch.look()
        return self._watch.attempts[begun["job"]] > 1 or None

    async def _until(self, look: Callable[[], T | None], within: float = PATIENCE) -> T:
        async with asyncio.timeout(within):
            while (found := look()) is None:  # noqa: ASYNC110 - it happens in other processes
                await asyncio.sleep(0.02)
        return found

    def _work(self) -> subprocess.Popen[bytes]:
        command = ("-c", "from onejob.cli import main; main()", "worker", "valkey_soak_app:app", "--quiet")
        return self._start(
            *command, "--queues", ",".join(QUEUES), "--lease", str(self.soak.lease), "--poll", "0.5"
        )

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, *arguments], env=self._env, cwd=HERE, stderr=log)


async def soaked(
    soak: Soak,
    url: str,
    folder: Path,
    *,
    disturb: Disturb | None = None,
    leader: Callable[[], str] | None = None,
    judge: Callable[[Path, str], R] = judged,
    deleted: Sequence[str] = (GRAVES,),
) -> R:
    """Let everybody work, wait until all is done, and judge; then everything is pruned, and nothing may be left.

    `leader`: where to look in the end, if not at the URL. `deleted`: queues that an operator empties before that.
    """
    async with App(url) as app:
        await app.store.open()
        crew = Crew(soak, url, folder)
        try:
            await all_at_work(app, crew)
            producers = crew.produce()
            if disturb is not None:
                await disturb(crew, soak.seconds)
            (folder / ENOUGH).touch()
            for producer in producers:
                assert await asyncio.to_thread(producer.wait, soak.seconds + 90) == 0
            await all_at_work(app, crew)  # who was killed has been replaced
            await all_ended(app, soak)
            ends = await asyncio.to_thread(crew.stop)
        finally:
            crew.abandon()
        assert ends == [0] * len(ends), ends
        there = url if leader is None else leader()
        result = judge(folder, there)
        later = await app.store.time() + 3_600_000
        for queue in deleted:
            await app.adelete_many(f"queue:{queue}")
        while (await app.store.prune(Retention(0, 0, 0), 100_000, now=later)).more:
            pass
        result.note_left_over(left_over(there))
    return result


async def all_at_work(app: App, crew: Crew) -> None:
    """Wait until everybody has begun to beat."""
    async with asyncio.timeout(PATIENCE):
        while not {worker.pid for worker in crew.workers} <= {one.pid for one in await app.store.workers()}:
            await app.store.wait(frozenset(), 0.05)


async def all_ended(app: App, soak: Soak) -> None:
    """Wait for the last job; what has not ended in time is for the oracle to name."""
    end = time.monotonic() + soak.patience
    while time.monotonic() < end:
        mark = app.store.mark()
        counts = await app.store.counts()
        if not any(counts.get(queue, {}).get(state) for queue in QUEUES for state in soak.awaited):
            return
        await app.store.wait(frozenset({f"done:{queue}" for queue in QUEUES}), 0.2, since=mark)
