"""Many chains of five jobs, worker processes that are killed at random: each chain ends once, with one job for each
place, each job has its effect once, and at every single commit nobody waits for what has ended.

The record is written by triggers in the store itself, and judged afterwards by `chain_oracle`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import chain_storm_app
import pytest
from chain_oracle import Oracle, judged, record, told_commits
from stored import shown_id, table, with_patience

from onejob import App, State
from onejob.core.job import LIVE, WorkerId
from onejob.store import Ask, Retention

HERE = Path(__file__).parent
QUEUE = "default"
LEASE = 4.0
"""Half of it is what a transaction in a handler may take, on a busy machine, too."""
EFFECTS_WITH_THE_END = {"completing", "forking", "side"}
"""The tasks whose effect is in the commit that completes them."""


@dataclass(frozen=True)
class Storm:
    """How hard it blows."""

    chains: int
    workers: int
    kills: int
    concurrency: int
    seed: int = 1
    patience: float = 60


SHORT = Storm(chains=100, workers=2, kills=3, concurrency=8, patience=200)
FULL = Storm(chains=1_000, workers=4, kills=30, concurrency=8, patience=900)


class Crew:
    """The worker processes; whoever is killed is replaced."""

    def __init__(self, storm: Storm, env: dict[str, str], dice: random.Random) -> None:
        self._storm, self._env, self._dice = storm, env, dice
        self._processes = [self._start() for _ in range(storm.workers)]

    async def kill_in_the_act(self, app: App) -> bool:
        """Kill one that runs a job, if there is one: it is stopped first, and must be at it then."""
        pids = {one.id: one.pid for one in await app.store.workers()}
        running = (await app.ajobs(f"state:{State.RUNNING}", limit=100)).jobs
        self._dice.shuffle(running)
        for job in running:
            pid = None if job.worker is None else pids.get(job.worker)
            victim = next((process for process in self._processes if process.pid == pid), None)
            if victim is None:
                continue
            victim.send_signal(signal.SIGSTOP)
            now = await app.ajob(job.id)
            if now is not None and (now.state, now.attempt) == (State.RUNNING, job.attempt):
                self._kill(victim)
                return True
            victim.send_signal(signal.SIGCONT)
        return False

    def _kill(self, victim: subprocess.Popen[bytes]) -> None:
        victim.kill()
        victim.wait()
        self._processes[self._processes.index(victim)] = self._start()

    def end(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            assert process.wait(30) in (0, -signal.SIGTERM)  # one that was just replaced may not listen yet

    def _start(self) -> subprocess.Popen[bytes]:
        command = "from onejob.cli import main; main()"
        options = ("worker", "chain_storm_app:app", "--lease", str(LEASE), "--quiet")
        return start("-c", command, *options, "--concurrency", str(self._storm.concurrency), env=self._env)


def start(*arguments: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], env=env, cwd=HERE)


async def run_storm(storm: Storm, url: str, folder: Path) -> None:
    """Let it blow until everything has ended; then judge the record."""
    began = time.monotonic()
    url, report = with_patience(url), folder / "report.json"
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "ONEJOB_URL": url, "PYTHONPATH": paths, "STORM_RECORD": "1"}
    with told_commits():
        async with App(url) as app:
            await record(app)
            async with app.transaction() as tx:
                await tx.execute(chain_storm_app.EFFECTS)
            crew = Crew(storm, env, random.Random(storm.seed))
            try:
                wishes = (str(storm.chains), str(storm.seed), str(report))
                producer = start("chain_storm_app.py", *wishes, env=env)
                await nemesis(app, crew, storm)
                assert await asyncio.to_thread(producer.wait, storm.patience) == 0
                await drained(app, began + storm.patience)
            finally:
                crew.end()
            await check(app, storm, json.loads(report.read_text()), began)


async def nemesis(app: App, crew: Crew, storm: Storm) -> None:
    """Kill workers in the midst of a job, one for each further part of the jobs that have completed."""
    expected = storm.chains * chain_storm_app.LENGTH
    async with asyncio.timeout(storm.patience):
        for number in range(storm.kills):
            while True:
                mark = app.store.mark()
                states = (await app.store.counts()).get(QUEUE, {})
                late = states.get(State.COMPLETED, 0) >= expected * number // storm.kills
                if late and await crew.kill_in_the_act(app):
                    break
                if number and late and not LIVE & states.keys():
                    return  # it is over, and one was killed
                await app.store.wait(frozenset({f"work:{QUEUE}", f"done:{QUEUE}"}), 0.05, since=mark)


async def drained(app: App, deadline: float) -> None:
    topics = frozenset({f"done:{QUEUE}"})
    while time.monotonic() < deadline:
        mark = app.store.mark()
        if not LIVE & (await app.store.counts()).get(QUEUE, {}).keys():
            return
        await app.store.wait(topics, 0.2, since=mark)
    raise AssertionError(f"still live: {await app.store.counts()}, such as {app.jobs('state:live', limit=3)}")


async def check(app: App, storm: Storm, receipts: list[list[str]], began: float) -> None:
    oracle = await judged(app)
    assert oracle.violations == []
    assert oracle.stuck() == []
    async with app.transaction(timeout=60) as tx:
        rows = await tx.execute(
            "select id, coalesce(chain, id), chain_index, task, state, payload, result, crashes, failures, error "
            f"from {table(app.url, 'job')} order by coalesce(chain, id), chain_index"
        )
        effects = dict(await tx.execute("select key, task from effects"))
    chains: dict[str, list[Row]] = {}
    for row in rows:
        id, root = (shown_id(app.url, raw) for raw in row[:2])
        chains.setdefault(root, []).append(Row(id, *row[2:]))
    check_chains(chains, receipts, storm)
    check_effects([row for chain in chains.values() for row in chain], effects)
    everybody = [row for chain in chains.values() for row in chain]
    assert sum(row.crashes for row in everybody) > 0, "kills cut jobs off"
    assert sum(row.failures for row in everybody) > storm.chains / 10
    assert min(oracle.released, oracle.stranded) > storm.chains / 50
    tell(storm, oracle, everybody, time.monotonic() - began)
    await check_nothing_is_left(app)


@dataclass(frozen=True)
class Row:
    """A job as it has ended."""

    id: str
    place: int
    task: str
    state: str
    payload: bytes
    result: bytes | None
    crashes: int
    failures: int
    error: str | None


def check_chains(chains: dict[str, list[Row]], receipts: list[list[str]], storm: Storm) -> None:
    """Each chain has one job for each place, as many as it should have, and returns what it should."""
    revoked = {id for id, _, kind in receipts if kind == "revoked"}
    created = [id for id, outcome, _ in receipts if outcome == "created"]
    sides = {root for root, jobs in chains.items() if jobs[0].task == "chain_storm_app.side"}
    assert set(created) == chains.keys() - sides, "acknowledged and stored are the same chains"
    assert len(created) == len(set(created))
    numbers = Counter[int]()
    forked = 0
    for root, jobs in chains.items():
        assert [row.place for row in jobs] == list(range(len(jobs))), "one job for each place"
        assert {row.state for row in jobs[:-1]} <= {State.COMPLETED}
        forked += sum(row.task.endswith("forking") and row.state == State.COMPLETED for row in jobs)
        if jobs[0].task.endswith((".side", ".audit")):
            assert len(jobs) == 1
            continue
        number = json.loads(jobs[0].payload)["number"]
        numbers[number] += number % 10 != 9
        check_end(number, jobs, revoked=root in revoked)
    own = [number for number in range(storm.chains) if number % 10 != 9]
    assert dict(numbers - Counter(own)) == {}, "a number that came twice has one chain"
    assert set(own) <= numbers.keys()
    assert len(sides) == 2 * forked, "each diamond has two sides, made once"


def check_end(number: int, jobs: list[Row], *, revoked: bool) -> None:
    """A chain completed as a whole, or it failed or was revoked where that was to be expected."""
    last = jobs[-1]
    match last.state:
        case State.COMPLETED:
            assert len(jobs) == chain_storm_app.LENGTH
            assert last.result is not None
            assert json.loads(last.result) == chain_storm_app.output(number)
            assert not chain_storm_app.is_doomed(number)
        case State.REVOKED:
            assert revoked, last
        case _:
            if last.error is not None and last.error.startswith("BlockerFailed"):
                assert chain_storm_app.is_one_sided(number), last
            else:
                assert chain_storm_app.is_doomed(number), last
                assert last.place == 3


def check_effects(jobs: list[Row], effects: dict[str, str]) -> None:
    """Each completed job left its effect under its key; one that did not complete left none with its end."""
    completed = {row.id for row in jobs if row.state == State.COMPLETED}
    assert completed <= effects.keys()
    tasks = {row.id: row.task.rpartition(".")[2] for row in jobs}
    assert effects.items() <= tasks.items()
    assert not EFFECTS_WITH_THE_END & {tasks[id] for id in effects.keys() - completed}


async def check_nothing_is_left(app: App) -> None:
    """Keys are free, lanes are gone, and no row of a blocker outlives its job."""
    later = await app.store.time() + 2 * 3_600_000
    await app.store.claim(Ask(WorkerId("last"), (QUEUE,), 1), now=later)
    await app.store.prune(Retention(0, 0, 0), 1_000_000, now=later)
    await app.store.prune(Retention(0, 0, 0), 1_000_000, now=later)
    assert await app.store.keys() == []
    assert await app.store.counts() == {}
    assert await app.store.lanes() == []
    async with app.transaction() as tx:
        assert await tx.execute(f"select * from {table(app.url, 'blocker')}") == []


def tell(storm: Storm, oracle: Oracle, jobs: list[Row], seconds: float) -> None:
    """What a storm came to, for whoever looks with -s."""
    states = Counter(job.state for job in jobs)
    sys.stdout.write(
        f"\n{storm}\n{len(oracle.chains)} chains, {len(jobs)} jobs ({dict(states)}), "
        f"{sum(job.crashes for job in jobs)} cut off by kills, {sum(job.failures for job in jobs)} failed attempts, "
        f"{oracle.released} let go and {oracle.stranded} stranded by an end, {oracle.commits} commits, {seconds:.1f} s\n"
    )


@pytest.mark.accepts("Q14", "Q15", "Q16", "Q22")
@pytest.mark.timeout(300)  # several processes on a machine that may be busy
async def test_chains_hold_at_every_moment(database_url: str, tmp_path: Path) -> None:
    await run_storm(SHORT, database_url, tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_thousand_chains_hold_at_every_moment(seed: int, database_url: str, tmp_path: Path) -> None:
    await run_storm(Storm(**{**vars(FULL), "seed": seed}), database_url, tmp_path)


def test_the_check_sees_an_effect_that_should_not_be() -> None:
    done = Row("a", 0, "app.completing", State.COMPLETED, b"{}", b"1", 0, 0, None)
    lost = Row("b", 0, "app.completing", State.FAILED, b"{}", None, 0, 0, "boom")
    check_effects([done, lost], {"a": "completing"})
    for effects in ({}, {"a": "completing", "b": "completing"}):
        with pytest.raises(AssertionError):
            check_effects([done, lost], effects)
