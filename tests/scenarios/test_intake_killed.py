"""Processes that take the same rows at once, and one that is killed between handing over and flagging: each row
becomes one job, and nothing is forgotten by a restart.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from stored import OWN, STORES, is_postgres

from onejob import App, Table

# Processes take their time, and what they show of the cluster is shown by others.
pytestmark = pytest.mark.parametrize("store_url", STORES, indirect=True)
HERE = Path(__file__).parent
ROWS = 100
CREATE = "create table calls (id integer primary key, phone text, due text, scheduled boolean)"
FILL = f"""
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {ROWS})
insert into calls select n, '+' || n, '2026-01-01T00:00:00', false from numbers
"""


class Ground:
    """A store, and a table in the same database or in another."""

    def __init__(self, place: str, url: str, folder: Path) -> None:
        self.app = App(url)
        rows = f"sqlite:///{folder / 'rows.db'}"
        if is_postgres(url):
            rows = url.partition("?")[0].replace("postgresql:", "postgresql+psycopg:")
        self.engine = None if place == "own" else sa.create_engine(rows)
        self.env = {**os.environ, "ONEJOB_URL": self.app.url}
        self.sql(CREATE)
        self.sql(FILL)

    def sql(self, statement: str) -> list[Any]:
        if self.engine is None:
            with self.app.transaction() as tx:
                return tx.execute(statement)
        with self.engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return [tuple(row) for row in result] if result.returns_rows else []

    def start(self, when: str) -> subprocess.Popen[str]:
        database = "own" if self.engine is None else str(self.engine.url)
        command = [sys.executable, str(HERE / "intake_crash_app.py"), database, when]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True)

    def take(self) -> tuple[int, int]:
        """Take the rows in here, where nothing is known of those who died."""
        call = self.app.task(name="call")(_call)
        report = self.app.intake(
            "calls", Table("calls", due="due", database=self.engine), call, per_fetch=20
        ).run()
        return report.taken, report.kept

    def flagged(self) -> int:
        return self.sql("select count(*) from calls where scheduled")[0][0]

    def keys(self) -> Counter[str]:
        return Counter(str(job.key) for job in self.app.jobs(limit=1_000).jobs)

    def close(self) -> None:
        self.app.close()
        if self.engine is not None:
            self.engine.dispose()


async def _call(phone: str) -> None: ...


@pytest.fixture(params=[OWN, "other"])
def ground(request: pytest.FixtureRequest, store_url: str, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(request.param, store_url, tmp_path)
    yield made
    made.close()


@pytest.mark.accepts("I10")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_dies_around_the_flag_loses_and_doubles_nothing(ground: Ground, when: str) -> None:
    dying = ground.start(when)
    dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL
    assert ground.flagged() == 0, "what was not committed is not there"
    assert len(ground.keys()) == (0 if ground.engine is None else 20)
    assert ground.take() == ((ROWS, 0) if ground.engine is None else (80, 20))
    assert ground.flagged() == ROWS
    assert ground.keys() == Counter({f"job-{id}-2026-01-01T00:00:00": 1 for id in range(1, ROWS + 1)})


@pytest.mark.accepts("I10")
def test_four_processes_at_once_take_each_row_once(ground: Ground) -> None:
    crew = ground.start("4")
    told = [line.split() for line in crew.communicate(timeout=60)[0].splitlines()]
    assert (crew.returncode, len(told)) == (0, 4)
    assert sum(int(taken) for taken, _ in told) == ROWS
    assert ground.flagged() == ROWS
    assert set(ground.keys().values()) == {1}
    assert len(ground.keys()) == ROWS
