"""The soak on Valkey: many processes enqueue and work for a while on few keys and lanes, over several queues, and nothing
may ever go wrong; while workers are killed or stopped, and so is the server. `valkey_oracle` says what "wrong" is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.valkey import ValkeyServer
from soak_result import shown
from valkey_crew import Crew, Soak, soaked


class Attacking:
    """Kills workers every few seconds; before that some are stopped, each until somebody else does its job."""

    def __init__(self, every: float, *, freezes: int = 0, least: int = 0) -> None:
        self._every = every
        self._least = least
        self._freezes = freezes
        self.kills = self.frozen = 0

    async def __call__(self, crew: Crew, seconds: float) -> None:
        end = time.monotonic() + seconds
        while crew.frozen < self._freezes:
            await crew.freeze_a_worker()
        while time.monotonic() + self._every / 2 < end or crew.killed < self._least:
            await asyncio.sleep(self._every * crew.dice.uniform(0.5, 1.5))
            await crew.kill_a_worker()
        self.kills, self.frozen = crew.killed, crew.frozen


class Stunning:
    """Stops workers at any moment, several beside each other, each for about as long as its lease."""

    def __init__(self, at_once: int, breath: float) -> None:
        self._at_once = at_once
        self._breath = breath
        self.stunned = 0

    async def __call__(self, crew: Crew, seconds: float) -> None:
        end = time.monotonic() + seconds
        await crew.until_jobs_flow()

        async def stun(number: int) -> None:
            while time.monotonic() < end:
                await asyncio.sleep(crew.dice.uniform(0, self._breath) * (number + 1))
                await crew.stun_a_worker()

        await asyncio.gather(*(stun(number) for number in range(self._at_once)))
        self.stunned = crew.stunned


class Restarting:
    """Kills the server every few seconds and starts it again; now and then a worker as well."""

    def __init__(self, server: ValkeyServer, every: float, *, workers: bool = False, least: int = 1) -> None:
        self._server = server
        self._every = every
        self._least = least
        self._workers = workers
        self.kills = 0

    async def __call__(self, crew: Crew, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() + self._every / 2 < end or self.kills < self._least:
            await asyncio.sleep(self._every * crew.dice.uniform(0.7, 1.3))
            if self._workers and crew.dice.random() < 0.5:
                await crew.kill_a_worker()
            await asyncio.to_thread(self._server.kill)
            await asyncio.to_thread(self._server.start)
            self.kills += 1


@pytest.fixture
def durable_valkey() -> Iterator[ValkeyServer]:
    """A server that has written to disk whatever it has acknowledged."""
    with ValkeyServer(appendonly="yes", appendfsync="always") as server:
        yield server


async def test_workers_killed_during_a_short_soak_break_no_promise(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    attacking = Attacking(every=1.2, least=2)
    result = await soaked(Soak(seconds=2.5, lease=2), own_valkey.url, tmp_path, disturb=attacking)
    shown("A short soak with workers that are killed", result, kills=attacking.kills)
    assert result.violations() == {}
    assert attacking.kills >= 2
    assert result.crashes >= 1
    assert result.acknowledged == result.attempted > 300


async def test_a_server_killed_during_a_short_soak_loses_and_doubles_nothing(
    durable_valkey: ValkeyServer, tmp_path: Path
) -> None:
    restarting = Restarting(durable_valkey, every=1.5, least=2)
    result = await soaked(Soak(seconds=2.5), durable_valkey.url, tmp_path, disturb=restarting)
    shown("A short soak with a server that is killed", result, kills=restarting.kills)
    assert result.violations() == {}
    assert restarting.kills >= 2
    assert result.acknowledged > 200


async def test_a_server_that_leaves_syncing_to_the_system_loses_nothing_when_its_process_is_killed(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    """What it has written is in the system's memory, which outlives the process; it would not outlive the machine."""
    assert own_valkey.execute("CONFIG GET", "appendfsync") == {"appendfsync": "no"}
    restarting = Restarting(own_valkey, every=1)
    soak = Soak(seconds=2, producers=2, workers=2)
    result = await soaked(soak, own_valkey.url, tmp_path, disturb=restarting)
    shown("A short soak with appendfsync no", result, kills=restarting.kills)
    assert result.violations() == {}
    assert restarting.kills >= 1


async def test_a_late_worker_is_seen_by_the_oracle_if_leases_are_not_checked(
    valkey_url: str, tmp_path: Path
) -> None:
    soak = Soak(seconds=3, producers=1, workers=2, lease=1, fault="lease")
    result = await soaked(soak, valkey_url, tmp_path, disturb=Attacking(every=60, freezes=2))
    shown("A soak without fencing", result)
    # Which of the two it is depends on whether the next run has ended when the one before comes back.
    assert {"late", "doubled"} & result.violations().keys()


@pytest.mark.parametrize(
    ("fault", "signs"),
    [
        ("messages", {"leaks", "lost", "chains", "letters"}),
        ("index", {"leaks"}),
    ],
)
async def test_the_oracle_sees_what_is_not_delivered_and_what_is_left_behind(
    fault: str, signs: set[str], valkey_url: str, tmp_path: Path
) -> None:
    soak = Soak(seconds=1.5, producers=1, workers=1, patience=1, fault=fault)
    result = await soaked(soak, valkey_url, tmp_path)
    shown(f"A soak with a fault: {fault}", result)
    assert result.violations().keys() >= signs


@pytest.mark.torture
async def test_workers_killed_and_stopped_during_a_long_soak_break_no_promise(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    attacking = Attacking(every=3, freezes=3, least=10)
    soak = Soak(seconds=90, producers=4, workers=4, lease=3, breath=0.01, patience=300)
    result = await soaked(soak, own_valkey.url, tmp_path, disturb=attacking)
    shown("A long soak", result, kills=attacking.kills, frozen=attacking.frozen)
    assert result.violations() == {}
    assert attacking.kills >= 10
    assert attacking.frozen >= 3


@pytest.mark.torture
async def test_servers_and_workers_killed_during_a_long_soak_lose_and_double_nothing(
    durable_valkey: ValkeyServer, tmp_path: Path
) -> None:
    restarting = Restarting(durable_valkey, every=4, workers=True, least=10)
    soak = Soak(seconds=90, producers=4, workers=4, lease=6, patience=300)
    result = await soaked(soak, durable_valkey.url, tmp_path, disturb=restarting)
    shown("A long soak with servers and workers that are killed", result, kills=restarting.kills)
    assert result.violations() == {}
    assert restarting.kills >= 10


@pytest.mark.torture
async def test_a_server_that_leaves_syncing_to_the_system_loses_nothing_however_often_its_process_is_killed(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    restarting = Restarting(own_valkey, every=3, workers=True, least=10)
    soak = Soak(seconds=60, producers=3, workers=3, lease=6, patience=300)
    result = await soaked(soak, own_valkey.url, tmp_path, disturb=restarting)
    shown("A long soak with appendfsync no", result, kills=restarting.kills)
    assert result.violations() == {}
    assert restarting.kills >= 10


@pytest.mark.torture
async def test_workers_stopped_at_any_moment_of_a_long_soak_begin_nothing_that_they_have_lost(
    own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    stunning = Stunning(at_once=2, breath=0.5)
    soak = Soak(seconds=90, producers=2, workers=4, lease=1, breath=0.005, patience=300)
    result = await soaked(soak, own_valkey.url, tmp_path, disturb=stunning)
    shown("A long soak with workers that are stopped", result, stunned=stunning.stunned)
    assert result.violations() == {}
    assert stunning.stunned >= 50
    assert result.crashes >= 50
