"""The state machine: every operation, in any order, with every policy, on a domain small enough to collide."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pair import ALL, Pair
from policies import (
    BACKOFF,
    DELAY,
    DIGESTS,
    EXPIRES,
    KEYS,
    LEASE,
    MAX_WAIT,
    PRESETS,
    QUEUES,
    TASKS,
    WAIT,
    WINDOW,
    for_shared_keys,
)

from onejob.core.lifecycle import SETTLING, Move
from onejob.store import Amendment, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.records import LIVE, Call

MOVES = sorted(SETTLING)
WORKERS = ("w1", "w2")
SPANS = sorted(
    {
        1,
        *(
            span + edge
            for span in (LEASE, WINDOW, WAIT, MAX_WAIT, EXPIRES, BACKOFF, DELAY)
            for edge in (-1, 0, 1)
        ),
    }
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A call without an id and a caller; one queue, task and key are hot, so that policies meet."""
    queue = draw(st.sampled_from((QUEUES[0], QUEUES[0], *QUEUES)))
    task = draw(st.sampled_from((TASKS[0], TASKS[0], *TASKS)))
    policy = draw(st.sampled_from((None, *PRESETS)))
    key = None
    if policy is not None:
        shared = draw(st.sampled_from((False, False, False, True))) and for_shared_keys(policy)
        key = DIGESTS[queue, None if shared else task, draw(st.sampled_from((KEYS[0], KEYS[0], *KEYS)))]
        policy = replace(policy, force=draw(st.sampled_from((False,) * 7 + (True,))))
    waits = policy is not None and policy.wait > 0
    return Call(
        id="",
        queue=queue,
        task=task,
        payload=b'{"v":%d}' % draw(st.integers(1, 3)),
        key=key,
        policy=policy,
        priority=draw(st.sampled_from((0, 0, 5))),
        delay=0 if waits else draw(st.sampled_from((0, 0, 0, DELAY))),
        expires=draw(st.sampled_from((None, None, None, EXPIRES))),
        max_crashes=draw(st.sampled_from((0, 1, 3))),
        items=draw(st.integers(1, 2)) if policy is not None and policy.preset == "collect" else 0,
    )


