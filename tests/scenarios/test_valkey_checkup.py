"""What a checkup finds on real servers, one fault each; and nothing on one that is sound."""

from __future__ import annotations

import asyncio

import pytest
from servers.cluster import ValkeyCluster
from servers.valkey import ValkeyServer
from stage import eventually

from onejob.store import Finding
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.checkup import checkup, findings
from onejob.stores.valkey.facts import Facts
from onejob.stores.valkey.link import Link

SOUND = Facts(
    node="",
    server="Valkey 9.1.2",
    version=(9, 1),
    run_id="x",
    in_cluster=False,
    policy="noeviction",
    used=1,
    limit=0,
    logs_writes=True,
    saves=False,
)


async def look(url: str) -> list[Finding]:
    link = Link(parse(url), lambda _: "return 1")
    try:
        async with asyncio.timeout(20):
            return await checkup(link)
    finally:
        await link.close()


def names(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level.value, finding.name) for finding in found]


async def test_nothing_is_wrong_with_a_sound_server(own_valkey: ValkeyServer) -> None:
    assert await look(own_valkey.url) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"appendonly": "no"}, [("warning", "not_durable")]),
        ({"appendonly": "no", "save": "3600 1000000"}, [("warning", "not_durable")]),
        ({"maxmemory_policy": "allkeys-lru"}, [("error", "eviction")]),
        ({"maxmemory": "1mb"}, [("error", "memory_full")]),
    ],
)
async def test_settings_that_endanger_jobs_are_found(
    settings: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    with ValkeyServer(**{"appendonly": "yes", **settings}) as server:
        found = await look(server.url)
    assert names(found) == expected
    assert "CONFIG SET" in found[0].remedy or "maxmemory" in found[0].remedy


async def test_a_server_whose_memory_is_nearly_full_is_found(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("SET", "big", "x" * 20_000_000)
    used = own_valkey.execute("INFO", "memory")["used_memory"]
    own_valkey.execute("CONFIG SET", "maxmemory", int(used * 1.08))
    assert names(await look(own_valkey.url)) == [("warning", "memory_nearly_full")]


async def test_nobody_there_and_a_wrong_password_block_everything_else(own_valkey: ValkeyServer) -> None:
    [found] = await look(own_valkey.url.replace("//", "//bob:wrong@"))
    assert (found.name, found.blocking) == ("unreachable", True)
    assert "refused the login" in found.what
    own_valkey.stop()
    [found] = await look(f"{own_valkey.url}?patience=1")
    assert (found.name, found.blocking) == ("unreachable", True)
    assert "Start the server" in found.remedy


async def test_a_replica_is_found(own_valkey: ValkeyServer) -> None:
    with ValkeyServer(appendonly="yes") as replica:
        replica.execute("REPLICAOF", "127.0.0.1", own_valkey.port)

        async def follows() -> bool:
            return replica.execute("INFO", "replication")["master_link_status"] == "up"

        await eventually(follows)
        assert names(await look(f"{replica.url}?patience=1")) == [("error", "read_only")]


async def test_nothing_is_wrong_with_a_sound_cluster_and_a_node_that_is_down_is_found(
    own_cluster: ValkeyCluster,
) -> None:
    assert await look(own_cluster.url) == []
    own_cluster.nodes[0].kill()

    async def is_missed() -> bool:
        return ("error", "uncovered_slots") in names(await look(f"{own_cluster.url}?patience=2"))

    await eventually(is_missed)


async def test_a_node_of_a_cluster_that_is_taken_for_a_single_server_is_found(cluster_url: str) -> None:
    single = cluster_url.replace("valkey+cluster://", "valkey://").partition(",")[0]
    assert ("error", "cluster") in names(await look(single))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"version": (6, 2), "server": "Redis 6.2.7"}, "old_server"),
        ({"write_failure": "a snapshot"}, "cannot_write"),
        ({"uncovered": 5_461}, "uncovered_slots"),
    ],
)
def test_what_no_server_here_can_show_is_worded_from_its_facts(change: dict[str, object], name: str) -> None:
    facts = Facts(**{**{field: getattr(SOUND, field) for field in SOUND.__struct_fields__}, **change})
    assert [finding.name for finding in findings([facts], parse("valkey://h"))] == [name]


def test_hints_that_do_not_arrive_are_a_finding() -> None:
    [found] = findings([SOUND], parse("valkey://h"), hints_arrive=False)
    assert found.name == "no_hints"
    assert "&onejob:hints" in found.remedy
    assert findings([SOUND], parse("valkey://h"), hints_arrive=None) == []
