"""The SQLite store keeps every promise of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import *  # noqa: F403


@pytest.fixture
def store(clock: FakeClock, sqlite_url: str) -> Iterator[JobStore]:
    opened = open_store(sqlite_url, clock=clock)
    yield opened
    asyncio.run(opened.close())
