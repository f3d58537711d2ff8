"""What goes from queue to queue on Valkey, cut off between any two calls of the client: whoever comes next finds it as it
was, or as if nobody had died; and no queue is left waiting for a message.

The client that takes over has nothing to do with these queues: it beats, and looks for jobs of dead workers, as all do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from servers.layout_checks import inspect_layout, left_over
from servers.namespaces import Namespaces
from valkey_cutting import (
    EVERYTHING,
    KEEP,
    LEASE,
    Died,
    How,
    World,
    Worlds,
    id,
    letter_id,
    new,
    next_id,
    picture,
)

from onejob.core.dedup import Unique
from onejob.core.lifecycle import Move
from onejob.core.options import JobOptions, encode_options
from onejob.store import Amendment
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.schedules import come_due, schedule
from onejob.testing.conformance.steps import job

BURIED = encode_options(JobOptions(dead_letter="dead"))
Act = Callable[[World], Awaitable[Any]]


def steps(*acts: Act) -> Act:
    """One after the other."""

    async def all_of_them(world: World) -> None:
        for act in acts:
            await act(world)

    return all_of_them


async def chain_over_two_queues(world: World, **settings: Any) -> None:
    """Job 1 in q, its next in r, which runs."""
    await world.put(new(1, **settings))
    await world.start("q")
    await world.end(world.done(id(1), then="r"))
    await world.start("r")


async def line_over_three_queues(world: World) -> None:
    """A chain with a key, over two queues; who waits for it is in others, one of them with a grave."""
    await chain_over_two_queues(world, unique=Unique.latest())
    await world.put(
        new(2, 1, queue="s"),
        new(3, 2, queue="r", options=BURIED),
        new(4, 3, queue="q", runs_anyway=True),
        new(5, unique=Unique.latest(), payload=b'{"v":5}'),
    )


async def retry_later(world: World) -> None:
    await world.end(world.done(next_id(1), Move.RETRY, delay=LEASE * 100))


async def dead_letter(world: World) -> None:
    await world.put(new(1, unique=Unique.in_flight()))
    await world.start("q")
    await world.end(world.done(id(1), Move.FAIL, dead_letter="dead"))


async def due_schedule(world: World) -> None:
    await world.store.put_schedules([schedule(world.clock, job=job(queue="r", unique=Unique.in_flight()))])
    world.kept = await come_due(world.store, world.clock)


@dataclass(frozen=True)
class Operation:
    """What is cut off, and whether it is done in steps: then it may be found half-way, each step being whole."""

    prepare: Act
    operate: Act
    in_steps: bool = False


OPERATIONS: dict[str, Operation] = {
    "a chain goes on in another queue": Operation(
        steps(lambda w: w.put(new(1, unique=Unique.in_flight())), lambda w: w.start("q")),
        lambda w: w.end(w.done(id(1), then="r")),
    ),
    "a chain goes on in another queue, and waits there for a third": Operation(
        steps(lambda w: w.put(new(1), new(2, queue="s")), lambda w: w.start("q")),
        lambda w: w.end(w.done(id(1), then="r", waits=(id(2),))),
    ),
    "a chain ends far from its first job, whom others follow and wait for": Operation(
        line_over_three_queues, lambda w: w.end(w.done(next_id(1)))
    ),
    "a chain fails far from its first job, and strands a line": Operation(
        line_over_three_queues, lambda w: w.end(w.done(next_id(1), Move.FAIL, dead_letter="dead"))
    ),
    "two chains end in one batch": Operation(
        steps(
            chain_over_two_queues,
            lambda w: w.put(new(2, queue="s")),
            lambda w: w.start("s"),
            lambda w: w.put(new(3, 1, 2, queue="s")),
        ),
        lambda w: w.end(w.done(next_id(1)), w.done(id(2))),
        in_steps=True,
    ),
    "a job comes to wait for two in other queues": Operation(
        lambda w: w.put(new(1, queue="r"), new(2, queue="s"), new(4)),
        lambda w: w.put(new(3, 1, 2, unique=Unique.in_flight())),
    ),
    "a blocker ends in another queue": Operation(
        steps(lambda w: w.put(new(1, queue="r"), new(2, 1)), lambda w: w.start("r")),
        lambda w: w.end(w.done(id(1))),
    ),
    "a job fails into a queue for dead letters": Operation(
        steps(lambda w: w.put(new(1, unique=Unique.in_flight())), lambda w: w.start("q")),
        lambda w: w.end(w.done(id(1), Move.FAIL, dead_letter="dead")),
    ),
    "a chain over two queues is revoked": Operation(
        steps(line_over_three_queues, retry_later), lambda w: w.amend(id(1), Amendment.REVOKE)
    ),
    "a chain over two queues is deleted": Operation(
        steps(line_over_three_queues, retry_later),
        lambda w: w.amend(id(1), Amendment.DELETE_WITH_WAITING),
        in_steps=True,
    ),
    "a failed chain over two queues is retried": Operation(
        steps(
            lambda w: chain_over_two_queues(w, unique=Unique.in_flight()),
            lambda w: w.put(new(2, 1, queue="s")),
            lambda w: w.end(w.done(next_id(1), Move.FAIL)),
        ),
        lambda w: w.amend(id(1), Amendment.RETRY),
    ),
    "a stranded job is retried, and waits again": Operation(
        steps(
            chain_over_two_queues,
            lambda w: w.put(new(2, 1, queue="s", options=BURIED), new(3, 2)),
            lambda w: w.end(w.done(next_id(1), Move.FAIL)),
            lambda w: w.amend(id(1), Amendment.RETRY),
        ),
        lambda w: w.amend(id(2), Amendment.RETRY),
    ),
    "a dead letter is retried": Operation(dead_letter, lambda w: w.amend(letter_id(1), Amendment.RETRY)),
    "a chain over two queues is pruned": Operation(
        steps(chain_over_two_queues, lambda w: w.end(w.done(next_id(1)))),
        lambda w: w.store.prune(msgspec.structs.replace(KEEP, completed=-1), EVERYTHING),
    ),
    "a slot of a schedule becomes a job": Operation(due_schedule, lambda w: w.store.fire([w.kept])),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_whoever_dies_between_two_calls_leaves_what_others_finish(
    name: str, valkey_url: str, valkey_namespaces: Namespaces
) -> None:
    await in_many_worlds(OPERATIONS[name], valkey_url, valkey_namespaces, "after")


@pytest.mark.parametrize("name", OPERATIONS)
async def test_every_call_may_be_made_again(
    name: str, valkey_url: str, valkey_namespaces: Namespaces
) -> None:
    await in_many_worlds(OPERATIONS[name], valkey_url, valkey_namespaces, "again", most=1)


@pytest.mark.torture  # as those above, but for the very first call, and each call by itself
@pytest.mark.parametrize("how", ["before", "again"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_call_that_is_never_made_and_calls_that_are_made_again(
    name: str, how: How, valkey_url: str, valkey_namespaces: Namespaces
) -> None:
    await in_many_worlds(OPERATIONS[name], valkey_url, valkey_namespaces, how)


@pytest.mark.parametrize("name", ["a chain fails far from its first job, and strands a line"])
async def test_whoever_dies_between_two_nodes_leaves_what_others_finish(
    name: str, cluster_url: str, cluster_namespaces: Namespaces
) -> None:
    await in_many_worlds(OPERATIONS[name], cluster_url, cluster_namespaces, "after")


@pytest.mark.torture
@pytest.mark.parametrize("how", ["before", "after", "again"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_whoever_dies_between_two_nodes_whatever_he_does_and_however_he_dies(
    name: str, how: How, cluster_url: str, cluster_namespaces: Namespaces
) -> None:
    await in_many_worlds(OPERATIONS[name], cluster_url, cluster_namespaces, how)


async def test_what_nobody_delivers_is_seen(
    valkey_url: str, valkey_namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_: World) -> None: ...

    monkeypatch.setattr(World, "tick", nothing)
    with pytest.raises(AssertionError, match="undelivered"):
        await in_many_worlds(
            OPERATIONS["a chain goes on in another queue"], valkey_url, valkey_namespaces, "after"
        )


async def test_an_original_that_fails_again_has_its_dead_letter_whoever_died_retrying_it(
    valkey_url: str, valkey_namespaces: Namespaces
) -> None:
    clock = FakeClock()
    store = ValkeyStore(valkey_url, clock=clock)
    worlds = Worlds(store, clock, valkey_namespaces)
    at, revived, fired = 0, 0, True
    while fired:
        at += 1
        with worlds.one() as world:
            world.new_client()
            await dead_letter(world)
            world.leases.clear()
            cut = world.new_client(at, "after")
            with suppress(Died):
                await world.amend(letter_id(1), Amendment.RETRY)
            fired = cut.fired
            world.new_client()
            await world.start("q")
            for held in world.leases:
                await world.end(world.done(held, Move.FAIL, dead_letter="dead"))
            revived += len(world.leases)
            assert [letter.id for letter in await store.dead("q", 0, 10)] == [letter_id(1)], f"call {at}"
            assert inspect_layout(world.url) == []
    assert revived > 2, "it was cut off before and after what counts"
    await asyncio.wait_for(store.close(), 20)


async def in_many_worlds(
    operation: Operation, url: str, namespaces: Namespaces, how: How, most: int = 1_000
) -> None:
    """Cut an operation off at its first call, its second and so on, until it has none that could be."""
    clock = FakeClock()
    store = ValkeyStore(url, clock=clock)
    worlds = Worlds(store, clock, namespaces)
    try:
        with worlds.one() as world:
            before = await prepared(operation, world)
        with worlds.one() as world:
            after = await done(operation, world)
        assert before != after
        at = 1
        while at <= most and await cut_off(operation, worlds, (at, how), before, after):
            at += 1
        assert at > min(most, 3), "it takes some calls"
    finally:
        await asyncio.wait_for(store.close(), 20)


async def prepared(operation: Operation, world: World) -> dict[str, Any]:
    world.new_client()
    await operation.prepare(world)
    world.new_client()
    await world.tick()
    return picture(world.url)


async def done(operation: Operation, world: World) -> dict[str, Any]:
    """What is there in the end, if nobody dies; and nothing is stuck."""
    await prepared(operation, world)
    await operation.operate(world)
    world.new_client()
    await world.tick()
    found = picture(world.url)
    await world.drain()
    assert inspect_layout(world.url) == []
    assert left_over(world.url) == []
    return found


async def cut_off(
    operation: Operation, worlds: Worlds, call: tuple[int, How], before: dict[str, Any], after: dict[str, Any]
) -> bool:
    """Cut it off at one of its calls, and let another client go on; False if it has fewer calls."""
    with worlds.one() as world:
        await prepared(operation, world)
        cut = world.new_client(*call)
        try:
            await operation.operate(world)
        except Died:
            assert cut.fired
        world.new_client()
        await world.tick()
        found = picture(world.url)
        if cut.fired and call[1] != "again":
            assert operation.in_steps or found in (before, after), f"call {call}"
            await operation.operate(world)  # as one does who got no reply
            world.new_client()
            await world.tick()
            found = picture(world.url)
        assert found == after
        return cut.fired
