"""The scheduler: turns slots that have come into jobs. Every worker has one; whoever comes first wins."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Mapping
from typing import Final

from onejob.core.judge import Outcome
from onejob.core.schedule import Definition, Firing, Schedule, firing
from onejob.core.timing import as_datetime
from onejob.logs import event
from onejob.schedules import has_vanished, put_all, readable, view
from onejob.store import Fired, JobStore

log = logging.getLogger("onejob.keepers")

BATCH = 100
LONGEST_REST = 5.0
"""Seconds after which it looks in any case: a hint may have been lost."""
REST_AFTER_FAILURE = 1.0
"""Seconds before it tries again what has failed."""
STAGGER = 0.05
"""Seconds over which workers spread, so that most of them find a slot spent already."""


class Scheduler:
    """Fires what is due, then sleeps until the next slot, or until somebody puts a schedule."""

    def __init__(
        self, store: JobStore, declared: Mapping[str, Definition], tasks: Collection[str] = ()
    ) -> None:
        """`declared` are the schedules of an app's code, by id; `tasks` the names of its tasks."""
        self.name: Final = "scheduler"
        self._store = store
        self._declared = declared
        self._tasks = tasks
        self._put: int | None = None
        self._mark: int | None = None
        self._next = 0.0
        self._unreadable: dict[str, int] = {}

    async def tick(self) -> int:
        """Put what the code declares and is not put yet, and fire what is due; returns how many slots became jobs."""
        self._mark, self._next = self._store.mark(), REST_AFTER_FAILURE
        if self._put != len(self._declared):
            number = len(self._declared)
            await put_all(self._store, self._declared, declared=True)
            await self._report_vanished()
            self._put = number
        self._mark = self._store.mark()
        made = 0
        while True:
            now = await self._store.time()
            due = await self._store.due(BATCH + len(self._unreadable), now=now)
            firings = self._firings(due.schedules, now)
            if not firings:
                self._next = LONGEST_REST if due.next_at is None else (due.next_at - now) / 1000
                return made
            for one, fired in zip(firings, await self._store.fire(firings), strict=True):
                made += _told(one, fired, now)

    async def rest(self) -> None:
        """Sleep until the next slot, or a hint."""
        timeout = min(max(self._next, 0.0), LONGEST_REST) + random.uniform(0, STAGGER)
        await self._store.wait(frozenset({"schedules"}), timeout, since=self._mark)

    def _firings(self, schedules: list[Schedule], now: int) -> list[Firing]:
        return [firing(schedule, now) for schedule in schedules if self._can_read(schedule)]

    def _can_read(self, schedule: Schedule) -> bool:
        """False for one that this process cannot read, which is told once; another worker may."""
        problem = readable(schedule)
        if problem is None:
            self._unreadable.pop(schedule.id, None)
            return True
        if self._unreadable.get(schedule.id) != schedule.revision:
            self._unreadable[schedule.id] = schedule.revision
            text = f"schedule {schedule.id} is due and cannot be read here: {problem}"
            event(log, logging.ERROR, "schedule.unreadable", text, schedule=schedule.id)
        return False

    async def _report_vanished(self) -> None:
        """Say which schedules were declared in code once and no longer are; nobody but a person removes them."""
        for one in map(view, await self._store.schedules()):
            if has_vanished(one, self._declared, self._tasks):
                text = (
                    f"schedule {one.id} (task {one.task}) is no longer declared in the code and still fires: remove it "
                    f"with `onejob schedules remove {one.id}`, or pause it"
                )
                event(log, logging.WARNING, "schedule.vanished", text, schedule=one.id, task=one.task)


def _told(firing: Firing, fired: Fired, now: int) -> bool:
    """Log what became of a firing; True if its slot became a job."""
    if not fired.won:
        return False
    answer, slot = fired.answer, as_datetime(firing.slot)
    fields = {"schedule": firing.id, "slot": firing.slot, "late": now - firing.slot}
    if answer is None:
        text = f"schedule {firing.id}: the slot of {slot:%Y-%m-%d %H:%M:%S} UTC was missed and is let go"
        event(log, logging.WARNING, "schedule.missed", text, **fields)
        return False
    job = f"job {answer.id}" if answer.outcome is Outcome.CREATED else f"{answer.outcome}: job {answer.id}"
    text = f"schedule {firing.id}: the slot of {slot:%Y-%m-%d %H:%M:%S} UTC became {job}"
    event(log, logging.INFO, "schedule.fired", text, job=answer.id, outcome=str(answer.outcome), **fields)
    return answer.outcome is Outcome.CREATED
