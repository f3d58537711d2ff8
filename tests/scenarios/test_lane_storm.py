"""Many lanes, several worker processes that are killed at random, limits that change meanwhile: order, slots and
rates hold at every single moment, and nothing is stuck at the end.

The record is written by triggers in the store itself, and judged afterwards by `lane_oracle`.
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
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import lane_storm_app
import pytest
from lane_oracle import READ, RECORD, Oracle
from stored import is_postgres, is_valkey, table

from onejob import App, Lane, Rate, State
from onejob.core.filter import JobFilter
from onejob.core.job import LIVE, Job, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask

HERE = Path(__file__).parent
QUEUE = "default"
LEASE = 3.0
PER = 0.25
"""The window of the queue's rate; its maximum changes, its length does not."""
ENDED = {State.COMPLETED, State.FAILED, State.REVOKED}


@dataclass(frozen=True)
class Storm:
    """How hard it blows."""

    jobs: int
    """Calls; about a sixth of them finds a job that takes them in."""
    lanes: int
    workers: int
    kills: int
    producers: int = 1
    rated: bool = False
    freezes: int = 0
    """Workers stopped for longer than their lease: what they then write must be refused."""
    seed: int = 1
    patience: float = 60


SHORT = Storm(jobs=1_500, lanes=50, workers=2, kills=3, patience=200)
FULL = Storm(jobs=25_000, lanes=200, workers=4, kills=25, producers=2, patience=900)


class Crew:
    """The worker processes; whoever dies is replaced."""

    def __init__(self, number: int, env: dict[str, str], dice: random.Random) -> None:
        self._env = env
        self._dice = dice
        self._processes = [self._start() for _ in range(number)]

    def kill(self) -> None:
        place = self._dice.randrange(len(self._processes))
        victim = self._processes[place]
        victim.kill()
        victim.wait()
        self._processes[place] = self._start()

    async def freeze(self) -> None:
        """Stop one until its lease is over, and let it go on as if nothing had happened."""
        victim = self._dice.choice(self._processes)
        victim.send_signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE * 1.7)
        victim.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            assert process.wait(30) in (0, -signal.SIGTERM)  # one that was just replaced may not listen yet

    def _start(self) -> subprocess.Popen[bytes]:
        command = "from onejob.cli import main; main()"
        options = ("worker", "lane_storm_app:app", "--lease", str(LEASE), "--quiet")
        return start("-c", command, *options, "--concurrency", "20", env=self._env)


def start(*arguments: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], env=env, cwd=HERE)


