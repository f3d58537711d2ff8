"""What an operation costs a Valkey server does not grow with what else is in its queue: the commands that it runs are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest
import valkey as driver
from servers.valkey import ValkeyServer
from yard import BACKLOGS, Yard

from onejob.core.lane import QueueChange, Rate
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock

SMALL, LARGE = 100, 1_500
BESIDE = 3
"""Commands that may fall into a count: those by which it is taken, and hints."""


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as made:
        yield made


@asynccontextmanager
async def yard(server: ValkeyServer) -> AsyncGenerator[Yard]:
    with driver.Valkey(port=server.port) as client:
        client.flushall()
        store = ValkeyStore(server.url, clock=FakeClock())
        try:
            yield Yard(store, lambda: client.info("stats")["total_commands_processed"])
        finally:
            await store.close()


async def costs(server: ValkeyServer, backlog: str, size: int, change: QueueChange | None) -> Counter[str]:
    async with yard(server) as made:
        return await made.go_through(backlog, size, change)


@pytest.mark.parametrize("backlog", BACKLOGS)
async def test_operations_run_as_many_commands_beside_any_backlog(server: ValkeyServer, backlog: str) -> None:
    await compare(server, backlog, None)


@pytest.mark.parametrize("backlog", ["waiting jobs", "finished jobs", "lanes", "parked jobs of a wide lane"])
async def test_limits_of_the_queue_change_nothing_about_that(server: ValkeyServer, backlog: str) -> None:
    await compare(server, backlog, QueueChange(concurrency=10_000, rate=Rate(10_000, per=60)))


async def compare(server: ValkeyServer, backlog: str, change: QueueChange | None) -> None:
    few, many = (
        await costs(server, backlog, SMALL, change),
        await costs(server, backlog, LARGE, change),
    )
    grown = {what: (few[what], many[what]) for what in few if many[what] > few[what] + BESIDE}
    assert grown == {}, f"commands beside {SMALL:,} and {LARGE:,} {backlog}"
    assert few["claim, no lane"] > BESIDE


async def test_what_walks_through_a_backlog_would_be_seen(server: ValkeyServer) -> None:
    spent: list[int] = []
    for size in (SMALL, LARGE):
        async with yard(server) as made:
            await made.fill("waiting jobs", size)
            await made.counted("all of them", None, made.start_and_finish(size))
            spent.append(made.costs["all of them, no lane"])
    assert spent[1] > spent[0] + BESIDE
