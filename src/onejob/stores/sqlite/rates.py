"""Rates: the starts that still count for a lane, or for a whole queue. Each is a row that names its job."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from onejob.core.dedup import FOREVER
from onejob.core.lane import Rate, starts_until_opening
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements


class Window(msgspec.Struct, frozen=True):
    """The starts of a lane, or of a queue (`OWN_RATE`), that its rate counts at one instant."""

    queue: str
    lane: str
    rate: Rate
    started: int

    @property
    def room(self) -> int:
        """How many more may start."""
        return max(self.rate.max - self.started, 0)

    def opens_at(self, session: Session, reserved: int) -> int | None:
        """When one more than `reserved` may start; None if time alone does not bring it."""
        number = starts_until_opening(self.started, self.rate, reserved)
        if not number:
            return None
        names = {"queue": self.queue, "lane": self.lane, "skipped": number - 1}
        row = session.first(statements("rates")["nth_start"], names)
        return None if row is None else row[0] + self.rate.window


def window(session: Session, queue: str, lane: str, rate: Rate, now: int) -> Window:
    """Count the starts that a rate still counts, and forget the others."""
    sql = statements("rates")
    names = {"queue": queue, "lane": lane}
    [(started, first, last)] = session.rows(sql["count_starts"], names)
    if started and last > now:
        session.run(sql["bring_back"], {**names, "now": now})
    if started and first <= now - rate.window:
        started -= session.run(sql["forget_starts"], {**names, "before": now - rate.window})
    return Window(queue, lane, rate, started)


def record_starts(
    session: Session, queue: str, starts: Iterable[tuple[str, bytes]], lease: bytes, now: int
) -> None:
    """Write down starts: lane and job, under the lease that they were given."""
    session.executemany(
        statements("rates")["start"], [(queue, lane, now, job, lease) for lane, job in starts]
    )


def forget_starts(session: Session, queue: str, lane: str) -> None:
    """Nothing counts the starts of this lane any more."""
    session.run(statements("rates")["forget_starts"], {"queue": queue, "lane": lane, "before": FOREVER})
