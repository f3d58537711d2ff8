"""Read by pyright only: chains, blockers and `complete()` keep a task's static types.

Each `pyright: ignore` marks a mistake that must be found; if it were not, the comment itself is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

from onejob import App, Blocker, Receipt, State, current_job
from onejob.core.job import ChainId, Job
from onejob.store import Amended

app = App("memory:")


@app.task
def plain(order: int, note: str = "") -> str:
    return f"{order}{note}"


@app.task
async def swift(name: str, *, task: int = 0) -> float:
    return float(len(name))


def continuations() -> None:
    job = current_job()
    assert_type(job.continue_with(plain, 1, note="x"), None)
    job.continue_with(swift, name="x", task=2)
    job.continue_with(plain.using(delay=3, lane=None), order=1)
    job.continue_with(plain)  # pyright: ignore[reportCallIssue]
    job.continue_with(plain, "1")  # pyright: ignore[reportArgumentType]
    job.continue_with(swift, "x", nope=1)  # pyright: ignore[reportCallIssue]
    job.continue_with("plain", 1)  # pyright: ignore[reportArgumentType, reportCallIssue]


async def completions() -> str:
    async with current_job().complete() as tx:
        assert_type(await tx.execute("select 1"), list[tuple[Any, ...]])
        tx.output = "done"
    async with current_job().complete("done", timeout=3):
        pass
    current_job().complete(timeout="3")  # pyright: ignore[reportArgumentType]
    return tx.output


def sync_completions() -> int:
    with current_job().complete(output=1) as tx:
        assert_type(tx.execute("select ?", (1,)), list[tuple[Any, ...]])
    return tx.output


def blockers() -> None:
    first, second = plain.enqueue(1), swift.enqueue("x")
    assert_type(plain.using(blockers=[first, second, first.id]).enqueue(2), Receipt[str])
    plain.using(blockers=[first], on_blocker_failure="run").enqueue(2)
    plain.using(blockers=[first], on_blocker_failure="go")  # pyright: ignore[reportArgumentType]
    plain.using(blockers=[1])  # pyright: ignore[reportArgumentType]
    plain.using(blockers=first)  # pyright: ignore[reportArgumentType]
    given = current_job().blockers
    assert_type(given, Sequence[Blocker])
    assert_type(given[0].id, ChainId)
    assert_type(given[0].state, State | None)
    assert_type(given[0].error, str | None)


async def chains() -> None:
    assert_type(app.chain("0198f000"), list[Job])
    assert_type(await app.achain(plain.enqueue(1)), list[Job])
    assert_type(app.delete("0198f000", cascade=True), Amended)
