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
from servers.postgres import PostgresServer
from servers.shared import Schemas

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


STARTS = """
import sys, time
from pathlib import Path
from servers.postgres import PostgresServer
from servers.shared import SharedServer
if sys.argv[1] == "private":
    server = PostgresServer().start()
    print(server.folder, flush=True)
else:
    server = SharedServer(Path(sys.argv[1]))
    print(Path(server._users.name).parent, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_a_server_ends_with_its_last_user_however_that_ends(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS, kind if kind == "private" else str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    users = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(1 if kind == "private" else 2)
    ]
    try:
        folders = {Path(user.stdout.readline().strip()) for user in users if user.stdout is not None}
        assert len(folders) == 1, "those who meet share a server"
        [folder] = folders
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        users[0].kill()
        if kind == "shared":
            assert psutil.pid_exists(pid)
            users[1].kill()
        until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        if kind == "shared":
            until(lambda: not folder.exists())
    finally:
        for user in users:
            user.kill()
            user.communicate()


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
