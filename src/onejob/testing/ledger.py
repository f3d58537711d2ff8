"""What stands on record in the reference model, and what the beginning and the end of a job entail.

The operations are in `amending` and `model`. Here is what they share: whom a key belongs to, who is released or
stranded when a chain ends, and the dead letter of a job that failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from onejob.testing.lineage import Lineage
from onejob.testing.records import LIVE, QUEUED, Call, Grave, ModelJob, ModelKey, Reply
from onejob.testing.traffic import Traffic, is_past


@dataclass
class Ledger(Lineage):
    """Everything a store holds."""

    keys: dict[bytes, ModelKey] = field(default_factory=dict[bytes, ModelKey])
    workers: dict[str, int] = field(default_factory=dict[str, int])
    """Until when each worker's leases last."""
    traffic: Traffic = field(default_factory=Traffic)
    numbers: int = 0
    leases: int = 0
    letter_id: Callable[[str], str] = "dead letter of {}".format
    """The id of a job's dead letter."""

    def state_of(self, record: ModelKey, now: int) -> str:
        """How a key's holder truly stands; one that is gone, as it ended."""
        state = self.standing(record.holder)
        if state is None:
            assert record.end is not None
            return record.end
        return "revoked" if is_past(self.jobs[record.holder], now) else state

    def holds(self, record: ModelKey, now: int) -> bool:
        """True while a key's holder lives or is remembered."""
        state = self.state_of(record, now)
        until = record.completed_until if state == "completed" else record.failed_until
        return state in LIVE or (until is not None and until > now)

    def column(self, record: ModelKey, now: int) -> str:
        """The column of the table that the holder stands in."""
        state = self.state_of(record, now)
        return "queued" if state in QUEUED else "failed" if state == "revoked" else state

    def calls_of(self, record: ModelKey) -> tuple[tuple[str, Reply], ...]:
        """The calls that a key's holder remembers."""
        holder = self.jobs.get(record.holder)
        return () if holder is None else holder.calls

    def create(
        self, call: Call, now: int, *, follows: str | None = None, not_before: int | None = None
    ) -> Reply:
        """A new job, which takes the key and brings the limits of its lane."""
        blockers = self.chains_of(call.blockers)
        policy, former = call.policy, None
        if call.key is not None and policy is not None:
            former = self.keys.get(call.key)
        due = now + call.delay
        if policy is not None and not (policy.preset == "collect" and call.items >= policy.max_items):
            due = max(due, now + policy.wait)
        since = now
        if not_before is not None:
            due = since = max(due, not_before)
        if follows is None and former is not None:
            follows = former.follows
        job = self._enter(call, now, due=due, since=since)
        job.expires = None if call.expires is None else now + call.expires
        job.items = call.items
        job.follows = follows
        job.calls = () if former is None else self.calls_of(former)
        job.blockers, job.awaits = blockers, self.living(blockers)
        self.set_due(job, due, now)
        if call.key is not None and policy is not None:
            self.take(call.key, job, follows)
        unused = job.lane is not None and not self.traffic.in_use(job.lane, self._others(job), now)
        former_lane = self.traffic.join(job)
        if self.is_stranded(job):
            self.strand(job, now)
        return Reply(id=call.id, outcome="created", former_lane=former_lane, lane_may_be_forgotten=unused)

    def go_on(self, job: ModelJob, call: Call, now: int) -> bool:
        """A chain's next job, unless one has its id already; False if the chain does not go on by that."""
        found = self.jobs.get(call.id)
        if found is not None:
            return found.chain == job.chain
        made = self._enter(call, now, due=now + call.delay, since=now)
        made.chain, made.index = job.chain, job.index + 1
        made.expires = None if call.expires is None else now + call.expires
        made.blockers = self.chains_of(call.blockers)
        made.awaits = self.living(made.blockers)
        self.set_due(made, made.due, now)
        self.traffic.join(made)
        if self.is_stranded(made):
            self.strand(made, now)
        return True

    def take(self, key: bytes, job: ModelJob, follows: str | None) -> None:
        """A key belongs to this job from now on."""
        policy = job.call.policy
        assert policy is not None
        self.keys[key] = ModelKey(
            holder=job.call.id,
            since=job.since,
            completed_until=policy.remembered_until("completed", job.since),
            failed_until=policy.remembered_until("failed", job.since),
            told=job.told,
            follows=follows,
        )

    def set_due(self, job: ModelJob, due: int, now: int) -> None:
        """A queued job is due then."""
        job.due = due
        job.state = "blocked" if job.follows or job.awaits else "delayed" if due > now else "waiting"

    def end(self, id: str, state: str, now: int, *, goes_on: bool = False) -> None:
        """A job ends: it frees its slot and, if its chain ends with it, those who follow or wait for that."""
        job = self.jobs[id]
        job.state, job.ended, job.worker, job.slot = state, now, None, False
        heir, job.follows, job.awaits = job.follows, None, set()
        if goes_on:
            return
        for other in self.jobs.values():
            if other.follows == job.chain and other.state in LIVE:
                other.follows = heir
                if heir is None:
                    self.set_due(other, other.due, now)
        for record in self.keys.values():
            if record.follows == job.chain:
                record.follows = heir
        self._let_go(job.chain, state, now)

    def strand(self, job: ModelJob, now: int) -> None:
        """A job fails, because a chain that it needs did not complete."""
        self.end(job.call.id, "failed", now)
        if job.call.dead_letter is not None:
            self.bury(job, Grave(job.call.dead_letter, self.letter_id(job.call.id)), now)

    def remove(self, id: str) -> None:
        """An ended chain goes, and leaves its end in its key."""
        chain = self.chain(id)
        for job in chain:
            del self.jobs[job.call.id]
        key = chain[0].call.key
        record = None if key is None else self.keys.get(key)
        if record is not None and record.holder == chain[0].call.id:
            record.end = chain[-1].state

    def bury(self, job: ModelJob, grave: Grave, now: int) -> None:
        """A job has failed: a copy of it waits elsewhere, without key, lane and dead letter."""
        if grave.id in self.jobs:
            return
        call = Call(
            id=grave.id,
            queue=grave.queue,
            task=job.call.task,
            payload=job.payload,
            priority=job.call.priority,
            max_crashes=job.call.max_crashes,
            schedule=job.call.schedule,
            slot=job.call.slot,
        )
        copy = self._enter(call, now, due=now, since=now)
        copy.items, copy.origin, copy.origin_queue = job.items, job.call.id, job.call.queue

    def exhume(self, letter: ModelJob, now: int) -> None:
        """An original that is gone is made again from its dead letter."""
        assert letter.origin is not None
        assert letter.origin_queue is not None
        call = replace(
            letter.call, id=letter.origin, queue=letter.origin_queue, dead_letter=letter.call.queue
        )
        made = self._enter(replace(call, payload=letter.payload), now, due=now, since=now)
        made.items = letter.items

    def _enter(self, call: Call, now: int, *, due: int, since: int) -> ModelJob:
        self.numbers += 1
        job = self.jobs[call.id] = ModelJob(
            call=call,
            state="waiting",
            payload=call.payload,
            told=call.payload,
            accepted=now,
            updated=now,
            due=due,
            since=since,
            number=self.numbers,
            chain=call.id,
            index=0,
            expires=None,
            items=0,
        )
        return job

    def _let_go(self, chain: str, state: str, now: int) -> None:
        for job in list(self.jobs.values()):
            if chain not in job.awaits:
                continue
            job.awaits.remove(chain)
            if state != "completed" and not job.call.runs_anyway:
                self.strand(job, now)
            elif not job.awaits and not job.follows:
                self.set_due(job, job.due, now)

    def _others(self, job: ModelJob) -> list[ModelJob]:
        return [other for other in self.jobs.values() if other is not job]
