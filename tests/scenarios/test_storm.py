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
from storm_oracle import ONE_LIVE, ONE_OF_EACH, Oracle, oracle_of

from onejob import App, State, Unique
from onejob.core.job import LIVE
from onejob.store import Retention

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Storm:
    processes: int
    threads: int
    seconds: float
    workers: int = 2


async def run_storm(policies: tuple[str, ...], storm: Storm, url: str, folder: Path) -> None:
    env = {**os.environ, "ONEJOB_URL": url, "PYTHONPATH": str(HERE)}
    app = App(url)
    oracle = oracle_of(app)
    await app.store.open()
    await oracle.watch(policies)
    command = ("-c", "from onejob.cli import main; main()", "worker", "storm_app:app", "--quiet")
    workers = [start(*command, env=env) for _ in range(storm.workers)]
    reports = [folder / f"report-{number}.json" for number in range(storm.processes)]
    try:
        while len(await app.store.workers()) < storm.workers:
            assert not any(worker.poll() for worker in workers), "a worker has died by itself"
            await app.store.wait(frozenset(), 0.05)
        wishes = (",".join(policies), str(storm.threads), str(storm.seconds))
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
    assert await oracle.violations() == []
    receipts = [receipt for report in reports for receipt in json.loads(report.read_text())]
    for policy in policies:
        await check(
            oracle, policy, [(id.replace("-", ""), outcome) for of, id, outcome in receipts if of == policy]
        )
    states = (await app.store.counts())["default"]
    assert set(states) <= {State.COMPLETED} | ({State.REVOKED} if "restart" in policies else set())
    later = await app.store.time() + 10_000
    await app.store.prune(Retention(0, 0, 0), 1_000_000, now=later)
    assert await app.store.keys() == [], "no key is left once nothing remembers it"
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


async def check(oracle: Oracle, policy: str, receipts: list[tuple[str, str]]) -> None:
    jobs = [job for job in await oracle.jobs() if job.task.endswith(f".{policy}")]
    outcomes = Counter(outcome for _, outcome in receipts)
    created = [id for id, outcome in receipts if outcome == "created"]
    assert outcomes["created"] > 50, outcomes
    assert outcomes.total() > outcomes["created"] or policy in ("restart", "trailing")
    assert len(set(created)) == len(created)
    assert set(created) == {job.id for job in jobs}, "acknowledged and stored are the same jobs"
    assert {id for id, _ in receipts} <= {job.id for job in jobs}, "every id that was answered is real"
    assert {job.attempt for job in jobs if job.state == "completed"} <= {1}, "nothing ran twice"
    if policy == "collect":
        assert sum(job.items for job in jobs) == len(receipts), "every item is in exactly one job"


POLICIES = (*ONE_LIVE, *ONE_OF_EACH, "collect")


@pytest.mark.parametrize("policies", [POLICIES[:3], POLICIES[3:6], POLICIES[6:]], ids="-".join)
@pytest.mark.accepts("F11", "F12", "N17", "N18")
async def test_the_table_holds_at_every_moment(
    policies: tuple[str, ...], database_url: str, tmp_path: Path
) -> None:
    await run_storm(policies, Storm(processes=2, threads=8, seconds=1.5), database_url, tmp_path)


async def test_the_oracle_sees_a_second_live_holder(database_url: str) -> None:
    async with App(database_url) as app:
        task = app.task(name="storm_app.in_flight", unique=Unique.in_flight())(storm_app.in_flight.function)
        oracle = oracle_of(app)
        await app.store.open()
        await oracle.watch(POLICIES)
        await task.aenqueue(1)
        assert await oracle.violations() == []
        await task.using(force=True).aenqueue(1)
        [violation] = await oracle.violations()
        assert violation.startswith("two live: ")


@pytest.mark.torture
@pytest.mark.parametrize("policy", POLICIES)
async def test_the_table_holds_at_every_moment_for_long(
    policy: str, database_url: str, tmp_path: Path
) -> None:
    await run_storm((policy,), Storm(processes=4, threads=16, seconds=20), database_url, tmp_path)
