"""Read by pyright only: what an intake takes and returns.

Each `pyright: ignore` marks a mistake that must be found; if it were not, the comment itself is an error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, assert_type

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from onejob import App, Intake, Query, Rows, Table
from onejob.intake.views import Allowed, IntakeReport, IntakeStatus, RowExplanation

app = App("memory:")
orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer), sa.Column("done", sa.Boolean))


@app.task
def remind(id: int) -> None: ...


async def rows(until: dt.datetime) -> AsyncIterator[Mapping[str, Any]]:
    yield {"id": 1, "due": until}


async def flagged(ids: Sequence[Any]) -> None: ...


def sources() -> None:
    Table("orders", due="due", database="sqlite:///shop.db", due_as="seconds")
    Table("orders_{day:%Y%m%d}", due="due", database=sa.create_engine("sqlite:///shop.db"))
    Table("orders")  # pyright: ignore[reportCallIssue]
    Table("orders", due="due", due_as="minutes")  # pyright: ignore[reportArgumentType]
    Query(sa.select(orders), id="id", due="due", flag=orders.c.done)
    Query(
        sa.select(orders.c.id),
        id="id",
        due="due",
        database=create_async_engine("sqlite+aiosqlite:///shop.db"),
    )
    Rows(rows, id="id", due="due", flagged=flagged)
    Rows(flagged, id="id", due="due")  # pyright: ignore[reportArgumentType]


async def intakes() -> None:
    made = app.intake(
        "orders", Table("orders", due="due"), remind.using(priority=3), key=lambda row: str(row["id"])
    )
    assert_type(made, Intake)
    assert_type(made.run(), IntakeReport)
    assert_type(await made.astatus(), IntakeStatus)
    assert_type(made.explain_row(1), RowExplanation)
    assert_type(await made.aallow("1", force=True), Allowed)
    assert_type(app.intakes, Mapping[str, Intake])
    app.intake("orders", "orders", remind)  # pyright: ignore[reportArgumentType]
    app.intake("orders", Rows(rows, id="id", due="due"), print)  # pyright: ignore[reportArgumentType]
