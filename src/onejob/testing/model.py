"""The reference model: one small method per store operation, over the plain dicts of a `Ledger`; see also `amending`.

It says what DESIGN.md says and shares no code with `onejob.core` or any store. Drive it beside a store with
the same calls and compare. Three things a store may do at its leisure, and so are told to the model as they are
seen: ending a job whose time has passed (`sweep`), dropping a key's record that holds nothing (`drop`), and
forgetting the limits of a lane that nobody uses (`forget_lane`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from onejob.testing.amending import Amending
from onejob.testing.lineage import Unheard
from onejob.testing.records import Call, Grave, LaneLimits, LaneSight, ModelJob, ModelKey, Reply
from onejob.testing.traffic import is_past
from onejob.testing.verdicts import Policy

REMEMBERED_CALLS: Final = 8


@dataclass
class Model(Amending):
    """A store, as far as anybody can tell."""

    def enqueue(self, call: Call, now: int) -> Reply:
        """Accept one newcomer; raises `Unheard`, and changes nothing, if it is to wait for what is not on record."""
        if call.id in self.jobs:
            return Reply(id=call.id, outcome="created")
        record = None if call.key is None or call.policy is None else self.keys.get(call.key)
        if record is None or call.policy is None:
            return self.create(call, now)
        if record.holder == call.id:
            return Reply(id=call.id, outcome="created")
        for id, reply in self.calls_of(record):
            if id == call.id:
                return reply
        self.chains_of(call.blockers)
        if record.holder in self.jobs and is_past(self.jobs[record.holder], now):
            self.sweep(record.holder, now)
        if not self.holds(record, now):
            return self.create(call, now)
        own = self.state_of(record, now) == "running" and record.holder == call.caller
        verdict = call.policy.verdict(self.column(record, now), now - record.since, own=own)
        return self._apply(call, call.policy, record, verdict, now)

    def claim(self, worker: str, queues: Iterable[str], limit: int, now: int, *, stock: int = 0) -> list[str]:
        """Start what may start, by queue, priority, due time and acceptance; beyond the limit, plain jobs only."""
        self.workers.setdefault(worker, now)
        started: list[str] = []
        for queue in queues:
            plain = not self.traffic.is_limited(queue)
            while len(started) < limit + stock and (free := self.startable(queue, now)):
                job = self.jobs[free[0]]
                plain = plain and job.lane is None and job.crashes == 0 < job.call.max_crashes
                if len(started) >= limit and not plain:
                    break
                self._start(job, worker, now)
                started.append(free[0])
        return started

    def startable(self, queue: str, now: int) -> list[str]:
        """The jobs that may start now, in order."""
        return [job.call.id for job in self.traffic.startable(self.jobs.values(), queue, now)]

    def next_start(self, queues: Iterable[str], now: int) -> int | None:
        """How long until time alone lets a job of these queues start that may not start now."""
        starts = [self.traffic.next_start(self.jobs.values(), queue, now) for queue in queues]
        return min((start - now for start in starts if start is not None), default=None)

    def next_due(self, queues: Iterable[str], now: int) -> int | None:
        """How long until a job of these queues becomes due by itself, whether it may start then or not."""
        waits = [
            job.due - now for job in self.jobs.values() if job.state == "delayed" and job.call.queue in queues
        ]
        return min((wait for wait in waits if wait > 0), default=None)

    def settle(
        self,
        id: str,
        lease: int,
        move: str,
        delay: int,
        now: int,
        *,
        grave: Grave | None = None,
        then: Call | None = None,
    ) -> str:
        """End an attempt, if the lease is still the job's; one that completes may let its chain go on with `then`."""
        job = self.jobs.get(id)
        if job is None or job.state != "running" or job.lease != lease:
            return "lost"
        if move in ("lose", "perish") and not self._silent(job.worker, now):
            return "lost"
        if move != "complete" or job.aborting:
            then = None
        if then is not None and self._is_refused(then, job.chain):
            return "refused"
        job.failures += move in ("retry", "fail")
        job.crashes += move in ("lose", "perish", "crash", "succumb")
        job.misses += move == "miss"
        job.attempt -= move in ("hand_back", "miss")
        job.worker = None
        if job.aborting:
            self.end(id, "revoked", now)
            return "revoked"
        match move:
            case "complete":
                return self._complete(job, then, now)
            case "fail" | "perish" | "succumb":
                self.end(id, "failed", now)
                if grave is not None:
                    self.bury(job, grave, now)
            case "hand_back" | "lose":
                job.state = "waiting"
                self.traffic.stop(job)
            case _:
                self.set_due(job, now + delay, now)
                self.traffic.stop(job)
        return "done"

    def beat(self, worker: str, lease: int, now: int) -> tuple[dict[str, int], set[str]]:
        """Prolong a worker's leases; say which it holds and which of them should stop."""
        self.workers[worker] = now + lease
        held = {
            id: job.lease for id, job in self.jobs.items() if job.state == "running" and job.worker == worker
        }
        return held, {id for id in held if self.jobs[id].aborting}

    def leave(self, worker: str) -> None:
        """Forget a worker."""
        self.workers.pop(worker, None)

    def expired(self, now: int) -> set[str]:
        """Running jobs whose worker has stopped beating."""
        return {
            id for id, job in self.jobs.items() if job.state == "running" and self._silent(job.worker, now)
        }

    def release(self, key: bytes) -> str | None:
        """Make a key vacant."""
        record = self.keys.pop(key, None)
        return None if record is None else record.holder

    def prune(self, retention: Mapping[str, int], now: int) -> None:
        """End what has expired, and remove ended chains past their retention that nobody has yet to read."""
        while past := [id for id, job in self.jobs.items() if is_past(job, now)]:
            self.sweep(past[0], now)
        for chain in {job.chain for job in self.jobs.values()}:
            last = self.last(chain)
            assert last is not None, f"{chain} has lost its first job"
            if last.ended is None or self.is_awaited(chain):
                continue
            if last.ended + retention[last.state] <= now:
                self.remove(chain)

    def sweep(self, id: str, now: int) -> None:
        """End a job whose time has passed before it could start."""
        assert is_past(self.jobs[id], now), f"{id} was ended before its time had passed"
        self.end(id, "revoked", now)

    def drop(self, key: bytes, now: int) -> None:
        """Drop a record that holds nothing any more."""
        record = self.keys[key]
        assert not self.holds(record, now), f"the key of {record.holder} was dropped while it holds"
        assert record.follows is None, f"the key of {record.holder} was dropped while {record.follows} lives"
        del self.keys[key]

    def forget_lane(self, id: str, limits: LaneLimits) -> None:
        """A job was revived into a lane that nobody used, and whose limits are now those that it once brought."""
        job = self.jobs[id]
        assert job.lane is not None
        assert limits == job.call.lane, f"{limits} are neither what stood in the lane nor what {id} brought"
        self.traffic.lanes[job.lane].change(limits)

    def uses_lane(self, key: tuple[str, str], now: int) -> bool:
        """True if a lane has live jobs, or starts that its rate counts."""
        return self.traffic.in_use(key, self.jobs.values(), now)

    def lanes(self, now: int) -> list[LaneSight]:
        """Lanes in use, by queue and key."""
        jobs = self.jobs.values()
        used = [key for key in sorted(self.traffic.lanes) if self.uses_lane(key, now)]
        return [self.traffic.sight(key, jobs, now) for key in used]

    def ahead(self, id: str, now: int) -> int:
        """How many have their turn in its lane before a ready job."""
        key = self.jobs[id].lane
        assert key is not None
        return [job.call.id for job in self.traffic.line(key, self.jobs.values(), now)].index(id)

    def _start(self, job: ModelJob, worker: str, now: int) -> None:
        self.leases += 1
        job.state, job.lease, job.worker = "running", self.leases, worker
        job.attempt += 1
        self.traffic.start(job, now)

    def _is_refused(self, then: Call, chain: str) -> bool:
        """True if what a chain would go on with waits for what is not on record, or for this very chain."""
        try:
            return self.goes_round(chain, self.chains_of(then.blockers))
        except Unheard:
            return True

    def _complete(self, job: ModelJob, then: Call | None, now: int) -> str:
        if then is None:
            self.end(job.call.id, "completed", now)
            return "done"
        found = self.jobs.get(then.id)
        goes_on = self.go_on(job, then, now)
        self.end(job.call.id, "completed", now, goes_on=goes_on)
        same = found is None or (found.call.task, found.payload) == (then.task, then.payload)
        return "done" if same else "diverged"

    def _apply(self, call: Call, policy: Policy, record: ModelKey, verdict: str, now: int) -> Reply:
        differs = call.payload != record.told
        match verdict:
            case "keep" if policy.strict and differs:
                return Reply(id=record.holder, outcome="rejected", holder=record.holder, differs=True)
            case "keep":
                return Reply(id=record.holder, outcome="kept", holder=record.holder, differs=differs)
            case "raise":
                return Reply(id=record.holder, outcome="rejected", holder=record.holder, differs=differs)
            case "update" | "postpone" | "collect":
                return self._change(call, policy, record, verdict, now)
            case "follow":
                return self.create(call, now, follows=record.holder)
            case "later":
                assert policy.within is not None
                own = self.state_of(record, now) == "running" and record.holder == call.caller
                waits = policy.verdict(self.column(record, now), policy.within, own=own) == "follow"
                end = record.since + policy.within
                return self.create(call, now, not_before=end, follows=record.holder if waits else None)
            case "cancel":
                running = self.state_of(record, now) == "running"
                reply = self.create(call, now, follows=record.holder if running else None)
                self.revoke(record.holder, now)
                return reply
            case _:
                return self.create(call, now)

    def _change(self, call: Call, policy: Policy, record: ModelKey, verdict: str, now: int) -> Reply:
        holder, differs = self.jobs[record.holder], call.payload != record.told
        if verdict == "collect" and self._overflows(holder, call, policy):
            if holder.attempt == 0:
                self.set_due(holder, min(holder.due, now), now)
            return self.create(call, now, follows=record.holder)
        outcome = "updated"
        if verdict == "collect":
            outcome = "collected"
            self._append(holder, call, policy, now)
        else:
            holder.payload = holder.told = record.told = call.payload
            holder.items = call.items
        if verdict == "postpone" and self._postpone(holder, policy, now):
            outcome = "postponed"
        holder.updated = now
        reply = Reply(id=record.holder, outcome=outcome, holder=record.holder)
        holder.calls = (*holder.calls, (call.id, reply))[-REMEMBERED_CALLS:]
        return replace(reply, differs=None if verdict == "collect" else differs)

    def _overflows(self, holder: ModelJob, call: Call, policy: Policy) -> bool:
        return holder.items + call.items > policy.max_items or holder.items >= policy.max_items

    def _append(self, holder: ModelJob, call: Call, policy: Policy, now: int) -> None:
        holder.payload += b"\n" + call.payload
        holder.items += call.items
        if holder.items >= policy.max_items and holder.attempt == 0:
            self.set_due(holder, min(holder.due, now), now)

    def _postpone(self, holder: ModelJob, policy: Policy, now: int) -> bool:
        latest = None if policy.max_wait is None else holder.accepted + policy.max_wait
        if latest is not None and now >= latest:
            return False
        due = now + policy.wait if latest is None else min(now + policy.wait, latest)
        self.set_due(holder, max(due, holder.due) if holder.attempt else due, now)
        return True

    def _silent(self, worker: str | None, now: int) -> bool:
        return worker is None or self.workers.get(worker, 0) <= now
