"""Many processes and threads enqueue few keys while workers drain: the table holds at every single moment.

The oracle is in the database: triggers look at every row that is written, so that not one moment is missed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import storm_app

from onejob import App, State, Unique
from onejob.core.job import LIVE
from onejob.store import Retention

HERE = Path(__file__).parent
ORACLE = """
create table violations (digest blob, what text);
create index storm_digest on onejob_job (digest) where ended is null;
create trigger storm_insert after insert on onejob_job begin {look} end;
create trigger storm_update after update of state on onejob_job begin {look} end;
"""
LOOK = """
    insert into violations
    select new.digest, '{what}: ' || group_concat(hex(id) || ' ' || state)
    from onejob_job where digest = new.digest and ended is null and state in ({states})
    having count(*) > {most};
"""
QUEUED = "'blocked', 'delayed', 'parked', 'waiting'"
ONE_LIVE = ("in_flight", "once", "throttle")
ONE_OF_EACH = ("trailing", "coalesce", "latest", "debounce", "restart")


@dataclass(frozen=True)
class Storm:
    processes: int
    threads: int
    seconds: float
    workers: int = 2


def oracle(policy: str) -> str:
    if policy in ONE_LIVE:
        looks = LOOK.format(what="two live", states=QUEUED + ", 'running'", most=1)
    else:
        looks = LOOK.format(what="two running", states="'running'", most=1)
        if policy in ONE_OF_EACH:
            looks += LOOK.format(what="two queued", states=QUEUED, most=1)
    return ORACLE.format(look=looks)


async def run_storm(policy: str, storm: Storm, folder: Path) -> None:
    url = f"sqlite:///{folder / 'storm.db'}"
    env = {**os.environ, "ONEJOB_URL": url, "PYTHONPATH": str(HERE)}
    app = App(url)
    await app.store.open()
    async with app.transaction() as tx:
        await tx.execute(oracle(policy))
    command = ("-c", "from onejob.cli import main; main()", "worker", "storm_app:app", "--quiet")
    workers = [start(*command, env=env) for _ in range(storm.workers)]
    reports = [folder / f"report-{number}.json" for number in range(storm.processes)]
    try:
        while len(await app.store.workers()) < storm.workers:
            await app.store.wait(frozenset(), 0.05)
        wishes = (policy, str(storm.threads), str(storm.seconds))
        producers = [
            start("storm_app.py", *wishes, str(n), str(report), env=env) for n, report in enumerate(reports)
        ]
        for producer in producers:
            assert producer.wait(storm.seconds + 90) == 0
        await drained(app)
    finally:
        for process in workers:
            process.send_signal(signal.SIGTERM)
        for process in workers:
            assert process.wait(30) == 0
    await check(app, policy, [tuple(pair) for report in reports for pair in json.loads(report.read_text())])
    await app.aclose()


def start(*arguments: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], env=env, cwd=HERE)


async def drained(app: App) -> None:
    topics = frozenset({"done:default"})
    while True:
        mark = app.store.mark()
        states = (await app.store.counts()).get("default", {})
        if not LIVE & states.keys():
            return
        await app.store.wait(topics, 0.2, since=mark)


async def check(app: App, policy: str, receipts: list[tuple[str, ...]]) -> None:
    async with app.transaction() as tx:
        assert await tx.execute("select what from violations limit 5") == []
        jobs = {row[0].lower() for row in await tx.execute("select hex(id) from onejob_job")}
        attempts = await tx.execute("select attempt from onejob_job where state = 'completed'")
        [(items,)] = await tx.execute("select coalesce(sum(items), 0) from onejob_job")
    outcomes = Counter(outcome for _, outcome in receipts)
    created = [id.replace("-", "") for id, outcome in receipts if outcome == "created"]
    assert outcomes["created"] > 50, outcomes
    assert outcomes.total() > outcomes["created"] or policy in ("restart", "trailing")
    assert len(set(created)) == len(created)
    assert set(created) == jobs, "acknowledged and stored are the same jobs"
    assert {id.replace("-", "") for id, _ in receipts} <= jobs, "every id that was answered is real"
    assert set(attempts) <= {(1,)}, "nothing ran twice"
    if policy == "collect":
        assert items == len(receipts), "every item is in exactly one job"
    states = (await app.store.counts())["default"]
    assert set(states) <= {State.COMPLETED} | ({State.REVOKED} if policy == "restart" else set())
    later = await app.store.time() + 10_000
    await app.store.prune(Retention(0, 0, 0), 1_000_000, now=later)
    assert await app.store.keys() == [], "no key is left once nothing remembers it"


POLICIES = [*ONE_LIVE, *ONE_OF_EACH, "collect"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.accepts("F11", "F12", "N17", "N18")
async def test_the_table_holds_at_every_moment(policy: str, tmp_path: Path) -> None:
    await run_storm(policy, Storm(processes=2, threads=8, seconds=1.5), tmp_path)


async def test_the_oracle_sees_a_second_live_holder(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'storm.db'}") as app:
        task = app.task(unique=Unique.in_flight())(storm_app.in_flight.function)
        await app.store.open()
        async with app.transaction() as tx:
            await tx.execute(oracle("in_flight"))
        await task.aenqueue(1)
        await task.using(force=True).aenqueue(1)
        async with app.transaction() as tx:
            assert len(await tx.execute("select what from violations")) == 1


@pytest.mark.torture
@pytest.mark.parametrize("policy", POLICIES)
async def test_the_table_holds_at_every_moment_for_long(policy: str, tmp_path: Path) -> None:
    await run_storm(policy, Storm(processes=4, threads=16, seconds=20), tmp_path)
