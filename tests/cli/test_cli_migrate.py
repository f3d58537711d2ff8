"""`onejob migrate`: what is missing is applied or only told, by steps, in words, as JSON or as SQL."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest
from commands import URL, Cli, Outcome
from servers.postgres import psql
from servers.shared import SharedServer
from shop import Shop


def test_a_file_is_made(cli: Cli, folder: Path) -> None:
    assert cli.at("migrate").lines == [["applied", "0001_heart"]]
    assert (folder / "jobs.db").is_file()
    assert cli.at("doctor").code == 0
    again = cli.at("migrate")
    assert (again.code, again.out, again.talk) == (0, "", f"{URL} is up to date.\n")


def test_check_only_tells(cli: Cli, folder: Path) -> None:
    outcome = cli.at("migrate", "--check")
    assert (outcome.code, outcome.lines) == (1, [["missing", "0001_heart"]])
    assert "onejob migrate" in outcome.talk
    assert list(folder.iterdir()) == []


def test_check_of_what_is_up_to_date(cli: Cli, shop: Shop) -> None:
    assert shop.app.count() == 0
    assert cli.at("migrate", "--check") == Outcome(0, "", f"{URL} is up to date.\n")


def test_json(cli: Cli) -> None:
    assert cli.at("migrate", "--check", "--json").json == {"url": URL, "schema": 0, "missing": ["0001_heart"]}
    assert cli.at("migrate", "--json").json == {"url": URL, "schema": 1, "applied": ["0001_heart"]}
    assert cli.at("migrate", "--json").json == {"url": URL, "schema": 1, "applied": []}


def test_a_newer_store_is_left_alone(cli: Cli, shop: Shop, folder: Path) -> None:
    assert shop.app.count() == 0
    shop.app.close()
    connection = apsw.Connection(str(folder / "jobs.db"))
    connection.execute("update onejob_meta set value = 99 where name = 'schema'")
    connection.close()
    for arguments in (["migrate"], ["migrate", "--check"]):
        outcome = cli.at(*arguments)
        assert outcome.code == 1
        assert "has schema 99" in outcome.talk
        assert "upgrade onejob" in outcome.talk


def test_what_is_no_store(cli: Cli, folder: Path) -> None:
    (folder / "jobs.db").write_text("these are not the jobs you are looking for\n" * 100)
    outcome = cli.at("migrate", "--check")
    assert outcome.code == 1
    assert "not a sound SQLite database" in outcome.talk


def test_sqlite_has_no_script(cli: Cli, folder: Path) -> None:
    outcome = cli.at("migrate", "--sql")
    assert outcome.code == 1
    assert "without --sql" in outcome.talk
    assert list(folder.iterdir()) == []


def test_sql_stands_alone(cli: Cli) -> None:
    for other in ("--check", "--json"):
        outcome = cli.at("migrate", "--sql", other)
        assert outcome.code == 2
        assert "--sql" in outcome.talk


def test_postgres_is_made_by_steps(cli: Cli, new_postgres_url: str) -> None:
    checked = cli("migrate", "--check", "--url", new_postgres_url)
    assert (checked.code, checked.lines[0]) == (1, ["missing", "0001_heart"])
    assert not exists(new_postgres_url)
    made = cli("migrate", "--url", new_postgres_url)
    assert (made.code, made.lines[0]) == (0, ["applied", "0001_heart"])
    assert exists(new_postgres_url)
    again = cli("migrate", "--check", "--url", new_postgres_url)
    assert (again.code, again.out, again.talk) == (0, "", f"{new_postgres_url} is up to date.\n")


def test_postgres_is_made_whatever_its_url_says(cli: Cli, new_postgres_url: str) -> None:
    url = f"{new_postgres_url}&migrate=never"
    refused = cli("status", "--url", url)
    assert refused.code == 1
    assert cli("migrate", "--json", "--url", url).json["applied"][0] == "0001_heart"
    assert cli("status", "--url", url).code == 0


def test_the_script_makes_what_the_command_makes(cli: Cli, new_postgres_url: str, postgres_url: str) -> None:
    printed = cli("migrate", "--sql", "--url", new_postgres_url)
    assert printed.code == 0
    assert not exists(new_postgres_url)
    with psycopg.connect(server(new_postgres_url), autocommit=True) as connection:
        connection.execute(printed.out)  # type: ignore[call-overload]
    assert columns(new_postgres_url) == columns(postgres_url)
    assert cli("migrate", "--check", "--url", new_postgres_url).code == 0
    nothing = cli("migrate", "--sql", "--url", new_postgres_url)
    assert (nothing.code, nothing.out) == (0, "")
    assert "up to date" in nothing.talk


def test_the_script_asks_for_no_more_than_it_needs(
    cli: Cli, new_postgres_url: str, postgres: SharedServer, tmp_path: Path
) -> None:
    """A user may own a schema in a database in which he may make none."""
    user, name = urlsplit(new_postgres_url).username, schema(new_postgres_url)
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"revoke create on database {admin.info.dbname} from {user}")  # type: ignore[arg-type]
        admin.execute(f"create schema {name} authorization {user}")  # type: ignore[arg-type]
    printed = cli("migrate", "--sql", "--url", new_postgres_url)
    (tmp_path / "steps.sql").write_text(printed.out)
    command = [str(psql()), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(tmp_path / "steps.sql")]
    applied = subprocess.run(
        [*command, server(new_postgres_url)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (applied.returncode, applied.stderr) == (0, "")
    assert cli("migrate", "--check", "--url", new_postgres_url).code == 0


def test_a_newer_postgres_is_left_alone(cli: Cli, new_postgres_url: str) -> None:
    assert cli("migrate", "--url", new_postgres_url).code == 0
    with psycopg.connect(server(new_postgres_url)) as connection:
        connection.execute(f"update {schema(new_postgres_url)}.meta set value = '99' where name = 'schema'")  # type: ignore[arg-type]
    for options in ([], ["--check"], ["--sql"]):
        outcome = cli("migrate", *options, "--url", new_postgres_url)
        assert outcome.code == 1
        assert "99" in outcome.talk
        assert "upgrade onejob" in outcome.talk


def server(url: str) -> str:
    return url.partition("?")[0]


def schema(url: str) -> str:
    return url.partition("schema=")[2]


def exists(url: str) -> bool:
    with psycopg.connect(server(url)) as connection:
        return bool(
            connection.execute("select from pg_namespace where nspname = %s", [schema(url)]).fetchall()
        )


def columns(url: str) -> list[tuple[object, ...]]:
    """Tables and indexes, and what they consist of."""
    with psycopg.connect(server(url)) as connection:
        return connection.execute(
            "select c.relname, c.relkind, a.attname, a.atttypid::regtype::text from pg_class c "
            "join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 where c.relnamespace = to_regnamespace(%s) "
            "order by 1, 2, a.attnum",
            [schema(url)],
        ).fetchall()


@pytest.mark.parametrize("store_url", ["valkey", "cluster"], indirect=True)
def test_valkey_has_no_steps_and_is_there_afterwards(cli: Cli, store_url: str) -> None:
    there = ["status", "--url", store_url]
    assert cli("migrate", "--check", "--url", store_url) == Outcome(0, "", f"{store_url} is up to date.\n")
    assert (cli(*there).code, "There is no store" in cli(*there).talk) == (1, True)
    assert cli("migrate", "--url", store_url) == Outcome(0, "", f"{store_url} is up to date.\n")
    assert cli(*there).code == 0
    assert cli("migrate", "--json", "--url", store_url).json == {
        "url": store_url,
        "schema": 0,
        "applied": [],
    }
    script = cli("migrate", "--sql", "--url", store_url)
    assert (script.code, script.out) == (1, "")
    assert "has no tables, so there is no SQL to print" in script.talk
