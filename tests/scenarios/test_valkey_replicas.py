"""A Valkey server that takes no write without a replica: what its clients are told, and that nothing is half done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from servers.layout_checks import inspect_layout
from servers.replicated import ReplicatedValkey
from stage import PATIENCE, Stage, eventually

from onejob import App, StoreUnavailable


@pytest.fixture
def careful() -> Iterator[ReplicatedValkey]:
    """A primary that wants to have heard from its replica within the last second."""
    with ReplicatedValkey(appendonly="yes", min_replicas_to_write="1", min_replicas_max_lag="1") as servers:
        yield servers


async def test_without_its_replica_it_takes_nothing_and_a_job_that_runs_ends_once_it_is_back(
    careful: ReplicatedValkey,
) -> None:
    async with App(f"{careful.url}?patience=1") as app:
        stage = Stage(app)
        async with asyncio.timeout(PATIENCE * 2), app.worker(lease=20):
            [running] = await stage.send("running")
            await stage.shows("running")
            careful.replica.kill()
            await eventually(lambda: _is_refused(stage))
            stage.release("running")
            await asyncio.to_thread(careful.replica.start)
            await asyncio.to_thread(careful.replica.follow, careful.primary)
            assert await running.aresult(timeout=PATIENCE) == "running"
            assert stage.started.count("running") == 1
    assert inspect_layout(careful.primary.url) == []


async def _is_refused(stage: Stage) -> bool:
    try:
        await stage.send("refused", delay=3600)
    except StoreUnavailable as error:
        return "Not enough good replicas to write); nothing was stored" in str(error)
    return False
