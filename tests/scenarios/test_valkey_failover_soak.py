"""The soak on Valkey while replicas take over: one of a server, and those of a cluster, whose primaries hand over or die.

What replication had not yet sent is lost, and counted; so is what queues then no longer know of each other. Nothing else may
be wrong: see `valkey_failover_oracle`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from servers.cluster import ValkeyCluster
from servers.replicated import ReplicatedValkey
from servers.valkey import ValkeyServer
from soak_result import shown
from stored import with_patience
from valkey_crew import Crew, Soak, soaked
from valkey_failover_oracle import CUT, OVER, Torn, judged_with_tears
from valkey_oracle import events
from valkey_soak_app import GRAVES, QUEUES

from onejob.core.job import LIVE, State

Fail = Callable[[], None]
SETTLED = 1.0
"""Seconds after which everybody has heard from the new primary, once it has taken over."""


class FailingOver:
    """Lets replicas take over, in turn in one way and in the other, with some seconds of rest between."""

    def __init__(self, *ways: Fail, rest: float, least: int = 2) -> None:
        self._ways = ways
        self._rest = rest
        self._least = least
        self.done = 0

    async def __call__(self, crew: Crew, seconds: float) -> None:
        await crew.until_jobs_flow()
        end = time.monotonic() + seconds
        while time.monotonic() + self._rest < end or self.done < self._least:
            await asyncio.sleep(self._rest * crew.dice.uniform(0.7, 1.3))
            crew.note(CUT)
            await asyncio.to_thread(self._ways[self.done % len(self._ways)])
            await asyncio.sleep(SETTLED)
            crew.note(OVER)
            self.done += 1


@pytest.fixture
def pair() -> Iterator[ReplicatedValkey]:
    """A server and its replica."""
    with ReplicatedValkey(appendonly="yes") as servers:
        yield servers


@pytest.fixture
def replicated_cluster() -> Iterator[ValkeyCluster]:
    """Three primaries, each with a replica."""
    with ValkeyCluster(replicas=1, appendonly="yes") as cluster:
        yield cluster


def assert_nothing_is_missing(result: Torn) -> None:
    assert (result.lost_calls, result.lost_starts, result.beside) == (0, 0, 0)
    assert (result.stuck, result.torn, result.left) == (0, 0, 0)


def loses(servers: ReplicatedValkey, folder: Path | None) -> Fail:
    """The primary dies: without having sent what it acknowledged last, if there is a folder with what is acknowledged."""

    def fail() -> None:
        servers.lose_primary((lambda: None) if folder is None else partial(until_a_call_is_told, folder))
        servers.mend()

    return fail


def until_a_call_is_told(folder: Path) -> None:
    """Wait until somebody has heard of a call that he began after now."""
    now = time.monotonic_ns()
    while not any(event["event"] == "call" and event["began"] > now for event in events(folder)):
        time.sleep(0.02)


async def soak_on(servers: ReplicatedValkey, soak: Soak, folder: Path, disturb: FailingOver) -> Torn:
    return await soaked(
        soak,
        with_patience(servers.url, 4),
        folder,
        disturb=disturb,
        leader=lambda: servers.primary.url,
        judge=judged_with_tears,
        deleted=(*QUEUES, GRAVES),
    )


async def test_a_replica_that_takes_over_during_a_short_soak_loses_only_what_it_had_not_heard(
    pair: ReplicatedValkey, tmp_path: Path
) -> None:
    failing = FailingOver(loses(pair, tmp_path), rest=0.7, least=1)
    soak = Soak(seconds=1, producers=2, workers=2, lease=9, patience=30, awaited=LIVE - {State.BLOCKED})
    result = await soak_on(pair, soak, tmp_path, failing)
    shown("A short soak with a primary that dies", result)
    assert result.violations() == {}
    assert result.failovers >= 1
    assert result.lost_calls > 0, "the primary had gone on alone"
    assert result.acknowledged > 100


@pytest.mark.torture
async def test_a_primary_that_hands_over_during_a_long_soak_loses_nothing(
    pair: ReplicatedValkey, tmp_path: Path
) -> None:
    failing = FailingOver(pair.hand_over, rest=3, least=10)
    soak = Soak(seconds=60, producers=2, workers=2, lease=20, patience=120)
    result = await soak_on(pair, soak, tmp_path, failing)
    shown("A long soak with a primary that hands over", result)
    assert result.violations() == {}
    assert result.failovers >= 10
    assert_nothing_is_missing(result)


@pytest.mark.torture
async def test_replicas_that_take_over_during_a_long_soak_lose_only_what_they_had_not_heard(
    pair: ReplicatedValkey, tmp_path: Path
) -> None:
    failing = FailingOver(loses(pair, tmp_path), pair.hand_over, loses(pair, None), rest=3, least=10)
    soak = Soak(seconds=90, producers=2, workers=2, lease=9, patience=60, awaited=LIVE - {State.BLOCKED})
    result = await soak_on(pair, soak, tmp_path, failing)
    shown("A long soak with primaries that die and hand over", result)
    assert result.violations() == {}
    assert result.failovers >= 10
    assert result.lost_calls > 0


async def soak_on_cluster(cluster: ValkeyCluster, soak: Soak, folder: Path, disturb: FailingOver) -> Torn:
    return await soaked(
        soak,
        with_patience(cluster.url, 20),
        folder,
        disturb=disturb,
        leader=lambda: cluster.leaders_url,
        judge=judged_with_tears,
        deleted=(*QUEUES, GRAVES),
    )


class Victims:
    """Chooses a primary that has a queue of the soak."""

    def __init__(self, cluster: ValkeyCluster) -> None:
        self._cluster = cluster
        self._queues = itertools.cycle("bca")

    def __call__(self) -> ValkeyServer:
        return self._cluster.owner(self._cluster.slot(f"{{onejob:{next(self._queues)}}}"))


async def test_a_node_that_dies_during_a_short_soak_is_replaced_and_tears_no_queue(
    replicated_cluster: ValkeyCluster, tmp_path: Path
) -> None:
    victim = Victims(replicated_cluster)
    failing = FailingOver(lambda: replicated_cluster.lose(victim(), 0.2), rest=0.5, least=1)
    soak = Soak(seconds=1, producers=2, workers=2, lease=9, patience=30, awaited=LIVE - {State.BLOCKED})
    result = await soak_on_cluster(replicated_cluster, soak, tmp_path, failing)
    shown("A short soak on a cluster with a primary that dies", result)
    assert result.violations() == {}
    assert result.failovers >= 1
    assert result.acknowledged > 100


@pytest.mark.torture
async def test_nodes_that_hand_over_during_a_long_soak_lose_nothing(
    replicated_cluster: ValkeyCluster, tmp_path: Path
) -> None:
    victim = Victims(replicated_cluster)
    failing = FailingOver(lambda: replicated_cluster.hand_over(victim()), rest=3, least=10)
    soak = Soak(seconds=60, producers=2, workers=2, lease=20, patience=120)
    result = await soak_on_cluster(replicated_cluster, soak, tmp_path, failing)
    shown("A long soak on a cluster whose primaries hand over", result)
    assert result.violations() == {}
    assert result.failovers >= 10
    assert_nothing_is_missing(result)


@pytest.mark.torture
async def test_nodes_that_die_during_a_long_soak_are_replaced_and_tear_no_queue(
    replicated_cluster: ValkeyCluster, tmp_path: Path
) -> None:
    victim = Victims(replicated_cluster)
    failing = FailingOver(
        lambda: replicated_cluster.lose(victim(), 0.3),
        lambda: replicated_cluster.hand_over(victim()),
        lambda: replicated_cluster.lose(victim()),
        rest=3,
        least=9,
    )
    soak = Soak(seconds=90, producers=2, workers=2, lease=9, patience=60, awaited=LIVE - {State.BLOCKED})
    result = await soak_on_cluster(replicated_cluster, soak, tmp_path, failing)
    shown("A long soak on a cluster whose primaries die and hand over", result)
    assert result.violations() == {}
    assert result.failovers >= 9
    assert result.lost_calls > 0
