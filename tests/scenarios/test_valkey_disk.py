"""A Valkey server that cannot write to its disk: it refuses whatever changes something, nothing is half stored, and work goes on by
itself when there is room again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from servers.layout_checks import inspect_layout
from servers.valkey import ValkeyServer
from stage import PATIENCE, Stage, eventually

from onejob import App, State, StoreFull


@pytest.fixture
def snapshots() -> Iterator[ValkeyServer]:
    """A server that writes snapshots, though not by itself within a test."""
    with ValkeyServer(save="3600 1000000") as server:
        yield server


async def save(server: ValkeyServer, status: str) -> None:
    """Have a snapshot written, and see how that ends."""
    server.execute("BGSAVE")

    async def has_ended_so() -> bool:
        found = server.execute("INFO", "persistence")
        return not found["rdb_bgsave_in_progress"] and found["rdb_last_bgsave_status"] == status

    await eventually(has_ended_so)


def refusals(server: ValkeyServer) -> int:
    """How many calls it has refused because of its disk."""
    found = server.execute("INFO", "errorstats").get("errorstat_MISCONF", {"count": 0})
    return int(found["count"])


async def test_it_stores_nothing_says_so_and_goes_on_when_there_is_room(
    snapshots: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = snapshots.folder / "dump.rdb"  # a folder with something in it cannot be replaced by a file
    async with App(snapshots.url) as app:
        stage = Stage(app)
        async with asyncio.timeout(PATIENCE * 2), app.worker(lease=PATIENCE):
            [kept] = await stage.send("kept")
            await stage.shows("kept")
            blocked.mkdir()
            (blocked / "something").touch()
            await save(snapshots, "err")
            with pytest.raises(StoreFull, match=r"cannot write to its disk.*nothing was stored"):
                await stage.send("refused")
            assert (await stage.job(kept)).state is State.RUNNING, "reading is not refused"
            before = refusals(snapshots)
            stage.release("kept")
            await stage.until(lambda: not stage.running)
            await eventually(lambda: _refuses_more(snapshots, before + 3))
            (blocked / "something").unlink()
            blocked.rmdir()
            await save(snapshots, "ok")
            assert await kept.aresult(timeout=PATIENCE) == "kept"
            [again] = await stage.send("again")
            stage.release("again")
            assert await again.aresult(timeout=PATIENCE) == "again"
        assert stage.started == ["kept", "again"], "each once, and what was refused never"
        assert inspect_layout(snapshots.url) == []
    events = [getattr(record, "event", "") for record in caplog.records]
    assert [event for event in events if event.startswith("lease.")] == []


async def _refuses_more(server: ValkeyServer, count: int) -> bool:
    return refusals(server) >= count
