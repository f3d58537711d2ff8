"""settle: attempts end, and the next claim comes in the same commit.

What needs nothing but the jobs, their keys, flags and slots is one statement (`at_once`). Whatever else an end entails,
continuations, dead letters and those who wait for it, takes a transaction (`careful`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onejob.core.job import JobId
from onejob.core.lifecycle import Settlement
from onejob.store import Ask, Claims, Settled, SettleReply
from onejob.stores.postgres import claim
from onejob.stores.postgres.at_once import at_once
from onejob.stores.postgres.careful import ORPHANED, with_care
from onejob.stores.postgres.steps import Steps, begin
from onejob.stores.postgres.work import Work


def settle(work: Work, done: Sequence[Settlement], wish: Ask | None, token: bytes) -> Steps[SettleReply]:
    """End attempts and claim the next; see `Store.settle`. `token` is the lease of what is claimed."""
    if not done:
        return SettleReply([], Claims([]) if wish is None else (yield from claim.claim(work, wish, token)))
    if not work.foreign and not work.again and _is_plain(done):
        return (yield from at_once(work, done, wish, token))
    yield from begin()
    settled: list[Settled] = []
    reasons: dict[JobId, str] = {}
    for part in _parts(done):
        report = yield from with_care(work, part)
        settled += report.replies.values()
        reasons.update(report.reasons)
    claims = Claims([]) if wish is None else (yield from claim.claim(work, wish, token))
    return SettleReply(settled, claims, reasons)


def _is_plain(done: Sequence[Settlement]) -> bool:
    """True if each is another job, and ends without anything being made of it."""
    for one in done:
        if one.then is not None or one.dead_letter is not None or one.move in ORPHANED:
            return False
    return len({one.lease.id for one in done}) == len(done)


def _parts(done: Sequence[Settlement]) -> Iterable[Sequence[Settlement]]:
    """Batches to settle one after the other: how chains stand must be on record before somebody waits for them, and
    what is said of a job twice is told apart.
    """
    part: dict[JobId, Settlement] = {}
    for one in done:
        waits = one.then is not None and bool(one.then.blockers)
        if part and (waits or one.lease.id in part):
            yield list(part.values())
            part = {}
        part[one.lease.id] = one
        if waits:
            yield [one]
            part = {}
    if part:
        yield list(part.values())
