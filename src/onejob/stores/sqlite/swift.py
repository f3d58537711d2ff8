"""Attempts that this session has started and that completed, as most do: they end by one statement, unseen.

What their end entails is known from the claim, since it cannot change while they run. What can is a condition of the
statement; whoever does not meet it is looked at, and ends as all others do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

from onejob.core.job import Claimed, State
from onejob.core.lifecycle import Move, Settlement
from onejob.stores.sqlite.attempts import Start
from onejob.stores.sqlite.connect import LARGE, Row, array, numbers
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements

FEW = 3
"""Fewer jobs than this end as all others do."""
MAX_STARTS = 20_000
"""Starts that are remembered; those of jobs that others have ended would stay for ever."""


_Group = tuple[bytes, bool, bool, bool]
"""What completed jobs must share to end by one statement: their lease, and whether they lack a result, a key and a lane."""


def remember(session: Session, claims: Sequence[Claimed], rows: Sequence[Row]) -> None:
    """Keep what was read of jobs that were claimed."""
    starts = session.starts
    if len(starts) > MAX_STARTS:
        starts.clear()
    completed = State.COMPLETED
    for job, row in zip(claims, rows, strict=True):
        lease, lane = job.lease, job.lane
        if lane is None or lane.encode() == row[14]:  # a damaged one is looked at
            starts[lease.id] = Start(
                row[0], job.queue, row[18], completed, None, lane, row[15], False, row[13], lease.token
            )


def complete(session: Session, done: Sequence[Settlement], now: int) -> list[Start]:
    """End those attempts whose start is remembered and that completed; returns which have ended."""
    groups: defaultdict[_Group, list[Start]] = defaultdict(list)
    results: dict[bytes, bytes] = {}
    pop, complete = session.starts.pop, Move.COMPLETE
    for one in done:
        lease, result = one.lease, one.result
        start = pop(lease.id, None)  # what else is said of it comes too late, and is looked at
        if (
            start is None
            or one.move is not complete
            or one.then is not None
            or start.token != lease.token
            or (result is not None and len(result) > LARGE)
        ):
            continue
        if result is not None:
            results[start.id] = result
        groups[start.token, result is None, start.digest is None, start.lane is None].append(start)
    ended: list[Start] = []
    for group, starts in groups.items():
        if len(starts) >= FEW:
            ended += _complete(session, group, starts, results, now)
    return ended


def _complete(
    session: Session, group: _Group, starts: list[Start], results: Mapping[bytes, bytes], now: int
) -> list[Start]:
    sql = statements("settle")
    token, bare, keyless, laneless = group
    seqs = [start.seq for start in starts]
    mark = os.urandom(len(token))
    name = "complete" if bare else "complete_with_results"
    values = numbers(seqs) if bare else array([start.id + results[start.id] for start in starts])
    statement = sql[name if laneless else f"{name}_in_lanes"]
    if session.run(statement, (now, mark, token, keyless, values)) < len(starts):
        marked = {row[0] for row in session.execute(sql["marked"], (numbers(seqs), mark))}
        return [start for start in starts if start.seq in marked]
    return starts
