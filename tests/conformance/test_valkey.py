"""The Valkey store keeps every promise of the contract, but for transactions with rows of the user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import *  # noqa: F403


@pytest.fixture
def store(clock: FakeClock, valkey_url: str) -> Iterator[JobStore]:
    opened = open_store(valkey_url, clock=clock)
    yield opened
    asyncio.run(opened.close())


del TestTransaction  # noqa: F821 - it has none: see tests/scenarios/test_valkey_refusals.py
