"""The servers that tests run on: they come back where they were, lose nothing that was acknowledged, and outlive nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest
import valkey
from servers.cluster import ValkeyCluster
from servers.namespaces import Namespaces
from servers.postgres import PostgresServer
from servers.schemas import Schemas
from servers.valkey import ValkeyServer

TESTS = Path(__file__).parents[1]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_a_server_that_was_killed_comes_back_with_all_that_was_acknowledged(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.url
    own_postgres.execute("create table kept (number integer)")
    own_postgres.execute("insert into kept select generate_series(1, 100)")
    own_postgres.kill()
    with pytest.raises(psycopg.OperationalError):
        own_postgres.execute("select 1")
    own_postgres.start()
    assert own_postgres.url == url
    assert own_postgres.execute("select count(*) from kept") == [(100,)]
    for mode in ("fast", "immediate"):
        own_postgres.restart(mode)
        assert own_postgres.execute("select count(*) from kept where number > %s", 50) == [(50,)]


def test_a_valkey_that_was_killed_comes_back_with_all_that_was_acknowledged(own_valkey: ValkeyServer) -> None:
    url = own_valkey.url
    own_valkey.execute("SADD", "kept", *range(100))
    own_valkey.kill()
    with pytest.raises(valkey.ConnectionError):
        own_valkey.execute("PING")
    own_valkey.start()
    assert own_valkey.url == url
    assert own_valkey.execute("SCARD", "kept") == 100
    own_valkey.restart()
    assert own_valkey.execute("SCARD", "kept") == 100


def test_a_slot_of_a_cluster_moves_with_its_keys_and_a_node_comes_back(own_cluster: ValkeyCluster) -> None:
    slot = own_cluster.slot("{tag}a")
    source = own_cluster.owner(slot)
    source.execute("SET", "{tag}a", "1")
    to = next(node for node in own_cluster.nodes if node is not source)
    own_cluster.move_slot(slot, to)
    assert own_cluster.owner(slot) is to
    assert to.execute("GET", "{tag}a") == b"1"
    to.kill()
    to.start()
    own_cluster.wait_until_whole()
    assert to.execute("GET", "{tag}a") == b"1"


STARTS = """
import sys, time
from pathlib import Path
from servers.keeper import server_of
from servers.shared import SharedServer
kind, meeting = sys.argv[1:]
server = SharedServer(Path(meeting), kind) if meeting else server_of(kind)().start()
print(server.folder, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["postgres", "valkey", "cluster"])
@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_a_server_ends_with_its_last_user_however_that_ends(kind: str, shared: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS, kind, str(tmp_path) if shared else ""]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    users = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2 if shared else 1)
    ]
    try:
        folders = {Path(user.stdout.readline().strip()) for user in users if user.stdout is not None}
        assert len(folders) == 1, "those who meet share a server"
        [folder] = folders
        assert processes_in(folder)
        users[0].kill()
        if shared:
            assert processes_in(folder)
            users[1].kill()
        until(lambda: not processes_in(folder))
        if shared:
            until(lambda: not folder.exists())
    finally:
        for user in users:
            user.kill()
            user.communicate()


def processes_in(folder: Path) -> list[int]:
    """Those that work in it: the servers."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            inside = Path(process.cwd()).is_relative_to(folder)
        except psutil.Error:  # it has just ended, or is somebody else's
            continue
        if inside and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def test_what_a_test_left_in_its_namespace_is_gone_with_it(
    valkey_namespaces: Namespaces, valkey_url: str
) -> None:
    mine = valkey_namespaces.take()
    names = [url.partition("namespace=")[2] for url in (mine, valkey_url)]
    port = int(mine.partition("?")[0].rpartition(":")[2])
    with valkey.Valkey(port=port) as client:
        for name in names:
            client.set(f"{{{name}:q}}:data", "x")
        valkey_namespaces.give_back(mine)
        assert [client.exists(f"{{{name}:q}}:data") for name in names] == [0, 1]


def test_a_schema_that_is_used_again_is_empty_and_one_that_was_rebuilt_is_not_used_again(
    postgres_schemas: Schemas,
) -> None:
    def run(url: str, *statements: str) -> int:
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            return [connection.execute(one).rowcount for one in statements][-1]  # type: ignore[arg-type]

    taken = [postgres_schemas.take() for _ in range(4)]
    used, rebuilt = taken[0], taken[1]
    run(
        used.url,
        "create table mine (id integer)",
        f"insert into {used.name}.flag values (gen_random_uuid(), 1)",
    )
    run(rebuilt.url, f"create index extra on {rebuilt.name}.flag (at)")
    for schema in taken:
        postgres_schemas.give_back(schema)
    later = {schema.name: schema for schema in (postgres_schemas.take() for _ in range(8))}
    try:
        assert rebuilt.name not in later
        assert run(used.url, f"select from {used.name}.flag") == 0
        assert run(used.url, "create table mine (id integer)") == -1
    finally:
        for schema in later.values():
            postgres_schemas.give_back(schema)
