"""The jobs that are measured; `onejob worker bench.jobs:app` serves them from the store that $ONEJOB_URL names."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from onejob import App, Unique, current_job

T = TypeVar("T")
KEY = "ref"
"""The argument that makes a call unique, where calls are."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """An app with its tasks: one that does nothing, one that says how long ago it was sent, and one that goes on."""

    app: App
    nothing: Any
    unique: Any
    """The first, deduplicated while in flight."""
    stamp: Any
    step: Any
    """Does nothing, and goes on with itself `left` times."""


def define(url: str | None = None) -> Jobs:
    """The app for one store."""
    app = App(url)

    @app.task(name="nothing")
    async def nothing(
        user_id: int, kind: str, ref: str, amount: float, tags: list[str], number: int
    ) -> None: ...

    @app.task(name="stamp")
    async def stamp(sent: float) -> float:
        return time.monotonic() - sent  # the same clock in every process of a Linux machine

    @app.task(name="step")
    async def step(
        user_id: int, kind: str, ref: str, amount: float, tags: list[str], number: int, left: int
    ) -> None:
        if left:
            current_job().continue_with(step, user_id, kind, ref, amount, tags, number, left - 1)

    return Jobs(app, nothing, nothing.using(unique=Unique.in_flight(by=(KEY,))), stamp, step)


def arguments(number: int, ref: str = "ord_8f3b2c1d90") -> dict[str, Any]:
    """About 100 bytes of JSON."""
    return {
        "user_id": 123456,
        "kind": "welcome_email",
        "ref": ref,
        "amount": 19.99,
        "tags": ["a", "b"],
        "number": number,
    }


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often each key comes, far apart, and whether all of them are held before the first call that counts."""

    times: int
    known: bool = False

    def ref(self, count: int) -> Callable[[int], str]:
        """The key of the n-th of `count` calls."""
        distinct = count // self.times
        return lambda number: f"ord_{number % distinct:010d}"

    def before(self, calls: list[T]) -> list[T]:
        """Those of the calls to make before."""
        return calls[: len(calls) // self.times] if self.known else []


ALL_UNKNOWN = Repetition(1)
NINE_IN_TEN = Repetition(10)
ALL_KNOWN = Repetition(10, known=True)


app = define().app
