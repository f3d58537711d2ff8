"""The PostgreSQL store keeps every promise of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.stores.postgres import signals
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import *  # noqa: F403


@pytest.fixture(autouse=True)
def nobody_looks_for_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever waits is awake after a second, hint or not."""
    monkeypatch.setattr(signals, "POLL", 600.0)
    monkeypatch.setattr(signals, "POLL_PROVEN", 600.0)


@pytest.fixture
def store(clock: FakeClock, postgres_url: str) -> Iterator[JobStore]:
    opened = open_store(postgres_url, clock=clock)
    yield opened
    asyncio.run(opened.close())
