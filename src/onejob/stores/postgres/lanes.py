"""Lanes: which of their ready jobs may start now. Derived from rows, for each lane that something happened to.

Operations say `touch` whenever a job of a lane becomes ready, ends or goes away: a row that nobody waits for. Claims
`arrange` the lanes that were touched, under a lock of each; then exactly those whose turn it is are `waiting`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from onejob.core.lane import LanePlan, Rate
from onejob.sql.lanes import brought_plan, plan_of
from onejob.stores.postgres import rates
from onejob.stores.postgres.steps import Row, Steps, ask
from onejob.stores.postgres.work import Work

Pair = tuple[str, str]
"""A lane: its queue and its key."""


class Arranged(msgspec.Struct, frozen=True):
    """What became of the lanes that were touched."""

    rated: frozenset[Pair] = frozenset()
    """Those among them that have a rate; they stay locked to the end of the transaction."""
    released: frozenset[str] = frozenset()
    """The queues in which it is somebody's turn by now."""
    more: bool = False
    """Not all of them have been looked at."""


def touch(work: Work, pairs: Iterable[tuple[str, str | None]]) -> Steps[None]:
    """Something happened to these lanes (None: a job without one): the next claim is to look at them."""
    lanes = sorted({(queue, lane) for queue, lane in pairs if lane is not None})
    if lanes:
        work.tell("work", {queue for queue, _ in lanes})
        yield from ask("lanes.touch", *_columns(lanes))


def touch_with_plans(work: Work, came: Iterable[tuple[str, str, bytes | None, bool]]) -> Steps[None]:
    """Jobs came to lanes: queue, key, the limits as `stored_plan` writes them, and whether they are to stand now."""
    touched: dict[Pair, LanePlan | None] = {}
    for queue, key, stored, brought in came:
        pair = (queue, key)
        if brought or pair not in touched:
            touched[pair] = brought_plan(key, stored) if brought else None
    if touched:
        work.tell("work", {queue for queue, _ in touched})
        yield from ask("lanes.touch_with_plans", *_columns(touched), *_limits(list(touched.values())))


def standing_plans(work: Work, pairs: Iterable[Pair]) -> Steps[dict[Pair, LanePlan]]:
    """The limits of those lanes for which any stand."""
    lanes = sorted(set(pairs))
    rows = (yield from ask("lanes.plans", *_columns(lanes))) if lanes else []
    return {(queue, key): plan_of(key, *columns) for queue, key, *columns in rows}


def arrange(work: Work, queues: Sequence[str], now: int) -> Steps[Arranged]:
    """Let exactly those ready jobs wait whose turn it is, in lanes of these queues to which something happened."""
    rows = yield from ask("lanes.take", now, queues)
    if not rows:
        return Arranged()
    plans = yield from _stand(rows)
    rated = {pair: plan.rate for pair, plan in plans.items() if plan.rate is not None}
    if rated:
        yield from rates.tidy(work, rated)
    concurrency, rate_max, _, _ = _limits(list(plans.values()))
    [(released, again)] = yield from ask("lanes.arrange", *_columns(plans), concurrency, rate_max)
    return Arranged(frozenset(rated), frozenset(released or ()), rows[0][0] and not again)


def look_again(work: Work, arranged: Arranged, started: Collection[Pair]) -> Steps[None]:
    """Note when time alone will let somebody start, in lanes with a rate that were arranged or in which jobs started."""
    lanes = set(arranged.rated)
    others = sorted(set(started) - lanes)
    if others:
        rows = yield from ask("lanes.lock", *_columns(others))
        locked = {(queue, key) for queue, key in rows}
        lanes |= locked
        yield from touch(work, set(others) - locked)
    if lanes:
        yield from ask("lanes.look_again", *_columns(sorted(lanes)))


def _stand(rows: Sequence[Row]) -> Steps[dict[Pair, LanePlan]]:
    """Let the limits that were brought to lanes stand from now on; what stands in each of them then."""
    plans: dict[Pair, LanePlan] = {}
    changed: dict[Pair, LanePlan] = {}
    unrated: list[Pair] = []
    for _, queue, key, *columns in rows:
        plan, newest, was_unrated = plan_of(key, *columns[:4]), columns[4:8], columns[8]
        if newest[0] is not None:
            former, plan = plan, plan_of(key, *newest)
            if former != plan:
                changed[queue, key] = plan
            if was_unrated and former.rate is not None:
                unrated.append((queue, key))
        plans[queue, key] = plan
    if changed:
        yield from ask("lanes.put", *_columns(changed), *_limits(list(changed.values())))
    if unrated:
        yield from rates.forget(unrated)
    return plans


def _columns(pairs: Collection[Pair]) -> tuple[list[str], list[str]]:
    return [queue for queue, _ in pairs], [key for _, key in pairs]


def _limits(
    plans: Sequence[LanePlan | None],
) -> tuple[list[int | None], list[int | None], list[int | None], list[bool | None]]:
    """Plans as columns: concurrency, the rate's most and window, hold; None is null everywhere."""
    found: list[Rate | None] = [None if plan is None else plan.rate for plan in plans]
    return (
        [None if plan is None else plan.concurrency for plan in plans],
        [None if rate is None else rate.max for rate in found],
        [None if rate is None else rate.window for rate in found],
        [None if plan is None else plan.hold for plan in plans],
    )
