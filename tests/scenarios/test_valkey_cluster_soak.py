"""The soak on a Valkey Cluster: queues on three nodes that write to each other, while the slot of one of them moves back
and forth, in both ways there are, and nodes are killed and come back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.cluster import ValkeyCluster
from servers.folders import PATIENCE
from servers.valkey import ValkeyServer
from soak_result import shown
from stored import with_patience
from valkey_crew import Crew, Soak, soaked
from valkey_soak_app import QUEUES


class Moving:
    """Moves the slots of queues from node to node and back, key by key or all at once, and kills a node after each."""

    def __init__(
        self, cluster: ValkeyCluster, rest: float, *, queues: tuple[str, ...], least: int = 1
    ) -> None:
        self._cluster = cluster
        self._rest = rest
        self._slots = [cluster.slot(f"{{onejob:{queue}}}:data") for queue in queues]
        self._least = least
        self.moved = self.moved_whole = self.kills = 0

    async def __call__(self, crew: Crew, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() + self._rest < end or self.kills < self._least:
            slot = crew.dice.choice(self._slots)
            home = self._cluster.owner(slot)
            away = crew.dice.choice([node for node in self._cluster.nodes if node is not home])
            await asyncio.to_thread(self._cluster.move_slot, slot, away)
            self.moved += 1
            await asyncio.sleep(self._rest * crew.dice.random())
            await asyncio.to_thread(move_whole, self._cluster, slot, home)
            self.moved_whole += 1
            await asyncio.sleep(self._rest * crew.dice.random())
            await asyncio.to_thread(self._kill, crew.dice.choice(self._cluster.nodes))
            self.kills += 1

    def _kill(self, node: ValkeyServer) -> None:
        node.kill()
        node.start()
        self._cluster.wait_until_whole()


def move_whole(cluster: ValkeyCluster, slot: int, to: ValkeyServer) -> None:
    """Give a slot with all its keys to another node, in one step."""
    source = cluster.owner(slot)
    target = to.execute("CLUSTER MYID")
    source.execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target)
    deadline = time.monotonic() + PATIENCE
    while cluster.owner(slot) is not to:
        assert time.monotonic() < deadline, source.execute("CLUSTER", "GETSLOTMIGRATIONS")
        time.sleep(0.02)
    cluster.wait_until_whole()


@pytest.fixture
def durable_cluster() -> Iterator[ValkeyCluster]:
    """Nodes that have written to disk whatever they have acknowledged."""
    with ValkeyCluster(appendonly="yes", appendfsync="always") as cluster:
        yield cluster


async def test_slots_that_move_and_a_node_that_is_killed_during_a_short_soak_lose_nothing(
    durable_cluster: ValkeyCluster, tmp_path: Path
) -> None:
    moving = Moving(durable_cluster, 0.5, queues=("b",))
    result = await soaked(
        Soak(seconds=3, workers=2, producers=2),
        with_patience(durable_cluster.url, 60),
        tmp_path,
        disturb=moving,
    )
    shown("A short soak on a cluster", result, **vars_of(moving))
    assert result.violations() == {}
    assert moving.moved >= 1
    assert moving.moved_whole >= 1
    assert moving.kills >= 1
    assert result.acknowledged > 150


@pytest.mark.torture
async def test_slots_that_move_and_nodes_and_workers_that_are_killed_during_a_long_soak_lose_nothing(
    durable_cluster: ValkeyCluster, tmp_path: Path
) -> None:
    moving = Moving(durable_cluster, 2, queues=QUEUES, least=10)

    async def disturb(crew: Crew, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(moving(crew, seconds))
            for _ in range(int(seconds / 6)):
                await asyncio.sleep(6)
                await crew.kill_a_worker()

    soak = Soak(seconds=90, lease=10, patience=300)
    result = await soaked(soak, with_patience(durable_cluster.url, 60), tmp_path, disturb=disturb)
    shown("A long soak on a cluster", result, **vars_of(moving))
    assert result.violations() == {}
    assert min(moving.moved, moving.moved_whole, moving.kills) >= 10


def vars_of(moving: Moving) -> dict[str, int]:
    return {"moved": moving.moved, "moved whole": moving.moved_whole, "nodes killed": moving.kills}
