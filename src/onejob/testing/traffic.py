"""Lanes and limits of the reference model: who may start now, in which order, and when time alone lets more start.

It says what the contract says of `claim` and `set_queue`, by looking at all jobs each time: nothing is kept but
the limits and the starts that a rate counts. A rate counts the starts made since there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from onejob.testing.records import QUEUED, LaneLimits, LaneSight, ModelJob, Pace, QueueSettings


@dataclass
class Gate:
    """One rate, and the instants of the starts that it counts."""

    pace: Pace | None = None
    starts: list[int] = field(default_factory=list[int])

    def change(self, pace: Pace | None) -> None:
        """Let another rate stand; without one, nothing is counted."""
        self.pace = pace
        if pace is None:
            self.starts.clear()

    def count(self, now: int) -> None:
        """A start."""
        if self.pace is not None:
            self.starts.append(now)

    def inside(self, now: int) -> list[int]:
        """The starts that still count, the oldest first."""
        return [] if self.pace is None else sorted(at for at in self.starts if at > now - self.pace.per)

    def room(self, now: int) -> int | None:
        """How many may start now; None is any number."""
        return None if self.pace is None else max(self.pace.max - len(self.inside(now)), 0)

    def opens_at(self, now: int) -> int | None:
        """When one that may not start now may; None if it is no matter of time."""
        if self.pace is None or self.room(now):
            return None
        inside = self.inside(now)
        return inside[len(inside) - self.pace.max] + self.pace.per

    def edges(self) -> set[int]:
        """The instants at which a start ceases to count."""
        return set() if self.pace is None else {at + self.pace.per for at in self.starts}


@dataclass
class Lane:
    """A lane's limits, as its newest job brought them."""

    limits: LaneLimits
    gate: Gate = field(default_factory=Gate)

    def change(self, limits: LaneLimits) -> None:
        """Let other limits stand."""
        self.limits = limits
        self.gate.change(limits.pace)

    def place(self, job: ModelJob) -> tuple[int, ...]:
        """Whose turn comes first: those that kept a slot, then by acceptance at 1, else as in the queue."""
        order = (job.number,) if self.limits.concurrency == 1 else place(job)
        return (0 if job.slot else 1, *order)


@dataclass
class Queue:
    """A queue's limits."""

    settings: QueueSettings = field(default_factory=QueueSettings)
    gate: Gate = field(default_factory=Gate)


def place(job: ModelJob) -> tuple[int, int, int]:
    """Its place in its queue: by priority, due time and acceptance."""
    return (-job.call.priority, job.due, job.number)


def is_past(job: ModelJob, now: int) -> bool:
    """True for a queued job that may not start any more."""
    return job.state in QUEUED and job.expires is not None and job.expires <= now


def is_ready(job: ModelJob, now: int) -> bool:
    """True for a job that could start but for its lane and its queue."""
    return job.state in ("waiting", "delayed") and job.due <= now and not is_past(job, now)


