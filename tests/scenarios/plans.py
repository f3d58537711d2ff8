"""Plans of statements as PostgreSQL makes them for any parameters: what in them grows with what lies in the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString, cast

import psycopg

from onejob.stores.postgres.statements import sql

HOT = (
    *("enqueue.insert_job", "enqueue.insert_jobs", "enqueue.one", "enqueue.make_all", "enqueue.look"),
    *("claim.start", "claim.look", "claim.promote", "claim.running"),
    *("settle.complete_bare_and_start", "settle.complete_and_start", "settle.end_and_start"),
    *("beat.beat", "expired.expired", "schedules.due"),
)
SORTING = frozenset({"claim.promote", "expired.expired"})
"""They may sort what has come due in a queue and is not promoted yet, and what a lost worker ran."""
LARGE = frozenset({"job", "key", "touch", "lane", "start", "blocker", "schedule"})
BY_IDENTITY = frozenset({"job_pkey", "job_id_key", "key_pkey"})
"""Indexes that give as many rows as they are asked for."""
FEW = frozenset({"Function Scan", "CTE Scan", "WorkTable Scan", "Values Scan", "Result", "Tid Scan", "Limit"})
Plan = dict[str, Any]


def growing(url: str, schema: str, names: tuple[str, ...] = HOT) -> dict[str, list[str]]:
    """What each statement reads or sorts that grows: whole tables, and sorts of as many rows as there are."""
    found: dict[str, list[str]] = {}
    with psycopg.connect(url.partition("?")[0]) as connection:
        connection.execute("set jit = off")
        for name in names:
            text = cast("LiteralString", f"explain (generic_plan, format json) {sql(name, schema)}")
            [([planned],)] = connection.execute(text).fetchall()
            complaints = sorted({*_growing(planned["Plan"], may_sort=name in SORTING)})
            if complaints:
                found[name] = complaints
    return found


def _growing(plan: Plan, *, may_sort: bool) -> Iterator[str]:
    kind = plan["Node Type"]
    if kind == "Seq Scan" and plan["Relation Name"] in LARGE:
        yield f"reads all of {plan['Relation Name']}"
    if not may_sort and kind in ("Sort", "Incremental Sort") and (scans := [*_unbounded(plan)]):
        yield f"sorts {', '.join(scans)}"
    for below in plan.get("Plans", ()):
        yield from _growing(below, may_sort=may_sort)


def _unbounded(plan: Plan) -> Iterator[str]:
    """The scans of large tables below a node, which nothing keeps from being read to their end."""
    kind = plan["Node Type"]
    if kind in FEW or plan.get("Index Name") in BY_IDENTITY:
        return
    if plan.get("Relation Name") in LARGE:
        yield plan.get("Index Name", plan["Relation Name"])
    for below in plan.get("Plans", ()):
        if below.get("Parent Relationship") not in ("SubPlan", "InitPlan"):
            yield from _unbounded(below)
