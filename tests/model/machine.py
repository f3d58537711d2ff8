"""The state machine: every operation, in any order, with every policy, on a domain small enough to collide."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pair import ALL, Pair
from policies import (
    BACKOFF,
    DEAD,
    DELAY,
    DIGESTS,
    EXPIRES,
    KEYS,
    LANES,
    LEASE,
    MAX_WAIT,
    PACES,
    PER,
    PRESETS,
    QUEUE_PER,
    QUEUES,
    SERVED,
    SHARED,
    TASKS,
    WAIT,
    WINDOW,
    for_shared_keys,
    rate_of,
)

from onejob.core.lane import QueueChange
from onejob.core.lifecycle import SETTLING, Move
from onejob.store import Amendment, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.records import LIVE, Call, LaneLimits
from onejob.testing.verdicts import Policy

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
MOVES = sorted(SETTLING)
FOLLOWING = Policy(preset="in_flight", overrides={"queued": "follow", "running": "follow"})
"""Makes chains of followers, which take several calls in a row."""
SHAREABLE = [policy for policy in PRESETS if for_shared_keys(policy)]
ACTIONS = (
    *("enqueue",) * 3,
    *("enqueue_again",) * 6,
    *("repeat",) * 2,
    *("claim",) * 4,
    *("end_an_attempt",) * 4,
    *("settle",) * 2,
    *("beat", "leave", "advance", "scan", "rescue", "release", "prune", "crash"),
    *("advance_to_an_edge",) * 3,
    *("amend",) * 3,
    *("revive",) * 2,
    *("set_queue", "queue_in_lane") * 2,
    *("look", "bury"),
    *("go_on",) * 3,
    *("wait_for",) * 2,
)
WORKERS = ("w1", "w2")
SPANS = sorted(
    {
        1,
        *(
            span + edge
            for span in (LEASE, WINDOW, WAIT, MAX_WAIT, EXPIRES, BACKOFF, DELAY, PER, QUEUE_PER)
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
        dead_letter=draw(st.sampled_from((None, DEAD))),
    )


class StoreBesideModel(RuleBasedStateMachine):
    """Subclasses say how to open the store."""

    open_store: Callable[[FakeClock], JobStore]
    make_pair: type[Pair] = Pair
    durable = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pair = self.make_pair(type(self).open_store, self.loop)
        self.numbers = 0

    @initialize()
    def workers_live(self) -> None:
        """Two workers beat."""
        for worker in WORKERS:
            self.pair.beat(worker)

    # One rule for all actions: rules of their own would be switched on and off per example, and most bugs need many.
    @rule(actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=12), data=st.data())
    def live(self, actions: list[str], data: st.DataObject) -> None:
        """A stretch of life."""
        for action in actions:
            getattr(self, action)(data.draw)

    def enqueue(self, draw: Draw) -> None:
        """One call, or a batch with duplicates and repetitions inside."""
        batch: list[Call] = []
        running = self._running()
        for call in draw(st.lists(calls(), min_size=1, max_size=3)):
            caller = self._caller(draw) if running and draw(st.integers(0, 3)) == 0 else None
            lane = self._lane(draw, call.queue)
            made = replace(call, id=self._new_id(), caller=caller, lane=lane)
            batch.append(self._blocked(draw, made, [one.id for one in batch]))
        if len(batch) > 1 and draw(st.booleans()):
            batch.append(batch[0])
        self.pair.enqueue(batch)

    def queue_in_lane(self, draw: Draw) -> None:
        """Several jobs for one lane, so that some must wait for others."""
        limits = draw(st.sampled_from(LANES))
        self.pair.enqueue(
            [
                Call(
                    id=self._new_id(),
                    priority=draw(st.sampled_from((0, 0, 5))),
                    expires=draw(st.sampled_from((None, None, None, EXPIRES))),
                    dead_letter=draw(st.sampled_from((None, DEAD))),
                    lane=limits,
                )
                for _ in range(draw(st.integers(1, 3)))
            ]
        )

    def enqueue_again(self, draw: Draw) -> None:
        """Another call for a key that is on record, often while its holder runs, or from within it."""
        model = self.pair.model
        started = [key for key, record in model.keys.items() if self._has_started(record.holder)]
        grown = [key for key, record in model.keys.items() if len(model.chain(record.holder)) > 1]
        groups = [found for found in (started, grown, model.keys) if found]
        keys = sorted(draw(st.sampled_from(groups))) if groups else []
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        queue, task, _ = next(place for place, digest in DIGESTS.items() if digest == key)
        policy = draw(st.sampled_from(PRESETS if task is not None else SHAREABLE))
        if draw(st.integers(0, 4)) == 0:
            policy = FOLLOWING
        again = Call(
            id=self._new_id(),
            queue=queue,
            task=task or TASKS[0],
            payload=b'{"v":%d}' % draw(st.integers(1, 3)),
            key=key,
            policy=replace(policy, force=draw(st.integers(0, 7)) == 0),
            expires=draw(st.sampled_from((None, None, None, EXPIRES))),
            items=draw(st.integers(1, 2)) if policy.preset == "collect" else 0,
            caller=model.keys[key].holder if draw(st.integers(0, 3)) == 0 else None,
            lane=self._lane(draw, queue),
        )
        self.pair.enqueue([self._blocked(draw, again)])

    def wait_for(self, draw: Draw) -> None:
        """Some jobs that wait for others and for each other."""
        if live := sorted(id for id, job in self.pair.model.jobs.items() if job.state in LIVE):
            batch: list[Call] = []
            for _ in range(draw(st.integers(1, 3))):
                named = live + [call.id for call in batch] * len(live)
                blockers = draw(st.lists(st.sampled_from(named), min_size=1, max_size=3))
                batch.append(self._plain(draw, id=self._new_id(), blockers=tuple(blockers)))
            self.pair.enqueue(batch)

    def repeat(self, draw: Draw) -> None:
        """Some call again under its old id, as after a lost reply."""
        if self.pair.sent:
            back = draw(st.integers(1, min(len(self.pair.sent), 10)))
            self.pair.enqueue([self.pair.sent[-back]])

    def claim(self, draw: Draw) -> None:
        """Start some."""
        queues = draw(st.sampled_from((QUEUES, SERVED[::-1], QUEUES[:1])))
        stock = draw(st.sampled_from((0, 0, 1, 3)))
        self.pair.claim(
            draw(st.sampled_from(WORKERS)), queues, draw(st.sampled_from((ALL, 2, 1, 0))), stock=stock
        )

    def end_an_attempt(self, draw: Draw) -> None:
        """A job that runs is settled under its lease."""
        if running := self._running():
            index = self._lease_of(draw(st.sampled_from(running)))
            then = {0: self._next(draw)} if draw(st.integers(0, 3)) == 0 else {}
            self.pair.settle(
                [(index, *self._ending(draw))],
                ask=self._ask(draw),
                stock=draw(st.sampled_from((0, 2))),
                then=then,
            )

    def go_on(self, draw: Draw) -> None:
        """Jobs that run complete, and their chains go on."""
        if not self._running():
            self.claim(draw)
        if running := self._running():
            holders = {key.holder for key in self.pair.model.keys.values()}
            keyed = [id for id in running if self.pair.model.jobs[id].chain in holders]
            running = keyed if keyed and draw(st.booleans()) else running
            chosen = draw(st.lists(st.sampled_from(running), min_size=1, max_size=3, unique=True))
            ends = [(self._lease_of(id), Move.COMPLETE, 0) for id in chosen]
            then = {place: self._next(draw) for place in range(len(chosen))}
            self.pair.settle(ends, ask=self._ask(draw), stock=draw(st.sampled_from((0, 2))), then=then)

    def settle(self, draw: Draw) -> None:
        """Any moves under any leases ever issued, the latest ones more often."""
        if known := len(self.pair.leases):
            ends = [
                (known - 1 - draw(st.integers(0, known - 1)), *self._ending(draw))
                for _ in range(draw(st.integers(1, 3)))
            ]
            then = {place: self._next(draw) for place in range(len(ends)) if draw(st.integers(0, 3)) == 0}
            self.pair.settle(ends, ask=self._ask(draw), stock=draw(st.sampled_from((0, 2))), then=then)

    def set_queue(self, draw: Draw) -> None:
        """An operator limits a queue, or lets go."""
        changes = [
            QueueChange(concurrency=draw(st.integers(0, 3))),
            QueueChange(rate=rate_of(draw(st.sampled_from(PACES)))),
            QueueChange(remove_rate=True, concurrency=0, paused=False),
            QueueChange(paused=draw(st.booleans())),
        ]
        self.pair.set_queue(draw(st.sampled_from(("q", *QUEUES))), draw(st.sampled_from(changes)))

    def look(self, draw: Draw) -> None:
        """An observer asks who is ahead of whom, and who waits for whom."""
        self.pair.check_turns()
        self.pair.check_chains()

    def beat(self, draw: Draw) -> None:
        """A sign of life."""
        self.pair.beat(draw(st.sampled_from(WORKERS)))

    def leave(self, draw: Draw) -> None:
        """A worker stops, and may come back as new."""
        self.pair.leave(draw(st.sampled_from(WORKERS)))

    def advance(self, draw: Draw) -> None:
        """Time passes, by just too little or just enough."""
        self.pair.clock.tick(draw(st.sampled_from(SPANS)))
        self.pair.check()

    def advance_to_an_edge(self, draw: Draw) -> None:
        """Time passes to just before, at or after an instant at which something changes."""
        edge = draw(st.sampled_from((0, -1, 1)))
        edges = sorted(instant for instant in self._instants() if instant + edge > self.pair.clock.now)
        if edges:
            self.pair.clock.now = draw(st.sampled_from(edges)) + edge
            self.pair.check()

    def scan(self, draw: Draw) -> None:
        """The first half of a rescue."""
        self.pair.scan()

    def rescue(self, draw: Draw) -> None:
        """The second half of some rescue."""
        if self.pair.scans:
            self.pair.apply_scan(draw(st.integers(0, len(self.pair.scans) - 1)))

    def amend(self, draw: Draw) -> None:
        """An operator's word about some job, often one that waits for another or is waited for."""
        jobs = self.pair.model.jobs
        followed = {job.follows for job in jobs.values() if job.follows}
        following = {id for id, job in jobs.items() if job.follows}
        links = (followed & following) or (followed | following)
        slots = {id for id, job in jobs.items() if job.slot}
        buried = {job.origin for job in jobs.values() if job.origin}
        awaited = {chain for job in jobs.values() for chain in job.blockers if chain in jobs}
        grown = {id for job in jobs.values() if job.index for id in (job.chain, job.call.id)}
        groups = [found for found in (links, slots, buried, awaited, grown) if found]
        chosen = sorted(draw(st.sampled_from(groups or [jobs])))
        if draw(st.booleans()):
            chosen = sorted(jobs)
        if chosen:
            words = (Amendment.REVOKE, Amendment.DELETE, *Amendment)
            self.pair.amend(draw(st.sampled_from(chosen)), draw(st.sampled_from(words)))

    def revive(self, draw: Draw) -> None:
        """An operator retries what has failed or was revoked."""
        jobs = self.pair.model.jobs
        letters = sorted(id for id, job in jobs.items() if job.origin)
        over = [job for job in jobs.values() if job.state in ("failed", "revoked")]
        ended = sorted({id for job in over for id in (job.call.id, job.chain)})
        ended = letters if letters and draw(st.booleans()) else ended
        if ended:
            words = (Amendment.RETRY, Amendment.RETRY, Amendment.RETRY_WITHOUT_KEY)
            self.pair.amend(draw(st.sampled_from(ended)), draw(st.sampled_from(words)))

    def bury(self, draw: Draw) -> None:
        """A job fails for good and leaves a dead letter, of which it may be made again if it is deleted."""
        graves = [id for id in self._running() if self.pair.model.jobs[id].call.dead_letter]
        remembered = [id for id in graves if self._is_remembered(id)]
        if graves:
            id = draw(st.sampled_from(remembered or graves))
            self.pair.settle([(self._lease_of(id), Move.FAIL, 0)])
            steps = draw(st.integers(0, 3))
            for amendment in (Amendment.DELETE, Amendment.RETRY)[:steps]:
                self.pair.amend(id, amendment)
            if steps == 3:
                self.claim(draw)

    def release(self, draw: Draw) -> None:
        """An operator frees a key."""
        self.pair.release(draw(st.sampled_from(sorted(self.pair.model.keys) or sorted(SHARED))))

    def prune(self, draw: Draw) -> None:
        """Sweep."""
        kept = st.sampled_from((0, WINDOW, 10 * WINDOW))
        self.pair.prune(draw(kept), draw(kept), draw(kept))

    def crash(self, draw: Draw) -> None:
        """The process dies and another opens the same file."""
        if self.durable:
            self.pair.reopen()

    def teardown(self) -> None:
        """Drain, and look for leaks; after a failure there is nothing left to learn from that."""
        try:
            if sys.exception() is None:
                self.pair.drain()
        finally:
            self.pair.close()
            self.loop.close()

    def _new_id(self) -> str:
        self.numbers += 1
        return str(uuid.UUID(int=self.numbers))

    def _ending(self, draw: Draw) -> tuple[Move, int]:
        move = draw(st.sampled_from((Move.COMPLETE, Move.RETRY, *MOVES)))
        delays = move in (Move.RETRY, Move.SNOOZE, Move.MISS, Move.CRASH)
        return move, draw(st.sampled_from((BACKOFF, 0))) if delays else 0

    def _ask(self, draw: Draw) -> tuple[str, tuple[str, ...], int] | None:
        return (WORKERS[0], QUEUES, draw(st.sampled_from((ALL, 1)))) if draw(st.booleans()) else None

    def _plain(self, draw: Draw, **settings: Any) -> Call:
        """A job without a key, here or there, now or later, in a lane or not."""
        queue = draw(st.sampled_from((QUEUES[0], *QUEUES)))
        return Call(
            queue=queue,
            task=draw(st.sampled_from(TASKS)),
            payload=b'{"v":%d}' % draw(st.integers(1, 3)),
            delay=draw(st.sampled_from((0, 0, 0, DELAY))),
            expires=draw(st.sampled_from((None, None, None, EXPIRES))),
            lane=self._lane(draw, queue),
            dead_letter=draw(st.sampled_from((None, DEAD))),
            runs_anyway=draw(st.booleans()),
            **settings,
        )

    def _next(self, draw: Draw) -> Call:
        """What a chain goes on with; it gets its id from its place."""
        return self._blocked(draw, self._plain(draw, id=""))

    def _blocked(self, draw: Draw, call: Call, batch: list[str] | None = None) -> Call:
        """Now and then, a call that waits for others: those of its batch, any on record, or one that never was."""
        if draw(st.integers(0, 3)):
            return call
        named = [*(batch or ()) * 2, *sorted(self.pair.model.jobs)]
        if not named or draw(st.integers(0, 9)) == 0:
            named.append(str(uuid.UUID(int=0)))
        blockers = tuple(draw(st.lists(st.sampled_from(named), min_size=1, max_size=3)))
        return replace(call, blockers=blockers, runs_anyway=draw(st.booleans()))

    def _caller(self, draw: Draw) -> str:
        return self.pair.model.jobs[draw(st.sampled_from(self._running()))].chain

    def _lease_of(self, id: str) -> int:
        lease = self.pair.model.jobs[id].lease
        return next(index for index, (_, mine) in enumerate(self.pair.leases) if mine == lease)

    def _lane(self, draw: Draw, queue: str) -> LaneLimits | None:
        """No lane, or one whose limits are now and then others than those that stand."""
        if draw(st.booleans()):
            return None
        limits = draw(st.sampled_from(LANES))
        standing = self.pair.model.traffic.lanes.get((queue, limits.key))
        return limits if standing is None or draw(st.integers(0, 3)) == 0 else standing.limits

    def _running(self) -> list[str]:
        return sorted(id for id, job in self.pair.model.jobs.items() if job.state == "running")

    def _is_remembered(self, id: str) -> bool:
        """True if its key outlives its failure."""
        keys = self.pair.model.keys.values()
        return any(key.holder == id and key.failed_until is not None for key in keys)

    def _has_started(self, id: str) -> bool:
        job = self.pair.model.jobs.get(id)
        return job is not None and self.pair.model.standing(id) in LIVE and job.attempt > 0

    def _instants(self) -> set[int]:
        model = self.pair.model
        live = [job for job in model.jobs.values() if job.state in LIVE]
        instants = {job.due for job in live} | {job.expires for job in live if job.expires is not None}
        instants |= {job.accepted + MAX_WAIT for job in live}
        instants |= {key.since + WINDOW for key in model.keys.values()}
        for queue in QUEUES:
            instants |= model.traffic.edges(queue)
        return instants | set(model.workers.values())