@dataclass
class Traffic:
    """All lanes and queues with limits."""

    lanes: dict[tuple[str, str], Lane] = field(default_factory=dict[tuple[str, str], Lane])
    queues: dict[str, Queue] = field(default_factory=dict[str, Queue])

    def join(self, job: ModelJob) -> LaneLimits | None:
        """A new job brings its lane's limits; returns those that stood before, if they were others."""
        if job.lane is None or job.call.lane is None:
            return None
        lane = self.lanes.get(job.lane)
        if lane is None:
            lane = self.lanes[job.lane] = Lane(job.call.lane)
        former = lane.limits
        lane.change(job.call.lane)
        return None if former == job.call.lane else former

    def set_queue(
        self, name: str, concurrency: int | None, pace: Pace | None, *, unpace: bool, paused: bool | None
    ) -> QueueSettings:
        """Change what is set for a queue: None leaves a thing as it is, 0 and `unpace` take a limit away."""
        queue = self.queues.setdefault(name, Queue())
        settings = queue.settings
        if concurrency is not None:
            settings = replace(settings, concurrency=concurrency or None)
        if unpace or pace is not None:
            settings = replace(settings, pace=None if unpace else pace)
        if paused is not None:
            settings = replace(settings, paused=paused)
        queue.settings = settings
        queue.gate.change(settings.pace)
        return settings

    def is_limited(self, queue: str) -> bool:
        """True if no more than so many of a queue's jobs may run, or start."""
        settings = self.queues.get(queue, Queue()).settings
        return settings.concurrency is not None or settings.pace is not None

    def start(self, job: ModelJob, now: int) -> None:
        """A job starts: it takes a slot, and every rate over it counts that."""
        self.queues.setdefault(job.call.queue, Queue()).gate.count(now)
        if job.lane is not None:
            job.slot = True
            self.lanes[job.lane].gate.count(now)

    def stop(self, job: ModelJob) -> None:
        """An attempt ends, and the job does not."""
        job.slot = job.lane is not None and self.lanes[job.lane].limits.hold

    def startable(self, jobs: Iterable[ModelJob], queue: str, now: int) -> list[ModelJob]:
        """Jobs of a queue that may start now, in order; of those, no more than one at a time without asking again."""
        mine = [job for job in jobs if job.call.queue == queue]
        limits = self.queues.get(queue, Queue())
        running = sum(job.state == "running" for job in mine)
        most = limits.settings.concurrency
        if limits.settings.paused or (most is not None and running >= most) or limits.gate.room(now) == 0:
            return []
        free = [job for job in mine if job.lane is None and is_ready(job, now)]
        for key in sorted({job.lane for job in mine if job.lane is not None}):
            free += self._turn(key, mine, now)
        return sorted(free, key=place)

    def next_start(self, jobs: Iterable[ModelJob], queue: str, now: int) -> int | None:
        """When time alone, by a due date or a rate's window, lets a job start that may not start now."""
        mine = [job for job in jobs if job.call.queue == queue]
        edges = {job.due for job in mine if job.state == "delayed"}
        edges |= self.edges(queue)
        now_free = {job.call.id for job in self.startable(mine, queue, now)}
        for edge in sorted(edge for edge in edges if edge > now):
            # Who makes way by expiring until then is found out by whoever comes next: that is no due date.
            passed = {job.lane for job in mine if is_past(job, edge)} - {None}
            free = [job for job in self.startable(mine, queue, edge) if job.lane not in passed]
            if {job.call.id for job in free} - now_free:
                return edge
        return None

    def edges(self, queue: str) -> set[int]:
        """The instants at which some rate over this queue lets go of a start."""
        edges = self.queues.get(queue, Queue()).gate.edges()
        for (name, _), lane in self.lanes.items():
            if name == queue:
                edges |= lane.gate.edges()
        return edges

    def in_use(self, key: tuple[str, str], jobs: Iterable[ModelJob], now: int) -> bool:
        """True if a lane has a live job, or a start that its rate counts."""
        lane = self.lanes.get(key)
        if lane is None:
            return False
        return bool(lane.gate.inside(now)) or any(
            job.lane == key and (job.state in QUEUED or job.state == "running") for job in jobs
        )

    def sight(self, key: tuple[str, str], jobs: Iterable[ModelJob], now: int) -> LaneSight:
        """A lane as an observer sees it."""
        lane, mine = self.lanes[key], [job for job in jobs if job.lane == key]
        ready = self.line(key, mine, now)
        turn = self._turn(key, mine, now)
        rate_says = lane.gate.opens_at(now)
        openings: set[int | None] = {rate_says if ready else None}
        if ready and (turn or not (ready[0].slot or self._free(lane, mine, now))):
            openings = {None, *lane.gate.edges()}
        return LaneSight(
            queue=key[0],
            limits=lane.limits,
            holders=frozenset(job.call.id for job in mine if job.slot),
            ready=len(ready),
            head=ready[0].call.id if ready else None,
            openings=frozenset(openings),
        )

    def line(self, key: tuple[str, str], jobs: Iterable[ModelJob], now: int) -> list[ModelJob]:
        """The ready jobs of a lane, in the order of their turns."""
        ready = [job for job in jobs if job.lane == key and is_ready(job, now)]
        return sorted(ready, key=self.lanes[key].place)

    def _turn(self, key: tuple[str, str], jobs: Iterable[ModelJob], now: int) -> list[ModelJob]:
        """The jobs of a lane that its slots and its rate let start now."""
        lane, mine = self.lanes[key], [job for job in jobs if job.lane == key]
        line = self.line(key, mine, now)
        room, free = lane.gate.room(now), self._free(lane, mine, now)
        turn: list[ModelJob] = []
        for job in line:
            if room is not None and len(turn) >= room:
                break
            if job.slot:
                turn.append(job)
            elif free:
                turn.append(job)
                free -= 1
        return turn

    def _free(self, lane: Lane, mine: Iterable[ModelJob], now: int) -> int:
        taken = sum(job.slot and not is_past(job, now) for job in mine)
        return max(lane.limits.concurrency - taken, 0)
