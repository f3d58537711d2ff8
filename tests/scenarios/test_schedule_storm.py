"""Processes tick a hundred schedules through weeks in which clocks are changed, by a clock that jumps back and
forth while they are at it: each slot that is due becomes one job, once.

In a torn step the clock jumps while they tick; whatever each has read by then, a step of its own follows. Jobs are
deleted as the storm goes on, so that their ids cannot hide a slot that is spent twice. See `schedule_oracle`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from schedule_oracle import LATE, Almanac, Ledger, Plan, Step, Verdict, ledger_of
from schedule_storm_app import FAULTS, SharedClock
from stored import with_patience
from wall_clock import MINUTE, at

from onejob.core.schedule import Definition, Template, put
from onejob.core.timing import Cron, Every
from onejob.store import JobStore
from onejob.stores import open_store

HERE = Path(__file__).parent
HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE
NEAR = 3 * HOUR // 2
"""So long before and after a change of clocks, steps are short."""
ZONES = ("Europe/Paris", "Australia/Lord_Howe", "America/Santiago", "UTC")
PATTERNS = (
    *("*/5 * * * *", "*/30 * * * *", "0 * * * *", "7,37 */2 * * *", "*/10 0-3 * * *", "59 23 * * *"),
    *("0 0 * * *", "30 0 * * *", "0 1 * * *", "45 1 * * *", "0 2 * * *", "15 2 * * *", "30 2 * * *"),
    *("0 3 * * *", "0,30 1-3 * * *", "30 23 * * *", "0 0 * * 0,3", "15 2 * * 0-6/3", "0 8 * * 1-5"),
)
INTERVALS = (700, 10_000, 37_000, 60_000, 61_000, 300_000, 3_600_000, 5_400_000, 43_200_000, 86_400_000)
CHANGES = {
    "Paris leaves an hour out, Lord Howe and Santiago repeat some": (
        at("2027-03-28 01:00"),
        at("2027-04-03 15:00"),
        at("2027-04-04 03:00"),
    ),
    "Santiago leaves an hour out": (at("2027-09-05 04:00"),),
    "Lord Howe leaves half an hour out": (at("2027-10-02 15:30"),),
    "Paris repeats an hour": (at("2027-10-31 01:00"),),
}


@dataclass(frozen=True)
class Storm:
    """How hard it blows."""

    plans: int = 100
    processes: int = 8
    near: tuple[int, ...] = (2, 5, 10, 15, 30)
    """Minutes from one step to the next around a change of clocks."""
    far: tuple[int, ...] = (480, 720, 1440)
    """The same elsewhere."""
    changes: tuple[str, ...] = tuple(CHANGES)
    kills: float = 0.0
    """How often a process is killed while it ticks, per step."""
    seed: int = 1
    faults: tuple[str, ...] = ()


SHORT = Storm(
    processes=3,
    near=(5, 10, 15, 30),
    far=(720, 1440),
    changes=(
        "Paris leaves an hour out, Lord Howe and Santiago repeat some",
        "Paris repeats an hour",
    ),
)
"""An hour left out, and hours repeated; the long form visits every change by itself."""
FULL = Storm(near=(1, 1, 2, 5), far=(5, 15, 30, 60), kills=0.02)


def plans(number: int) -> list[Plan]:
    """Every pattern in every zone, and intervals, half of which let missed slots go."""
    crons = [(pattern, tz) for pattern in PATTERNS for tz in ZONES]
    made = [Plan("", pattern, tz) for pattern, tz in crons]
    made += [Plan("", every=every) for every in INTERVALS]
    made += [Plan("", every=every + 1_000) for every in INTERVALS]
    made += [Plan("", pattern, tz) for pattern, tz in crons[:number]]
    return [
        Plan(f"s{place}", plan.pattern, plan.tz, plan.every, lets_go=place % 3 == 0)
        for place, plan in enumerate(made[:number])
    ]


def weeks(storm: Storm) -> list[tuple[int, int]]:
    """The spans of time that the storm visits: a week or more around each change."""
    return [(CHANGES[name][0] - DAY - 13 * HOUR, CHANGES[name][-1] + 6 * DAY) for name in storm.changes]


def journey(storm: Storm, dice: random.Random) -> Iterator[Step]:
    """What the clock shows, step by step: on the whole forward, but it is torn back and forth."""
    for (start, end), name in zip(weeks(storm), storm.changes, strict=True):
        now = start
        yield Step(now)
        while now < end:
            near = any(abs(now - change) <= NEAR for change in CHANGES[name])
            ahead = now + dice.choice(storm.near if near else storm.far) * MINUTE
            if not near:
                ahead = min([ahead, *(change - NEAR for change in CHANGES[name] if change - NEAR > now)])
            now = ahead // MINUTE * MINUTE + dice.choice((0, 0, 0, 1, 1_234, 59_999))
            yield from around(now, dice)


def around(now: int, dice: random.Random) -> Iterator[Step]:
    """One step on, or one of the ways in which a clock can be set."""
    match dice.randrange(10):
        case 0:
            yield Step(now)
            yield Step(now - dice.choice((1, 30 * MINUTE, HOUR, 3 * DAY)))
        case 1:
            yield Step(now, then=now - dice.choice((1, HOUR, DAY)))
            yield Step(now)
        case 2:
            later = now + dice.choice((1, LATE, 5 * MINUTE))
            yield Step(now, then=later)
            yield Step(later)
            yield Step(now)
        case 3:
            yield Step(now + dice.choice((MINUTE, 20 * MINUTE)))
            yield Step(now)
        case _:
            yield Step(now)


class Crew:
    """The processes, which tick all at once."""

    def __init__(self, storm: Storm, url: str, folder: Path, dice: random.Random) -> None:
        self._arguments = (url, str(folder / "clock"), *storm.faults)
        self._env = {**os.environ, "PYTHONPATH": str(HERE)}
        self._dice = dice
        self._processes = [self._start() for _ in range(storm.processes)]
        for process in self._processes:
            assert process.stdout.readline() == "ready\n"
        self.made = 0
        """What they say they have made; those that were killed took their word with them."""
        self.killed = 0

    def tick(self, step: Step, clock: SharedClock, *, kill: bool = False) -> None:
        """All tick by that clock, and are done when this returns."""
        clock.set(step.instant)
        for process in self._processes:
            process.stdin.write("1\n" if step.then is None else "2\n")
            process.stdin.flush()
        if step.then is not None:
            time.sleep(self._dice.uniform(0, 0.01))
            clock.set(step.then)
        victim = self._kill() if kill else None
        for process in self._processes:
            if process is not victim:
                self.made += int(process.stdout.readline())

    def end(self) -> None:
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            assert process.wait(30) == 0
            process.stdout.close()

    def _kill(self) -> subprocess.Popen[str]:
        time.sleep(self._dice.uniform(0, 0.03))
        place = self._dice.randrange(len(self._processes))
        victim = self._processes[place]
        victim.kill()
        victim.wait()
        victim.stdout.close()
        try:
            victim.stdin.close()
        except BrokenPipeError:
            pass
        self._processes[place] = new = self._start()
        assert new.stdout.readline() == "ready\n"
        self.killed += 1
        return new

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "schedule_storm_app.py", *self._arguments]
        return subprocess.Popen(
            command, env=self._env, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )


async def run_storm(storm: Storm, url: str, folder: Path) -> Verdict:
    """Let it blow, and judge what was spent."""
    began, dice = time.monotonic(), random.Random(storm.seed)
    spans, clock = weeks(storm), SharedClock(folder / "clock")
    first = spans[0][0]
    clock.set(first)
    all_plans = plans(storm.plans)
    url = with_patience(url, 60)
    store = open_store(url, clock=clock)
    await store.open()
    ledger = ledger_of(store, url)
    await prepare(store, all_plans, first, ledger)
    crew = Crew(storm, url, folder, dice)
    steps: list[Step] = []
    try:
        for step in journey(storm, dice):
            crew.tick(step, clock, kill=dice.random() < storm.kills)
            steps.append(step)
            if len(steps) % 10 == 0:
                await ledger.forget_jobs()
    finally:
        crew.end()
    spent, made = await ledger.read()
    await store.close()
    ticked = time.monotonic() - began
    almanac = Almanac(all_plans, first, [(start, end + DAY) for start, end in spans])
    verdict = almanac.judge(steps, spent, made)
    if not crew.killed and crew.made != len(spent):
        verdict.violations.append(f"the processes say that they made {crew.made} jobs of {len(spent)} slots")
    sys.stdout.write(
        f"\n{storm}\n{len(steps)} steps, {len(spent)} slots became jobs: {verdict.must} had to, {verdict.may} might; "
        f"{crew.killed} killed; {ticked:.1f} s, and {time.monotonic() - began - ticked:.1f} s to judge\n"
    )
    return verdict


async def prepare(store: JobStore, all_plans: list[Plan], now: int, ledger: Ledger) -> None:
    """Put the schedules, and let the store write down what becomes of them."""
    records = []
    for plan in all_plans:
        timing = Cron(plan.pattern, plan.tz) if plan.pattern else Every(plan.every / 1000)
        definition = Definition(timing, Template("q", "t", b"{}"), "none" if plan.lets_go else "one")
        record = put(None, plan.id, definition, declared=False, now=now)
        assert record is not None
        records.append(record)
    assert all(await store.put_schedules(records))
    await ledger.open()


@pytest.mark.accepts("G7")
@pytest.mark.timeout(300)  # several processes on a machine that may be busy
async def test_each_slot_becomes_one_job_whoever_ticks_and_however_the_clock_is_set(
    database_url: str, tmp_path: Path
) -> None:
    verdict = await run_storm(SHORT, database_url, tmp_path)
    assert verdict.violations == []
    assert verdict.must > 1_500
    assert 0 < verdict.may < verdict.must / 10, "almost everything is certain"


@pytest.mark.torture
@pytest.mark.parametrize("change", CHANGES)
async def test_each_slot_becomes_one_job_for_long(change: str, store_url: str, tmp_path: Path) -> None:
    verdict = await run_storm(Storm(**{**vars(FULL), "changes": (change,)}), store_url, tmp_path)
    assert verdict.violations == []
    assert verdict.must > 10_000


FAULTY = Storm(plans=96, processes=3, changes=("Paris repeats an hour",), far=(720, 1440), near=(15, 30))
COMPLAINTS = {
    "blind_fire": "spent twice",
    "follows_the_clock_back": "spent twice",
    "fires_in_both_hours": "spent, and no slot that was due",
    "loses_a_slot": "never spent",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_oracle_sees_a_fault(fault: str, sqlite_url: str, tmp_path: Path) -> None:
    verdict = await run_storm(Storm(**{**vars(FAULTY), "faults": (fault,)}), sqlite_url, tmp_path)
    assert any(COMPLAINTS[fault] in violation for violation in verdict.violations), verdict


@pytest.mark.torture
@pytest.mark.parametrize("fault", ["follows_the_clock_back", "fires_in_both_hours"])
async def test_the_oracle_sees_a_fault_by_reading_too(fault: str, valkey_url: str, tmp_path: Path) -> None:
    verdict = await run_storm(Storm(**{**vars(FAULTY), "faults": (fault,)}), valkey_url, tmp_path)
    assert any(COMPLAINTS[fault] in violation for violation in verdict.violations), verdict
