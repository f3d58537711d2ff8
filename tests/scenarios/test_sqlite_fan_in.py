"""What chains and blockers cost the SQLite store: one step costs the same whatever else waits and however long its
chain is, and a fan-in over 10,000 costs ten times one over 1,000.

As in test_sqlite_flat, the cost is counted in steps of SQLite's virtual machine. What is done in Python beside them is
held to a wide bound on the processor's time, which tells lines from squares.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar
from uuid import UUID

import msgspec
import pytest
from test_sqlite_flat import FLAT, Counted

from onejob.core.chain import continuation_id
from onejob.core.job import ChainId, Claimed, JobId, NewJob, State, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.core.options import MAX_BULK
from onejob.store import Amended, Amendment, Ask, Retention, Settled
from onejob.testing import FakeClock

T = TypeVar("T")
HOUR = 3_600_000
FEW, MANY = 200, 2_000
TEN, THOUSAND, TEN_THOUSAND = 10, 1_000, 10_000
LINE = 1.05
"""How far the steps of ten times as many may be above ten times the steps."""
FAR_FROM_A_SQUARE = 30
"""How many times the processor's time ten times as many may take; a square takes a hundred times as much."""


class Yard:
    """A store whose operations are counted, and jobs that wait for each other in it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Counted(None, clock=self.clock)
        self.steps: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self._ids = (JobId(str(UUID(int=number))) for number in count(1))

    def job(self, *blockers: JobId, queue: str = "q", delay: int = 0, priority: int = 0) -> NewJob:
        made = NewJob(next(self._ids), queue, "t", b"{}", delay=delay, priority=priority)
        return msgspec.structs.replace(made, blockers=blockers)

    async def put(self, *jobs: NewJob) -> list[JobId]:
        for start in range(0, len(jobs), MAX_BULK):
            await self.store.enqueue(jobs[start : start + MAX_BULK])
        return [job.id for job in jobs]

    async def start(self, limit: int = 1, *, queue: str = "q") -> list[Claimed]:
        return (await self.store.claim(Ask(WorkerId("w"), (queue,), limit))).jobs

    async def end(self, job: Claimed, move: Move = Move.COMPLETE, then: NewJob | None = None) -> None:
        reply = await self.store.settle([Settlement(job.lease, move, result=b"1", then=then)])
        assert reply.settled == [Settled.DONE]

    async def go_on(self, job: Claimed, *blockers: JobId) -> None:
        id = continuation_id(job.chain, job.chain_index + 1)
        await self.end(job, then=msgspec.structs.replace(self.job(*blockers, queue=job.queue), id=id))

    async def counted(self, what: str, operation: Awaitable[T]) -> T:
        """Do something, and count the steps and the processor's time that it takes."""
        steps, seconds = self.store.steps, time.process_time()
        result = await operation
        self.steps[what] += self.store.steps - steps
        self.seconds[what] += time.process_time() - seconds
        return result

    async def state(self, id: JobId) -> State:
        found = await self.store.job(id)
        assert found is not None
        return found.state


async def many_wait_for_another_chain(yard: Yard, size: int) -> None:
    [other] = await yard.put(yard.job(queue="r"))
    await yard.put(*(yard.job(other) for _ in range(size)))


async def one_waits_for_many_other_chains(yard: Yard, size: int) -> None:
    others = await yard.put(*(yard.job(queue="r") for _ in range(size)))
    await yard.put(yard.job(*others))


async def many_wait_each_for_its_own(yard: Yard, size: int) -> None:
    others = await yard.put(*(yard.job(queue="r") for _ in range(size)))
    await yard.put(*(yard.job(other) for other in others))


