"""The course of `onejob demo`: the storm, the kill, and the proof. How it looks is the stage's part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import click

from onejob.app import App
from onejob.cli.demo_app import maintain, split
from onejob.cli.demo_crew import Crew
from onejob.cli.demo_proof import Claim, prove, query
from onejob.cli.demo_storm import NIGHT, PARTS, Tally, storm
from onejob.core.job import Job, JobId, State
from onejob.receipt import Receipt

TICK = 0.05
PROBE = 0.3
"""Seconds between calls that ask for the lost job again."""
PATIENCE = 50.0
"""Seconds after which the show gives up, so that it ends in under a minute whatever happens."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in seconds."""

    storm: float
    work: float
    """What one attempt of the maintenance takes."""
    kill: float
    """When its worker is killed if nobody does it before."""


QUICK = Pace(storm=4.0, work=4.0, kill=1.2)
SLOW = Pace(storm=12.0, work=8.0, kill=6.0)


@dataclass(slots=True)
class Picture:
    """What there is to see at a moment."""

    crew: Crew
    tally: Tally = field(default_factory=Tally)
    counts: dict[str, dict[State, int]] = field(default_factory=dict[str, dict[State, int]])
    story: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    killed: set[int] = field(default_factory=set[int])
    hint: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long the show has been going on."""
        return time.monotonic() - self.began

    def ran(self, queue: str) -> int:
        """How many jobs of a queue have been completed."""
        return self.counts.get(queue, {}).get(State.COMPLETED, 0)

    def live(self, queue: str) -> int:
        """How many jobs of a queue wait or run."""
        return sum(number for state, number in self.counts.get(queue, {}).items() if not state.ended)


class Stage(Protocol):
    """Where the show is to be seen."""

    def show(self, picture: Picture) -> None:
        """Show how things stand."""
        ...

    def tell(self, seconds: float, line: str) -> None:
        """Something has happened; it is in the picture's story, too."""
        ...


