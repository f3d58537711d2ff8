"""Attempts that this session has started and that completed, as most do: they end by one statement, unseen.

What their end entails is known from the claim, since it cannot change while they run. What can is a condition of the
statement; whoever does not meet it is looked at, and ends as all others do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

from onejob.core.job import Claimed, State
from onejob.core.lifecycle import Move, Settlement
from onejob.stores.sqlite.connect import LARGE, Row, array, numbers
from onejob.stores.sqlite.ending import Ended
from onejob.stores.sqlite.session import Session, Start
from onejob.stores.sqlite.statements import statements

FEW = 3
"""Fewer jobs than this end as all others do."""
MAX_STARTS = 20_000
"""Starts that are remembered; those of jobs that others have ended would stay for ever."""


_Group = tuple[bytes, bool, bool, bool]
"""What completed jobs must share to end by one statement: their lease, and whether they have a result, a key and a lane."""


def remember(session: Session, claims: Sequence[Claimed], rows: Sequence[Row]) -> None:
    """Keep what was read of jobs that were claimed."""
    starts = session.starts
    if len(starts) > MAX_STARTS:
        starts.clear()
    for job, row in zip(claims, rows, strict=True):
        if job.lane is None or job.lane.encode() == row[14]:  # a damaged one is looked at
            lease = job.lease
            starts[lease.id] = Start(row[0], row[13], lease.token, job.queue, row[18], job.lane, row[15])


def complete(session: Session, done: Sequence[Settlement], now: int) -> list[Ended]:
    """End those attempts whose start is remembered and that completed; returns which have ended."""
    groups: defaultdict[_Group, list[tuple[Start, bytes | None]]] = defaultdict(list)
    for one in done:
        lease, result = one.lease, one.result
        start = session.starts.pop(lease.id, None)  # what else is said of it comes too late, and is looked at
        if (
            start is not None
            and one.move is Move.COMPLETE
            and one.then is None
            and start.token == lease.token
            and (result is None or len(result) <= LARGE)
        ):
            group = (start.token, result is not None, start.digest is not None, start.lane is not None)
            groups[group].append((start, result))
    ended: list[Ended] = []
    for group, completed in groups.items():
        if len(completed) >= FEW:
            ended += _complete(session, group, completed, now)
    return ended


def _complete(
    session: Session, group: _Group, completed: Sequence[tuple[Start, bytes | None]], now: int
) -> Iterator[Ended]:
    sql = statements("settle")
    token, with_results, keyed, laned = group
    starts = [start for start, _ in completed]
    seqs = [start.seq for start in starts]
    mark = os.urandom(len(token))
    name = "complete_with_results" if with_results else "complete"
    values = (
        array([start.id + (result or b"") for start, result in completed]) if with_results else numbers(seqs)
    )
    statement = sql[f"{name}_in_lanes" if laned else name]
    if session.run(statement, (now, mark, token, not keyed, values)) < len(starts):
        marked = {row[0] for row in session.execute(sql["marked"], (numbers(seqs), mark))}
        starts = [start for start in starts if start.seq in marked]
    for start in starts:
        yield Ended(start.id, start.queue, start.digest, State.COMPLETED, None, start.lane, start.chain)