async def another_chain_is_long(yard: Yard, size: int) -> None:
    await yard.put(yard.job(queue="r"))
    for _ in range(size // 10):
        await yard.go_on(*await yard.start(queue="r"))


async def many_have_waited(yard: Yard, size: int) -> None:
    [other] = await yard.put(yard.job(queue="r"))
    await yard.put(*(yard.job(other, queue="r") for _ in range(size)))
    await yard.end(*await yard.start(queue="r"))
    done = [Settlement(job.lease, Move.COMPLETE) for job in await yard.start(size, queue="r")]
    await yard.store.settle(done)


BACKLOGS: dict[str, Callable[[Yard, int], Awaitable[None]]] = {
    "jobs wait for one other chain": many_wait_for_another_chain,
    "other chains are waited for by one job": one_waits_for_many_other_chains,
    "jobs wait each for a chain of its own": many_wait_each_for_its_own,
    "jobs make another chain long": another_chain_is_long,
    "jobs have waited": many_have_waited,
}


async def live(yard: Yard) -> None:
    """A few chains, with blockers, retried, revoked and deleted: each operation is counted."""
    store, counted = yard.store, yard.counted
    first, second, third = await yard.put(*(yard.job(priority=9) for _ in range(3)))
    waiting = yard.job(first, second)
    doomed, last = yard.job(third), yard.job(delay=HOUR)
    await counted("enqueue with blockers", yard.put(waiting, doomed))
    await yard.put(msgspec.structs.replace(last, blockers=(doomed.id,)))
    one, two, three = await counted("claim", yard.start(3))
    await counted("complete and go on", yard.go_on(one))
    await counted("complete and go on with a blocker", yard.go_on(two, third))
    await counted("fail, and strand", yard.end(three, Move.FAIL))
    assert [await yard.state(id) for id in (waiting.id, doomed.id, last.id)] == [State.FAILED] * 3
    retry = [doomed.id, third]
    assert await counted("retry", store.amend(retry[::-1], Amendment.RETRY)) == [Amended.RETRIED] * 2
    await counted("look at a chain", store.chain(second))
    await counted("look at the last job", store.last(first))
    await counted("look at blockers", store.blockers(waiting.id))
    await counted("look at who waits", store.blocked(ChainId(third)))
    await counted("revoke a chain", store.amend([first], Amendment.REVOKE))
    awaited = await counted("delete", store.amend([third], Amendment.DELETE))
    assert awaited == [Amended.AWAITED]
    await counted("delete with who waits", store.amend([third], Amendment.DELETE_WITH_WAITING))
    await counted("prune", store.prune(Retention(), 100))


async def costs(backlog: str, size: int) -> Counter[str]:
    yard = Yard()
    try:
        await BACKLOGS[backlog](yard, size)
        await live(yard)
        return yard.steps
    finally:
        await yard.store.close()


@pytest.mark.parametrize("backlog", BACKLOGS)
async def test_chains_cost_the_same_whatever_else_waits(backlog: str) -> None:
    few, many = await costs(backlog, FEW), await costs(backlog, MANY)
    assert {what: (few[what], many[what]) for what in few if many[what] > few[what] * FLAT} == {}
    assert min(few.values()) > 0


async def test_a_long_chain_goes_on_as_cheaply_as_a_short_one() -> None:
    yard = Yard()
    await yard.put(yard.job())
    for index in range(1_000):
        [job] = await yard.counted(f"claim {index}", yard.start())
        await yard.counted(f"go on {index}", yard.go_on(job))
        if index % 100 == 1:
            await yard.counted(f"last {index}", yard.store.last(job.chain))
    steps = yard.steps
    assert max(steps[f"go on {index}"] for index in range(1, 1_000)) <= steps["go on 1"] * FLAT
    assert max(steps[f"claim {index}"] for index in range(1, 1_000)) <= steps["claim 1"] * FLAT
    assert steps["last 901"] <= steps["last 1"] * FLAT
    await yard.store.close()


async def test_a_long_living_chain_is_passed_over_by_pruning_in_a_line() -> None:
    async def pruned(length: int) -> int:
        yard = Yard()
        await yard.put(yard.job())
        for _ in range(length):
            await yard.go_on(*await yard.start())
        yard.clock.tick(1)
        gone = await yard.counted("prune", yard.store.prune(Retention(0, 0, 0), 10_000))
        assert gone.jobs == 0
        await yard.store.close()
        return yard.steps["prune"]

    assert await pruned(1_000) <= await pruned(100) * 10 * LINE


async def fan_in(size: int) -> Yard:
    """Make, release, read, retry and delete a fan-in over that many, each counted."""
    yard = Yard()
    store, counted = yard.store, yard.counted
    others = [yard.job() for _ in range(size)]
    fan = yard.job(*(other.id for other in others), queue="fan")
    await counted("make", yard.put(*others, fan))
    *started, last = await yard.start(size)
    done = [Settlement(job.lease, Move.COMPLETE, result=b"1") for job in started]
    for start in range(0, size, 100):
        await counted("end", store.settle(done[start : start + 100]))
    assert await yard.state(fan.id) is State.BLOCKED
    assert (
        await yard.start(queue="fan") == []
    )  # to prepare a statement takes steps, too: here, for both sizes
    await counted("end the last, and release", yard.end(last))
    [job] = await counted("claim", yard.start(queue="fan"))
    outputs = await counted("read", store.blockers(job.id))
    assert [blocker.result for blocker in outputs] == [b"1"] * size
    await counted("fail", yard.end(job, Move.FAIL))
    assert await counted("retry", store.amend([job.id], Amendment.RETRY)) == [Amended.RETRIED]
    assert await counted("delete", store.amend([job.id], Amendment.DELETE)) == [Amended.DELETED]
    await store.close()
    return yard


async def test_a_fan_in_is_made_released_and_read_in_time_linear_in_its_size() -> None:
    small, large = await fan_in(THOUSAND), await fan_in(TEN_THOUSAND)
    ratio = TEN_THOUSAND / THOUSAND
    grown = {
        what: (small.steps[what], large.steps[what])
        for what in small.steps
        if large.steps[what] > small.steps[what] * ratio * LINE
    }
    assert grown == {}
    for what in ("end the last, and release", "claim", "fail"):
        assert large.steps[what] <= small.steps[what] * FLAT, what
    assert large.seconds.total() <= small.seconds.total() * FAR_FROM_A_SQUARE


async def test_a_chain_that_many_wait_for_lets_go_of_all_in_time_linear_in_their_number() -> None:
    async def let_go(size: int, move: Move, state: State) -> int:
        yard = Yard()
        [other] = await yard.put(yard.job())
        waiting = await yard.put(*(yard.job(other) for _ in range(size)))
        [job] = await yard.start()
        await yard.counted("end", yard.end(job, move))
        assert {await yard.state(id) for id in waiting} == {state}
        await yard.store.close()
        return yard.steps["end"]

    for move, state in ((Move.COMPLETE, State.WAITING), (Move.FAIL, State.FAILED)):
        few, many = await let_go(200, move, state), await let_go(2_000, move, state)
        assert many <= few * 10 * LINE, move


async def test_one_blocker_of_ten_thousand_ends_as_cheaply_as_one_of_ten() -> None:
    async def one_of(size: int) -> int:
        yard = Yard()
        others = [yard.job() for _ in range(size)]
        await yard.put(*others, yard.job(*(other.id for other in others)))
        [job] = await yard.start()
        await yard.counted("end", yard.end(job))
        await yard.store.close()
        return yard.steps["end"]

    assert await one_of(TEN_THOUSAND) == await one_of(TEN)
