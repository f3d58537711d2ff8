"""A slot of a cluster whose keys move one at a time, so that for a while a queue is neither here nor there: what is asked of it
then waits and is done once, as a whole, and nothing is half-written.
"""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from servers.cluster import ValkeyCluster
from servers.layout_checks import inspect_layout, left_over
from servers.valkey import ValkeyServer
from stage import PATIENCE, Stage, eventually

from onejob import App, Receipt
from onejob.stores.valkey.topology import slot_of
from onejob.testing.conformance.steps import AT_ONCE


def slot_of_queue(queue: str) -> int:
    return slot_of(f"{{onejob:{queue}}}:data")


def another_in_the_slot_of(queue: str) -> str:
    """A queue whose keys have the same slot."""
    return next(name for name in (f"n{n}" for n in count()) if slot_of_queue(name) == slot_of_queue(queue))


def move_key(name: str, source: ValkeyServer, to: ValkeyServer) -> None:
    source.execute("MIGRATE", "127.0.0.1", to.port, name, 0, 5_000)


def told_to_try_again(cluster: ValkeyCluster) -> int:
    """How often nodes have said that they have only some of a call's keys."""
    said = (node.execute("INFO", "errorstats").get("errorstat_TRYAGAIN", {}) for node in cluster.nodes)
    return sum(one.get("count", 0) for one in said)


@pytest.mark.parametrize("first", ["data", pytest.param("index", marks=pytest.mark.torture)])
async def test_what_is_asked_of_a_queue_between_two_nodes_is_done_once_it_has_arrived(
    first: str, own_cluster: ValkeyCluster
) -> None:
    new = another_in_the_slot_of("default")
    slot = slot_of_queue("default")
    source = own_cluster.owner(slot)
    to = next(node for node in own_cluster.nodes if node is not source)
    async with App(f"{own_cluster.url}?patience={PATIENCE}") as app:
        stage = Stage(app)
        elsewhere = stage.task("elsewhere", queue=new)
        async with asyncio.timeout(3 * PATIENCE), app.worker(lease=PATIENCE, concurrency=4):
            [before] = await stage.send("before")
            await stage.until(lambda: stage.running == ["before"])
            with own_cluster.slot_on_the_move(slot, to):
                [at_home] = await stage.send("at home")
                move_key(f"{{onejob:default}}:{first}", source, to)
                refused = told_to_try_again(own_cluster)
                stage.release("before")
                under_way: list[asyncio.Task[Receipt[str]]] = [
                    asyncio.create_task(call)
                    for call in (
                        stage.work.aenqueue("between"),
                        stage.work.aenqueue("between as well"),
                        elsewhere.aenqueue("new queue"),
                    )
                ]
                await eventually(lambda: _says_more(own_cluster, refused + 3))
                assert not any(one.done() for one in under_way)
            receipts = [before, at_home, *await asyncio.gather(*under_way)]
            stage.open = True
            stage.release("at home", "between", "between as well", "new queue")
            names = [await one.aresult(timeout=PATIENCE) for one in receipts]
            assert names == ["before", "at home", "between", "between as well", "new queue"]
        assert sorted(stage.started) == sorted(names), "each once"
        assert inspect_layout(own_cluster.url) == []
        assert own_cluster.owner(slot) is to
        assert (await app.store.prune(AT_ONCE, 100)).jobs == len(names)
        assert left_over(own_cluster.url) == []


async def _says_more(cluster: ValkeyCluster, number: int) -> bool:
    return await asyncio.to_thread(told_to_try_again, cluster) >= number
