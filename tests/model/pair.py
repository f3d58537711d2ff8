"""A store and the model side by side: each step is done to both, and everything observable compared.

Expired jobs may be ended, and records of keys that hold nothing dropped, whenever the store sees fit; the
model is told, and says whether that was allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from policies import LEASE, new_job

from onejob.core.job import Job, JobId, Lease, WorkerId
from onejob.core.lifecycle import Lost, Move, Settlement, after_attempt
from onejob.store import Amendment, Ask, Beat, Expired, JobFilter, JobStore, Key, Retention
from onejob.testing.clock import FakeClock
from onejob.testing.model import Model
from onejob.testing.records import LIVE, QUEUED, Call, ModelJob, ModelKey, Reply
from onejob.testing.verdicts import FOREVER

T = TypeVar("T")
ALL = 10_000


class Pair:
    """What a test drives."""

    def __init__(self, open_store: Callable[[FakeClock], JobStore], loop: asyncio.AbstractEventLoop) -> None:
        self.clock = FakeClock()
        self.model = Model()
        self.leases: list[tuple[Lease, int]] = []
        """Every lease ever issued, as the store and as the model know it."""
        self.sent: list[Call] = []
        """Every call ever made."""
        self.scans: list[Expired] = []
        self._open = open_store
        self._loop = loop
        self.store = open_store(self.clock)
        self._dropped: list[JobStore] = []

    def enqueue(self, calls: list[Call]) -> list[Reply]:
        """Make calls, or repeat them."""
        answers = self._do(self.store.enqueue([new_job(call) for call in calls]))
        replies = [self.model.enqueue(call, self.clock.now) for call in calls]
        self.sent += [call for call in calls if call not in self.sent]
        same("number of answers", len(answers), len(calls))
        for answer, reply in zip(answers, replies, strict=True):
            same("answer", (answer.id, answer.outcome.value), (reply.id, reply.outcome))
            if reply.differs is not None:
                same("payload_differs", answer.payload_differs, reply.differs)
            if reply.holder is not None and answer.holder is not None:
                same("holder", answer.holder, reply.holder)
        self.check()
        return replies

    def claim(self, worker: str, queues: Iterable[str], limit: int) -> list[int]:
        """Start jobs; returns the indices of their leases."""
        return self.settle([], ask=(worker, tuple(queues), limit))

    def settle(
        self, ends: list[tuple[int, Move, int]], ask: tuple[str, tuple[str, ...], int] | None = None
    ) -> list[int]:
        """End attempts by the index of any lease ever issued, and claim; returns the new leases' indices."""
        if ask is not None and ask[0] not in self.model.workers:
            self.beat(ask[0])
        done = [Settlement(self.leases[index][0], move, delay) for index, move, delay in ends]
        wish = None if ask is None else Ask(WorkerId(ask[0]), ask[1], ask[2])
        if not done and wish is not None:
            settled, claims = [], self._do(self.store.claim(wish))
        else:
            reply = self._do(self.store.settle(done, wish))
            settled, claims = [one.value for one in reply.settled], reply.claims
        expected = [
            self.model.settle(
                self.leases[index][0].id, self.leases[index][1], move.value, delay, self.clock.now
            )
            for index, move, delay in ends
        ]
        same("settled", settled, expected)
        self._adopt_sweeps(self._jobs())
        started: list[str] = []
        if ask is not None:
            started = self.model.claim(ask[0], ask[1], ask[2], self.clock.now)
            same("next_due", claims.next_due, self.model.next_due(ask[1], self.clock.now))
        same("claimed", [job.id for job in claims.jobs], started)
        first = len(self.leases)
        for job in claims.jobs:
            mine = self.model.jobs[job.id]
            same("claimed payload", job.payload, mine.payload)
            same(
                "claimed counts",
                (job.attempt, job.failures, job.crashes, job.misses),
                (mine.attempt, mine.failures, mine.crashes, mine.misses),
            )
            self.leases.append((job.lease, mine.lease))
        self.check()
        return list(range(first, len(self.leases)))

    def beat(self, worker: str, lease: int = LEASE) -> None:
        """A sign of life."""
        pulse = self._do(self.store.beat(Beat(WorkerId(worker), lease)))
        held, aborting = self.model.beat(worker, lease, self.clock.now)
        same("held", set(pulse.held), set(held))
        same("aborting", set(pulse.aborting), aborting)
        for id, token in pulse.held.items():
            assert (Lease(id, token), held[id]) in self.leases, f"{id} is held by a lease never issued for it"

    def leave(self, worker: str) -> None:
        """A worker stops in good order."""
        self._do(self.store.leave(WorkerId(worker)))
        self.model.leave(worker)
        self.check()

    def scan(self) -> None:
        """The first half of a rescue: see who was left behind."""
        found = self._do(self.store.expired(ALL))
        same("expired", {one.job.id for one in found}, self.model.expired(self.clock.now))
        self.scans += found

    def apply_scan(self, index: int) -> None:
        """The second half, whenever it comes."""
        found = self.scans[index]
        done = after_attempt(found.job, Lost(found.worker))
        reply = self._do(self.store.settle([done]))
        mine = next(mine for lease, mine in self.leases if lease == done.lease)
        expected = self.model.settle(done.lease.id, mine, done.move.value, 0, self.clock.now)
        same("rescued", [one.value for one in reply.settled], [expected])
        self.check()

    def amend(self, id: str, amendment: Amendment) -> str:
        """An operator's word."""
        [amended] = self._do(self.store.amend([JobId(id)], amendment))
        now = self.clock.now
        match amendment:
            case Amendment.REVOKE:
                expected = self.model.revoke(id, now)
            case Amendment.DELETE:
                expected = self.model.delete(id, now)
            case _:
                without = amendment is Amendment.RETRY_WITHOUT_KEY
                expected = self.model.retry(id, now, without_key=without)
        same(f"{amendment.value} {id}", amended.value, expected)
        self.check()
        return expected

    def release(self, key: bytes) -> None:
        """An operator frees a key."""
        same("released", self._do(self.store.release(key)), self.model.release(key))
        self.check()

    def prune(self, retention: int) -> None:
        """Sweep everything that may go; nothing that should have gone stays."""
        self._do(self.store.prune(Retention(retention, retention, retention), ALL))
        self.model.prune(dict.fromkeys(("completed", "failed", "revoked"), retention), self.clock.now)
        self.check()
        for record in self.model.keys.values():
            assert self.model.holds(record, self.clock.now) or record.follows, f"{record} was not swept"

    def reopen(self) -> None:
        """Crash: the store is dropped without a word, and opened anew."""
        self._dropped.append(self.store)
        self.store = self._open(self.clock)
        self.check()

    def close(self) -> None:
        """Let go of all stores."""
        for store in (*self._dropped, self.store):
            self._do(store.close())

    def drain(self) -> None:
        """Run everything to its end, and look for what is left behind."""
        for _ in range(len(self.model.jobs) + 2):
            self.beat("drain", LEASE)
            started = self.claim("drain", ("q", "r"), ALL)
            self.settle([(index, Move.COMPLETE, 0) for index in started])
            live = [job for job in self.model.jobs.values() if job.state in LIVE]
            if not live:
                break
            latest = max((job.due for job in live if job.state == "delayed"), default=0)
            self.clock.now = max(self.clock.now + LEASE, latest)
            self.scan()
            for index in range(len(self.scans)):
                self.apply_scan(index)
            self.scans.clear()
        assert not any(job.state in LIVE for job in self.model.jobs.values()), "something never ends"
        self.clock.now += 1_000_000
        self.prune(0)
        assert not self._jobs(), "jobs are left over"
        for key in self._keys().values():
            until = key.holder.completed_until if key.holder.state == "completed" else key.holder.failed_until
            assert until == FOREVER, f"key {key} is left over"

    def check(self) -> None:
        """Compare everything observable."""
        jobs, keys = self._jobs(), self._keys()
        self._adopt_sweeps(jobs)
        same("jobs", set(jobs), set(self.model.jobs))
        for id, mine in self.model.jobs.items():
            same(f"job {id}", self._seen_job(jobs[id]), self._model_job(mine))
        for key in [key for key in self.model.keys if key not in keys]:
            self.model.drop(key, self.clock.now)
        same("keys", set(keys), set(self.model.keys))
        for digest, record in self.model.keys.items():
            same(f"key {digest.hex()}", self._seen_key(keys[digest]), self._model_key(record))

    def check_leases(self) -> None:
        """The same workers live, and every running job is held by the lease that the model knows."""
        alive = {worker.id for worker in self._do(self.store.workers()) if worker.alive}
        same(
            "workers",
            alive,
            {worker for worker, until in self.model.workers.items() if until > self.clock.now},
        )
        far = self.clock.now + ALL * LEASE
        for found in self._do(self.store.expired(ALL, now=far)):
            mine = self.model.jobs[found.job.id].lease
            assert (found.job.lease, mine) in self.leases, f"{found.job.id} runs under another lease"

    def _adopt_sweeps(self, jobs: dict[str, Job]) -> None:
        for id, job in list(self.model.jobs.items()):
            seen = jobs.get(id)
            if seen is not None and seen.state == "revoked" and job.state in QUEUED:
                self.model.sweep(id, self.clock.now)

    def _seen_job(self, job: Job) -> tuple[Any, ...]:
        state = job.state.value
        if state == "delayed" and job.due <= self.clock.now:
            state = "waiting"
        return (
            state,
            job.payload,
            job.priority,
            job.accepted,
            job.due if state in QUEUED else None,
            job.updated if state in QUEUED else None,
            job.expires,
            (job.attempt, job.failures, job.crashes, job.misses),
            job.items,
            job.follows,
            job.aborting,
            job.ended,
            job.worker if state == "running" else None,
        )

    def _model_job(self, job: ModelJob) -> tuple[Any, ...]:
        state = job.state
        if state == "delayed" and job.due <= self.clock.now:
            state = "waiting"
        return (
            state,
            job.payload,
            job.call.priority,
            job.accepted,
            job.due if state in QUEUED else None,
            job.updated if state in QUEUED else None,
            job.expires,
            (job.attempt, job.failures, job.crashes, job.misses),
            job.items,
            job.follows,
            job.aborting,
            job.ended,
            job.worker if state == "running" else None,
        )

    def _seen_key(self, key: Key) -> tuple[Any, ...]:
        held = key.holder
        now = self.clock.now
        standing = held.at(now)
        return (
            held.id,
            held.since,
            held.completed_until,
            held.failed_until,
            held.follows,
            None if standing is None else "queued" if standing.state.queued else standing.state.value,
        )

    def _model_key(self, record: ModelKey) -> tuple[Any, ...]:
        state = self.model.state_of(record, self.clock.now)
        standing = None
        if self.model.holds(record, self.clock.now):
            standing = "queued" if state in QUEUED else state
        return (
            record.holder,
            record.since,
            record.completed_until,
            record.failed_until,
            record.follows,
            standing,
        )

    def _jobs(self) -> dict[str, Job]:
        return {job.id: job for job in self._do(self.store.jobs(JobFilter(), ALL)).jobs}

    def _keys(self) -> dict[bytes, Key]:
        return {key.digest: key for key in self._do(self.store.keys(limit=ALL))}

    def _do(self, awaitable: Awaitable[T]) -> T:
        return self._loop.run_until_complete(_await(awaitable))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


def same(what: str, seen: object, expected: object) -> None:
    """The store's word against the model's."""
    assert seen == expected, f"{what}: the store says {seen!r}, the model {expected!r}"
