"""A worker that dies around its `complete()`: before the commit nothing has happened, after it everything has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stage import eventually
from stored import with_patience

from onejob import App, State

MODULE = """
import asyncio, os, signal
from onejob import App, current_job

app = App()
DIES = os.environ.get("DIES", "")
ROWS = app.store.dialect is not None     # whether a commit can take anything beside the job's end

def die(where):
    if where == DIES:
        os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="charge", retry=5)
async def charge(number: int) -> None:
    job = current_job()
    die("before")
    async with job.complete() as tx:
        if ROWS:
            await tx.execute("insert into paid values (:number)", {"number": number})
            await note.aenqueue(number)
        job.continue_with(ship, number)
        die("inside")
    die("after")

@app.task(name="ship", retry=5)
def ship(number: int) -> str:
    job = current_job()
    with job.complete() as tx:
        if ROWS:
            tx.execute("insert into paid values (:number)", {"number": -number})
        tx.output = "shipped"
        die("inside the last")
    die("after the last")
    return tx.output

@app.task(name="note")
async def note(number: int) -> None: ...

async def main() -> None:
    async with app.worker(lease=1, concurrency=1):
        await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("dies", ["before", "inside", "after", "inside the last", "after the last"])
async def test_each_row_and_each_step_is_there_once(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    monkeypatch.setenv("ONEJOB_URL", with_patience(store_url))
    (tmp_path / "steps_app.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    app, charge = _load()
    has_rows = app.store.dialect is not None
    async with app:
        if has_rows:
            async with app.transaction() as tx:
                await tx.execute("create table paid (number integer)")
        receipt = await charge.aenqueue(7)
        died = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "steps_app.py"],
            env={**os.environ, "DIES": dies, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=60,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL
        ended = {"before": 0, "inside": 0, "after": 1, "inside the last": 1, "after the last": 2}[dies]
        chain = await app.achain(receipt)
        assert [job.state is State.COMPLETED for job in chain] == [True, True, False][2 - ended :][:2]
        if has_rows:
            assert await _paid(app) == [7, -7][:ended]
        async with app.worker(lease=1):
            assert await receipt.aresult(timeout=60) == "shipped"

            async def all_done() -> bool:
                return await app.acount("state:live") == 0

            await eventually(all_done)
        chain = await app.achain(receipt)
        assert [(job.chain_index, job.task, job.state) for job in chain] == [
            (0, "charge", State.COMPLETED),
            (1, "ship", State.COMPLETED),
        ]
        crashes = {"before": [1, 0], "inside": [1, 0], "inside the last": [0, 1]}
        assert [job.crashes for job in chain] == crashes.get(dies, [0, 0])
        if has_rows:
            assert await _paid(app) == [7, -7]
            assert await app.acount("task:note") == 1


async def _paid(app: App) -> list[int]:
    async with app.transaction() as tx:
        return [row[0] for row in await tx.execute("select number from paid order by number desc")]


def _load() -> tuple[App, Any]:
    sys.modules.pop("steps_app", None)
    import steps_app  # pyright: ignore[reportMissingImports]

    return steps_app.app, steps_app.charge
