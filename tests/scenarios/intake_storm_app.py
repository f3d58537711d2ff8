"""The app of the intake's storm, and one of the processes that take its rows. Run by test_intake_storm."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import apsw
import sqlalchemy
from intake_stage import Statements, watch_engine, watch_store

from onejob import App, Table

PATTERN = "sms_schedules_{day:%Y%m%d}"
PAGE = os.sysconf("SC_PAGE_SIZE")
EVERY = 0.01
"""Seconds between looks at the memory."""


class Memory:
    """How much memory this process has in use, and when; how much of it is the store's cache of pages."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int, int]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        statm = Path("/proc/self/statm")
        while not self._over.wait(EVERY):
            size = int(statm.read_text().split()[1]) * PAGE
            self._samples.append((time.monotonic(), size, apsw.memory_used()))

    def told(self) -> dict[str, int]:
        """The most that was in use, and how many bytes more the last third of the time took than the first.

        The cache fills up to a size of its own, which has nothing to do with rows, and what it frees stays with the
        process: `grown` leaves out the most that it had until then.
        """
        highest = accumulate((cache for _, _, cache in self._samples), max)
        others = [(when, size - most) for (when, size, _), most in zip(self._samples, highest, strict=True)]
        return {
            "most": max(size for _, size, _ in self._samples),
            "grown": self._growth(others),
            "grown_with_cache": self._growth([(when, size) for when, size, _ in self._samples]),
        }

    @staticmethod
    def _growth(samples: list[tuple[float, int]]) -> int:
        began, ended = samples[0][0], samples[-1][0]
        third = (ended - began) / 3
        first = max(size for when, size in samples if when <= began + third)
        last = max(size for when, size in samples if when >= ended - third)
        return last - first


async def take(per_fetch: int) -> dict[str, Any]:
    """Take rows until none is left, and say what that took."""
    app = App()
    database = os.environ.get("STORM_DATABASE")
    engine = None if database is None else sqlalchemy.create_engine(database)

    @app.task(name="send_sms")
    async def send_sms(phone: str, message: str) -> None: ...

    source = Table(PATTERN, due="scheduled_time", database=engine, days_back=12)
    sms = app.intake("sms", source, send_sms, per_fetch=per_fetch)
    seen, taken, kept, runs = Statements(), 0, 0, 0
    began = time.monotonic()
    async with app:
        with ExitStack() as stack:
            memory = stack.enter_context(Memory())
            stack.enter_context(watch_store(app, seen, statements=engine is None))
            if engine is not None:
                stack.enter_context(watch_engine(engine, seen))
            while (report := await sms.arun()).taken + report.kept or not runs:
                taken, kept, runs = taken + report.taken, kept + report.kept, runs + 1
            runs += 1
    if engine is not None:
        engine.dispose()
    return {
        "taken": taken,
        "kept": kept,
        "runs": runs,
        "handed_over": sum(seen.enqueues),
        "batches": len(seen.enqueues),
        "statements": dict(seen.by_verb),
        "seconds": round(time.monotonic() - began, 1),
        **memory.told(),
    }


if __name__ == "__main__":
    per_fetch, report = sys.argv[1:]
    Path(report).write_text(json.dumps(asyncio.run(take(int(per_fetch)))))
