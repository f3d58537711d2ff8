"""Read by pyright only: a task keeps its static types through every way to enqueue it.

Each `pyright: ignore` marks a mistake that must be found; if it were not, the comment itself is an error.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, assert_type

from onejob import App, Receipt, Unique
from onejob.app import AsyncTask, SyncTask
from onejob.plans import Call

app = App("memory:")


@app.task
def plain(order: int, note: str = "") -> str:
    return f"{order}{note}"


@app.task(queue="hooks", unique=Unique.latest(by="entity_id", within=5), retry=3)
async def hook(entity_id: str, *, data: dict[str, int] | None = None) -> float:
    return float(len(entity_id))


def sync_calls() -> None:
    assert_type(plain(1), str)
    assert_type(plain.enqueue(1, note="x"), Receipt[str])
    assert_type(plain.enqueue(order=1).result(timeout=3), str)
    assert_type(plain.job(1), Call[str])
    assert_type(plain.using(delay=30, priority=5).enqueue(1), Receipt[str])
    assert_type(plain.using(connection=object()).enqueue(1), Receipt[str])
    app.enqueue_many([plain.job(1), hook.job("x")])
    app.enqueue_many([plain.job(1), hook.job("x")], connection=object())
    plain.enqueue("1")  # pyright: ignore[reportArgumentType]
    plain.enqueue()  # pyright: ignore[reportCallIssue]
    plain.enqueue(1, nope=2)  # pyright: ignore[reportCallIssue]
    plain.job(1, 2)  # pyright: ignore[reportArgumentType]
    plain.using(dealy=3)  # pyright: ignore[reportCallIssue]
    plain.explain("1")  # pyright: ignore[reportArgumentType]
    plain.using(delay=30).enqueue("1")  # pyright: ignore[reportArgumentType]


async def async_calls() -> None:
    running: Coroutine[Any, Any, float] = hook("x")
    assert_type(await running, float)
    assert_type(await hook.aenqueue(entity_id="x"), Receipt[float])
    assert_type(await (await hook.aenqueue("x", data={"v": 2})).aresult(), float)
    assert_type(await hook.using(force=True).aenqueue("x"), Receipt[float])
    await hook.aenqueue("x", data={"v": "2"})  # pyright: ignore[reportArgumentType]
    await hook.aenqueue(entity="x")  # pyright: ignore[reportCallIssue]


def kinds() -> tuple[SyncTask[..., str], AsyncTask[..., float]]:
    return plain, hook


async def transactions() -> None:
    async with app.transaction() as tx:
        assert_type(await tx.execute("select 1"), list[tuple[Any, ...]])
    with app.transaction() as held:
        assert_type(held.execute("select 1"), list[tuple[Any, ...]])
