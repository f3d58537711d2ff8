"""The same promises where queues are on several nodes: those that jobs of several queues have to do with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import (
    TestBeat,
    TestBlockers,
    TestBlockersOfContinuations,
    TestCancelledChains,
    TestChains,
    TestChainsAsAWhole,
    TestClaim,
    TestDead,
    TestDeadChains,
    TestDeletingBlockers,
    TestEnqueue,
    TestExpired,
    TestFailedBlockers,
    TestFire,
    TestInspect,
    TestKeysOfChains,
    TestListOfTheDead,
    TestPrune,
    TestPruneOfChains,
    TestRelease,
    TestRetry,
    TestRetryOfTheDead,
    TestSettle,
    TestWait,
    clock,
)

__all__ = [
    "TestBeat",
    "TestBlockers",
    "TestBlockersOfContinuations",
    "TestCancelledChains",
    "TestChains",
    "TestChainsAsAWhole",
    "TestClaim",
    "TestDead",
    "TestDeadChains",
    "TestDeletingBlockers",
    "TestEnqueue",
    "TestExpired",
    "TestFailedBlockers",
    "TestFire",
    "TestInspect",
    "TestKeysOfChains",
    "TestListOfTheDead",
    "TestPrune",
    "TestPruneOfChains",
    "TestRelease",
    "TestRetry",
    "TestRetryOfTheDead",
    "TestSettle",
    "TestWait",
    "clock",
]

EVERY_THIRD_CASE = True
"""See `leave_cases_for_torture`: the whole of it is asked in `test_valkey`."""


@pytest.fixture
def store(clock: FakeClock, cluster_url: str) -> Iterator[JobStore]:
    opened = open_store(cluster_url, clock=clock)
    yield opened
    asyncio.run(opened.close())
