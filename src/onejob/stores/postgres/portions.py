"""A batch in which a key is busy is tried in portions, so that the one job that must wait holds up no others.

No I/O. Portions are wide at first, single at last; newcomers of one key stay in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from onejob.core.errors import KeyBusy
from onejob.core.job import NewJob
from onejob.core.judge import Answer

PATIENCE: Final = 8.0
"""Seconds that a job waits for its key."""
WAYS: Final = 32
"""Into how many portions a busy one is divided: a thousand jobs are single ones after two tries."""


class Portion(msgspec.Struct, frozen=True):
    """Newcomers that are tried together, with their places in the batch."""

    places: tuple[int, ...]
    jobs: list[NewJob]


class Portions:
    """What is left of a batch whose first try as a whole found a key busy."""

    def __init__(
        self,
        jobs: Sequence[NewJob],
        *,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._deadline = clock() + patience
        self._answers: list[Answer | None] = [None] * len(jobs)
        self._waiting = deque(_divided(Portion(tuple(range(len(jobs))), list(jobs))))
        self._error: KeyBusy | None = None

    def next(self) -> Portion | None:
        """The next to try; None when there is none left. One that is busy comes again after all others."""
        return self._waiting.popleft() if self._waiting else None

    def done(self, portion: Portion, answers: Sequence[Answer]) -> None:
        """A portion was accepted."""
        for place, answer in zip(portion.places, answers, strict=True):
            self._answers[place] = answer

    def busy(self, portion: Portion, error: KeyBusy) -> None:
        """A portion was not accepted; once the patience is at its end, one of a single key is given up."""
        parts = _divided(portion)
        if len(parts) > 1 or self._clock() < self._deadline:
            self._waiting.extend(parts)
        else:
            self._error = error

    def answers(self) -> list[Answer]:
        """One for each newcomer, in order; raises `KeyBusy` if some key was given up."""
        if self._error is not None:
            raise self._error
        return [answer for answer in self._answers if answer is not None]


def _divided(portion: Portion) -> list[Portion]:
    """Smaller portions; newcomers of one key, or that wait for each other, stay together."""
    groups = _groups(portion.jobs)
    bundles: list[list[int]] = [[] for _ in range(min(WAYS, len(groups)))]
    for number, members in enumerate(groups):
        bundles[number * len(bundles) // len(groups)] += members
    return [
        Portion(
            tuple(portion.places[member] for member in sorted(bundle)),
            [portion.jobs[member] for member in sorted(bundle)],
        )
        for bundle in bundles
    ]


def _groups(jobs: Sequence[NewJob]) -> list[list[int]]:
    """Numbers of jobs that must be tried together, in order."""
    groups: dict[object, list[int]] = {}
    group_of: dict[str, object] = {}
    for number, job in enumerate(jobs):
        group = number if job.plan is None else job.plan.digest
        groups.setdefault(group, []).append(number)
        for blocker in job.blockers:
            former = group_of.get(blocker, group)
            if former != group:
                moved = groups.pop(former)
                groups[group] += moved
                group_of.update((jobs[member].id, group) for member in moved)
        group_of[job.id] = group
    return list(groups.values())
