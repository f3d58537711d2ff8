"""A worker has a connection to PostgreSQL in its own event loop: what it is used for, who goes on elsewhere, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from stage import eventually

from onejob import App, Lane, State, Unique, current_job
from onejob.stores.postgres.near import Near
from onejob.stores.postgres.steps import Steps

SESSIONS = (
    "select count(*) from pg_stat_activity where application_name = $1 and backend_type = 'client backend'"
)


def named(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}application_name={name}"


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each operation on such a connection ended."""
    ends: list[str] = []
    drive: Callable[..., Any] = Near.drive

    async def watched(near: Near, steps: Steps[Any], patience: float) -> Any:
        try:
            result = await drive(near, steps, patience)
        except Exception as error:
            ends.append(type(error).__name__)
            raise
        ends.append("done")
        return result

    monkeypatch.setattr(Near, "drive", watched)
    return ends


async def test_exchanges_of_plain_jobs_never_leave_the_workers_loop(
    postgres_url: str, driven: list[str]
) -> None:
    async with App(postgres_url) as app:

        @app.task
        async def nothing(number: int) -> None: ...

        receipts = await app.aenqueue_many([nothing.job(number) for number in range(50)])
        async with app.worker(concurrency=10):
            for receipt in receipts:
                await receipt.aresult(timeout=10)
    assert len(driven) >= 2
    assert set(driven) == {"done"}


async def test_what_takes_a_transaction_is_finished_on_the_stores_own_loop(
    postgres_url: str, driven: list[str]
) -> None:
    async with App(postgres_url) as app:
        ran: list[int] = []

        @app.task(lane=Lane(by="lane"), unique=Unique.coalesce(by="number"))
        async def first(number: int, lane: str) -> None:
            ran.append(number)
            current_job().continue_with(then, number)

        @app.task
        async def then(number: int) -> int:
            return number

        receipts = [await first.aenqueue(number, lane=str(number % 2)) for number in range(6)]
        async with app.worker(concurrency=4):
            assert [await receipt.aresult(timeout=10) for receipt in receipts] == list(range(6))
    assert "Unfinished" in driven
    assert set(driven) <= {"done", "Unfinished"}
    assert sorted(ran) == list(range(6))


async def test_claims_that_bring_much_go_another_way(postgres_url: str, driven: list[str]) -> None:
    """Their statements are not over before all of it is taken, which a blocked loop does not do."""
    async with App(postgres_url) as app:

        @app.task
        async def keep(text: str) -> None: ...

        receipts = [await keep.aenqueue("x" * 200_000) for _ in range(12)]
        async with app.worker(concurrency=1, stock=0):
            for receipt in receipts:
                await receipt.aresult(timeout=10)
    assert len(driven) < 4


async def test_a_session_that_is_ended_is_replaced_and_nothing_runs_twice(
    postgres_url: str, driven: list[str]
) -> None:
    url = named(postgres_url, "near-ended")
    killing: asyncpg.Connection = await asyncpg.connect(postgres_url.partition("?")[0])
    runs: list[int] = []
    async with App(url) as app:

        @app.task
        async def count(number: int) -> None:
            runs.append(number)

        async with app.worker(concurrency=5):
            for number in range(20):
                receipt = await count.aenqueue(number)
                await receipt.aresult(timeout=10)
                await killing.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'near-ended'"
                )
            await eventually(lambda: _is(app.acount(f"state:{State.COMPLETED}"), 20))
    await killing.close()
    assert runs == list(range(20))


async def _is(asked: Any, wanted: int) -> bool:
    return await asked == wanted


async def test_two_workers_of_one_loop_have_one_each_and_leave_none_behind(
    postgres_url: str, driven: list[str]
) -> None:
    url = named(postgres_url, "near-two")
    watching: asyncpg.Connection = await asyncpg.connect(postgres_url.partition("?")[0])
    async with App(url) as app:

        @app.task
        async def nothing(number: int) -> None: ...

        async with app.worker(concurrency=2):
            async with app.worker(concurrency=2):
                receipts = await app.aenqueue_many([nothing.job(number) for number in range(30)])
                for receipt in receipts:
                    await receipt.aresult(timeout=10)
            await (await nothing.aenqueue(30)).aresult(timeout=10)
        assert set(driven) == {"done"}
    await eventually(lambda: _is(watching.fetchval(SESSIONS, "near-two"), 0))
    await watching.close()
