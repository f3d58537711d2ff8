"""`onejob doctor`: each thing that can be wrong with a store is found, told in words, and left as it is."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import apsw
import pytest
from commands import URL, Cli, Outcome, Terminal, on_every_store, run
from servers.valkey import ValkeyServer
from shop import Shop
from stored import is_postgres

from onejob import App, Cron, Lane, diagnosis
from onejob.core.job import WorkerId
from onejob.diagnosis import MANY, Facts, judged
from onejob.store import Ask, Beat, Finding, Level, WorkerView
from onejob.stores.sqlite.checkup import (
    LARGE_WAL,
    LEAST_FREE,
    on_disk,
    on_file_system,
    on_log,
    on_schema,
)
from onejob.testing import FakeClock

GIB = 1024**3


@pytest.fixture(autouse=True)
def no_second_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the test runner has loaded."""
    monkeypatch.delitem(sys.modules, "_sqlite3", raising=False)


def names(cli: Cli) -> list[str]:
    """What is found; but that PostgreSQL keeps nothing on its disk is meant so, as long as tests run."""
    found = [finding["name"] for finding in cli.at("doctor", "--json").json["findings"]]
    return [name for name in found if name != "not_durable" or not is_postgres(cli.url)]


@on_every_store
def test_a_sound_store_is_healthy(cli: Cli) -> None:
    assert cli.at("migrate").code == 0
    assert names(cli) == []
    told = cli.at("doctor", "--json").json
    assert (told["url"], told["healthy"]) == (cli.url, True)
    outcome = cli.at("doctor")
    assert outcome.code == 0
    if not told["findings"]:
        assert (outcome.out, outcome.talk) == ("", f"{cli.url} is healthy.\n")


def test_no_file(cli: Cli, folder: Path) -> None:
    outcome = cli.at("doctor")
    assert outcome.code == 1
    level, name, what, remedy = outcome.lines[0]
    assert (level, name) == ("error", "no_file")
    assert str(folder / "jobs.db") in what
    assert "Check the URL" in remedy
    assert list(folder.iterdir()) == []


def test_at_a_terminal_it_speaks_in_sentences() -> None:
    with Terminal("doctor", "--url", URL) as terminal:
        code, seen = terminal.end()
    assert code == 1
    assert seen.startswith("error: There is no file ")
    assert "\r\n    Check the URL" in seen


def test_not_a_database(cli: Cli, folder: Path) -> None:
    (folder / "jobs.db").write_text("these are not the jobs you are looking for\n" * 100)
    assert names(cli) == ["unreadable"]
    assert cli.at("doctor").code == 1


def test_damage(cli: Cli, shop: Shop, folder: Path) -> None:
    shop.app.enqueue_many([shop.fail.job(order=n, text="x" * 300) for n in range(500)])
    shop.app.close()
    file = folder / "jobs.db"
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(os.urandom(16_384))
    found = names(cli)
    assert found
    assert set(found) <= {"damaged", "unreadable"}
    assert cli.at("doctor").code == 1


def test_a_file_of_somebody_elses(cli: Cli, folder: Path) -> None:
    connection = apsw.Connection(str(folder / "jobs.db"))
    connection.execute("create table mine (x)")
    connection.close()
    before = (folder / "jobs.db").read_bytes()
    assert names(cli) == ["not_wal", "no_schema"]
    assert (folder / "jobs.db").read_bytes() == before


def test_a_newer_schema(cli: Cli, shop: Shop) -> None:
    with shop.app.transaction() as tx:
        tx.execute("update onejob_meta set value = 999 where name = 'schema'")
    shop.app.close()
    outcome = cli.at("doctor")
    assert outcome.code == 1
    assert outcome.lines[0][1] == "schema_newer"
    assert "999" in outcome.lines[0][2]
    assert "Upgrade onejob" in outcome.lines[0][3]


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """A folder that one may look into but not write to; root becomes nobody meanwhile."""
    made = Path(tempfile.mkdtemp(prefix="onejob-locked-"))
    with App(f"sqlite:///{made}/jobs.db") as app:
        assert app.count() == 0
    (made / "jobs.db").chmod(0o444)
    made.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield made
    os.seteuid(user)
    shutil.rmtree(made)


def test_a_store_that_may_not_be_written_to(cli: Cli, locked_folder: Path) -> None:
    outcome = cli("doctor", "--url", f"sqlite:///{locked_folder}/jobs.db")
    assert outcome.code == 1
    assert outcome.lines[0][:2] == ["error", "no_rights"]
    assert f"(id {os.geteuid()}) may not write to the file or make files beside it" in outcome.lines[0][2]


@on_every_store
def test_jobs_that_nobody_serves(cli: Cli, shop: Shop) -> None:
    shop.send.enqueue("u1")
    outcome = cli.at("doctor")
    [found] = [line for line in outcome.lines if line[1] == "unserved"]
    assert outcome.code == int(found[0] == "error"), "at first it is a warning: a worker may be on its way"
    assert "queue 'default'" in found[2]
    asyncio.run(shop.app.store.beat(Beat(WorkerId("w"), 30_000, queues=("default",))))
    assert cli.at("doctor").code == 0


