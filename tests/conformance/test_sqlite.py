"""The SQLite store keeps every promise of the contract, as a file and in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import *  # noqa: F403


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[JobStore]:
    opened = open_store(
        "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db", clock=clock
    )
    yield opened
    asyncio.run(opened.close())