async def run_storm(storm: Storm, url: str, folder: Path) -> Oracle:
    """Let it blow until everything has ended; then judge the record."""
    began = time.monotonic()
    env = {**os.environ, "ONEJOB_URL": url, "PYTHONPATH": str(HERE)}
    if not storm.freezes:  # a frozen handler is still there when another takes over
        env["STORM_WITNESS"] = str(folder)
    dice = random.Random(storm.seed)
    async with App(url) as app:
        await record(app)
        crew = Crew(storm.workers, env, dice)
        reports = [folder / f"report-{number}.json" for number in range(storm.producers)]
        share = str(storm.jobs // storm.producers)
        wishes = (share, str(storm.lanes), "rated" if storm.rated else "unrated")
        producers = [
            start("lane_storm_app.py", *wishes, str(storm.seed + number), str(report), env=env)
            for number, report in enumerate(reports)
        ]
        try:
            await nemesis(app, crew, storm, dice)
            for producer in producers:
                assert await asyncio.to_thread(producer.wait, storm.patience) == 0
            await drained(app, began + storm.patience)
        finally:
            crew.end()
        oracle = await judged(app)
        await check(
            app, oracle, [tuple(pair) for report in reports for pair in json.loads(report.read_text())]
        )
    overlaps = folder / "overlaps"
    assert not overlaps.exists(), f"handlers of one lane overlapped: {overlaps.read_text()[:300]}"
    tell(storm, oracle, time.monotonic() - began)
    return oracle


async def nemesis(app: App, crew: Crew, storm: Storm, dice: random.Random) -> None:
    """Kill and freeze workers while the queue's limits change; afterwards nothing limits it."""
    queue = app.queue(QUEUE)
    await queue.aset_concurrency(15)
    await queue.aset_rate(Rate(100, per=PER))
    while State.COMPLETED not in (await app.store.counts()).get(QUEUE, {}):
        await app.store.wait(frozenset(), 0.05)
    changing = asyncio.create_task(change_limits(app, dice))
    deeds = [crew.kill] * storm.kills + [crew.freeze] * storm.freezes
    dice.shuffle(deeds)
    for deed in deeds:
        await asyncio.sleep(dice.uniform(0.3, 1.2))
        if (under_way := deed()) is not None:
            await under_way
    changing.cancel()
    await asyncio.wait({changing})
    await queue.aset_concurrency(0)
    await queue.aremove_rate()
    await queue.aresume()


async def change_limits(app: App, dice: random.Random) -> None:
    queue = app.queue(QUEUE)
    while True:
        await asyncio.sleep(dice.uniform(0.1, 0.4))
        match dice.randrange(4):
            case 0:
                await queue.aset_concurrency(dice.choice((0, 5, 15)))
            case 1:
                await queue.aset_rate(Rate(dice.choice((30, 100, 400)), per=PER))
            case 2:
                await queue.aremove_rate()
            case _:
                await queue.apause()
                await asyncio.sleep(dice.uniform(0.05, 0.15))
                await queue.aresume()


async def record(app: App) -> None:
    """On SQLite all is written down. In PostgreSQL no claim can know what others commit while it decides, and Valkey has no
    triggers: there the witness in the handlers has to do, and how everything stands in the end.
    """
    await app.store.open()
    if is_written_down(app):
        async with app.transaction() as tx:
            await tx.execute(RECORD)


def is_written_down(app: App) -> bool:
    return not is_postgres(app.url) and not is_valkey(app.url)


async def judged(app: App) -> Oracle:
    if not is_written_down(app):
        return Oracle()
    async with app.transaction(timeout=60) as tx:
        return Oracle().replay(await tx.execute(READ))


async def drained(app: App, deadline: float) -> None:
    topics = frozenset({f"done:{QUEUE}"})
    while time.monotonic() < deadline:
        mark = app.store.mark()
        if not LIVE & (await app.store.counts()).get(QUEUE, {}).keys():
            return
        await app.store.wait(topics, 0.2, since=mark)
    lanes = await app.store.lanes(limit=3)
    raise AssertionError(f"still live: {await app.store.counts()}, in lanes such as {lanes}")


async def check(app: App, oracle: Oracle, receipts: list[tuple[str, ...]]) -> None:
    assert oracle.violations == []
    assert oracle.stuck() == []
    if not is_valkey(app.url):
        async with app.transaction() as tx:
            places = await tx.execute(f"select id from {table(app.url, 'job')} where place is not null")
        assert places == [], "no slot outlives its job"
    jobs = {job.id async for job in every_job(app)}
    created = [id for id, outcome in receipts if outcome == "created"]
    outcomes = Counter(outcome for _, outcome in receipts)
    assert {"created", "kept", "updated", "postponed", "collected"} <= outcomes.keys()
    assert set(created) == jobs, "acknowledged and stored are the same jobs"
    assert len(created) == len(jobs)
    states = (await app.store.counts())[QUEUE]
    assert states.keys() == ENDED
    if oracle.jobs:
        assert oracle.contested > oracle.starts / 10, "the lanes were crowded"
        assert oracle.limited > 0
    await app.store.claim(Ask(WorkerId("last"), (QUEUE,), 1), now=await app.store.time() + 60_000)
    assert await app.store.lanes() == [], "no lane is left once nothing is in it"


async def every_job(app: App) -> AsyncIterator[Job]:
    cursor = None
    while True:
        page = await app.store.jobs(JobFilter(), 1_000, cursor)
        for job in page.jobs:
            yield job
        if (cursor := page.cursor) is None:
            return


def tell(storm: Storm, oracle: Oracle, seconds: float) -> None:
    """What a storm came to, for whoever looks with -s."""
    sys.stdout.write(
        f"\n{storm}\n{len(oracle.jobs)} jobs, {oracle.starts} starts, {oracle.contested} with others behind them, "
        f"{oracle.limited} under limits of the queue, {oracle.filled} that filled a window, {seconds:.1f} s\n"
    )


@pytest.mark.parametrize("rated", [False, True], ids=["plain", "rated"])
@pytest.mark.accepts("Q4")
@pytest.mark.timeout(300)  # several processes on a machine that may be busy
async def test_lanes_and_limits_hold_at_every_moment(rated: bool, database_url: str, tmp_path: Path) -> None:
    oracle = await run_storm(replace(SHORT, rated=rated), database_url, tmp_path)
    assert oracle.filled > 0 or not rated or not oracle.jobs, "the rates were in the way"


@pytest.mark.torture
@pytest.mark.parametrize("rated", [False, True], ids=["plain", "rated"])
async def test_lanes_and_limits_hold_at_every_moment_for_long(
    rated: bool, store_url: str, tmp_path: Path
) -> None:
    await run_storm(replace(FULL, rated=rated), store_url, tmp_path)


@pytest.mark.torture
async def test_a_frozen_worker_frees_no_slot_when_it_wakes(store_url: str, tmp_path: Path) -> None:
    await run_storm(replace(FULL, kills=8, freezes=8), store_url, tmp_path)


PARKED_WAIT = "update onejob_job set state = 'waiting', place = 2 where state = 'parked'"
ALL_PARK = "update onejob_job set state = 'parked', place = 1"
LAST_FIRST = f"{ALL_PARK}; update onejob_job set state = 'waiting', place = 2 where seq = (select max(seq) from onejob_job)"
UNSEEN = "drop trigger storm_free_queue; delete from onejob_queue"
MUTANTS = {
    "over its lane's concurrency": (Lane("a"), None, PARKED_WAIT),
    "before job 1, which had its turn": (Lane("a"), None, LAST_FIRST),
    "before job 2, which had its turn": (Lane("a", concurrency=2), None, LAST_FIRST),
    "over its lane's rate": (Lane("a", concurrency=9, rate=Rate(1, per=60)), None, PARKED_WAIT),
    "over its queue's concurrency": (None, lambda queue: queue.aset_concurrency(1), UNSEEN),
    "over its queue's rate": (None, lambda queue: queue.aset_rate(Rate(2, per=60)), UNSEEN),
    "while its queue was paused": (None, lambda queue: queue.apause(), UNSEEN),
}
"""What the oracle should say, of which lane and limits, once the store has been tampered with like this."""


@pytest.mark.parametrize("complaint", MUTANTS)
async def test_the_oracle_sees_a_store_that_goes_wrong(complaint: str, tmp_path: Path) -> None:
    lane, limit, tampering = MUTANTS[complaint]
    async with App(f"sqlite:///{tmp_path / 'storm.db'}") as app:
        await record(app)
        if limit is not None:
            await limit(app.queue(QUEUE))
        await enqueue_three(app, lane)
        async with app.transaction() as tx:
            await tx.execute(tampering)
        await app.store.claim(Ask(WorkerId("w"), (QUEUE,), 9))
        [first, *_] = (await judged(app)).violations
    assert complaint in first


async def test_the_oracle_sees_a_slot_that_was_not_held(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'storm.db'}") as app:
        await record(app)
        await enqueue_three(app, Lane("a", on_retry="hold"))
        ask = Ask(WorkerId("w"), (QUEUE,), 9)
        claims = await app.store.claim(ask)
        await app.store.settle([Settlement(job.lease, Move.RETRY, delay=60_000) for job in claims.jobs])
        async with app.transaction() as tx:
            await tx.execute(PARKED_WAIT)
        await app.store.claim(ask)
        oracle = await judged(app)
    assert "over its lane's concurrency" in oracle.violations[0]
    assert oracle.stuck() == [1, 2, 3]


async def test_the_oracle_has_nothing_to_say_of_a_store_that_is_left_alone(tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path / 'storm.db'}") as app:
        await record(app)
        await enqueue_three(app, Lane("a", concurrency=2))
        ask = Ask(WorkerId("w"), (QUEUE,), 9)
        claims = await app.store.claim(ask)
        while claims.jobs:
            done = [Settlement(job.lease, Move.COMPLETE) for job in claims.jobs]
            claims = (await app.store.settle(done, ask)).claims
        oracle = await judged(app)
    assert (oracle.violations, oracle.stuck(), oracle.starts, oracle.contested) == ([], [], 3, 2)


async def enqueue_three(app: App, lane: Lane | None) -> None:
    task = app.task(name="work", lane=lane)(lane_storm_app.work.function)
    await app.aenqueue_many([task.using(priority=priority).job(1) for priority in (5, 9, 1)])


def test_the_witness_sees_two_handlers_in_one_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_storm_app, "WITNESS", str(tmp_path))
    monkeypatch.setattr(lane_storm_app, "current_job", lambda: SimpleNamespace(lane="ordered-1", id="job"))
    for _ in range(2):
        with lane_storm_app.witness():
            pass
    assert not (tmp_path / "overlaps").exists()
    with lane_storm_app.witness(), lane_storm_app.witness():
        assert (tmp_path / "overlaps").read_text() == "ordered-1: job\n"