class Show:
    """One performance. `kill_asked` is set by a key; without it, the clock does it."""

    def __init__(self, app: App, crew: Crew, stage: Stage, pace: Pace) -> None:
        self.kill_asked = asyncio.Event()
        self.picture = Picture(crew)
        self._app = app
        self._crew = crew
        self._stage = stage
        self._pace = pace
        self._probes: list[JobId] = []
        self._lost: JobId | None = None
        self._maintenance: asyncio.Future[JobId] = asyncio.get_running_loop().create_future()

    async def run(self) -> list[Claim]:
        """Play it to the end; returns the proof."""
        async with asyncio.timeout(PATIENCE):
            await self._until(self._crew_is_ready)
            self.picture.began = time.monotonic()
            watching = asyncio.create_task(self._watch())
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._storm())
                    group.create_task(self._kill_and_resume())
                    group.create_task(self._fan_out())
                await self._until(self._is_quiet)
            finally:
                watching.cancel()
            self.picture.hint = ""
            return await prove(self._app, self.picture.tally, self._lost, self._probes)

    async def _storm(self) -> None:
        left = storm(self._pace.storm, self._pace.work)
        while left:
            now = self.picture.seconds
            ready = [call for moment, call in left if moment <= now]
            left = left[len(ready) :]
            if ready:
                receipts = await self._app.aenqueue_many(ready)
                self.picture.tally.add(receipts)
                self._note_maintenance(receipts)
            await asyncio.sleep(TICK)
        self._tell("the storm is over")

    def _note_maintenance(self, receipts: list[Receipt[Any]]) -> None:
        for receipt in receipts:
            if receipt.queue == "maintenance" and not self._maintenance.done():
                self._maintenance.set_result(receipt.id)

    async def _kill_and_resume(self) -> None:
        """The maintenance runs; its worker is killed, as often as asked while another is left."""
        id = await self._maintenance
        await self._until(lambda: self._has_started(id, 1))
        number = self._crew.number((await self._starts(id))[-1])
        self._tell(f"job {id} starts on worker {number}: maintenance, {self._pace.work:g} s of work")
        await self._until_killed(self._pace.kill)
        while True:
            await self._kill(id)
            if len(self._crew.alive()) < 2 or not await self._kill_asked_before_its_end(id):
                break
        await self._until(lambda: self._has_ended(id))
        job = await self._job(id)
        self._tell(f"the job is {job.state}, in attempt {job.attempt}")

    async def _fan_out(self) -> None:
        """One call becomes many jobs on all workers, and one that waits for them."""
        receipt = await split.aenqueue(PARTS)
        await self._until(lambda: self._goes_on(receipt.id))
        self._tell(
            f"a report is split into {PARTS} parts; job {(await self._chain(receipt.id))[-1].id} waits for all"
        )
        await self._until(lambda: self._chain_has_ended(receipt.id))
        self._tell(f"the last part has ended, and the report is {(await self._chain(receipt.id))[-1].state}")

    async def _until_killed(self, latest: float) -> None:
        until = time.monotonic() + latest
        while not self.kill_asked.is_set() and (left := until - time.monotonic()) > 0:
            self.picture.hint = f"k kills its worker; by itself in {left:.0f} s"
            await asyncio.sleep(TICK)

    async def _kill_asked_before_its_end(self, id: JobId) -> bool:
        self.kill_asked.clear()
        self.picture.hint = "k kills its worker once more"
        await self._until(lambda: self._is_asked_or_ended(id))
        self.picture.hint = ""
        return self.kill_asked.is_set()

    async def _kill(self, id: JobId) -> None:
        await self._until(lambda: self._runs_or_ended(id))
        starts = await self._starts(id)
        pid = starts[-1]
        self._crew.kill(pid)
        self._lost = id
        self.picture.killed.add(pid)
        self.picture.hint = "its lease runs out, and another worker takes over"
        self._tell(f"SIGKILL: worker {self._crew.number(pid)} (pid {pid}) is dead in the middle of its work")
        await self._ask_again(id, len(starts) + 1)
        job, pid = await self._job(id), (await self._starts(id))[-1]
        counted = f"attempt {job.attempt}, {_plural(job.crashes, 'crash', 'crashes')} counted"
        self._tell(f"resumed by worker {self._crew.number(pid)}: {counted}, {job.failures} retries charged")

    async def _ask_again(self, id: JobId, starts: int) -> None:
        """Ask for the lost job until it runs again: if its key were free for a moment, a second one would start."""
        asked: list[Receipt[None]] = []
        while not await self._has_started(id, starts):
            asked += await self._app.aenqueue_many([maintain.job(NIGHT, self._pace.work)])
            if len(asked) == 1:
                self._tell(f"asked again: {asked[0]}")
            await asyncio.sleep(PROBE)
        self.picture.tally.add(asked)
        self._probes += [receipt.id for receipt in asked]
        kept = sum(receipt.id == id for receipt in asked)
        told = "the key was never free" if kept == len(asked) else "the key WAS free"
        self._tell(f"asked {len(asked)} times while its worker was dead, {kept} kept: {told}")

    async def _watch(self) -> None:
        while True:
            self.picture.counts = await self._app.acounts()
            self._stage.show(self.picture)
            await asyncio.sleep(0.15)

    def _tell(self, line: str) -> None:
        self.picture.story.append((self.picture.seconds, line))
        self._stage.tell(self.picture.seconds, line)

    async def _starts(self, id: JobId) -> list[int]:
        """The processes in which a job was started, the latest last."""
        return [
            pid
            for (pid,) in await query(self._app, "select pid from starts where job = ? order by rowid", id)
        ]

    async def _has_started(self, id: JobId, times: int) -> bool:
        return len(await self._starts(id)) >= times or await self._has_ended(id)

    async def _runs_or_ended(self, id: JobId) -> bool:
        return (await self._job(id)).state is State.RUNNING or await self._has_ended(id)

    async def _job(self, id: JobId) -> Job:
        job = await self._app.ajob(id)
        assert job is not None
        return job

    async def _chain(self, id: JobId) -> list[Job]:
        return await self._app.achain(id)

    async def _goes_on(self, id: JobId) -> bool:
        return len(await self._chain(id)) > 1 or await self._chain_has_ended(id)

    async def _chain_has_ended(self, id: JobId) -> bool:
        return (await self._chain(id))[-1].state.ended

    async def _has_ended(self, id: JobId) -> bool:
        return (await self._job(id)).state.ended

    async def _is_asked_or_ended(self, id: JobId) -> bool:
        return self.kill_asked.is_set() or await self._has_ended(id)

    async def _crew_is_ready(self) -> bool:
        if len(self._crew.alive()) < len(self._crew.pids):
            raise click.ClickException("a worker process ended before the demo had begun")
        return sum(worker.alive for worker in await self._app.store.workers()) == len(self._crew.pids)

    async def _is_quiet(self) -> bool:
        counts = self.picture.counts = await self._app.acounts()
        return all(state.ended for states in counts.values() for state, number in states.items() if number)

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():  # noqa: ASYNC110 - what is awaited happens in other processes
            await asyncio.sleep(TICK)


def _plural(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