@on_every_store
def test_jobs_of_lanes_that_nobody_serves(cli: Cli, shop: Shop) -> None:
    sent = [shop.send.using(lane=Lane("x", concurrency=2)).enqueue(user) for user in ("u1", "u2")]
    found = cli.at("doctor")
    assert "unserved" in [line[1] for line in found.lines]
    assert "longest_wait\tdefault" in cli.at("status").out
    why = cli.at("why", sent[1].id).out
    assert "no worker serves queue 'default'" in why
    assert "behind" not in why


@on_every_store
def test_jobs_of_a_dead_worker(cli: Cli, make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(clock=FakeClock(int(time.time() * 1000) - 3_600_000))
    shop.send.enqueue("u1")

    async def die() -> None:
        await shop.app.store.beat(Beat(WorkerId("w"), 30_000, queues=("default",)))
        await shop.app.store.claim(Ask(WorkerId("w"), ("default",), 1))

    asyncio.run(die())
    assert names(cli) == ["not_rescued"]


def test_jobs_blocked_behind_nothing(cli: Cli, shop: Shop) -> None:
    shop.send.enqueue("u1")
    with shop.app.transaction() as tx:
        tx.execute("update onejob_job set state = 'blocked', follows = ?", (b"0" * 16,))
    assert names(cli) == ["stranded"]


def test_a_second_library_is_only_a_warning(shop: Shop, folder: Path) -> None:
    assert shop.app.count() == 0
    (folder / "two_libraries.py").write_text(
        "import sqlite3, onejob\napp = onejob.App('sqlite:///jobs.db')\n"
    )
    outcome = run("doctor", "--app", "two_libraries:app")
    assert outcome.code == 0
    assert outcome.lines[0][:2] == ["warning", "second_library"]
    assert "is healthy" in outcome.talk


def only(findings: object) -> tuple[str, str]:
    [found] = list(findings)  # type: ignore[call-overload]
    assert isinstance(found, Finding)
    assert found.what.endswith(".")
    assert found.remedy
    return found.level, found.name


def test_what_the_surroundings_may_say() -> None:
    assert only(on_file_system("/mnt/jobs.db", "nfs4")) == ("error", "network")
    assert list(on_file_system("/mnt/jobs.db", "ext4")) == []
    assert list(on_file_system("/mnt/jobs.db", None)) == []
    assert only(on_disk(LEAST_FREE - 1, 100 * GIB)) == ("error", "disk_full")
    assert only(on_disk(GIB - 1, 100 * GIB)) == ("warning", "disk_low")
    assert list(on_disk(GIB - 1, 2 * GIB)) == []
    assert list(on_disk(GIB, 100 * GIB)) == []
    assert only(on_log(LARGE_WAL + 1)) == ("warning", "long_reader")
    assert list(on_log(LARGE_WAL)) == []
    assert only(on_schema(1, 2)) == ("warning", "schema_older")
    assert only(on_schema("x", 2)) == ("error", "schema_newer")
    assert only(on_schema(0, 2)) == ("error", "no_schema")
    assert list(on_schema(2, 2)) == []


def worker(*, alive: bool, seen: int, running: int = 0) -> WorkerView:
    return WorkerView(WorkerId("w"), ("q",), "host", 1, 10, 0, seen, alive, running)


def facts(
    *,
    waiting_since: dict[str, int] | None = None,
    workers: tuple[WorkerView, ...] = (),
    old_failed: int = 0,
    due: dict[str, int] | None = None,
    parked: dict[str, int] | None = None,
) -> Facts:
    return Facts(
        now=1_000_000,
        waiting_since=waiting_since or {},
        workers=workers,
        old_failed=old_failed,
        due=due or {},
        parked=parked or {},
    )


def test_what_goes_on_may_be_wrong() -> None:
    alive, dead = worker(alive=True, seen=999_000), worker(alive=False, seen=0, running=2)
    assert list(judged(facts())) == []
    assert list(judged(facts(waiting_since={"q": 999_000}, workers=(alive,)))) == []
    assert only(judged(facts(waiting_since={"q": 0}, workers=(alive,)))) == ("warning", "slow")
    assert only(judged(facts(waiting_since={"r": 999_000}, workers=(alive,)))) == ("warning", "unserved")
    assert only(judged(facts(waiting_since={"r": 994_000}, workers=(alive,)))) == ("error", "unserved")
    assert list(judged(facts(parked={"q": 2, "r": 0}, workers=(alive,)))) == []
    assert only(judged(facts(parked={"r": 2}, workers=(alive,)))) == ("error", "unserved")
    assert only(judged(facts(parked={"r": 2}, waiting_since={"r": 0}))) == ("error", "unserved")
    assert only(judged(facts(workers=(alive, dead)))) == ("error", "not_rescued")
    just_died = worker(alive=False, seen=990_000, running=1)
    assert list(judged(facts(workers=(alive, just_died)))) == []
    assert only(judged(facts(workers=(just_died,)))) == ("error", "not_rescued")
    assert list(judged(facts(workers=(worker(alive=False, seen=0),)))) == []
    assert only(judged(facts(old_failed=MANY))) == ("warning", "failed")
    assert list(judged(facts(old_failed=MANY - 1))) == []


def test_schedules_need_somebody_who_fires_them() -> None:
    alive, dead = worker(alive=True, seen=999_000), worker(alive=False, seen=0)
    ahead, late = {"daily": 2_000_000}, {"daily": 2_000_000, "poll": 900_000, "old": 400_000}
    assert list(judged(facts(due=ahead, workers=(alive,)))) == []
    assert list(judged(facts(due={"poll": 940_000}, workers=(alive,)))) == [], "it may be a little late"
    assert only(judged(facts(due=ahead))) == ("warning", "unticked")
    assert only(judged(facts(due=late, workers=(dead,)))) == ("error", "unticked")
    assert only(judged(facts(due=late, workers=(alive,)))) == ("error", "late")
    [found] = judged(facts(due=late))
    assert (
        found.what == "2 schedule(s) are overdue, 'old' by 10 min, and no live worker is there to fire them."
    )


@on_every_store
def test_schedules_that_nobody_fires(cli: Cli, make_shop: Callable[..., Shop]) -> None:
    clock = FakeClock(int(time.time() * 1000))
    shop = make_shop(clock=clock)
    shop.app.schedules.put("hourly", Cron("0 * * * *"), shop.send.job("u1"))
    assert names(cli) == ["unticked"]
    assert cli.at("doctor").code == 0, "it is not overdue yet"
    asyncio.run(shop.app.store.beat(Beat(WorkerId("w"), 30_000, queues=("mail",))))
    assert names(cli) == []
    asyncio.run(shop.app.store.leave(WorkerId("w")))
    shop.app.schedules.pause("hourly")
    assert names(cli) == []


def test_the_worst_comes_first(cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_sqlite3", sys)
    monkeypatch.setattr(diagnosis, "GRACE", -1)
    shop.send.enqueue("u1")
    found = cli.at("doctor", "--json").json["findings"]
    assert [finding["level"] for finding in found] == [Level.ERROR, Level.WARNING]


@pytest.mark.parametrize("store_url", ["cluster"], indirect=True)
def test_a_cluster_is_healthy(cli: Cli, store_url: str) -> None:
    assert cli("migrate", "--url", store_url).code == 0
    assert cli("doctor", "--url", store_url) == Outcome(0, "", f"{store_url} is healthy.\n")


@pytest.mark.parametrize(
    ("url", "module", "driver", "extra"),
    [
        ("postgresql://localhost/shop", "asyncpg", "onejob.stores.postgres.driver", "onejob[postgres]"),
        ("valkey://localhost", "libvalkey", "onejob.stores.valkey.conversation", "onejob[valkey]"),
    ],
)
def test_a_driver_that_is_not_installed_is_no_server_that_is_away(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, url: str, module: str, driver: str, extra: str
) -> None:
    loaded = import_module(driver).driver
    loaded.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    found = cli("doctor", "--url", url)
    assert found.code == 1
    [[level, name, what, remedy]] = found.lines
    assert (level, name, remedy) == ("error", "not_installed", f"pip install '{extra}'")
    assert "which is not installed" in what


def test_a_single_server_is_no_cluster(cli: Cli, valkey_url: str) -> None:
    found = cli("doctor", "--url", valkey_url.replace("valkey://", "valkey+cluster://"))
    assert found.code == 1
    assert "it is a single server and no cluster: write valkey://" in found.out


def test_only_doctor_and_workers_speak_of_a_valkey_that_forgets(folder: Path) -> None:
    with ValkeyServer() as server:
        assert run("migrate", "--url", server.url).talk == f"{server.url} is up to date.\n"
        assert run("status", "--url", server.url).talk == ""
        found = run("doctor", "--url", server.url)
        assert found.lines[0][:2] == ["warning", "not_durable"]
        assert found.talk == f"{server.url} is healthy.\n"
        (folder / "jobs.py").write_text(f"import onejob\napp = onejob.App({server.url!r})\n")
        with Terminal("worker", "jobs:app") as worker:
            worker.read_until("keeps nothing on its disk")
            worker.read_until("serving")
            worker.process.terminate()
            assert worker.end()[0] == 0


def test_a_valkey_that_forgets_is_only_a_warning_and_one_that_is_away_is_not(cli: Cli) -> None:
    with ValkeyServer() as server:
        [finding] = (found := cli("doctor", "--json", "--url", server.url)).json["findings"]
        assert (found.code, finding["level"], finding["name"]) == (0, "warning", "not_durable")
        server.stop()
        away = cli("doctor", "--url", f"{server.url}?patience=0.5")
        assert (away.code, away.lines[0][:2]) == (1, ["error", "unreachable"])
        server.start()
