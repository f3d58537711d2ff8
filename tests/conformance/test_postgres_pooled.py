"""Behind a pooler that gives every transaction another session the PostgreSQL store keeps its promises, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from servers.pooler import Pooler

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import (
    TestDuplicatesInLanes,
    TestKeysOfChains,
    TestTransaction,
    clock,
)

__all__ = ["TestDuplicatesInLanes", "TestKeysOfChains", "TestTransaction", "clock"]


@pytest.fixture
def store(clock: FakeClock, postgres_url: str) -> Iterator[JobStore]:
    with Pooler(postgres_url) as pooler:
        opened = open_store(f"{pooler.url}&pooler=transaction", clock=clock)
        yield opened
        asyncio.run(opened.close())
