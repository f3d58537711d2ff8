"""One of the processes of the schedule storm: ticks when it is told to, by a clock that all of them share.

The clock is a file of eight bytes that each has mapped, so that a jump is seen by everybody at once. Run by
test_schedule_storm; a fault can be planted, to show that the storm would tell.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import sys
from pathlib import Path
from typing import Any

import msgspec

from onejob.core import timing
from onejob.core.schedule import Schedule
from onejob.keepers.scheduler import Scheduler
from onejob.stores import open_store
from onejob.stores.sqlite import scheduling

replaced = msgspec.structs.replace


class SharedClock:
    """Milliseconds for a store's `clock`, the same in all processes that have the file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._cell = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")

    def __call__(self) -> int:
        return self._cell[0]

    def set(self, instant: int) -> None:
        self._cell[0] = instant


def blind_fire() -> None:
    """Whoever fires does not ask whether another was faster."""
    right = scheduling._fire

    def careless(session: Any, firing: Any, now: int) -> Any:
        found = scheduling._one(session, firing.id)
        return right(session, replaced(firing, revision=found.revision), now)

    scheduling._fire = careless


def follows_the_clock_back() -> None:
    """Who sees that the clock went back computes all next slots anew."""
    right, seen = Scheduler.tick, [0]

    async def eager(self: Scheduler) -> int:
        now, store = await self._store.time(), self._store
        if now < seen[0]:
            await store.put_schedules([from_now(found, now) for found in await store.schedules()])
        seen[0] = now
        return await right(self)

    Scheduler.tick = eager


def from_now(found: Schedule, now: int) -> Schedule:
    due = found.read().timing.after(now, found.since)
    return replaced(found, next=due, revision=found.revision + 1)


def fires_in_both_hours() -> None:
    """A fixed time that comes twice counts twice, and one that is left out not at all."""
    timing._fixed = timing._shown


def loses_a_slot() -> None:
    """A slot is spent, and its job is lost now and then."""
    right = scheduling._fire

    def losing(session: Any, firing: Any, now: int) -> Any:
        return right(session, replaced(firing, job=None) if firing.slot % 13 == 0 else firing, now)

    scheduling._fire = losing


FAULTS = {
    fault.__name__: fault for fault in (blind_fire, follows_the_clock_back, fires_in_both_hours, loses_a_slot)
}


async def serve(url: str, clock: SharedClock) -> None:
    """Tick as often as each line says; answer with how many slots this process has turned into jobs."""
    store = open_store(url, clock=clock)
    await store.open()
    scheduler = Scheduler(store, {})
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while line := sys.stdin.readline():
        made = sum([await scheduler.tick() for _ in range(int(line))])
        sys.stdout.write(f"{made}\n")
        sys.stdout.flush()
    await store.close()


if __name__ == "__main__":
    logging.getLogger("onejob").addHandler(logging.NullHandler())
    url, path, *faults = sys.argv[1:]
    for name in faults:
        FAULTS[name]()
    asyncio.run(serve(url, SharedClock(Path(path))))
