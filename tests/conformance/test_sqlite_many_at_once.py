"""What the SQLite store does at once for several jobs that are alike, it can do for one: the contract is kept either way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import *  # noqa: F403


@pytest.fixture
def store(clock: FakeClock, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobStore]:
    for module in ("newcomers", "settle", "swift"):
        monkeypatch.setattr(f"onejob.stores.sqlite.{module}.FEW", 1)
    opened = open_store(sqlite_url, clock=clock)
    yield opened
    asyncio.run(opened.close())
