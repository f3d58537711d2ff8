"""A store with a backlog of one kind, beside which a few other jobs of the same queue live: what each step costs is counted, in
whatever a store can count that is the same on every machine, busy or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TypeVar
from uuid import UUID

from onejob.core.dedup import Plan, Unique, compile_rules
from onejob.core.job import JobId, NewJob, WorkerId
from onejob.core.lane import LanePlan, QueueChange, Rate
from onejob.core.lifecycle import Move, Settlement
from onejob.core.options import MAX_BULK
from onejob.store import Amendment, Ask, Beat, Claims, JobStore, Retention

T = TypeVar("T")
HOUR = 3_600_000
BATCH = 5
LANES = (
    None,
    LanePlan("ordered"),
    LanePlan("held", hold=True),
    LanePlan("wide", concurrency=3),
    LanePlan("rated", concurrency=3, rate=Rate(1_000, per=60)),
)
BACKLOGS = [
    "waiting jobs",
    "delayed jobs",
    "running jobs",
    "finished jobs",
    "parked jobs of an ordered lane",
    "parked jobs of a wide lane",
    "lanes",
    "lanes that wait for their rates",
    "starts of another lane",
    "keys of waiting jobs",
    "remembered keys",
]
POLICIES = (Unique.once(), Unique.latest(), Unique.restart())


class Yard:
    """A store with a backlog of one kind, and the life of a few other jobs of the same queue."""

    def __init__(self, store: JobStore, spent: Callable[[], int]) -> None:
        """`spent` says how much the store has cost so far."""
        self.store = store
        self._spent = spent
        self.costs: Counter[str] = Counter()
        self._ids = (JobId(str(UUID(int=number))) for number in count(1))

    async def put(
        self, lanes: Sequence[LanePlan | None], *, delay: int = 0, priority: int = 0
    ) -> list[JobId]:
        """Enqueue a job for each of these."""
        jobs = [
            NewJob(next(self._ids), "q", "t", b"{}", lane=lane, delay=delay, priority=priority)
            for lane in lanes
        ]
        for start in range(0, len(jobs), MAX_BULK):
            await self.store.enqueue(jobs[start : start + MAX_BULK])
        return [job.id for job in jobs]

    async def put_keyed(self, policy: Unique, size: int, *, first: int = 0, priority: int = 0) -> None:
        """Enqueue a job under each of so many keys."""
        rules = compile_rules(policy, None)
        assert rules is not None
        jobs = [
            NewJob(next(self._ids), "q", "t", b"{}", Plan(b"%016d" % n, f"{n}", rules, b"12345678"), priority)
            for n in range(first, first + size)
        ]
        for start in range(0, len(jobs), MAX_BULK):
            await self.store.enqueue(jobs[start : start + MAX_BULK])

    async def start(self, limit: int) -> Claims:
        return await self.store.claim(Ask(WorkerId("other"), ("q",), limit))

    async def start_and_finish(self, limit: int) -> None:
        claims = await self.start(limit)
        await self.store.settle([Settlement(job.lease, Move.COMPLETE) for job in claims.jobs])

    async def fill(self, backlog: str, size: int) -> None:
        each = range(size)
        match backlog:
            case "waiting jobs":
                await self.put([None for _ in each])
            case "delayed jobs":
                await self.put([None for _ in each], delay=HOUR)
            case "running jobs":
                await self.put([None for _ in each])
                await self.start(size)
            case "finished jobs":
                await self.put([None for _ in each])
                await self.start_and_finish(size)
            case "parked jobs of an ordered lane":
                await self.put([LanePlan("crowd") for _ in each])
                await self.start(size)
            case "parked jobs of a wide lane":
                await self.put([LanePlan("crowd", concurrency=2) for _ in each])
                await self.start(size)
            case "lanes":
                await self.put([LanePlan(f"lane-{number}") for number in each], delay=HOUR)
            case "lanes that wait for their rates":
                await self.put([LanePlan(f"lane-{number // 2}", rate=Rate(1, per=60)) for number in each])
                await self.start_and_finish(size)
            case "starts of another lane":
                plan = LanePlan("crowd", concurrency=10_000, rate=Rate(10_000, per=60))
                await self.put([plan for _ in each])
                await self.start_and_finish(size)
            case "keys of waiting jobs":
                await self.put_keyed(Unique.once(), size)
            case "remembered keys":
                await self.put_keyed(Unique.once(), size)
                await self.start_and_finish(size)
            case _:
                raise ValueError(backlog)

    async def live(self, lane: LanePlan | None) -> None:
        """Enqueue a few jobs, start, hand back, retry, revoke and complete them, counting the steps of each."""
        slots = BATCH if lane is None else lane.concurrency
        store, ask = self.store, Ask(WorkerId("w"), ("q",), slots)
        ids = await self.counted("enqueue", lane, self.put([lane] * BATCH, priority=9))
        claims = await self.counted("claim", lane, store.claim(ask))
        for move in (Move.HAND_BACK, Move.RETRY):
            again = [Settlement(job.lease, move) for job in claims.jobs]
            claims = (await self.counted(move, lane, store.settle(again, ask))).claims
        await self.counted("revoke", lane, store.amend([ids[-1]], Amendment.REVOKE))
        left = BATCH - (lane is not None)  # without a lane, the last of them runs and is flagged
        while left > 0:
            left -= len(claims.jobs)
            done = [Settlement(job.lease, Move.COMPLETE) for job in claims.jobs]
            more = Ask(ask.worker, ask.queues, min(left, slots)) if left else None
            claims = (await self.counted("settle", lane, store.settle(done, more))).claims
        await self.counted("beat", lane, store.beat(Beat(ask.worker, 1_000)))
        await self.counted("prune", lane, store.prune(Retention(), 100))

    async def live_with_keys(self, policy: Unique, first: int) -> None:
        """Jobs under new keys, and duplicates of them while they wait, while they run and once they have ended."""
        store, ask = self.store, Ask(WorkerId("w"), ("q",), BATCH)
        name = policy.row.name

        async def again(when: str) -> None:
            await self.counted(when, name, self.put_keyed(policy, BATCH, first=first, priority=9))
            await store.keys("q", 1)  # what was absorbed is written now, and not in a second

        await again("enqueue")
        await again("enqueue beside waiting ones")
        claims = await self.counted("claim", name, store.claim(ask))
        assert len(claims.jobs) == BATCH
        await again("enqueue beside running ones")
        done = [Settlement(job.lease, Move.COMPLETE) for job in claims.jobs]
        await self.counted("settle", name, store.settle(done))
        await again("enqueue once they have ended")
        rest = await self.counted("claim the rest", name, store.claim(ask))
        await self.counted(
            "settle the rest", name, store.settle([Settlement(job.lease, Move.COMPLETE) for job in rest.jobs])
        )

    async def counted(self, what: str, kind: LanePlan | str | None, operation: Awaitable[T]) -> T:
        """Add what an operation costs."""
        before = self._spent()
        result = await operation
        name = kind.key if isinstance(kind, LanePlan) else kind or "no lane"
        self.costs[f"{what}, {name}"] += self._spent() - before
        return result

    async def go_through(self, backlog: str, size: int, change: QueueChange | None) -> Counter[str]:
        """What each operation costs, on jobs of each kind of lane and policy, beside a backlog of that size."""
        await self.fill(backlog, size)
        if change is not None:
            await self.store.set_queue("q", change)
        await self.live(None)
        self.costs.clear()  # the first time more has to be done
        for lane in LANES:
            await self.live(lane)
        for number, policy in enumerate(POLICIES, 1):
            await self.live_with_keys(policy, first=10_000 * number)
        return self.costs
