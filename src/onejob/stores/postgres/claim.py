"""claim: start waiting jobs for one worker, within the limits of their queues.

Where nothing else has to be done first, that is one statement. Otherwise all of it is one transaction: jobs whose time
has come, lanes to which something happened, and limits, which are counted under a lock of their queue's row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from onejob.core.job import ChainId, Claimed, JobId, Lease
from onejob.core.lane import QueueLimits, Rate
from onejob.sql.lanes import OWN_RATE, limits_of
from onejob.store import Ask, Claims
from onejob.stores.postgres import ending, lanes, rates
from onejob.stores.postgres.steps import Row, Steps, ask, begin
from onejob.stores.postgres.work import Work

PROMOTE_LIMIT = 1_000
UNBEATEN_GRACE = 60_000
"""How long a worker that claims before its first beat counts as alive (ms)."""
LOCKED_PAUSE = 50
"""When to look again at what somebody else has locked (ms)."""
QUEUE_PATIENCE = "5s"
"""How long to wait for other claims of a queue that has limits: they come one after the other."""
_JOB = 19
"""How many columns of a row of `claim.start` are a job; those of the outlook come after them."""
_OUTLOOK = slice(_JOB, _JOB + 11)
OUTCOME = slice(_JOB + 11, None)
"""What a settlement beside the claim has to say."""
_QUEUE, _PRIORITY = 18, 12
_by_time = itemgetter(10, 13)
_by_priority = itemgetter(_PRIORITY)


class Outlook(msgspec.Struct, frozen=True):
    """What the queues of a claim have to expect: what has to be done first, and when time brings something."""

    now: int
    limited: bool
    """Some of them have limits of their own."""
    overdue: bool
    """Queued jobs, wherever, are past their `expires`."""
    unresolved: bool
    """Somebody may wait for a chain that has ended."""
    due: int | None
    due_in_lane: int | None
    opens_at: int | None
    set_back: bool
    """A clock since set back has closed a lane for too long."""
    touched: bool
    """Something happened to lanes."""
    rated: bool
    """Some lanes have a rate."""
    skipped: bool
    """A job might have started, but somebody has locked it."""

    @property
    def next(self) -> int | None:
        """The next instant at which something happens by itself."""
        instants = (self.due, self.due_in_lane, self.opens_at)
        return min((instant for instant in instants if instant is not None), default=None)

    @property
    def pending(self) -> bool:
        """True if something has to be done now."""
        come = self.next is not None and self.next <= self.now
        return come or self.overdue or self.unresolved or self.set_back or self.touched

    @property
    def quiet(self) -> bool:
        """True if one statement is all that a claim takes."""
        return not (self.pending or self.limited or self.rated)

    def wait(self) -> int | None:
        """How long until there may be something to claim; what should have been done by now waits for a lock."""
        if self.pending or self.skipped:
            return LOCKED_PAUSE
        return None if self.next is None else self.next - self.now


class Read(msgspec.Struct, frozen=True):
    """What `claim.start` returned. `claims` is None if nothing could be started before other things are done."""

    outlook: Outlook
    claims: Claims | None


def claim(work: Work, wish: Ask, token: bytes) -> Steps[Claims]:
    """Start waiting jobs; see `Store.claim`."""
    if work.again:
        rows = yield from ask("claim.started_before", wish.worker, token)
        if rows:
            return Claims(_in_order(rows, wish, token), 0)
    rows = yield from ask("claim.start", *asking(work.now, wish, token))
    found = read(rows, wish, token)
    return (yield from general(work, wish, token, found.outlook)) if found.claims is None else found.claims


def asking(now: int | None, wish: Ask, token: bytes) -> tuple[Any, ...]:
    """The parameters of `claim.start`."""
    queues = list(dict.fromkeys(wish.queues))
    limit = max(wish.limit, 0)
    most = limit + wish.stock
    return (now, queues, [most] * len(queues), [most, limit], wish.worker, token, UNBEATEN_GRACE, False)


def read(rows: Sequence[Row], wish: Ask, token: bytes, *, left: bool = False) -> Read:
    """Read the rows of `claim.start`; `left`: its own statement has touched lanes, which it did not see."""
    outlook = Outlook(*head(rows)[_OUTLOOK])
    if left:
        outlook = msgspec.structs.replace(outlook, touched=True)
    if not outlook.quiet:
        return Read(outlook, None)
    return Read(outlook, Claims(_started(rows, wish, token), outlook.wait()))


def general(work: Work, wish: Ask, token: bytes, outlook: Outlook) -> Steps[Claims]:
    """Start waiting jobs once everything else is done that has to be done first, in one transaction.

    Locks are taken in the same order by all: lanes, rows of queues, the worker. What else is locked is never waited for.
    """
    yield from begin()
    names = list(dict.fromkeys(wish.queues))
    waits: list[int] = []
    arranged = yield from _let_in(work, names, outlook, waits)
    limits = yield from _enter(names, outlook)
    queues = [name for name in names if name not in limits or not limits[name].paused]
    if not queues:
        yield from lanes.look_again(
            work, arranged, ()
        )  # nobody else will: what had happened to them is forgotten
        return Claims([], min(waits, default=None))
    own_rates = {name: rate for name in queues if name in limits and (rate := limits[name].rate) is not None}
    limit = max(wish.limit, 0)
    windows = yield from _windows(work, own_rates)
    rooms = yield from _rooms({name: limits.get(name) for name in queues}, windows, limit)
    rest = ([limit, limit], wish.worker, token, UNBEATEN_GRACE, True)
    rows = yield from ask("claim.start", work.now, queues, [rooms[name] for name in queues], *rest)
    outlook = Outlook(*head(rows)[_OUTLOOK])
    now = outlook.now
    jobs = _started(rows, wish, token)
    if len(jobs) >= limit:
        work.tell("work", arranged.released)  # it is the turn of others, too
    if outlook.rated or own_rates:
        started = yield from rates.record(jobs, own_rates, token, now)
        taken = Counter(job.queue for job in jobs)
        full = {name: rate for name, rate in own_rates.items() if taken[name] >= windows[name].room}
        filled = (yield from rates.windows(full)).values()
        waits += [max(window.opens_at - now, 0) for window in filled if window.opens_at is not None]
        if outlook.rated:
            yield from lanes.look_again(work, arranged, started)
            [row] = yield from ask("claim.look", now, queues, [0 for _ in queues])
            outlook = msgspec.structs.replace(Outlook(*row), skipped=outlook.skipped)
    wait = outlook.wait()
    return Claims(jobs, min(waits if wait is None else [*waits, wait], default=None))


def claimed(row: Row, queue: str, token: bytes) -> Claimed:
    """Read a row of a job that was started, as the fragment `claim.claimed` has its columns."""
    id = JobId(str(row[0]))
    chain = row[15]
    return Claimed(
        Lease(id, token),
        queue,
        row[1],
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[8],
        row[9],
        row[10],
        ChainId(id if chain is None else str(chain)),
        row[16],
        row[11],
        row[14],
        row[17],
    )


def _let_in(work: Work, queues: Sequence[str], outlook: Outlook, waits: list[int]) -> Steps[lanes.Arranged]:
    """Let jobs wait whose time or turn has come; `waits` says when to come again for what is left."""
    now = outlook.now
    if outlook.overdue and (yield from ending.expire_overdue(work, PROMOTE_LIMIT, now)) >= PROMOTE_LIMIT:
        waits.append(0)  # one of them may be in somebody's way
    if outlook.unresolved and (yield from ending.recheck(work, PROMOTE_LIMIT, now)):
        waits.append(LOCKED_PAUSE)
    if any(due is not None and due <= now for due in (outlook.due, outlook.due_in_lane)):
        [(more, more_in_lanes)] = yield from ask("claim.promote", now, queues)
        if more or more_in_lanes:
            waits.append(0)
        if more_in_lanes:
            return lanes.Arranged()  # one of them might be the oldest of its lane
    if not outlook.pending:
        return lanes.Arranged()
    arranged = yield from lanes.arrange(work, queues, now)
    if arranged.more:
        waits.append(0)
    return arranged


def _enter(queues: Sequence[str], outlook: Outlook) -> Steps[dict[str, QueueLimits]]:
    """The limits of those queues that have any, whose rows are ours from now on."""
    if outlook.limited:
        yield from ask("claim.be_patient", QUEUE_PATIENCE)
    rows = yield from ask("claim.enter", sorted(queues))
    return {row[0]: limits_of(*row[1:]) for row in rows}


def _windows(work: Work, own_rates: Mapping[str, Rate]) -> Steps[dict[str, rates.Window]]:
    """How queues stand that have rates of their own."""
    if not own_rates:
        return {}
    yield from rates.tidy(work, {(name, OWN_RATE): rate for name, rate in own_rates.items()})
    return (yield from rates.windows(own_rates))


def _rooms(
    limits: Mapping[str, QueueLimits | None], windows: Mapping[str, rates.Window], limit: int
) -> Steps[dict[str, int]]:
    """How many jobs may start in each queue."""
    rooms = dict.fromkeys(limits, limit)
    narrow = {
        name: of.concurrency for name, of in limits.items() if of is not None and of.concurrency is not None
    }
    if narrow:
        for name, running in (yield from ask("claim.running", list(narrow))):
            rooms[name] = min(rooms[name], max(narrow[name] - running, 0))
    for name, window in windows.items():
        rooms[name] = min(rooms[name], window.room)
    return rooms


def head(rows: Sequence[Row]) -> Row:
    """The row of `claim.start` that is no job."""
    return next(row for row in rows if row[0] is None)


def _started(rows: Sequence[Row], wish: Ask, token: bytes) -> list[Claimed]:
    """The jobs in rows of `claim.start`."""
    return _in_order([row for row in rows if row[0] is not None], wish, token)


def _in_order(rows: list[Row], wish: Ask, token: bytes) -> list[Claimed]:
    """Jobs by queue as asked for, then priority, due time and acceptance."""
    rows.sort(key=_by_time)
    rows.sort(key=_by_priority, reverse=True)
    if len(wish.queues) > 1:
        places = {queue: place for place, queue in enumerate(reversed(wish.queues))}
        rows.sort(key=lambda row: places.get(row[_QUEUE], 0), reverse=True)
    return [claimed(row, row[_QUEUE], token) for row in rows]
