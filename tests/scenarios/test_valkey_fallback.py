"""A queue on Valkey that falls back to what it was, while others do not: as when a node of a cluster dies before its replica
has heard everything. What is between the queues must not stay in the way for ever, or somebody must be able to clear it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import valkey
from servers.layout import Reader
from servers.layout_checks import inspect_layout, left_over
from servers.namespaces import Namespaces
from valkey_cutting import World, Worlds, id, new, next_id

from onejob.core.dedup import Unique
from onejob.store import Amended, Amendment
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock


class Former:
    """A queue as it is now, to come back to."""

    def __init__(self, world: World, queue: str) -> None:
        self._client = valkey.Valkey(port=int(world.url.partition("?")[0].rpartition(":")[2]))
        tag = f"{{{Reader(world.url).namespace}:{queue}}}"
        self._records = {name: self._client.dump(name) for name in (f"{tag}:data", f"{tag}:index")}

    def fall_back(self) -> None:
        for name, record in self._records.items():
            self._client.restore(name, 0, record, replace=True)
        self._client.close()


@pytest.fixture
def worlds(valkey_url: str, valkey_namespaces: Namespaces) -> tuple[ValkeyStore, Worlds]:
    clock = FakeClock()
    store = ValkeyStore(valkey_url, clock=clock)
    return store, Worlds(store, clock, valkey_namespaces)


@asynccontextmanager
async def a_world(worlds: tuple[ValkeyStore, Worlds]) -> AsyncIterator[World]:
    store, many = worlds
    try:
        with many.one() as world:
            world.new_client()
            yield world
    finally:
        await asyncio.wait_for(store.close(), 20)


async def begun(world: World) -> None:
    """A job with a key runs; a second queue is there."""
    await world.put(new(1, unique=Unique.in_flight()), new(9, queue="r"))
    await world.start("q")


async def is_clean(world: World) -> bool:
    """Everything runs to its end, and nothing is left of it."""
    await world.drain()
    return (inspect_layout(world.url), left_over(world.url)) == ([], [])


async def test_a_start_whose_end_was_lost_ends_again_and_its_chain_goes_on_once(
    worlds: tuple[ValkeyStore, Worlds],
) -> None:
    async with a_world(worlds) as world:
        await begun(world)
        former = Former(world, "q")
        await world.end(world.done(id(1), then="r"))
        former.fall_back()
        await world.end(world.done(id(1), then="r"))
        assert inspect_layout(world.url) == []
        assert await is_clean(world)


@pytest.mark.parametrize("queues", [["r"], ["r", "s"], ["r", "s", "r"]])
async def test_a_chain_that_ended_before_its_first_job_fell_back_is_over_once_that_has_run_anew(
    queues: list[str], worlds: tuple[ValkeyStore, Worlds]
) -> None:
    async with a_world(worlds) as world:
        await begun(world)
        former = Former(world, "q")
        await world.end(world.done(id(1), then=queues[0]))
        for index, queue in enumerate(queues, 1):
            await world.start(queue)
            then = queues[index] if index < len(queues) else None
            await world.end(world.done(next_id(1, index), **({} if then is None else {"then": then})))
        former.fall_back()
        assert await world.put(new(5, unique=Unique.in_flight())) == ["kept"], (
            "it runs, as far as its queue knows"
        )
        await world.end(world.done(id(1), then=queues[0]))
        assert inspect_layout(world.url) == []
        assert await world.put(new(6, unique=Unique.in_flight())) == ["created"]
        assert await is_clean(world)


async def test_a_job_that_waits_for_one_that_is_lost_can_be_revoked(
    worlds: tuple[ValkeyStore, Worlds],
) -> None:
    async with a_world(worlds) as world:
        await begun(world)
        former = Former(world, "r")
        await world.put(new(2, queue="r"), new(3, 2))
        former.fall_back()
        assert await world.amend(id(3), Amendment.REVOKE) == [Amended.REVOKED]
        assert inspect_layout(world.url) == []
        assert await is_clean(world)


async def chain_without_its_next_job(world: World) -> None:
    await begun(world)
    former = Former(world, "r")
    await world.end(world.done(id(1), then="r"))
    former.fall_back()
    world.new_client()


async def test_the_key_of_a_chain_whose_next_job_is_lost_can_be_released(
    worlds: tuple[ValkeyStore, Worlds],
) -> None:
    async with a_world(worlds) as world:
        await chain_without_its_next_job(world)
        newcomer = new(2, unique=Unique.in_flight())
        assert await world.put(newcomer) == ["kept"]
        assert newcomer.plan is not None
        assert await world.store.release(newcomer.plan.digest) == id(1)
        assert await world.put(new(3, unique=Unique.in_flight())) == ["created"]


@pytest.mark.parametrize("amendment", [Amendment.REVOKE, Amendment.DELETE])
async def test_a_chain_whose_next_job_is_lost_can_be_ended(
    amendment: Amendment, worlds: tuple[ValkeyStore, Worlds]
) -> None:
    async with a_world(worlds) as world:
        await chain_without_its_next_job(world)
        expected = Amended.REVOKED if amendment is Amendment.REVOKE else Amended.DELETED
        assert await world.amend(id(1), amendment) == [expected]
        assert await world.put(new(2, unique=Unique.in_flight())) == ["created"]
        assert await is_clean(world)
