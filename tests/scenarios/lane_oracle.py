"""The oracle of the lane storm: triggers write down every change of a row, and a replay of that record judges it.

It knows nothing of how the store decides: slots, turns and windows are derived here anew, from the record alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from onejob.core.job import QUEUED, State

_JOB = "'job', new.seq, new.queue, new.lane, new.state, new.started, new.lease, new.due, new.priority, new.expires"
_OF_JOB = "what, job, queue, lane, state, started, lease, due, priority, expires"
_SET = "concurrency, rate_max, rate_per, flag"

RECORD = f"""
create table storm_record (
    number integer primary key, what text, job integer, queue text, lane text, state text, started integer,
    lease blob, due integer, priority integer, expires integer, concurrency integer, rate_max integer,
    rate_per integer, flag integer
);
create trigger storm_new_job after insert on onejob_job begin
    insert into storm_record ({_OF_JOB}) values ({_JOB});
end;
create trigger storm_job after update of state, due, priority, expires on onejob_job begin
    insert into storm_record ({_OF_JOB}) values ({_JOB});
end;
create trigger storm_new_lane after insert on onejob_lane begin
    insert into storm_record (what, queue, lane, {_SET})
    values ('lane', new.queue, new.key, new.concurrency, new.rate_max, new.rate_per, new.hold);
end;
create trigger storm_lane after update on onejob_lane begin
    insert into storm_record (what, queue, lane, {_SET})
    values ('lane', new.queue, new.key, new.concurrency, new.rate_max, new.rate_per, new.hold);
end;
create trigger storm_new_queue after insert on onejob_queue begin
    insert into storm_record (what, queue, {_SET})
    values ('queue', new.name, new.concurrency, new.rate_max, new.rate_per, new.paused);
end;
create trigger storm_queue after update on onejob_queue begin
    insert into storm_record (what, queue, {_SET})
    values ('queue', new.name, new.concurrency, new.rate_max, new.rate_per, new.paused);
end;
create trigger storm_free_queue after delete on onejob_queue begin
    insert into storm_record (what, queue, flag) values ('queue', old.name, 0);
end;
"""

READ = """
select
    what, job, queue, lane, state, started, lease, due, priority, expires, concurrency, rate_max, rate_per, flag
