"""A store in memory is a SQLite file in a place that goes away. It differs in how its file comes and goes and in who
hears of what happens there; whatever depends on that is asked of it as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import (
    TestClaim,
    TestCorners,
    TestEnqueue,
    TestOpenings,
    TestTransaction,
    TestWait,
    clock,
)

__all__ = ["TestClaim", "TestCorners", "TestEnqueue", "TestOpenings", "TestTransaction", "TestWait", "clock"]


@pytest.fixture
def store(clock: FakeClock) -> Iterator[JobStore]:
    opened = open_store("memory:", clock=clock)
    yield opened
    asyncio.run(opened.close())
