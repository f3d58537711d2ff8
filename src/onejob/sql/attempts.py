"""What the end of an attempt writes into its job's row, for every SQL store."""

from __future__ import annotations

from onejob.core.job import ENDED, State
from onejob.core.lifecycle import ENDING, MOVES, Move, Settlement

IN_PLACE = frozenset({Move.HAND_BACK, Move.LOSE})
"""Moves after which a job keeps its due time, and so its place in line."""


def state_after(one: Settlement, lane: str | None) -> State:
    """Where a job stands after an attempt that nobody asked to stop."""
    if (ended := ENDING.get(one.move)) is not None:
        return ended
    if one.delay > 0:
        return State.DELAYED
    return State.WAITING if lane is None else State.PARKED


def changes(one: Settlement, state: State, now: int) -> tuple[object, ...]:
    """State, end, due time, what is added to attempt, failures, crashes and misses; result and error."""
    rule = MOVES[one.move]
    ends = state in ENDED
    return (
        state,
        now if ends else None,
        None if ends or one.move in IN_PLACE else now + one.delay,
        rule.attempt,
        rule.failures,
        rule.crashes,
        rule.misses,
        one.result if state is State.COMPLETED else None,
        one.error,
    )
