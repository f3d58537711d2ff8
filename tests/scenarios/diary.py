"""A task that notes for which schedule and slot it runs, and a few words for moments."""

from __future__ import annotations

import datetime as dt

from onejob import App, current_job
from onejob.tasks import SyncTask
from onejob.testing import FakeClock, drain, tick


class Diary:
    """The runs of `report`, a task of an app, in order: schedule, slot and the argument."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.runs: list[tuple[str | None, dt.datetime | None, str]] = []

        @app.task(name="report")
        def report(kind: str = "daily") -> None:
            self.runs.append((current_job().schedule, current_job().slot, kind))

        self.report: SyncTask[..., None] = report

    def fired(self) -> list[dt.datetime | None]:
        """Tick and run what that made; the slots, in the order of their jobs."""
        before = len(self.runs)
        tick(self.app)
        drain(self.app)
        return [slot for _, slot, _ in self.runs[before:]]


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> dt.datetime:
    return dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC)


def set_to(clock: FakeClock, moment: dt.datetime) -> None:
    clock.now = int(moment.timestamp() * 1000)
