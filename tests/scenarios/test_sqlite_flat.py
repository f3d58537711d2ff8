"""What an operation costs the SQLite store does not grow with what else is in it.

The cost is counted in steps of SQLite's virtual machine: the same on every machine, busy or not. Behind it stand
the plans of the statements, which are looked at one by one: none may walk through a backlog.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from itertools import count
from typing import TypeVar
from uuid import UUID

import apsw
import pytest

from onejob.core.dedup import Plan, Unique, compile_rules
from onejob.core.job import JobId, NewJob, WorkerId
from onejob.core.lane import LanePlan, QueueChange, Rate
from onejob.core.lifecycle import Move, Settlement
from onejob.core.options import MAX_BULK
from onejob.store import Amendment, Ask, Beat, Claims, Retention
from onejob.stores.sqlite.connect import connect, migrate
from onejob.stores.sqlite.statements import statements
from onejob.stores.sqlite.store import SqliteStore
from onejob.testing import FakeClock

T = TypeVar("T")
SMALL, LARGE = 100, 1_500
FLAT = 1.02
HOUR = 3_600_000
BATCH = 5
LANES = (
    None,
    LanePlan("ordered"),
    LanePlan("held", hold=True),
    LanePlan("wide", concurrency=3),
    LanePlan("rated", concurrency=3, rate=Rate(1_000, per=60)),
)
BACKLOGS = [
    "waiting jobs",
    "delayed jobs",
    "running jobs",
    "finished jobs",
    "parked jobs of an ordered lane",
    "parked jobs of a wide lane",
    "lanes",
    "lanes that wait for their rates",
    "starts of another lane",
    "keys of waiting jobs",
    "remembered keys",
]
POLICIES = (Unique.once(), Unique.latest(), Unique.restart())


class Counted(SqliteStore):
    """The real store, with a count of the steps of its connections."""

    steps = 0

    def _connect(self) -> apsw.Connection:
        connection = super()._connect()
        connection.set_progress_handler(self._step, 1)
        return connection

    def _step(self) -> bool:
        self.steps += 1
        return False


class Yard:
    """A store with a backlog of one kind, and the life of a few other jobs of the same queue."""

    def __init__(self) -> None:
        self.store = Counted(None, clock=FakeClock())
        self.costs: Counter[str] = Counter()
        self._ids = (JobId(str(UUID(int=number))) for number in count(1))

    async def put(
        self, lanes: Sequence[LanePlan | None], *, delay: int = 0, priority: int = 0
    ) -> list[JobId]:
        """Enqueue a job for each of these."""
        jobs = [
            NewJob(next(self._ids), "q", "t", b"{}", lane=lane, delay=delay, priority=priority)
            for lane in lanes
        ]
        for start in range(0, len(jobs), MAX_BULK):
            await self.store.enqueue(jobs[start : start + MAX_BULK])
        return [job.id for job in jobs]

    async def put_keyed(self, policy: Unique, size: int, *, first: int = 0, priority: int = 0) -> None:
        """Enqueue a job under each of so many keys."""
        rules = compile_rules(policy, None)
        assert rules is not None
        jobs = [
            NewJob(next(self._ids), "q", "t", b"{}", Plan(b"%016d" % n, f"{n}", rules, b"12345678"), priority)
            for n in range(first, first + size)
        ]
        for start in range(0, len(jobs), MAX_BULK):
            await self.store.enqueue(jobs[start : start + MAX_BULK])

    async def start(self, limit: int) -> Claims:
        return await self.store.claim(Ask(WorkerId("other"), ("q",), limit))

    async def start_and_finish(self, limit: int) -> None:
        claims = await self.start(limit)
        await self.store.settle([Settlement(job.lease, Move.COMPLETE) for job in claims.jobs])

    async def fill(self, backlog: str, size: int) -> None:
        each = range(size)
        match backlog:
            case "waiting jobs":
                await self.put([None for _ in each])
            case "delayed jobs":
                await self.put([None for _ in each], delay=HOUR)
            case "running jobs":
                await self.put([None for _ in each])
                await self.start(size)
            case "finished jobs":
                await self.put([None for _ in each])
                await self.start_and_finish(size)
            case "parked jobs of an ordered lane":
                await self.put([LanePlan("crowd") for _ in each])
                await self.start(size)
            case "parked jobs of a wide lane":
                await self.put([LanePlan("crowd", concurrency=2) for _ in each])
                await self.start(size)
            case "lanes":
                await self.put([LanePlan(f"lane-{number}") for number in each], delay=HOUR)
            case "lanes that wait for their rates":
                await self.put([LanePlan(f"lane-{number // 2}", rate=Rate(1, per=60)) for number in each])
                await self.start_and_finish(size)
            case "starts of another lane":
                plan = LanePlan("crowd", concurrency=10_000, rate=Rate(10_000, per=60))
                await self.put([plan for _ in each])
                await self.start_and_finish(size)
            case "keys of waiting jobs":
                await self.put_keyed(Unique.once(), size)
            case "remembered keys":
                await self.put_keyed(Unique.once(), size)
                await self.start_and_finish(size)
            case _:
                raise ValueError(backlog)

    async def live(self, lane: LanePlan | None) -> None:
        """Enqueue a few jobs, start, hand back, retry, revoke and complete them, counting the steps of each."""
        slots = BATCH if lane is None else lane.concurrency
        store, ask = self.store, Ask(WorkerId("w"), ("q",), slots)
        ids = await self._counted("enqueue", lane, self.put([lane] * BATCH, priority=9))
        claims = await self._counted("claim", lane, store.claim(ask))
        for move in (Move.HAND_BACK, Move.RETRY):
            again = [Settlement(job.lease, move) for job in claims.jobs]
            claims = (await self._counted(move, lane, store.settle(again, ask))).claims
        await self._counted("revoke", lane, store.amend([ids[-1]], Amendment.REVOKE))
        left = BATCH - (lane is not None)  # without a lane, the last of them runs and is flagged
        while left > 0:
            left -= len(claims.jobs)
            done = [Settlement(job.lease, Move.COMPLETE) for job in claims.jobs]
            more = Ask(ask.worker, ask.queues, min(left, slots)) if left else None
            claims = (await self._counted("settle", lane, store.settle(done, more))).claims
        await self._counted("beat", lane, store.beat(Beat(ask.worker, 1_000)))
        await self._counted("prune", lane, store.prune(Retention(), 100))

    async def live_with_keys(self, policy: Unique, first: int) -> None:
        """Jobs under new keys, and duplicates of them while they wait, while they run and once they have ended."""
        store, ask = self.store, Ask(WorkerId("w"), ("q",), BATCH)
        name = policy.row.name

        async def again(when: str) -> None:
            await self._counted(when, name, self.put_keyed(policy, BATCH, first=first, priority=9))
            await store.keys("q", 1)  # what was absorbed is written now, and not in a second

        await again("enqueue")
        await again("enqueue beside waiting ones")
        claims = await self._counted("claim", name, store.claim(ask))
        assert len(claims.jobs) == BATCH
        await again("enqueue beside running ones")
        done = [Settlement(job.lease, Move.COMPLETE) for job in claims.jobs]
        await self._counted("settle", name, store.settle(done))
        await again("enqueue once they have ended")
        rest = await self._counted("claim the rest", name, store.claim(ask))
        await self._counted(
            "settle the rest", name, store.settle([Settlement(job.lease, Move.COMPLETE) for job in rest.jobs])
        )

    async def _counted(self, what: str, kind: LanePlan | str | None, operation: Awaitable[T]) -> T:
        before = self.store.steps
        result = await operation
        name = kind.key if isinstance(kind, LanePlan) else kind or "no lane"
        self.costs[f"{what}, {name}"] += self.store.steps - before
        return result


async def costs(backlog: str, size: int, change: QueueChange | None) -> Counter[str]:
    """The steps of each operation on jobs of each kind of lane beside a backlog of that size."""
    yard = Yard()
    try:
        await yard.fill(backlog, size)
        if change is not None:
            await yard.store.set_queue("q", change)
        await yard.live(None)
        yard.costs.clear()  # to prepare a statement takes steps, too
        for lane in LANES:
            await yard.live(lane)
        for number, policy in enumerate(POLICIES, 1):
            await yard.live_with_keys(policy, first=10_000 * number)
        return yard.costs
    finally:
        await yard.store.close()


@pytest.mark.parametrize("backlog", BACKLOGS)
async def test_operations_cost_the_same_beside_any_backlog(backlog: str) -> None:
    await compare(backlog, None)


@pytest.mark.parametrize("backlog", [backlog for backlog in BACKLOGS if backlog != "running jobs"])
async def test_limits_of_the_queue_cost_the_same_beside_any_backlog(backlog: str) -> None:
    """But for running jobs, which are counted: there are never more of them than workers have slots."""
    await compare(backlog, QueueChange(concurrency=10_000, rate=Rate(10_000, per=60)))


async def compare(backlog: str, change: QueueChange | None) -> None:
    few, many = await costs(backlog, SMALL, change), await costs(backlog, LARGE, change)
    grown = {what: (few[what], many[what]) for what in few if many[what] > few[what] * FLAT}
    assert grown == {}, f"steps beside {SMALL:,} and {LARGE:,} {backlog}"
    assert min(few.values()) > 0


HOT = (
    "amend",
    "beat",
    "blockers",
    "claim",
    "enqueue",
    "expired",
    "lanes",
    "prune",
    "rates",
    "release",
    "set_queue",
    "settle",
)
"""The files of statements that workers and clients run again and again."""
READ_OFTEN = ("inspect.job", "inspect.chain", "inspect.last", "inspect.blockers", "inspect.blocked")

SMALL_TABLES = ("onejob_worker", "onejob_queue", "carray", "r VIRTUAL TABLE", "CONSTANT ROW", "(subquery-")
FIRST_ROWS = ("onejob_job_waiting", "onejob_job_delayed", "onejob_lane_rated")
"""Indexes that may be entered by the queue alone, because only their first rows are read."""


def hot_statements() -> list[str]:
    """All but what is only a part of others."""
    own = [
        f"{file}.{name}"
        for file in HOT
        for name, text in statements(file).items()
        if re.search(r"^(select|insert|update|delete|with)\b", text, re.MULTILINE)
    ]
    return [*own, *READ_OFTEN]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = str(tmp_path_factory.mktemp("plans") / "jobs.db")
    opened = connect(path, 1)
    migrate(opened, path)
    yield opened
    opened.close()


@pytest.mark.parametrize("name", hot_statements())
def test_no_statement_walks_through_a_backlog(name: str, connection: apsw.Connection) -> None:
    file, _, statement = name.partition(".")
    steps = [step for part in parts(statements(file)[statement]) for step in plan(connection, part)]
    assert [step for step in steps if walks(step) and not is_bounded(name, step)] == [], steps


def parts(script: str) -> list[str]:
    """The statements of one that is a whole transaction; of another, itself."""
    return re.findall(r"^(?:select|insert|update|delete|with)\b[^;]+;?", script, re.MULTILINE)


def plan(connection: apsw.Connection, statement: str) -> list[str]:
    names = re.findall(r":([a-z_]+)", statement)
    numbers = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    unnamed = (None,) * max(numbers, default=statement.count("?"))
    bindings = dict.fromkeys(names) if names else unnamed
    return [row[3] for row in connection.execute(f"explain query plan {statement}", bindings)]


def walks(step: str) -> bool:
    """True if a step of a plan visits as many rows as there are, or sorts them."""
    if step.startswith("SEARCH"):
        return step.endswith("(queue=?)") and not any(index in step for index in FIRST_ROWS)
    return "TEMP B-TREE" in step or (
        step.startswith("SCAN") and not step.removeprefix("SCAN ").startswith(SMALL_TABLES)
    )


def is_bounded(name: str, step: str) -> bool:
    """True for what visits or sorts only running jobs, those that keep a slot, or the jobs of one chain."""
    if "onejob_job_running" in step:
        return True
    return "TEMP B-TREE" in step and name in ("expired.expired", "lanes.held", "amend.chain", "inspect.chain")


@pytest.mark.parametrize(
    "statement",
    [
        "select id from onejob_job where task = 't'",
        "select id from onejob_job where state = 'parked' and lane = 'a' and queue = 'q' order by due limit 1",
        "select 1 from onejob_lane where queue = 'q' and hold = 1",
    ],
)
def test_a_walk_would_be_seen(statement: str, connection: apsw.Connection) -> None:
    assert any(walks(step) for step in plan(connection, statement))
