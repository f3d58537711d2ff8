"""A stage for jobs: handlers that start, are seen, and stay until the test lets them go."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from onejob import App, Receipt, State, current_job
from onejob.core.job import Job
from onejob.tasks import AsyncTask
from onejob.testing import adrain

PATIENCE = 20.0
READY = (State.WAITING, State.PARKED)
"""Of a job in a lane whose turn it is: a store may let it wait at once, or when somebody asks for work."""


class Stage:
    """The jobs of one app, as they start and end. `group` is there for lanes to be made of."""

    def __init__(self, app: App, **settings: Any) -> None:
        self.app = app
        self.started: list[str] = []
        self.running: list[str] = []
        self.most: Counter[str] = Counter()
        """The most jobs that ever ran at once, per lane; "" are all of them."""
        self.fails: dict[str, BaseException] = {}
        """What a job raises once it may go; whatever is not named returns."""
        self.open = False
        """Let everybody go at once."""
        self._lanes: Counter[str] = Counter()
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self.work = self.task(**settings)
        self._nothing = app.task(name="nothing", queue="last")(_nothing)

    def task(self, name: str = "work", **settings: Any) -> AsyncTask[..., str]:
        """Another task whose jobs appear on this stage."""

        @self.app.task(name=name, **settings)
        async def work(name: str, group: str = "a") -> str:
            await self._enter(name)
            try:
                if not self.open:
                    await self._gate(name).wait()
                if name in self.fails:
                    raise self.fails[name]
                return name
            finally:
                await self._leave(name)

        return work

    async def send(self, *names: str, **options: Any) -> list[Receipt[str]]:
        """Enqueue jobs one after the other; `group` is an argument, the rest are options of the calls."""
        group = options.pop("group", "a")
        sender = self.work.using(**options) if options else self.work
        return [await sender.aenqueue(name, group) for name in names]

    def release(self, *names: str) -> None:
        """Let these go, now or when they come."""
        for name in names:
            self._gate(name).set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that happens when a job starts or ends."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: bool(condition()))

    async def shows(self, *names: str) -> None:
        """Wait until exactly these run; then nobody else may, however often workers look."""
        await self.until(lambda: sorted(self.running) == sorted(names))
        await self.fence()
        assert sorted(self.running) == sorted(names)

    async def fence(self) -> None:
        """Let workers look for jobs and find one that came last: whoever could start has started by then."""
        for _ in range(2):
            await (await self._nothing.aenqueue()).aresult(timeout=PATIENCE)

    async def job(self, receipt: Receipt[Any]) -> Job:
        """A job as it stands now."""
        found = await self.app.ajob(receipt)
        assert found is not None
        return found

    async def states(self, *receipts: Receipt[Any]) -> list[State]:
        """How some jobs stand now."""
        return [(await self.job(receipt)).state for receipt in receipts]

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def _enter(self, name: str) -> None:
        lane = current_job().lane
        self.started.append(name)
        self.running.append(name)
        self._lanes.update([lane] if lane else [])
        for key, count in (("", len(self.running)), (lane, self._lanes[lane or ""])):
            self.most[key or ""] = max(self.most[key or ""], count)
        async with self._changed:
            self._changed.notify_all()

    async def _leave(self, name: str) -> None:
        self.running.remove(name)
        lane = current_job().lane
        self._lanes.subtract([lane] if lane else [])
        async with self._changed:
            self._changed.notify_all()


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait, within bounds, for something that the store will say."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - it happens in the store, not in this loop
            await asyncio.sleep(0.005)


def most_in_any(per: float, starts: list[int]) -> int:
    """The most starts (ms) that any window of this length (seconds) holds, wherever it is laid."""
    times = sorted(starts)
    return max((bisect_left(times, at + per * 1000) - index for index, at in enumerate(times)), default=0)


async def _nothing() -> None: ...


class Gate:
    """A handler waits at it, so that a test can act while a job runs."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.entered.set()
        await self.opened.wait()

    @asynccontextmanager
    async def held(self, app: App) -> AsyncIterator[None]:
        """Inside the block a job stands at the gate; afterwards everything due has run."""
        draining = asyncio.create_task(adrain(app))
        await asyncio.wait_for(self.entered.wait(), 10)
        try:
            yield
        finally:
            self.opened.set()
            await draining
