"""What every soak is judged by, whichever store it was on: how much there was, what went wrong, and the rules that need no store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

Call = Mapping[str, Any]
"""What somebody who enqueued wrote down of an acknowledged call."""


@dataclass
class Result:
    """How much there was, and what went wrong, by its kind: `violations` is everything that must be nothing."""

    attempted: int = 0
    acknowledged: int = 0
    jobs: int = 0
    runs: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    overlaps: list[str] = field(default_factory=list[str])
    slots: list[str] = field(default_factory=list[str])
    order: list[str] = field(default_factory=list[str])
    stale: list[str] = field(default_factory=list[str])
    early: list[str] = field(default_factory=list[str])
    leaks: list[str] = field(default_factory=list[str])

    def violations(self) -> dict[str, list[str]]:
        """The first few of each kind."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: some[:5] for name, some in found.items() if isinstance(some, list) and some}

    def table(self) -> str:
        """All of it in numbers, line by line."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return "\n".join(
            f"  {name:<14}{len(value) if isinstance(value, list) else value:>9,}"
            for name, value in values.items()
        )


def shown(title: str, result: Result, **more: object) -> None:
    """For whoever looks with -s."""
    lines = [f"\n{title}", result.table(), *(f"  {name:<14}{value!s:>9}" for name, value in more.items())]
    print("\n".join(lines))  # noqa: T201 - the result of a soak is its table


def created_twice(calls: Iterable[Call]) -> Iterator[str]:
    """A job is made by one call."""
    created = Counter(call["id"] for call in calls if call["outcome"] == "created")
    yield from (f"{id} was created {count} times" for id, count in created.items() if count > 1)


def out_of_order(
    times: Mapping[str, tuple[float, float]], starts: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """Whoever was acknowledged before another was even called is first in their lane.

    `times` are when a job was called for and when that was acknowledged, `starts` all starts in lanes, as they came.
    """
    lanes: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for id, lane in starts:
        if id in times:
            lanes[lane].setdefault(id)  # of several starts, the first
    for lane, ids in lanes.items():
        earliest = (float("inf"), "")
        for id in reversed(ids):
            if earliest[0] < times[id][0]:
                yield f"{lane}: {id} before {earliest[1]}"
            earliest = min(earliest, (times[id][1], id))
