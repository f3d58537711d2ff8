"""A store and the model side by side: each step is done to both, and everything observable compared.

Expired jobs may be ended, records of keys that hold nothing dropped, and lanes that nobody uses forgotten, whenever
the store sees fit; the model is told, and says whether that was allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TypeVar

import pytest
from chain_watch import ChainWatch
from msgspec.structs import asdict
from policies import LEASE, SERVED, grave_of, letter_id, limits_of, new_job, pace_of, settings_of
from sights import EVERYTHING as ALL
from sights import Sight, compare, compare_answer, look, same, unseen
from watch import Watch

from onejob.core.chain import continuation_id
from onejob.core.dead_letter import dead_letter_of
from onejob.core.errors import UnknownBlocker
from onejob.core.job import ChainId, Claimed, Job, JobId, Lease, WorkerId
from onejob.core.lane import QueueChange
from onejob.core.lifecycle import Lost, Move, Settlement, after_attempt
from onejob.store import Amendment, Ask, Beat, Claims, Expired, JobFilter, JobStore, Retention
from onejob.testing.clock import FakeClock
from onejob.testing.lineage import Unheard
from onejob.testing.model import Model
from onejob.testing.records import LIVE, QUEUED, Call, Grave, QueueSettings, Reply
from onejob.testing.traffic import is_past, is_ready
from onejob.testing.verdicts import FOREVER

T = TypeVar("T")


class Pair:
    """What a test drives."""

    def __init__(self, open_store: Callable[[FakeClock], JobStore], loop: asyncio.AbstractEventLoop) -> None:
        self.clock = FakeClock()
        self.model = Model(letter_id=letter_id)
        self.leases: list[tuple[Claimed, int]] = []
        """Every start, with the lease as the store and as the model know it."""
        self.sent: list[Call] = []
        """Every call ever made."""
        self.scans: list[Expired] = []
        self.watch = Watch()
        self.chains = ChainWatch()
        self._known: set[str] = set()
        """The jobs on record at the last look."""
        self.next_due: int | None = None
        """What the last claim said."""
        self._open = open_store
        self._loop = loop
        self.store = open_store(self.clock)
        self._dropped: list[JobStore] = []

    def enqueue(self, calls: list[Call]) -> list[Reply]:
        """Make calls, or repeat them; none of them, if one is to wait for what is not on record."""
        jobs = [new_job(call) for call in calls]
        if self._is_unheard(calls):
            with pytest.raises(UnknownBlocker, match="not on record"):
                self._do(self.store.enqueue(jobs))
            self.check()
            return []
        answers = self._do(self.store.enqueue(jobs))
        same("number of answers", len(answers), len(calls))
        replies: list[Reply] = []
        for call, job, answer in zip(calls, jobs, answers, strict=True):
            known = call.id in self.model.jobs
            reply = self.model.enqueue(call, self.clock.now)
            compare_answer(answer, reply)
            if call.id in self.model.jobs and not known:
                self.watch.created(job)
            replies.append(reply)
        self._known |= {call.id for call in calls}
        self.sent += [call for call in calls if call not in self.sent]
        self.check()
        return replies

    def claim(self, worker: str, queues: Iterable[str], limit: int, *, stock: int = 0) -> list[int]:
        """Start jobs; returns the indices of their leases."""
        return self.settle([], ask=(worker, tuple(queues), limit), stock=stock)

    def settle(
        self,
        ends: list[tuple[int, Move, int]],
        ask: tuple[str, tuple[str, ...], int] | None = None,
        *,
        stock: int = 0,
        then: Mapping[int, Call] | None = None,
    ) -> list[int]:
        """End attempts by the index of any lease ever issued, and claim; returns the new leases' indices.

        `then` says with what the chain of some goes on, by their place in `ends`.
        """
        if ask is not None and ask[0] not in self.model.workers:
            self.beat(ask[0])
        goes_on = [
            None if then is None else self._next(end[0], then.get(place)) for place, end in enumerate(ends)
        ]
        done = [
            self._settlement(self.leases[index][0], move, delay, call)
            for (index, move, delay), call in zip(ends, goes_on, strict=True)
        ]
        wish = None if ask is None else Ask(WorkerId(ask[0]), ask[1], ask[2], stock)
        if not done and wish is not None:
            settled, claims = [], self._do(self.store.claim(wish))
            self.watch.in_order(claims.jobs, self.clock.now)
        else:
            reply = self._do(self.store.settle(done, wish))
            settled, claims = [one.value for one in reply.settled], reply.claims
        known = set(self.model.jobs)
        expected = [
            self.model.settle(
                self.leases[index][0].id,
                self.leases[index][1],
                move.value,
                delay,
                self.clock.now,
                grave=self._grave(self.leases[index][0]),
                then=call,
            )
            for (index, move, delay), call in zip(ends, goes_on, strict=True)
        ]
        same("settled", settled, expected)
        self.chains.settled(done, settled)
        for call in goes_on:
            if call is not None and call.id in self.model.jobs and call.id not in known:
                self.watch.created(new_job(call))
        if any(is_past(job, self.clock.now) for job in self.model.jobs.values()):
            self._adopt_sweeps(self._jobs())
        if len(self.model.jobs) > len(known) + 1:
            self._adopt_order(self._jobs())
        first = len(self.leases)
        if ask is not None:
            self._compare_claims(claims, ask)
        self.check()
        return list(range(first, len(self.leases)))

    def set_queue(self, queue: str, change: QueueChange) -> None:
        """An operator sets, changes or removes a queue's limits."""
        limits = self._do(self.store.set_queue(queue, change))
        expected = self.model.traffic.set_queue(
            queue,
            change.concurrency,
            pace_of(change.rate),
            unpace=change.remove_rate,
            paused=change.paused,
        )
        same(f"limits of {queue}", settings_of(limits), expected)
        self.watch.limited(queue, limits)
        self.check()

    def beat(self, worker: str, lease: int = LEASE) -> None:
        """A sign of life."""
        pulse = self._do(self.store.beat(Beat(WorkerId(worker), lease)))
        held, aborting = self.model.beat(worker, lease, self.clock.now)
        same("held", set(pulse.held), set(held))
        same("aborting", set(pulse.aborting), aborting)
        for id, token in pulse.held.items():
            assert self._issued(Lease(id, token), held[id]), f"{id} is held by a lease never issued for it"

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
        mine = next(mine for claimed, mine in self.leases if claimed.lease == done.lease)
        expected = self.model.settle(
            found.job.id, mine, done.move.value, 0, self.clock.now, grave=self._grave(found.job)
        )
        same("rescued", [one.value for one in reply.settled], [expected])
        self.check()

    def amend(self, id: str, amendment: Amendment) -> str:
        """An operator's word."""
        now = self.clock.now
        letter = self.model.letter_of(id)
        original = id if letter is None or letter.origin is None else letter.origin
        unused = {key for key in self.model.traffic.lanes if not self.model.uses_lane(key, now)}
        [amended] = self._do(self.store.amend([JobId(id)], amendment))
        match amendment:
            case Amendment.REVOKE:
                expected = self.model.revoke(id, now)
            case Amendment.DELETE | Amendment.DELETE_WITH_WAITING:
                with_waiting = amendment is Amendment.DELETE_WITH_WAITING
                expected = self.model.delete(id, now, with_waiting=with_waiting)
            case _:
                without = amendment is Amendment.RETRY_WITHOUT_KEY
                expected = self.model.retry(id, now, without_key=without)
        same(f"{amendment.value} {id}", amended.value, expected)
        if expected == "retried":
            self._adopt_lane(original, unused)
        self.check()
        return expected

    def release(self, key: bytes) -> None:
        """An operator frees a key."""
        same("released", self._do(self.store.release(key)), self.model.release(key))
        self.check()

    def prune(self, completed: int, failed: int | None = None, revoked: int | None = None) -> None:
        """Sweep everything that may go; nothing that should have gone stays. One retention, or three."""
        retention = Retention(
            completed, completed if failed is None else failed, completed if revoked is None else revoked
        )
        if any(is_past(job, self.clock.now) for job in self.model.jobs.values()):
            # Who ends by its own time and who by another's end can be seen only before they are gone.
            self._do(self.store.prune(Retention(FOREVER, FOREVER, FOREVER), ALL))
            self.check()
        self._do(self.store.prune(retention, ALL))
        self.model.prune(asdict(retention), self.clock.now)
        self.check()
        for record in self.model.keys.values():
            assert self.model.holds(record, self.clock.now) or record.follows, f"{record} was not swept"

    def reopen(self) -> None:
        """Crash: the store is dropped without a word, and opened anew."""
        self._dropped.append(self.store)
        self.store = self._open(self.clock)
        self.check()

    def inherit(self, other: Pair) -> None:
        """Know what another knew that is not in its store: the time, and what was sent and issued."""
        self.clock.now, self.leases, self.sent = other.clock.now, list(other.leases), list(other.sent)

    def close(self) -> None:
        """Let go of all stores."""
        for store in (*self._dropped, self.store):
            self._do(store.close())

    def drain(self) -> None:
        """Run everything to its end by the store's own hints of when to come again, and look for what is left."""
        for queue in self.model.traffic.queues:
            self.set_queue(queue, QueueChange(paused=False))
        ended: list[tuple[int, Move, int]] = []
        self.beat("drain", FOREVER // 2)
        for _ in range(20 * len(self.model.jobs) + 20):
            started = self.settle(ended, ask=("drain", SERVED, ALL))
            ended = [(index, Move.COMPLETE, 0) for index in started]
            live = [job.state for job in self.model.jobs.values() if job.state in LIVE]
            if not live:
                break
            if started:
                continue
            if "running" in live:
                self.clock.tick(LEASE)
                self.rescue_all()
            else:
                assert self.next_due is not None, "something waits, and nothing will ever start it"
                self.clock.tick(max(self.next_due, 1))
        assert not any(job.state in LIVE for job in self.model.jobs.values()), "something never ends"
        self.clock.now += 1_000_000
        self.prune(0)
        left = self._look()
        assert not left.jobs, "jobs are left over"
        assert not left.lanes, "lanes are left over"
        for key in left.keys.values():
            until = key.holder.completed_until if key.holder.state == "completed" else key.holder.failed_until
            assert until == FOREVER, f"key {key} is left over"

    def rescue_all(self) -> None:
        """Both halves of every rescue."""
        self.scan()
        for index in range(len(self.scans)):
            self.apply_scan(index)
        self.scans.clear()

    def check(self) -> None:
        """Compare everything observable."""
        now, sight = self.clock.now, self._look()
        self._adopt_sweeps(sight.jobs)
        self._adopt_order(sight.jobs)
        self._known = set(self.model.jobs)
        for key in [key for key in self.model.keys if key not in sight.keys]:
            self.model.drop(key, now)
        compare(sight, self.model, now)
        self.watch.look(sight.jobs)
        for job in self.chains.look(sight.jobs):
            self.chains.waits(job, self._do(self.store.blockers(job.id)))

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
            assert self._issued(found.job.lease, mine), f"{found.job.id} runs under another lease"

    def check_turns(self) -> None:
        """How many are ahead of each ready job of a lane, once the store has looked at what time has brought."""
        now = self.clock.now
        behind = {(job.queue, job.lane) for job in self._jobs().values() if unseen(job, now)}
        for id, job in self.model.jobs.items():
            if job.lane is not None and job.lane not in behind and is_ready(job, now):
                same(f"ahead of {id}", self._do(self.store.ahead(JobId(id))), self.model.ahead(id, now))

    def check_chains(self) -> None:
        """Chains as an observer sees them, and who waits for whom."""
        for id, mine in self.model.jobs.items():
            seen, chain = self._do(self.store.chain(JobId(id))), self.model.chain(id)
            same(f"chain of {id}", [job.id for job in seen], [job.call.id for job in chain])
            last = self._do(self.store.last(JobId(id)))
            same(f"last of {id}", last and last.id, chain[-1].call.id)
            blockers = self._do(self.store.blockers(JobId(id)))
            same(f"blockers of {id}", tuple(one.chain for one in blockers), mine.blockers)
            for one in blockers:
                last = self.model.last(one.chain)
                same(f"blocker {one.chain}", one.state is None, last is None)
                same(f"task of {one.chain}", one.task, "" if last is None else last.call.task)
            blocked = {other for other, job in self.model.jobs.items() if id in job.awaits}
            same(f"blocked by {id}", set(self._do(self.store.blocked(ChainId(id)))), blocked)
            followers = {other for other, job in self.model.jobs.items() if job.follows == id}
            same(f"followers of {id}", set(self._do(self.store.followers(ChainId(id)))), followers)

    def _compare_claims(self, claims: Claims, ask: tuple[str, tuple[str, ...], int]) -> None:
        now = self.clock.now
        # How many of those for the stock a store does start is its own affair.
        stock = max(len(claims.jobs) - ask[2], 0)
        started = self.model.claim(ask[0], ask[1], ask[2], now, stock=stock)
        same("claimed", [job.id for job in claims.jobs], started)
        for job in claims.jobs:
            mine = self.model.jobs[job.id]
            same("claimed payload", job.payload, mine.payload)
            same(
                "claimed place in its chain",
                (job.chain, job.chain_index, job.blockers),
                (mine.chain, mine.index, len(mine.blockers)),
            )
            same("claimed lane", (job.queue, job.lane), mine.lane or (job.queue, None))
            same(
                "claimed counts",
                (job.attempt, job.failures, job.crashes, job.misses),
                (mine.attempt, mine.failures, mine.crashes, mine.misses),
            )
            self.leases.append((job, mine.lease))
        self.watch.claimed(claims.jobs, now)
        self._compare_next_due(claims, ask)

    def _compare_next_due(self, claims: Claims, ask: tuple[str, tuple[str, ...], int]) -> None:
        """It may be too early, but never too late; and nobody is told to come again at once for nothing."""
        _, queues, limit = ask
        self.next_due = claims.next_due
        latest = self.model.next_start(queues, self.clock.now)
        if latest is not None:
            assert claims.next_due is not None, f"something will start in {latest} ms, and nobody says so"
            assert claims.next_due <= latest, f"come in {claims.next_due} ms, but somebody may in {latest} ms"
        if len(claims.jobs) < limit:
            assert claims.next_due != 0, "asked to come again at once"
        if not self._limited(queues):
            same("next_due", claims.next_due, self.model.next_due(queues, self.clock.now))

    def _limited(self, queues: Iterable[str]) -> bool:
        """True if lanes or limits have a say in what starts from these queues."""
        # A lane that nobody is left in is looked at once more, when its rate has forgotten its last start.
        lanes = any(queue in queues for queue, _ in self.model.traffic.lanes)
        limits = self.model.traffic.queues
        return lanes or any(queue in limits and limits[queue].settings != QueueSettings() for queue in queues)

    def _adopt_lane(self, id: str, unused: set[tuple[str, str]]) -> None:
        """A lane that nobody used may have been forgotten before this job was revived into it."""
        job = self.model.last(id)
        if job is None or job.lane is None:
            return
        view = self._do(self.store.lane(*job.lane))
        assert view is not None, f"{id} stands in no lane"
        seen = limits_of(view.plan)
        if job.lane in unused and seen != self.model.traffic.lanes[job.lane].limits:
            self.model.forget_lane(job.call.id, seen)
        self.watch.revived(job.lane[0], view.plan)

    def _settlement(self, claimed: Claimed, move: Move, delay: int, then: Call | None) -> Settlement:
        dead_letter = dead_letter_of(claimed.options, claimed.queue)
        return Settlement(
            claimed.lease,
            move,
            delay,
            error=move.value,
            dead_letter=dead_letter,
            then=None if then is None else new_job(then),
        )

    def _next(self, index: int, call: Call | None) -> Call | None:
        """A call as the next job of the chain that a lease is for."""
        claimed, _ = self.leases[index]
        return call and replace(call, id=continuation_id(claimed.chain, claimed.chain_index + 1))

    def _grave(self, claimed: Claimed) -> Grave | None:
        return grave_of(claimed.id, dead_letter_of(claimed.options, claimed.queue))

    def _issued(self, lease: Lease, mine: int) -> bool:
        return any(claimed.lease == lease and number == mine for claimed, number in self.leases)

    def _adopt_sweeps(self, jobs: dict[str, Job]) -> None:
        """Those that wait for others go first: had they been second, they would have been stranded."""
        swept = {
            id
            for id, job in self.model.jobs.items()
            if job.state in QUEUED and id in jobs and jobs[id].state == "revoked"
        }
        while swept:
            awaited = self._awaited(swept)
            id = next(id for id in swept if self.model.jobs[id].chain not in awaited)
            self.model.sweep(id, self.clock.now)
            swept.remove(id)

    def _awaited(self, ids: Iterable[str]) -> set[str]:
        """The chains that jobs wait for, and those that these wait for in turn."""
        found: set[str] = set()
        new = {chain for id in ids for chain in self.model.jobs[id].awaits}
        while new:
            found |= new
            new = {
                chain for job in self.model.jobs.values() if job.chain in new for chain in job.awaits
            } - found
        return found

    def _adopt_order(self, jobs: dict[str, Job]) -> None:
        """In which order what is made in one step but by calls comes to be accepted, is up to the store."""
        new = [id for id in reversed(jobs) if id not in self._known]
        made = [self.model.jobs[id] for id in new if id in self.model.jobs]
        for job, number in zip(made, sorted(job.number for job in made), strict=True):
            job.number = number

    def _is_unheard(self, calls: list[Call]) -> bool:
        """True if the model says that the calls cannot be made."""
        made = {call.id for call in calls}
        if all(id in self.model.jobs and id not in made for call in calls for id in call.blockers):
            return False
        trial = deepcopy(self.model)
        try:
            for call in calls:
                trial.enqueue(call, self.clock.now)
        except Unheard:
            return True
        return False

    def _jobs(self) -> dict[str, Job]:
        return {job.id: job for job in self._do(self.store.jobs(JobFilter(), ALL)).jobs}

    def _look(self) -> Sight:
        return self._do(look(self.store))

    def _do(self, awaitable: Awaitable[T]) -> T:
        return self._loop.run_until_complete(_await(awaitable))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
