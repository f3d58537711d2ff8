"""What an app, its workers and its listings are configured with, checked where it is made."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypedDict

import msgspec

from onejob.core.errors import InvalidOption, shown
from onejob.core.lane import Rate
from onejob.core.options import Seconds, millis
from onejob.store import Retention as StoredRetention

DEFAULT_URL = "sqlite:///onejob.db"

Strategy: TypeAlias = Callable[[int, BaseException], "float | dt.timedelta"]
"""A named retry curve: failures so far and the error, to seconds."""

_KEPT = StoredRetention()


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended jobs stay on record, per outcome (seconds or timedeltas)."""

    completed: Seconds = dt.timedelta(milliseconds=_KEPT.completed)
    failed: Seconds = dt.timedelta(milliseconds=_KEPT.failed)
    revoked: Seconds = dt.timedelta(milliseconds=_KEPT.revoked)

    def __post_init__(self) -> None:
        self.stored()

    def stored(self) -> StoredRetention:
        """The same as a store takes it."""
        return StoredRetention(
            completed=millis("Retention(completed=…)", self.completed, minimum=0),
            failed=millis("Retention(failed=…)", self.failed, minimum=0),
            revoked=millis("Retention(revoked=…)", self.revoked, minimum=0),
        )


class WorkerOptions(TypedDict, total=False):
    """What `app.worker(…)` takes; `onejob.worker.Worker` states the defaults."""

    queues: Iterable[str] | str | None
    concurrency: int
    rate: Rate | None
    children: int | None
    max_jobs_per_child: int | None
    max_memory_per_child: int | None
    lease: Seconds
    heartbeat: Seconds | None
    drain: Seconds
    poll: Seconds
    block_warning: Seconds


def checked_url(url: object) -> str:
    """The URL given, or the environment's, or the embedded default; what it means is the stores' part."""
    if url is None:
        return os.environ.get("ONEJOB_URL") or DEFAULT_URL
    if isinstance(url, str) and url:
        return url
    raise InvalidOption(f"App(url) must be text such as {DEFAULT_URL!r}, not {shown(url)}.")


def checked_window(window: Seconds | None) -> int | None:
    """The app's window in milliseconds: the one given, or the environment's; None if neither is."""
    if window is not None:
        return millis("App(window=…)", window)
    text = os.environ.get("ONEJOB_WINDOW")
    if not text:
        return None
    try:
        return millis("$ONEJOB_WINDOW", float(text))
    except ValueError:
        raise InvalidOption(
            f"$ONEJOB_WINDOW must be a finite number of seconds, at most ten years, not {shown(text)}."
        ) from None
