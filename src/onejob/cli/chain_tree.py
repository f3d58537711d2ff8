"""A chain and what its jobs wait for, gathered as a tree: bounded in depth and number, each chain unfolded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from onejob.core.job import ChainId, Job, JobId, State
from onejob.store import Blocker, JobStore

GONE: Final = "gone"
"""The state of a chain that is no longer on record."""
DEEPEST: Final = 50
MOST: Final = 500
"""Blockers altogether, unless more are asked for."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a chain is looked at; None is no bound."""

    limit: int | None = 10
    """Jobs of the chain, and blockers of each job."""
    depth: int = 3
    """How often blockers of blockers are unfolded."""
    most: int | None = MOST


ALL: Final = Bounds(None, DEEPEST, None)


@dataclass(slots=True)
class Node:
    """A job of the chain, or a blocker, which stands there by the last of its jobs."""

    chain: ChainId
    job: Job | None
    """None if it is no longer on record."""
    blockers: list[Node] = field(default_factory=list["Node"])
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Its other blockers, by state."""
    folded: int = 0
    """How many blockers it has that were not looked at: they lie too deep, or there are too many in all."""
    repeated: bool = False
    """The same chain is here once more: its blockers are shown there."""

    @property
    def state(self) -> str:
        """How it stands."""
        return GONE if self.job is None else str(self.job.state)

    @property
    def reason(self) -> str:
        """The first line of why it stands so, if there is more to say than its state."""
        if self.job is None or self.job.error is None or self.job.state is State.COMPLETED:
            return ""
        line = self.job.error.split("\n", 1)[0]
        return "" if line == self.job.state else line


@dataclass(frozen=True, slots=True)
class Gap:
    """Jobs in the middle of a chain that are left out, by state."""

    left_out: Counter[str]


@dataclass(frozen=True, slots=True)
class Tree:
    """A chain at a moment."""

    asked: JobId
    now: int
    last: Job
    length: int
    """How many of its jobs are on record."""
    steps: list[Node | Gap]
    waiting: list[JobId]
    """Jobs that wait for this chain, as far as the limit goes."""

    @property
    def jobs(self) -> list[Node]:
        """Those of its jobs that are shown."""
        return [step for step in self.steps if isinstance(step, Node)]


async def gather(store: JobStore, id: JobId, bounds: Bounds) -> Tree | None:
    """Look at the chain that a job belongs to; None if there is no such job."""
    jobs = await store.chain(id)
    if not jobs:
        return None
    steps = _steps(jobs, id, bounds.limit)
    tree = Tree(
        asked=id,
        now=await store.time(),
        last=jobs[-1],
        length=len(jobs),
        steps=steps,
        waiting=await store.blocked(jobs[0].chain, bounds.limit or 2**31),
    )
    await _unfold(store, tree.jobs, bounds)
    return tree


def waited(job: Job, now: int) -> int:
    """Milliseconds from its acceptance to its latest start; to its end or to now, if it did not start."""
    until = job.started if _ended_with_a_run(job) else job.ended
    return max(0, (now if until is None else until) - job.accepted)


def run_time(job: Job, now: int) -> int | None:
    """Milliseconds of its latest run, so far if it goes on; None if it is not known to have run."""
    if job.started is None or not _ended_with_a_run(job):
        return None
    return max(0, (now if job.ended is None else job.ended) - job.started)


async def _unfold(store: JobStore, level: list[Node], bounds: Bounds) -> None:
    """Level by level, so that what is near is there where not all of it can be."""
    room = bounds.most
    unfolded: set[ChainId] = set()
    for _ in range(bounds.depth):
        below: list[Node] = []
        for node in level:
            if node.job is None or not node.job.blockers or room == 0:
                continue
            found = await store.blockers(node.job.id)
            shown = _worth_showing(found, _smaller(bounds.limit, room))
            node.left_out = _counted(found) - _counted(shown)
            node.blockers = [await _node(store, one, unfolded) for one in shown]
            room = None if room is None else room - len(shown)
            below += [blocker for blocker in node.blockers if not blocker.repeated]
        _fold(level)
        level = below
    _fold(level)


def _fold(level: Iterable[Node]) -> None:
    """Count what was not looked at."""
    for node in level:
        if node.job is not None and not node.blockers and not node.left_out:
            node.folded = node.job.blockers


async def _node(store: JobStore, found: Blocker, unfolded: set[ChainId]) -> Node:
    job = await store.last(JobId(found.chain))
    again = found.chain in unfolded and job is not None and job.blockers > 0
    unfolded.add(found.chain)
    return Node(found.chain, job, repeated=again)


def _steps(jobs: Sequence[Job], asked: JobId, limit: int | None) -> list[Node | Gap]:
    """The first job, the one that was asked for, and the last ones; what lies between in numbers."""
    if limit is None or len(jobs) <= limit:
        return [Node(job.chain, job) for job in jobs]
    must = {0, *(place for place, job in enumerate(jobs) if job.id == asked)}
    shown = sorted(must | set(range(len(jobs) - max(limit - len(must), 1), len(jobs))))
    steps: list[Node | Gap] = []
    for before, place in zip([-1, *shown], shown, strict=False):
        if place - before > 1:
            steps.append(Gap(Counter(str(job.state) for job in jobs[before + 1 : place])))
        steps.append(Node(jobs[place].chain, jobs[place]))
    return steps


def _worth_showing(found: Sequence[Blocker], limit: int | None) -> list[Blocker]:
    """Those who tell most, in their order: who failed, then who is still waited for."""
    places = sorted(range(len(found)), key=lambda place: (_rank(found[place].state), place))
    return [found[place] for place in sorted(places[:limit])]


def _rank(state: State | None) -> int:
    match state:
        case State.FAILED | State.REVOKED:
            return 0
        case State.RUNNING:
            return 1
        case State.BLOCKED | State.DELAYED | State.PARKED | State.WAITING:
            return 2
        case None:
            return 3
        case State.COMPLETED:
            return 4
        case _:
            assert_never(state)


def _counted(blockers: Iterable[Blocker]) -> Counter[str]:
    return Counter(GONE if one.state is None else str(one.state) for one in blockers)


def _smaller(limit: int | None, room: int | None) -> int | None:
    bounds = [bound for bound in (limit, room) if bound is not None]
    return min(bounds, default=None)


def _ended_with_a_run(job: Job) -> bool:
    """True if it runs, or ended with a run; what was revoked while it waited for another run did not."""
    if job.started is None or job.state.queued:
        return False
    return job.state is not State.REVOKED or job.aborting
