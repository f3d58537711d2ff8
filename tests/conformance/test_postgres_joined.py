"""What is enqueued on a user's own connection is judged and stored as on the store's: the same promises, by both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import psycopg
import pytest

from onejob.core.job import NewJob, WorkerId
from onejob.core.judge import Answer
from onejob.store import Ask, JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock
from onejob.testing.conformance import (
    TestBlockers,
    TestCorners,
    TestDuplicatesInLanes,
    TestFailedBlockers,
    TestKeysOfChains,
    TestLaneLimits,
    TestRepeatedCallsWithBlockers,
    TestStrandedHolders,
    clock,
)
from onejob.testing.conformance import TestEnqueue as Enqueue

__all__ = [
    "TestBlockers",
    "TestCorners",
    "TestDuplicatesInLanes",
    "TestFailedBlockers",
    "TestKeysOfChains",
    "TestLaneLimits",
    "TestRepeatedCallsWithBlockers",
    "TestStrandedHolders",
    "clock",
]

EVERY_THIRD_CASE = True
"""See `leave_cases_for_torture`: the whole of it is asked in `test_postgres`."""


class TestEnqueue(Enqueue):
    test_absorbed_duplicates_are_counted = None  # nobody tells whether the user commits


class Joining:
    """A store whose enqueues go through a transaction of somebody else's, who commits.

    There nothing is locked that may run, so who waits for a chain is attached to it by the next claim, of any queue.
    """

    def __init__(self, store: JobStore, driver: str, server: str) -> None:
        self._store = store
        self._driver = driver
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        answers = await self._joined(jobs, now)
        if any(job.blockers for job in jobs):
            await self._store.claim(Ask(WorkerId("somebody"), ("elsewhere",), 1), now=now)
        return answers

    async def _joined(self, jobs: Sequence[NewJob], now: int | None) -> list[Answer]:
        if self._driver == "psycopg":
            return await asyncio.to_thread(self._by_psycopg, jobs, now)
        connection = await asyncpg.connect(self._server)
        try:
            async with connection.transaction():
                return await self._store.join(connection).aenqueue(jobs, now=now)
        finally:
            await connection.close()

    def _by_psycopg(self, jobs: Sequence[NewJob], now: int | None) -> list[Answer]:
        with psycopg.connect(self._server) as connection:
            return self._store.join(connection).enqueue(jobs, asyncio.run, now=now)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each driver is asked whatever an enqueue may be; what else there is sends the same statements by both."""
    rest = () if metafunc.cls is TestEnqueue else pytest.mark.torture
    metafunc.parametrize("driver", ["asyncpg", pytest.param("psycopg", marks=rest)])


@pytest.fixture
def store(driver: str, clock: FakeClock, postgres_url: str) -> Iterator[Any]:
    opened = open_store(postgres_url, clock=clock)
    yield Joining(opened, driver, postgres_url.partition("?")[0])
    asyncio.run(opened.close())