from storm_record order by number
"""


@dataclass
class Limits:
    """Limits of a lane or a queue, and the starts since there is a rate."""

    concurrency: int | None = None
    rate_max: int | None = None
    rate_per: int = 0
    flag: bool = False
    """Of a lane: slots are held over retries. Of a queue: it is paused."""
    starts: list[int] = field(default_factory=list)

    def change(self, concurrency: int | None, rate_max: int | None, rate_per: int | None, flag: int) -> None:
        self.concurrency, self.rate_max, self.rate_per, self.flag = (
            concurrency,
            rate_max,
            rate_per or 0,
            bool(flag),
        )
        if rate_max is None:
            self.starts.clear()

    def in_window(self, at: int) -> int:
        """How many starts a window that ends with this instant holds; no more of them are counted than needed."""
        most = (self.rate_max or 0) + 1
        return sum(1 for other in self.starts[-most:] if other > at - self.rate_per)


@dataclass
class Seen:
    """A job as the record shows it."""

    number: int
    queue: str
    lane: str | None
    state: State
    due: int
    priority: int
    expires: int | None
    slot: bool = False

    def ready(self, now: int) -> bool:
        if self.expires is not None and self.expires <= now:
            return False
        return self.state in (State.WAITING, State.PARKED) or (
            self.state is State.DELAYED and self.due <= now
        )

    def place(self, ordered: bool) -> tuple[int, ...]:
        return (self.number,) if ordered else (-self.priority, self.due, self.number)


@dataclass
class Claim:
    """The starts of one claim: it decides about all of them at once, so they are in no order among themselves."""

    lease: bytes
    now: int
    started: list[Seen] = field(default_factory=list)
    """Without those that had kept their slot, which pass nobody."""


@dataclass
class Oracle:
    """Replays a record; `violations` says what must never have happened."""

    jobs: dict[int, Seen] = field(default_factory=dict)
    lanes: defaultdict[tuple[str, str], Limits] = field(default_factory=lambda: defaultdict(Limits))
    queues: defaultdict[str, Limits] = field(default_factory=lambda: defaultdict(Limits))
    live: defaultdict[tuple[str, str], dict[int, Seen]] = field(default_factory=lambda: defaultdict(dict))
    running: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    claim: Claim | None = None
    violations: list[str] = field(default_factory=list)
    starts: int = 0
    contested: int = 0
    """Starts that left others of their lane behind, and so could have broken the order."""
    limited: int = 0
    """Starts while their queue had a limit."""
    filled: int = 0
    """Starts after which no other could have followed within the window of a rate."""

    def replay(self, record: Iterable[tuple[Any, ...]]) -> Oracle:
        for what, number, queue, lane, *rest in record:
            if what != "job":
                self._end_claim()
            match what:
                case "job":
                    self._job(number, queue, lane, *rest[:6])
                case "lane":
                    self.lanes[queue, lane].change(*rest[6:])
                case _:
                    self.queues[queue].change(*rest[6:])
        self._end_claim()
        return self

    def stuck(self) -> list[int]:
        """Jobs that have not ended."""
        return [job.number for job in self.jobs.values() if not job.state.ended]

    def _job(self, number: int, queue: str, lane: str | None, *rest: Any) -> None:
        state, started, lease, due, priority, expires = rest
        state = State(state)
        job = self.jobs.get(number)
        starts = job is not None and state is State.RUNNING and job.state is not State.RUNNING
        if self.claim is not None and not (starts and lease == self.claim.lease):
            self._end_claim()
        if job is None:
            job = self.jobs[number] = Seen(number, queue, lane, state, due, priority, expires)
        elif starts:
            self._start(job, lease, started)
        elif state is not State.RUNNING:
            kept = job.state in QUEUED or (lane is not None and self.lanes[queue, lane].flag)
            job.slot = job.slot and kept and not state.ended
            self.running[queue].discard(number)
        job.state, job.due, job.priority, job.expires = state, due, priority, expires
        if lane is not None:
            mates = self.live[queue, lane]
            if state.ended:
                mates.pop(number, None)
            else:
                mates[number] = job

    def _start(self, job: Seen, lease: bytes, now: int) -> None:
        self.starts += 1
        if self.claim is None:
            self.claim = Claim(lease, now)
        self._look_at_queue(job, now)
        if job.lane is not None:
            self._look_at_lane(job, job.lane, now)
            job.slot = True
        self.running[job.queue].add(job.number)

    def _look_at_queue(self, job: Seen, now: int) -> None:
        limits = self.queues[job.queue]
        self.limited += limits.concurrency is not None or limits.rate_max is not None
        if limits.flag:
            self._say(job, "started while its queue was paused")
        if limits.concurrency is not None and len(self.running[job.queue]) >= limits.concurrency:
            self._say(job, f"started over its queue's concurrency of {limits.concurrency}")
        self._look_at_rate(job, "queue", limits, now)

    def _look_at_lane(self, job: Seen, lane: str, now: int) -> None:
        limits = self.lanes[job.queue, lane]
        assert limits.concurrency is not None, "a lane's limits are on record before its first start"
        assert self.claim is not None
        self._look_at_rate(job, "lane", limits, now)
        if job.slot:
            return
        if sum(mate.slot for mate in self.live[job.queue, lane].values()) >= limits.concurrency:
            self._say(job, f"started over its lane's concurrency of {limits.concurrency}")
        self.claim.started.append(job)

    def _look_at_rate(self, job: Seen, whose: str, limits: Limits, now: int) -> None:
        if limits.rate_max is None:
            return
        limits.starts.append(now)
        started = limits.in_window(now)
        self.filled += started == limits.rate_max
        if started > limits.rate_max:
            self._say(job, f"started over its {whose}'s rate of {limits.rate_max} in {limits.rate_per} ms")

    def _end_claim(self) -> None:
        """Now that all starts of a claim are known: was anybody passed who had his turn before?"""
        claim, self.claim = self.claim, None
        for job in () if claim is None else claim.started:
            assert claim is not None
            assert job.lane is not None
            place = (job.queue, job.lane)
            ordered = self.lanes[place].concurrency == 1
            rivals = [mate for mate in self.live[place].values() if not mate.slot and mate.ready(claim.now)]
            self.contested += bool(rivals)
            first = min((rival.place(ordered) for rival in rivals), default=None)
            if first is not None and first < job.place(ordered):
                self._say(job, f"started before job {first[-1]}, which had its turn")

    def _say(self, job: Seen, what: str) -> None:
        self.violations.append(f"job {job.number} of lane {job.lane} {what}")
