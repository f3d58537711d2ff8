"""Read by pyright only: lanes, limits and revocation keep a task's static types.

Each `pyright: ignore` marks a mistake that must be found; if it were not, the comment itself is an error.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import assert_type

from onejob import App, Lane, QueueLimits, Rate, Receipt, current_job
from onejob.core.lane import LanePlan
from onejob.store import Amended, LaneView

app = App("memory:")


def by_tenant(user: int) -> str | None:
    return None if user == 0 else f"tenant:{user % 8}"


@app.task(lane=Lane("imports"))
def load(path: str) -> int:
    return len(path)


@app.task(lane=Lane(by=by_tenant, concurrency=3, rate=Rate(10, per=timedelta(minutes=1)), on_retry="hold"))
async def notify(user: int) -> str | None:
    return current_job().lane


@app.task(lane=Lane(by=("kind", "id")))
def sync(kind: str, id: str) -> None: ...


def lanes() -> None:
    receipt = load.using(lane=Lane("user:42", rate=Rate(10, 60))).enqueue("a")
    assert_type(receipt, Receipt[int])
    assert_type(receipt.lane, str | None)
    assert_type(receipt.former_lane, LanePlan | None)
    load.using(lane=None).enqueue("a")
    load.using(lane="user:42")  # pyright: ignore[reportArgumentType]
    Lane("x", concurrency="3")  # pyright: ignore[reportArgumentType]
    Lane("x", rate=10)  # pyright: ignore[reportArgumentType]
    Lane("x", on_retry="keep")  # pyright: ignore[reportArgumentType]
    Rate(10)  # pyright: ignore[reportCallIssue]
    assert_type(app.lanes("mail", limit=10), list[LaneView])


def limits() -> None:
    queue = app.queue("mail")
    assert_type(queue.set_concurrency(20), QueueLimits)
    assert_type(queue.concurrency(), int | None)
    assert_type(queue.set_rate(Rate(500, per=60)), QueueLimits)
    assert_type(queue.rate(), Rate | None)
    assert_type(app.limits(), dict[str, QueueLimits])
    queue.set_rate(500)  # pyright: ignore[reportArgumentType]
    app.worker(rate=Rate(10, per=1))
    app.worker(rate=10)  # pyright: ignore[reportArgumentType]


async def revocation() -> None:
    assert_type(await app.arevoke("0198f000"), Amended)
    assert_type(app.revoke(load.enqueue("a")), Amended)
    assert_type(app.revoke(key=("order", 9), task=sync), Amended)
    assert_type(sync.revoke("order", "9"), Amended)
    assert_type(await sync.using(priority=1).arevoke(kind="order", id="9"), Amended)
    assert_type(app.revoke_many("lane:user:42"), Counter[Amended])
    sync.revoke("order")  # pyright: ignore[reportCallIssue]
    await app.queue("mail").aset_concurrency("20")  # pyright: ignore[reportArgumentType]
