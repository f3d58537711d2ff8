"""The reference model: keys, jobs and leases over plain dicts, one small method per store operation.

It says what DESIGN.md says and shares no code with `onejob.core` or any store. Drive it beside a store with
the same calls and compare. Two things a store may do at its leisure, and so are told to the model as they are
seen: ending a job whose time has passed (`sweep`), and dropping a key's record that holds nothing (`drop`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from onejob.testing.records import LIVE, QUEUED, Call, ModelJob, ModelKey, Reply
from onejob.testing.verdicts import Policy

REMEMBERED_CALLS: Final = 8


@dataclass
class Model:
    """Everything a store holds."""

    jobs: dict[str, ModelJob] = field(default_factory=dict[str, ModelJob])
    keys: dict[bytes, ModelKey] = field(default_factory=dict[bytes, ModelKey])
    workers: dict[str, int] = field(default_factory=dict[str, int])
    """Until when each worker's leases last."""
    numbers: int = 0
    leases: int = 0

    def enqueue(self, call: Call, now: int) -> Reply:
        """Accept one newcomer."""
        if call.id in self.jobs:
            return Reply(id=call.id, outcome="created")
        record = None if call.key is None or call.policy is None else self.keys.get(call.key)
        if record is None or call.policy is None:
            return self._create(call, now)
        if record.holder == call.id:
            return Reply(id=call.id, outcome="created")
        for id, reply in self._calls(record):
            if id == call.id:
                return reply
        state = self.state_of(record, now)
        if not self.holds(record, now):
            return self._create(call, now)
        own = state == "running" and record.holder == call.caller
        column = "queued" if state in QUEUED else "failed" if state == "revoked" else state
        verdict = call.policy.verdict(column, now - record.since, own=own)
        return self._apply(call, call.policy, record, verdict, now)

    def claim(self, worker: str, queues: Iterable[str], limit: int, now: int) -> list[str]:
        """Start what is due, by queue, priority, due time and acceptance."""
        self.workers.setdefault(worker, now)
        started: list[str] = []
        for queue in queues:
            ready = [id for id, job in self.jobs.items() if job.call.queue == queue and self._ready(job, now)]
            ready.sort(key=lambda id: self._place(self.jobs[id]))
            for id in ready[: limit - len(started)]:
                job = self.jobs[id]
                self.leases += 1
                job.state, job.lease, job.worker = "running", self.leases, worker
                job.attempt += 1
                started.append(id)
        return started

    def next_due(self, queues: Iterable[str], now: int) -> int | None:
        """How long until a job of these queues becomes due by itself."""
        waits = [
            job.due - now for job in self.jobs.values() if job.state == "delayed" and job.call.queue in queues
        ]
        return min((wait for wait in waits if wait > 0), default=None)

    def settle(self, id: str, lease: int, move: str, delay: int, now: int) -> str:
        """End an attempt, if the lease is still the job's."""
        job = self.jobs.get(id)
        if job is None or job.state != "running" or job.lease != lease:
            return "lost"
        if move in ("lose", "perish") and not self._silent(job.worker, now):
            return "lost"
        job.failures += move in ("retry", "fail")
        job.crashes += move in ("lose", "perish", "crash", "succumb")
        job.misses += move == "miss"
        job.attempt -= move in ("hand_back", "miss")
        job.worker = None
        if job.aborting:
            self._end(id, "revoked", now)
            return "revoked"
        match move:
            case "complete":
                self._end(id, "completed", now)
            case "fail" | "perish" | "succumb":
                self._end(id, "failed", now)
            case "hand_back" | "lose":
                job.state = "waiting"
            case _:
                self._set_due(job, now + delay, now)
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

    def revoke(self, id: str, now: int) -> str:
        """End a queued job, flag a running one."""
        job = self.jobs.get(id)
        if job is None:
            return "not_found"
        if job.state == "running":
            job.aborting, job.updated = True, now
            return "flagged"
        if job.state not in LIVE:
            return "finished"
        self._end(id, "revoked", now)
        return "revoked"

    def retry(self, id: str, now: int, *, without_key: bool) -> str:
        """Revive an ended job, with its key if it may have it."""
        job = self.jobs.get(id)
        if job is None:
            return "not_found"
        if job.state in LIVE:
            return "running"
        if job.state == "completed":
            return "finished"
        if not without_key and not self._may_have_key(job, now):
            return "kept"
        if self._may_have_key(job, now):
            self._take_back(job)
        else:
            job.call = replace(job.call, key=None, policy=None)
        job.failures = job.crashes = job.misses = 0
        job.aborting, job.ended, job.expires, job.due, job.updated = False, None, None, now, now
        job.state = "blocked" if job.follows else "waiting"
        return "retried"

    def delete(self, id: str, now: int) -> str:
        """Remove a job that is not running; a live one counts as revoked."""
        job = self.jobs.get(id)
        if job is None:
            return "not_found"
        if job.state == "running":
            return "running"
        if job.state in LIVE:
            self._end(id, "revoked", now)
        self._remove(id)
        return "deleted"

    def release(self, key: bytes) -> str | None:
        """Make a key vacant."""
        record = self.keys.pop(key, None)
        return None if record is None else record.holder

    def prune(self, retention: Mapping[str, int], now: int) -> None:
        """End what has expired, and remove ended jobs past their retention."""
        for id in [id for id, job in self.jobs.items() if self.is_past(job, now)]:
            self.sweep(id, now)
        for id, job in list(self.jobs.items()):
            if job.ended is not None and job.ended + retention[job.state] <= now:
                self._remove(id)

    def sweep(self, id: str, now: int) -> None:
        """End a job whose time has passed before it could start."""
        assert self.is_past(self.jobs[id], now), f"{id} was ended before its time had passed"
        self._end(id, "revoked", now)

    def drop(self, key: bytes, now: int) -> None:
        """Drop a record that holds nothing any more."""
        record = self.keys[key]
        assert not self.holds(record, now), f"the key of {record.holder} was dropped while it holds"
        assert record.follows is None, f"the key of {record.holder} was dropped while {record.follows} lives"
        del self.keys[key]

    def state_of(self, record: ModelKey, now: int) -> str:
        """How a key's holder truly stands."""
        job = self.jobs.get(record.holder)
        if job is None:
            assert record.end is not None
            return record.end
        return "revoked" if self.is_past(job, now) else job.state

    def holds(self, record: ModelKey, now: int) -> bool:
        """True while a key's holder lives or is remembered."""
        return self.state_of(record, now) in LIVE or self._remembered(record, now)

    def is_past(self, job: ModelJob, now: int) -> bool:
        """True for a queued job that may not start any more."""
        return job.state in QUEUED and job.expires is not None and job.expires <= now

    def _apply(self, call: Call, policy: Policy, record: ModelKey, verdict: str, now: int) -> Reply:
        holder = self.jobs.get(record.holder)
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
                return self._create(call, now, follows=record.holder)
            case "later":
                assert policy.within is not None
                return self._create(call, now, not_before=record.since + policy.within)
            case "cancel" if holder is not None and holder.state == "running":
                holder.aborting, holder.updated = True, now
                return self._create(call, now, follows=record.holder)
            case "cancel":
                reply = self._create(call, now)
                self._end(record.holder, "revoked", now)
                return reply
            case _:
                return self._create(call, now)

    def _change(self, call: Call, policy: Policy, record: ModelKey, verdict: str, now: int) -> Reply:
        holder, differs = self.jobs[record.holder], call.payload != record.told
        if verdict == "collect" and self._overflows(holder, call, policy):
            if holder.attempt == 0:
                self._set_due(holder, min(holder.due, now), now)
            return self._create(call, now, follows=record.holder)
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
            self._set_due(holder, min(holder.due, now), now)

    def _postpone(self, holder: ModelJob, policy: Policy, now: int) -> bool:
        latest = None if policy.max_wait is None else holder.accepted + policy.max_wait
        if latest is not None and now >= latest:
            return False
        due = now + policy.wait if latest is None else min(now + policy.wait, latest)
        self._set_due(holder, max(due, holder.due) if holder.attempt else due, now)
        return True

    def _create(
        self, call: Call, now: int, *, follows: str | None = None, not_before: int | None = None
    ) -> Reply:
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
        self.numbers += 1
        self.jobs[call.id] = ModelJob(
            call=call,
            state="blocked" if follows else "delayed" if due > now else "waiting",
            payload=call.payload,
            told=call.payload,
            accepted=now,
            updated=now,
            due=due,
            since=since,
            number=self.numbers,
            expires=None if call.expires is None else now + call.expires,
            items=call.items,
            follows=follows,
            calls=() if former is None else self._calls(former),
        )
        if call.key is not None and policy is not None:
            self._take(call.key, self.jobs[call.id])
        return Reply(id=call.id, outcome="created", holder=None)

    def _calls(self, record: ModelKey) -> tuple[tuple[str, Reply], ...]:
        holder = self.jobs.get(record.holder)
        return () if holder is None else holder.calls

    def _take(self, key: bytes, job: ModelJob) -> None:
        policy = job.call.policy
        assert policy is not None
        self.keys[key] = ModelKey(
            holder=job.call.id,
            since=job.since,
            completed_until=policy.remembered_until("completed", job.since),
            failed_until=policy.remembered_until("failed", job.since),
            told=job.told,
            follows=job.follows,
        )

    def _take_back(self, job: ModelJob) -> None:
        if job.call.key is None or job.call.policy is None:
            return
        record = self.keys.get(job.call.key)
        job.follows = None if record is None else record.follows
        if record is None or record.holder != job.call.id:
            self._take(job.call.key, job)

    def _may_have_key(self, job: ModelJob, now: int) -> bool:
        record = None if job.call.key is None else self.keys.get(job.call.key)
        if record is None or job.call.policy is None or record.holder == job.call.id:
            return True
        if not self.holds(record, now):
            return True
        state = self.state_of(record, now)
        column = "queued" if state in QUEUED else "failed" if state == "revoked" else state
        policy = replace(job.call.policy, force=False)
        return policy.verdict(column, now - record.since, own=False) == "run"

    def _end(self, id: str, state: str, now: int) -> None:
        job = self.jobs[id]
        job.state, job.ended, job.worker = state, now, None
        heir, job.follows = job.follows, None
        for other in self.jobs.values():
            if other.follows == id and other.state in LIVE:
                other.follows = heir
                if heir is None:
                    self._set_due(other, other.due, now)
        for record in self.keys.values():
            if record.follows == id:
                record.follows = heir

    def _remove(self, id: str) -> None:
        job = self.jobs.pop(id)
        for record in self.keys.values():
            if record.holder == id:
                record.end = job.state

    def _set_due(self, job: ModelJob, due: int, now: int) -> None:
        job.due = due
        job.state = "blocked" if job.follows else "delayed" if due > now else "waiting"

    def _remembered(self, record: ModelKey, now: int) -> bool:
        state = self.state_of(record, now)
        until = record.completed_until if state == "completed" else record.failed_until
        return state not in LIVE and until is not None and until > now

    def _ready(self, job: ModelJob, now: int) -> bool:
        return job.state in ("waiting", "delayed") and job.due <= now and not self.is_past(job, now)

    def _place(self, job: ModelJob) -> tuple[int, int, int]:
        return (-job.call.priority, job.due, job.number)

    def _silent(self, worker: str | None, now: int) -> bool:
        return worker is None or self.workers.get(worker, 0) <= now
