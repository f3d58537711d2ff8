"""Rates: the starts that still count for a lane, or for a whole queue. Each is a row that names its job."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from onejob.core.job import Claimed
from onejob.core.lane import Rate
from onejob.sql.lanes import OWN_RATE
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work


class Window:
    """The starts that a queue's own rate counts at one instant."""

    __slots__ = ("opens_at", "room")

    def __init__(self, rate: Rate, started: int, opens_at: int | None) -> None:
        self.room = max(rate.max - started, 0)
        """How many more may start."""
        self.opens_at = opens_at
        """When another may, if none may now."""


def tidy(work: Work, rates: Mapping[tuple[str, str], Rate]) -> Steps[None]:
    """Of the starts of these lanes (queue, key), or queues (`OWN_RATE`), keep those that still count."""
    queues, lanes = [queue for queue, _ in rates], [lane for _, lane in rates]
    yield from ask("rates.tidy", work.now, queues, lanes, [rate.window for rate in rates.values()])


def forget(lanes: Collection[tuple[str, str]]) -> Steps[None]:
    """Nothing counts the starts of these lanes any more."""
    yield from ask("rates.forget", [queue for queue, _ in lanes], [lane for _, lane in lanes])


def windows(rates: Mapping[str, Rate]) -> Steps[dict[str, Window]]:
    """How queues stand whose own rates are these."""
    if not rates:
        return {}
    of = list(rates.values())
    rows = yield from ask(
        "rates.windows", list(rates), [rate.max for rate in of], [rate.window for rate in of]
    )
    return {queue: Window(rates[queue], started, opens_at) for queue, started, opens_at in rows}


def record(
    jobs: Collection[Claimed], rated: Collection[str], token: bytes, now: int
) -> Steps[set[tuple[str, str]]]:
    """Write down the starts of jobs that a rate counts: that of their queue, if it is one of `rated`, or their lane's.

    Returns the lanes among them that have a rate.
    """
    starts = [(job.queue, OWN_RATE, job.id) for job in jobs if job.queue in rated]
    starts += [(job.queue, job.lane, job.id) for job in jobs if job.lane is not None]
    if not starts:
        return set()
    queues, lanes, ids = map(list, zip(*starts, strict=True))
    rows = yield from ask("rates.record", now, token, queues, lanes, ids)
    return {(queue, lane) for queue, lane in rows if lane != OWN_RATE}
