"""A Valkey server that loses everything under a live app and a live worker: it is said, once, and they go on with new jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from servers.cluster import ValkeyCluster
from servers.layout_checks import inspect_layout
from servers.valkey import ValkeyServer
from stage import PATIENCE, Stage, eventually

from onejob import App, LeaseLost, ResultGone, State
from onejob.core.job import WorkerId
from onejob.store import Ask
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.conformance.steps import beat, job, put

LEASE = 3.0
NOTICE = "the server has lost queue 'default'"
DESK_NOTICE = "the server has lost its list of queues, workers and schedules"
Wipe = Callable[[ValkeyServer], None]


def flush(server: ValkeyServer) -> None:
    server.execute("FLUSHALL")


def restart(server: ValkeyServer) -> None:
    server.kill()
    server.start()


@pytest.fixture
def forgetful() -> Iterator[ValkeyServer]:
    """A server that keeps nothing when it stops."""
    with ValkeyServer() as server:
        yield server


@asynccontextmanager
async def at_work(server: ValkeyServer) -> AsyncIterator[Stage]:
    async with App(server.url) as app:
        stage = Stage(app)
        async with asyncio.timeout(PATIENCE * 2), app.worker(lease=LEASE, concurrency=4):
            yield stage


def said(log: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in log.records if text in record.getMessage()]


@pytest.mark.parametrize("wipe", [flush, restart])
async def test_a_worker_goes_on_with_new_jobs_and_the_loss_is_said_once(
    forgetful: ValkeyServer, wipe: Wipe, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work(forgetful) as stage:
        [running] = await stage.send("running")
        await stage.shows("running")
        [waiting] = await stage.send("waiting", delay=3600)
        caplog.clear()
        await asyncio.to_thread(wipe, forgetful)
        [new] = await stage.send("new")
        stage.release("new")
        assert await new.aresult(timeout=PATIENCE) == "new"
        await stage.until(lambda: not stage.running)  # the handler has been told that its job is lost
        assert await stage.app.ajob(running) is None
        assert await stage.app.ajob(waiting) is None
        [again] = await stage.send("again")
        stage.release("again")
        assert await again.aresult(timeout=PATIENCE) == "again"
        assert stage.started == ["running", "new", "again"]
        assert inspect_layout(forgetful.url) == []
    [notice] = said(caplog, NOTICE)
    assert notice.levelno == logging.ERROR
    assert "GUARANTEES.md" in notice.getMessage()
    assert len(said(caplog, DESK_NOTICE)) <= 1
    [lost] = said(caplog, "its lease is lost")
    assert str(running.id) in lost.getMessage()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) < 10, "no storm"


async def test_a_handler_that_ignores_it_is_refused_when_it_ends(
    forgetful: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    told = asyncio.Event()
    async with App(forgetful.url) as app:

        @app.task
        async def stubborn() -> str:
            try:
                await asyncio.sleep(PATIENCE)
            except (LeaseLost, asyncio.CancelledError):
                told.set()
            return "done all the same"

        async with asyncio.timeout(PATIENCE), app.worker(lease=LEASE):
            receipt = await stubborn.aenqueue()
            await eventually(lambda: _runs(app))
            flush(forgetful)
            await told.wait()
            with pytest.raises(ResultGone):
                await receipt.aresult(timeout=PATIENCE)
        assert inspect_layout(forgetful.url) == []


async def _runs(app: App) -> bool:
    return any(counts.get("running") for counts in (await app.store.counts()).values())


async def test_who_comes_second_notices_with_his_next_heartbeat(
    own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    ask = Ask(WorkerId("w"), ("q",), 1)
    first, second = ValkeyStore(own_valkey.url), ValkeyStore(own_valkey.url)
    try:
        lost = job()
        await put(first, lost)
        await first.claim(ask)
        await beat(first)
        flush(own_valkey)
        await put(second, job())
        await beat(second, "other")
        assert said(caplog, "the server has lost") == []
        for _ in range(3):
            await put(first, job())
            assert (await beat(first)).held == {}
        assert await first.job(lost.id) is None
        assert len((await first.claim(ask)).jobs) == 1
        assert inspect_layout(own_valkey.url) == []
    finally:
        await first.close()
        await second.close()
    assert len(said(caplog, "the server has lost queue 'q'")) == 1
    assert len(said(caplog, DESK_NOTICE)) == 1


async def test_a_node_of_a_cluster_that_is_wiped_takes_only_its_own_queues_along(
    own_cluster: ValkeyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    wiped = own_cluster.owner(own_cluster.slot("{onejob:default}:data"))
    other = next(
        name
        for name in (f"n{number}" for number in range(1_000))
        if own_cluster.owner(own_cluster.slot(f"{{onejob:{name}}}:data")) is not wiped
    )
    desk_is_lost = own_cluster.owner(own_cluster.slot("{onejob:}:data")) is wiped
    async with App(own_cluster.url) as app:
        stage = Stage(app)
        stage.task("elsewhere", queue=other)
        async with asyncio.timeout(PATIENCE * 2), app.worker(lease=LEASE, concurrency=4):
            [lost] = await stage.send("lost", delay=3600)
            [kept] = await stage.send("kept", queue=other)
            [chained] = await stage.send("chained", queue=other, delay=3600)
            await stage.shows("kept")
            caplog.clear()
            wiped.execute("FLUSHALL")
            [new] = await stage.send("new")
            stage.release("new", "kept")
            assert await new.aresult(timeout=PATIENCE) == "new"
            assert await kept.aresult(timeout=PATIENCE) == "kept"
            assert await app.ajob(lost) is None
            assert (await stage.job(chained)).state is State.DELAYED
        assert stage.started.count("kept") == stage.started.count("new") == 1
        assert inspect_layout(own_cluster.url) == []
    events = [vars(record).get("event") for record in said(caplog, "the server has lost")]
    assert events == ["store.wiped"] * len(events)
    assert len(said(caplog, NOTICE)) == 1
    assert len(said(caplog, DESK_NOTICE)) == int(desk_is_lost)
    assert said(caplog, f"queue {other!r}") == []
