"""What no order of events may bring about, judged by the store's own words alone: the model has no say here.

No lane runs more jobs than it may, no window of a rate holds more starts than it may, and in a lane of one nobody
overtakes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from onejob.core.job import Claimed, Job, NewJob, State
from onejob.core.lane import LanePlan, QueueLimits, Rate

Place = tuple[str, str | None]
"""A queue and the key of a lane of it, or the queue itself."""


class Watch:
    """An observer of everything that is put, set and started."""

    def __init__(self) -> None:
        self._plans: dict[Place, list[LanePlan]] = defaultdict(list)
        """The limits that stood in each lane since it was last empty, the newest last."""
        self._rates: dict[Place, Rate | None] = {}
        self._starts: dict[Place, list[int]] = defaultdict(list)
        """The starts since a rate stands."""
        self._limits: dict[str, QueueLimits] = {}
        self._most: dict[str, int] = {}
        """How many jobs of a queue may run: its limit, or as many as ran when it was set."""
        self._running: Counter[str] = Counter()
        self._live: list[Job] = []

    def created(self, job: NewJob) -> None:
        """A job was made, and brought the limits of its lane."""
        if job.lane is not None:
            self._plans[job.queue, job.lane.key].append(job.lane)
            self._set_rate((job.queue, job.lane.key), job.lane.rate)

    def revived(self, queue: str, plan: LanePlan) -> None:
        """A job stands in its lane again, and these are the limits."""
        self._plans[queue, plan.key].append(plan)
        self._set_rate((queue, plan.key), plan.rate)

    def limited(self, queue: str, limits: QueueLimits) -> None:
        """A queue's limits were set."""
        self._limits[queue] = limits
        self._most.pop(queue, None)
        if limits.concurrency is not None:
            self._most[queue] = max(limits.concurrency, self._running[queue])
        self._set_rate((queue, None), limits.rate)

    def claimed(self, jobs: Iterable[Claimed], now: int) -> None:
        """Jobs were started."""
        for job in jobs:
            assert not self._limits.get(job.queue, QueueLimits()).paused, f"{job.id} left a paused queue"
            self._starts[job.queue, None].append(now)
            if job.lane is not None:
                self._starts[job.queue, job.lane].append(now)
        for place, rate in self._rates.items():
            if rate is not None:
                recent = [at for at in self._starts[place] if at > now - rate.window]
                assert len(recent) <= rate.max, f"{place} started {recent} within {rate.window} at {rate}"

    def in_order(self, jobs: Iterable[Claimed], now: int) -> None:
        """Of what was there at the last look and is ready, nobody older stayed behind in a lane of one."""
        for job in jobs:
            plans = self._plans.get((job.queue, job.lane), [])
            if plans and all(plan.ordered and not plan.hold for plan in plans):
                mine = [one for one in self._live if (one.queue, one.lane) == (job.queue, job.lane)]
                line = [one.id for one in mine if _is_ready(one, now)]
                assert job.id not in line[1:], f"{job.id} has overtaken {line[0]}"

    def look(self, jobs: Mapping[str, Job]) -> None:
        """What stands on record, the oldest job last."""
        live = self._live = [job for job in reversed(jobs.values()) if not job.state.ended]
        running = Counter((job.queue, job.lane) for job in live if job.state is State.RUNNING)
        self._running = Counter(job.queue for job in live if job.state is State.RUNNING)
        for queue, most in self._most.items():
            assert self._running[queue] <= most, (
                f"{self._running[queue]} jobs of queue {queue} run, not {most}"
            )
        used = {(job.queue, job.lane) for job in live}
        for place, plans in self._plans.items():
            if place not in used:
                del plans[:-1]
            most = max(plan.concurrency for plan in plans)
            assert running[place] <= most, f"{running[place]} jobs of lane {place} run, not {most}"

    def _set_rate(self, place: Place, rate: Rate | None) -> None:
        if self._rates.get(place) != rate:
            self._starts[place].clear()
        self._rates[place] = rate


def _is_ready(job: Job, now: int) -> bool:
    if job.state not in (State.PARKED, State.WAITING, State.DELAYED) or job.due > now:
        return False
    return job.expires is None or job.expires > now
