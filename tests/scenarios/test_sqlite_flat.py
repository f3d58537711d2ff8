"""What an operation costs the SQLite store does not grow with what else is in it.

The cost is counted in steps of SQLite's virtual machine: the same on every machine, busy or not. Behind it stand
the plans of the statements, which are looked at one by one: none may walk through a backlog.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import apsw
import pytest
from yard import BACKLOGS, Yard

from onejob.core.lane import QueueChange, Rate
from onejob.stores.sqlite.connect import connect, migrate
from onejob.stores.sqlite.statements import statements
from onejob.stores.sqlite.store import SqliteStore
from onejob.testing import FakeClock

SMALL, LARGE = 100, 1_500
FLAT = 1.02


class Counted(SqliteStore):
    """The real store, with a count of the steps of its connections."""

    steps = 0

    def _connect(self, patience: float | None = None) -> apsw.Connection:
        connection = super()._connect(patience)
        connection.set_progress_handler(self._step, 1)
        return connection

    def _step(self) -> bool:
        self.steps += 1
        return False


async def costs(backlog: str, size: int, change: QueueChange | None) -> Counter[str]:
    store = Counted(None, clock=FakeClock())
    try:
        return await Yard(store, lambda: store.steps).go_through(backlog, size, change)
    finally:
        await store.close()


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
