"""A shop that does work in several steps: chains, parts that others wait for, and an inspector who refuses."""

from __future__ import annotations

import time

from shop import Shop

from onejob import current_job
from onejob.receipt import Receipt
from onejob.testing import FakeClock

HOUR = 3_600_000


class Works(Shop):
    """`build` goes on with `paint`, which goes on with `ship`; `assemble` waits for others."""

    def __init__(self, url: str) -> None:
        # An hour ago: commands at a terminal have the real clock.
        self.clock = FakeClock(int(time.time() * 1000) - HOUR)
        super().__init__(url, clock=self.clock)

        @self.app.task(name="works.build")
        def build(order: int, steps: int = 2) -> str:
            self.clock.advance(2)
            if steps:
                current_job().continue_with(paint, order, steps - 1)
            return "built"

        @self.app.task(name="works.paint", queue="paint")
        def paint(order: int, steps: int) -> str:
            self.clock.advance(3)
            if steps:
                current_job().continue_with(paint.using(delay=7200) if order < 0 else paint, order, steps - 1)
            return "painted"

        @self.app.task(name="works.inspect")
        def inspect(order: int) -> None:
            raise ValueError(f"order {order} is crooked")

        @self.app.task(name="works.assemble")
        def assemble(order: int) -> int:
            return len(current_job().blockers)

        self.build, self.paint, self.inspect, self.assemble = build, paint, inspect, assemble

    def waiting_for(self, *blockers: Receipt[object] | str, **options: object) -> Receipt[int]:
        """A job that waits for these."""
        return self.assemble.using(blockers=list(blockers), **options).enqueue(1)  # type: ignore[arg-type]

    def last(self, chain: str) -> str:
        """The id of the last job of a chain."""
        return self.app.chain(chain)[-1].id
