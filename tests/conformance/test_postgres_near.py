"""A worker's exchanges go from its own loop to PostgreSQL, and keep every promise that settling and claiming make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from onejob.core.lifecycle import Settlement
from onejob.store import Ask, JobStore, SettleReply
from onejob.stores.postgres.store import PostgresStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.chains import *  # noqa: F403
from onejob.testing.conformance.fixtures import clock  # noqa: F401
from onejob.testing.conformance.settle import *  # noqa: F403

EVERY_THIRD_CASE = True
"""See `leave_cases_for_torture`: the whole of it is asked in `test_postgres`."""


class Near(PostgresStore):
    """Settles as a worker does."""

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        async with self.at_hand():
            return await super().settle(done, ask, now=now)


@pytest.fixture
def store(clock: FakeClock, postgres_url: str) -> Iterator[JobStore]:  # noqa: F811
    opened = Near(postgres_url, clock=clock)
    yield opened
    asyncio.run(opened.close())
