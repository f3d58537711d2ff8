"""The same promises where queues are on several nodes: on every run those that jobs of several queues have to do with, and for
`make torture` the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing import conformance
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import *  # noqa: F403

ON_EVERY_RUN = {
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
}

EVERY_THIRD_CASE = True
"""See `leave_cases_for_torture`: the whole of it is asked in `test_valkey`."""


@pytest.fixture
def store(clock: FakeClock, cluster_url: str) -> Iterator[JobStore]:
    opened = open_store(cluster_url, clock=clock)
    yield opened
    asyncio.run(opened.close())


del TestTransaction  # noqa: F821 - it has none: see tests/scenarios/test_valkey_refusals.py

OTHERS = {name for name in globals() if name.startswith("Test")} - ON_EVERY_RUN
globals().update(  # subclasses, because a mark on what all stores share would be there for all of them
    {name: pytest.mark.torture(type(name, (vars(conformance)[name],), {})) for name in OTHERS}
)
