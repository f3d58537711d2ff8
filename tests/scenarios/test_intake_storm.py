"""Several processes take the rows of ten tables at once, one of them is killed and starts again: each row becomes
exactly one job, however many rows there are the statements are counted by the page, and memory stays flat.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy
from intake_stage import Post
from stored import OWN, STORES, is_postgres

from onejob import App
from onejob.core.job import Job

# Processes take their time, and what they show of the cluster is shown by others.
pytestmark = pytest.mark.parametrize("store_url", STORES, indirect=True)
HERE = Path(__file__).parent
TABLES = 10
CREATE = """
create table {name} (
    id integer primary key, phone text not null, message text, scheduled_time text, scheduled boolean default false
)
"""
FILL = """
with recursive numbers (n) as (select {first} union all select n + 1 from numbers where n < {last})
insert into {name} (id, phone, message, scheduled_time)
select n, '+' || n, 'm' || n, {due} from numbers
"""
DUE = "strftime('%Y-%m-%dT%H:%M:%S', 'now', '-' || (n % 7200) || ' seconds')"
POSTGRES_DUE = """to_char(clock_timestamp() at time zone 'utc' - mod(n, 7200) * interval '1 second', 'YYYY-MM-DD"T"HH24:MI:SS')"""
"""Some time within the last two hours."""


@dataclass(frozen=True)
class Storm:
    """How much there is to take in, by how many."""

    rows: int
    per_fetch: int
    processes: int = 3
    patience: float = 100
    flat: int = 0
    """How many bytes the last third may take more than the first; 0: too short to say."""


SHORT = Storm(rows=3_000, per_fetch=100)
FULL = Storm(rows=100_000, per_fetch=1000, patience=900, flat=8 * 2**20)
PLACES = [OWN, "other"]


async def run_storm(storm: Storm, place: str, url: str, folder: Path) -> None:
    rows = f"sqlite:///{folder / 'rows.db'}"
    if is_postgres(url):
        rows = url.partition("?")[0].replace("postgresql:", "postgresql+psycopg:")
    env = {**os.environ, "ONEJOB_URL": url, "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent)))}
    engine = None
    if place == "other":
        env["STORM_DATABASE"] = rows
        engine = sqlalchemy.create_engine(rows)
    began = time.monotonic()
    async with App(url) as app:
        post = Post(app, engine)
        tables = await fill(post, storm.rows)
        reports = [folder / f"report-{number}.json" for number in range(storm.processes)]
        crew = [start(storm, report, env) for report in reports]
        try:
            await until_jobs(app, storm.rows // 10, crew)
            crew[0].send_signal(signal.SIGKILL)
            assert crew[0].wait() == -signal.SIGKILL, "it was killed in the middle of it"
            crew[0] = start(storm, reports[0], env)
            for process in crew:
                assert await asyncio.to_thread(process.wait, storm.patience) == 0
        finally:
            for process in crew:
                process.kill()
                process.wait()
        seconds = time.monotonic() - began
        await check_rows(post, tables, storm.rows)
    if engine is not None:
        engine.dispose()
    told = [json.loads(report.read_text()) for report in reports]
    tell(storm, place, told, seconds)
    for one in told:
        check_cost(one, storm)


async def fill(post: Post, rows: int) -> list[str]:
    """Ten tables, the last of them today's; an id stands in one of them only."""
    today, each = dt.datetime.now(dt.UTC).date(), rows // TABLES
    names = [f"sms_schedules_{today - dt.timedelta(days=back):%Y%m%d}" for back in range(TABLES)]
    for number, name in enumerate(names):
        await post.sql(CREATE.format(name=name))
        due = POSTGRES_DUE if is_postgres(post.app.url) else DUE
        await post.sql(FILL.format(name=name, first=number * each + 1, last=(number + 1) * each, due=due))
    return names


def start(storm: Storm, report: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "intake_storm_app.py", str(storm.per_fetch), str(report)]
    return subprocess.Popen(command, env=env, cwd=HERE)


async def until_jobs(app: App, number: int, crew: list[subprocess.Popen[bytes]]) -> None:
    while await app.acount() < number:
        assert not any(process.poll() for process in crew), "a process has died by itself"
        await app.store.wait(frozenset({"work:default"}), 0.02)


async def check_rows(post: Post, tables: list[str], rows: int) -> None:
    """Each row has its flag and its one job."""
    for name in tables:
        assert await post.sql(f"select count(*) from {name} where scheduled is not true") == [(0,)]
    jobs = await all_jobs(post.app)
    assert (len(jobs), len({job.key for job in jobs})) == (rows, rows)
    assert set(map(number_of, jobs)) == set(range(1, rows + 1)), "no row was lost, and none came twice"


async def all_jobs(app: App) -> list[Job]:
    page = await app.ajobs(limit=1_000)
    jobs = page.jobs
    while page.cursor is not None:
        page = await app.ajobs(limit=1_000, cursor=page.cursor)
        jobs += page.jobs
    return jobs


def number_of(job: Job) -> int:
    return int(msgspec.json.decode(job.payload)["message"][1:])


def check_cost(told: dict[str, Any], storm: Storm) -> None:
    """At most one query per fetch plus one per batch; the last fetch of a table in a run may find nothing.

    A run of more than five seconds counts the rows once, to say how far it is.
    """
    ends, statements = told["runs"] * TABLES, told["statements"]
    assert set(statements) <= {"select", "update", "count"}, told
    assert told["batches"] <= told["handed_over"] / storm.per_fetch + ends, told
    assert statements.get("update", 0) <= told["batches"], told
    assert statements.get("select", 0) <= told["batches"] + ends, told
    assert statements.get("count", 0) <= ends, told
    if storm.flat:
        assert told["grown"] < storm.flat, told


def tell(storm: Storm, place: str, told: list[dict[str, Any]], seconds: float) -> None:
    """What it came to, for whoever looks with -s."""
    lines = [f"{storm.rows:,} rows, {place} database, {seconds:.1f} s"]
    lines += [f"  {one}" for one in told]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.accepts("I10", "I22")
async def test_each_row_becomes_one_job_though_a_process_is_killed(
    place: str, store_url: str, tmp_path: Path
) -> None:
    await run_storm(SHORT, place, store_url, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.accepts("I10", "I20", "I22")
async def test_a_hundred_thousand_rows_become_as_many_jobs_in_flat_memory(
    place: str, store_url: str, tmp_path: Path
) -> None:
    await run_storm(FULL, place, store_url, tmp_path)
