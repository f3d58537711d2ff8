"""A queue on Valkey that falls back to what it was, while others do not: as when a node of a cluster dies before its replica
has heard everything. What is between the queues must not stay in the way for ever, or somebody must be able to clear it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import valkey
from servers.layout import Reader
from servers.layout_checks import inspect_layout, left_over
from servers.namespaces import Namespaces
from valkey_cutting import Died, World, Worlds, id, new, next_id

from onejob.core.dedup import Unique
from onejob.store import Amended, Amendment
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock

A_DAY = 24 * 3600 * 100_000
"""As message numbers count it."""


def client_of(world: World) -> valkey.Valkey:
    return valkey.Valkey(port=int(world.url.partition("?")[0].rpartition(":")[2]))


class Former:
    """A queue as it is now, to come back to."""

    def __init__(self, world: World, queue: str) -> None:
        self._client = client_of(world)
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


class Line:
    """The messages from one queue to another."""

    def __init__(self, world: World, source: str, target: str) -> None:
        self._client = client_of(world)
        self._tag = f"{{{Reader(world.url).namespace}:%s}}:%s"
        self._source, self._target = source, target

    def taken(self) -> int:
        """The number up to which they have been taken."""
        return int(self._client.hget(self._tag % (self._target, "data"), f"i{self._source}") or 0)

    def take_up_to(self, number: int) -> None:
        """Let the target have taken messages that the source, which fell back, knows nothing of."""
        self._client.hset(self._tag % (self._target, "data"), f"i{self._source}", number)

    def waiting(self) -> list[int]:
        """The numbers of those that have yet to be delivered."""
        start = b"o" + self._target.encode() + b"\0"
        members = self._client.zrangebylex(
            self._tag % (self._source, "index"), b"[" + start, b"(" + start + b"\xff" * 8
        )
        return [int.from_bytes(member[-6:]) for member in members]

    def close(self) -> None:
        self._client.close()


@asynccontextmanager
async def a_line(world: World, source: str, target: str) -> AsyncIterator[Line]:
    line = Line(world, source, target)
    try:
        yield line
    finally:
        line.close()


@pytest.mark.parametrize("ahead", [0, 1, A_DAY])
async def test_what_a_queue_hands_over_arrives_though_its_clock_is_behind_the_one_it_had(
    ahead: int, worlds: tuple[ValkeyStore, Worlds], caplog: pytest.LogCaptureFixture
) -> None:
    async with a_world(worlds) as world, a_line(world, "q", "r") as line:
        await begun(world)
        await world.put(new(2))
        await world.start("q")
        await world.end(world.done(id(1), then="r"))
        line.take_up_to(line.taken() + ahead)
        await world.end(world.done(id(2), then="r"))
        assert await world.store.job(next_id(2)) is not None
        await world.start("r")
        await world.end(world.done(next_id(1)), world.done(next_id(2)))
        assert await world.put(new(5, unique=Unique.in_flight())) == ["created"]
        assert await is_clean(world)
    said = [
        record.getMessage() for record in caplog.records if vars(record).get("event") == "store.fell_back"
    ]
    assert ["queue 'q' has fallen back" in text for text in said] == [True] * (ahead == A_DAY)


async def handed_over_in_vain(world: World, line: Line, *numbers: int) -> list[int]:
    """Jobs go on in another queue, one after the other, and each time who says so dies before he can deliver it."""
    for number in numbers:
        world.new_client(at="settle", how="after")
        with pytest.raises(Died):
            await world.end(world.done(id(number), then="r"))
    world.new_client()
    found = line.waiting()
    assert len(found) == len(numbers)
    return found


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_all_that_has_gathered_arrives_in_order_wherever_the_number_of_the_last_one_taken_lies(
    place: int, worlds: tuple[ValkeyStore, Worlds]
) -> None:
    async with a_world(worlds) as world, a_line(world, "q", "r") as line:
        await world.put(*(new(number) for number in (1, 2, 3)), new(9, queue="r"))
        await world.start("q")
        numbers = await handed_over_in_vain(world, line, 1, 2, 3)
        line.take_up_to(numbers[place] + (1 if place < 2 else A_DAY))
        assert all(one + 1 < other for one, other in pairwise(numbers)), "there is something between them"
        await world.tick()
        assert line.waiting() == []
        world.leases.clear()
        await world.start("r")
        assert list(world.leases) == [id(9), *(next_id(number) for number in (1, 2, 3))]
        assert await is_clean(world)


async def test_those_that_were_taken_are_not_taken_again(worlds: tuple[ValkeyStore, Worlds]) -> None:
    async with a_world(worlds) as world, a_line(world, "q", "r") as line:
        await world.put(*(new(number) for number in (1, 2, 3)), new(9, queue="r"))
        await world.start("q")
        numbers = await handed_over_in_vain(world, line, 1, 2, 3)
        line.take_up_to(numbers[1])
        await world.tick()
        assert [await world.store.job(next_id(number)) is not None for number in (1, 2, 3)] == [
            False,
            False,
            True,
        ]


async def test_what_a_queue_leaves_to_itself_is_done_though_its_clock_is_behind(
    worlds: tuple[ValkeyStore, Worlds],
) -> None:
    async with a_world(worlds) as world, a_line(world, "q", "q") as line:
        many = range(100, 350)
        await world.put(*(new(number) for number in many))
        await world.put(new(1, *many))
        line.take_up_to(line.taken() + A_DAY)
        assert await world.amend(id(1), Amendment.REVOKE) == [Amended.REVOKED]
        assert await is_clean(world)
