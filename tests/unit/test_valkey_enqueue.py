"""Many jobs for Valkey go by many calls: one after the other, but the next is written while the server is at one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from onejob.absorbing import Absorbed
from onejob.core.errors import StoreBusy
from onejob.core.job import NewJob
from onejob.ids import new_id
from onejob.stores.valkey import enqueue as module
from onejob.stores.valkey.bounds import PORTION
from onejob.stores.valkey.enqueue import enqueue
from onejob.stores.valkey.failures import outcome
from onejob.stores.valkey.office import Office

JOBS = [NewJob(new_id(), "default", "task", b"{}", None) for _ in range(3 * PORTION)]


class Server:
    """An office whose calls are answered when the test says so."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.calls: asyncio.Queue[asyncio.Future[list[int]]] = asyncio.Queue()
        self.remembered = 0

    async def call(self, script: str, queue: str, argument: bytes, *, now: int | None) -> list[int]:
        self.steps.append("sent")
        answer = asyncio.get_running_loop().create_future()
        self.calls.put_nowait(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.steps.append("broken off")
            raise

    def knows(self, queues: set[str]) -> bool:
        """Every queue is known."""
        return True

    def remember(self, ids: list[bytes], queue: str) -> None:
        self.remembered += len(ids)
        self.steps.append("read")


@asynccontextmanager
async def offered(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[Server, asyncio.Task[Any]]]:
    """A server, and somebody who offers it three calls' worth of jobs."""
    server, write = Server(), module.newcomers

    def newcomers(jobs: Any, waits: Any) -> bytes:
        if jobs:
            server.steps.append("written")
        return write(jobs, waits)

    monkeypatch.setattr(module, "newcomers", newcomers)
    offering = asyncio.create_task(enqueue(cast("Office", server), JOBS, ignore, None))
    try:
        yield server, offering
    finally:
        offering.cancel()
        await asyncio.wait((offering,))


def ignore(absorbed: Sequence[Absorbed], queue: str) -> None:
    """There are no duplicates."""


async def settled(turns: int = 5) -> None:
    """Let everything run that need not wait for the server; a single turn ends when a call has just been made."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_the_next_call_is_written_while_the_server_is_at_one_and_sent_once_that_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with offered(monkeypatch) as (server, offering):
        await settled()
        assert server.steps == ["written", "sent", "written"]
        for _ in range(3):
            (await server.calls.get()).set_result([1] * PORTION)
        answers = await offering
    assert server.steps == ["written", "sent", "written", "sent", "read", "written", "sent", "read", "read"]
    assert [answer.id for answer in answers] == [job.id for job in JOBS]
    assert server.remembered == len(JOBS)


async def test_who_fails_half_way_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    async with offered(monkeypatch) as (server, offering):
        (await server.calls.get()).set_result([1] * PORTION)
        (await server.calls.get()).set_exception(StoreBusy(f"It is busy; {outcome(False)}."))
        with pytest.raises(StoreBusy, match=f"busy; {PORTION} of {len(JOBS)} jobs were stored"):
            await offering
    assert server.steps.count("sent") == 2


@pytest.mark.parametrize("turns", [1, 5])
async def test_who_is_cancelled_leaves_no_call_behind(monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    async with offered(monkeypatch) as (server, offering):
        await settled(turns)
        offering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await offering
    assert server.steps[-1] == "broken off"