class StoreBesideModel(RuleBasedStateMachine):
    """Subclasses say how to open the store."""

    open_store: Callable[[FakeClock], JobStore]
    durable = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pair = Pair(type(self).open_store, self.loop)
        self.numbers = 0

    @initialize()
    def workers_live(self) -> None:
        """Two workers beat."""
        for worker in WORKERS:
            self.pair.beat(worker)

    @rule(made=st.lists(calls(), min_size=1, max_size=4), data=st.data())
    def enqueue(self, made: list[Call], data: st.DataObject) -> None:
        """One call, or a batch with duplicates and repetitions inside."""
        batch: list[Call] = []
        running = [id for id, job in self.pair.model.jobs.items() if job.state == "running"]
        for call in made:
            self.numbers += 1
            caller = data.draw(st.sampled_from(running)) if running and data.draw(st.booleans()) else None
            batch.append(replace(call, id=str(uuid.UUID(int=self.numbers)), caller=caller))
        if len(batch) > 1 and data.draw(st.booleans()):
            batch.append(batch[0])
        self.pair.enqueue(batch)

    @precondition(lambda self: self.pair.model.keys)
    @rule(data=st.data(), call=calls(), force=st.sampled_from((False, False, False, True)))
    def enqueue_for_a_known_key(self, data: st.DataObject, call: Call, force: bool) -> None:
        """Another call for a key that is on record, often from within its holder."""
        self._enqueue_again(data, sorted(self.pair.model.keys), call, force=force)

    @precondition(lambda self: self._started_holders())
    @rule(data=st.data(), call=calls())
    def enqueue_for_a_started_holder(self, data: st.DataObject, call: Call) -> None:
        """Another call for a key whose holder runs, or waits for its next attempt."""
        self._enqueue_again(data, self._started_holders(), call, force=False)

    def _enqueue_again(self, data: st.DataObject, keys: list[bytes], call: Call, *, force: bool) -> None:
        key = data.draw(st.sampled_from(keys))
        queue, task, _ = next(place for place, digest in DIGESTS.items() if digest == key)
        policy = data.draw(st.sampled_from([p for p in PRESETS if task is not None or for_shared_keys(p)]))
        caller = self.pair.model.keys[key].holder if data.draw(st.integers(0, 3)) == 0 else None
        self.numbers += 1
        again = replace(
            call,
            id=str(uuid.UUID(int=self.numbers)),
            queue=queue,
            task=task or "t",
            key=key,
            policy=replace(policy, force=force),
            delay=0 if policy.wait else call.delay,
            items=data.draw(st.integers(1, 2)) if policy.preset == "collect" else 0,
            caller=caller,
        )
        self.pair.enqueue([again])

    def _started_holders(self) -> list[bytes]:
        jobs = self.pair.model.jobs
        held = self.pair.model.keys.items()
        return sorted(
            key for key, record in held if record.holder in jobs and jobs[record.holder].attempt > 0
        )

    @precondition(lambda self: self.pair.sent)
    @rule(data=st.data())
    def repeat_after_a_lost_reply(self, data: st.DataObject) -> None:
        """Some call again, under its old id."""
        back = data.draw(st.integers(1, min(len(self.pair.sent), 10)))
        self.pair.enqueue([self.pair.sent[-back]])

    @rule(worker=st.sampled_from(WORKERS), queues=st.permutations(QUEUES), limit=st.sampled_from((1, 2, ALL)))
    def claim(self, worker: str, queues: list[str], limit: int) -> None:
        """Start some."""
        self.pair.claim(worker, queues, limit)

    @precondition(lambda self: self._running())
    @rule(data=st.data(), move=st.sampled_from(MOVES), delay=st.sampled_from((0, BACKOFF)))
    def end_an_attempt(self, data: st.DataObject, move: Move, delay: int) -> None:
        """A job that runs is settled by whoever runs it."""
        id = data.draw(st.sampled_from(self._running()))
        lease = self.pair.model.jobs[id].lease
        index = next(i for i, (_, mine) in enumerate(self.pair.leases) if mine == lease)
        delays = move in (Move.RETRY, Move.SNOOZE, Move.MISS)
        self.pair.settle([(index, move, delay if delays else 0)])

    def _running(self) -> list[str]:
        return sorted(id for id, job in self.pair.model.jobs.items() if job.state == "running")

    @precondition(lambda self: self.pair.leases)
    @rule(data=st.data(), also_claim=st.booleans())
    def settle(self, data: st.DataObject, also_claim: bool) -> None:
        """Any moves under any leases ever issued, the latest ones more often."""
        known = len(self.pair.leases)
        ends = []
        for _ in range(data.draw(st.integers(1, 3))):
            index = known - 1 - data.draw(st.integers(0, known - 1))
            move = data.draw(st.sampled_from([Move.COMPLETE, Move.RETRY, *MOVES]))
            delays = move in (Move.RETRY, Move.SNOOZE, Move.MISS)
            ends.append((index, move, data.draw(st.sampled_from((0, BACKOFF))) if delays else 0))
        self.pair.settle(ends, ask=("w1", QUEUES, 1) if also_claim else None)

    @rule(worker=st.sampled_from(WORKERS))
    def beat(self, worker: str) -> None:
        """A sign of life."""
        self.pair.beat(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: str) -> None:
        """A worker stops and comes back as new."""
        self.pair.leave(worker)

    @rule(span=st.sampled_from(SPANS))
    def advance(self, span: int) -> None:
        """Time passes, by just too little or just enough."""
        self.pair.clock.tick(span)
        self.pair.check()

    @rule(data=st.data(), edge=st.sampled_from((-1, 0, 1)))
    def advance_to_an_edge(self, data: st.DataObject, edge: int) -> None:
        """Time passes to just before, at or after an instant at which something changes."""
        now = self.pair.clock.now
        edges = {instant for instant in self._instants() if instant + edge > now}
        if edges:
            self.pair.clock.now = data.draw(st.sampled_from(sorted(edges))) + edge
            self.pair.check()

    @rule()
    def scan(self) -> None:
        """The first half of a rescue."""
        self.pair.scan()

    @precondition(lambda self: self.pair.scans)
    @rule(data=st.data())
    def rescue(self, data: st.DataObject) -> None:
        """The second half of some rescue."""
        self.pair.apply_scan(data.draw(st.integers(0, len(self.pair.scans) - 1)))

    @precondition(lambda self: self.pair.model.jobs)
    @rule(data=st.data(), amendment=st.sampled_from(list(Amendment)))
    def amend(self, data: st.DataObject, amendment: Amendment) -> None:
        """An operator's word about some job."""
        self.pair.amend(data.draw(st.sampled_from(sorted(self.pair.model.jobs))), amendment)

    @precondition(lambda self: any(job.follows for job in self.pair.model.jobs.values()))
    @rule(data=st.data(), amendment=st.sampled_from(list(Amendment)))
    def amend_a_link(self, data: st.DataObject, amendment: Amendment) -> None:
        """An operator's word about a job that waits for another, or is waited for."""
        links = {id for id, job in self.pair.model.jobs.items() if job.follows}
        links |= {job.follows for job in self.pair.model.jobs.values() if job.follows}
        self.pair.amend(data.draw(st.sampled_from(sorted(links))), amendment)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """An operator frees a key."""
        self.pair.release(
            data.draw(st.sampled_from(sorted(self.pair.model.keys) or sorted(DIGESTS.values())))
        )

    @rule(retention=st.sampled_from((0, WINDOW, 10 * WINDOW)))
    def prune(self, retention: int) -> None:
        """Sweep."""
        self.pair.prune(retention)

    @precondition(lambda self: self.durable)
    @rule()
    def crash(self) -> None:
        """The process dies and another opens the same file."""
        self.pair.reopen()

    def teardown(self) -> None:
        """Drain, and look for leaks."""
        try:
            self.pair.drain()
        finally:
            self.pair.close()
            self.loop.close()

    def _instants(self) -> set[int]:
        model = self.pair.model
        live = [job for job in model.jobs.values() if job.state in LIVE]
        instants = {job.due for job in live} | {job.expires for job in live if job.expires is not None}
        instants |= {job.accepted + MAX_WAIT for job in live}
        instants |= {key.since + WINDOW for key in model.keys.values()}
        return instants | set(model.workers.values())
