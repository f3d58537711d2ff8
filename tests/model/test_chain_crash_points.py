"""Chains and blockers, cut off before each statement: never a second next job, never a missing one, and never a job
that waits although all its blockers have ended.

As in test_crash_points, a process *dies* before each statement and after the last (the reply is lost), or a statement
*fails*. What is compared here is all that is on disk: it is exactly as before the operation or exactly as after it,
and after the operation has been repeated it is exactly as if it had gone through at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import msgspec
import pytest
from cutting import Watched, copy_store

from onejob.core.chain import continuation_id
from onejob.core.dedup import Unique
from onejob.core.errors import LeaseLost, StoreFull
from onejob.core.job import ENDED, ChainId, Claimed, JobId, NewJob, State, WorkerId
from onejob.core.lifecycle import Lost, Move, Settlement, after_attempt
from onejob.core.options import JobOptions, encode_options
from onejob.store import Amended, Amendment, Ask, Beat, Retention, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import job

LEASE = 30_000
EVERYTHING = 1_000
LONGEST_WAY = 10
QUEUES = ("q", "r", "dead")
BURIED = encode_options(JobOptions(dead_letter="dead"))
TABLES = ("onejob_job", "onejob_key", "onejob_blocker", "onejob_lane", "onejob_worker", "orders")


@dataclass
class Stage:
    """A store, and the leases that a worker has of it."""

    store: Any
    clock: FakeClock
    leases: dict[str, Claimed] = field(default_factory=dict)

    async def put(self, *jobs: NewJob) -> list[str]:
        return [answer.outcome for answer in await self.store.enqueue(jobs)]

    async def start(self, *queues: str) -> None:
        """Start everything that is due in these queues."""
        await self.store.beat(Beat(WorkerId("w"), LEASE))
        claims = await self.store.claim(Ask(WorkerId("w"), queues or ("q",), EVERYTHING))
        self.leases |= {job.id: job for job in claims.jobs}

    async def end(self, *done: Settlement, ask: bool = False) -> list[Settled]:
        wish = Ask(WorkerId("w"), QUEUES, EVERYTHING) if ask else None
        return (await self.store.settle(done, wish)).settled

    async def amend(self, number: int, amendment: Amendment) -> list[Amended]:
        return await self.store.amend([id(number)], amendment)

    def done(self, which: str, move: Move = Move.COMPLETE, **settings: Any) -> Settlement:
        """The end of a job's attempt; `then` names what its next job waits for."""
        held = self.leases[which]
        if (blockers := settings.pop("then", None)) is not None:
            next_job = job(id=continuation_id(held.chain, held.chain_index + 1), task="next")
            settings["then"] = msgspec.structs.replace(next_job, blockers=blockers)
        return Settlement(held.lease, move, error=None if move is Move.COMPLETE else "boom", **settings)

    async def drain(self) -> None:
        """Let a worker run everything to its end; who held jobs before is gone."""
        for _ in range(LONGEST_WAY):
            self.clock.tick(LEASE)
            lost = await self.store.expired(EVERYTHING)
            await self.end(*(after_attempt(found.job, Lost(found.worker)) for found in lost))
            self.leases.clear()
            await self.start(*QUEUES)
            if not self.leases:
                return
            await self.end(*(Settlement(one.lease, Move.COMPLETE) for one in self.leases.values()))
        raise AssertionError("it never ends")


def on_disk(folder: Path, clock: FakeClock, leases: dict[str, Claimed] | None = None) -> Stage:
    """With the store whose files are in a folder."""
    return Stage(Watched(str(folder / "jobs.db"), clock=clock), clock, leases or {})


def id(number: int) -> JobId:
    """The id of the job of that number."""
    return JobId(str(UUID(int=number)))


def next_id(number: int, index: int = 1) -> JobId:
    """The id of the job at a place of the chain that begins with that number."""
    return continuation_id(ChainId(id(number)), index)


def new(number: int, *blockers: int, runs_anyway: bool = False, **settings: Any) -> NewJob:
    """The job of that number, which waits for others."""
    made = job(id=id(number), **settings)
    return msgspec.structs.replace(
        made, blockers=tuple(id(other) for other in blockers), runs_anyway=runs_anyway
    )


Act = Callable[[Stage], Awaitable[Any]]


async def chain_of_two(stage: Stage, **settings: Any) -> None:
    """A chain, job 1 and its next, whose second job runs."""
    await stage.put(new(1, **settings))
    await stage.start()
    await stage.end(stage.done(id(1), then=()))
    await stage.start()


async def failed_chain_with_a_line(stage: Stage) -> None:
    """A keyed chain that failed at its second job, and with it those who waited for it."""
    await chain_of_two(stage, unique=Unique.in_flight())
    await stage.put(new(2, 1), new(3, 2, options=BURIED))
    await stage.end(stage.done(next_id(1), Move.FAIL))


async def complete_with_an_order(stage: Stage) -> list[Settled]:
    """What `complete()` does: the user's row and the job's end in one commit, or neither."""
    reply = None
    try:
        async with stage.store.transaction(5) as transaction:
            await transaction.execute("insert into orders values (1)")
            await transaction.enqueue([new(5)])
            reply = await transaction.settle(stage.done(id(1), then=(id(2),)))
            if Settled.LOST in reply.settled:
                raise LeaseLost("too late")
    except LeaseLost:
        assert reply is not None
    return [] if reply is None else reply.settled


def steps(*acts: Act) -> Act:
    """One after the other."""

    async def all_of_them(stage: Stage) -> None:
        for act in acts:
            await act(stage)

    return all_of_them


@dataclass(frozen=True)
class Operation:
    """What is cut off, what it answers at first and when it is repeated, and how the jobs stand after it."""

    prepare: Act
    operate: Act
    first: list[str]
    again: list[str]
    states: dict[JobId, str]


W, R, C, F, B, X = "waiting", "running", "completed", "failed", "blocked", "revoked"
DONE, LOST = [Settled.DONE], [Settled.LOST]

OPERATIONS: dict[str, Operation] = {
    "a job completes and its chain goes on": Operation(
        steps(lambda s: s.put(new(1, unique=Unique.in_flight())), Stage.start),
        lambda s: s.end(s.done(id(1), then=())),
        DONE,
        LOST,
        {id(1): C, next_id(1): W},
    ),
    "a job completes, its chain goes on, and the next is claimed in the same commit": Operation(
        steps(lambda s: s.put(new(1), new(2)), Stage.start),
        lambda s: s.end(s.done(id(1), then=()), s.done(id(2), then=()), ask=True),
        DONE * 2,
        LOST * 2,
        {id(1): C, next_id(1): R, id(2): C, next_id(2): R},
    ),
    "a chain goes on with a job that waits": Operation(
        steps(lambda s: s.put(new(1), new(2, queue="r"), new(3)), Stage.start),
        lambda s: s.end(s.done(id(3)), s.done(id(1), then=(id(2), id(3)))),
        DONE * 2,
        LOST * 2,
        {id(1): C, next_id(1): B, id(2): W, id(3): C},
    ),
    "a chain goes on with a job whose blockers have all ended": Operation(
        steps(lambda s: s.put(new(1), new(2)), Stage.start, lambda s: s.end(s.done(id(2)))),
        lambda s: s.end(s.done(id(1), then=(id(2),))),
        DONE,
        LOST,
        {id(1): C, next_id(1): W, id(2): C},
    ),
    "a chain goes on with a job that is stranded, and so is who waits for it": Operation(
        steps(
            lambda s: s.put(new(1, unique=Unique.in_flight()), new(2)),
            Stage.start,
            lambda s: s.put(new(3, 1)),
            lambda s: s.end(s.done(id(2), Move.FAIL)),
        ),
        lambda s: s.end(s.done(id(1), then=(id(2),))),
        DONE,
        LOST,
        {id(1): C, next_id(1): F, id(2): F, id(3): F},
    ),
    "two chains of one batch, one of which waits for the other": Operation(
        steps(lambda s: s.put(new(1), new(2)), Stage.start),
        lambda s: s.end(s.done(id(1), then=(id(2),)), s.done(id(2), then=())),
        DONE * 2,
        LOST * 2,
        {id(1): C, next_id(1): B, id(2): C, next_id(2): W},
    ),
    "a chain ends and lets go of who waits and who follows": Operation(
        steps(
            lambda s: chain_of_two(s, unique=Unique.latest()),
            lambda s: s.put(new(2, 1), new(3, unique=Unique.latest(), payload=b"3"), new(4, 1, 2)),
        ),
        lambda s: s.end(s.done(next_id(1))),
        DONE,
        LOST,
        {id(1): C, next_id(1): C, id(2): W, id(3): W, id(4): B},
    ),
    "both sides of a diamond end at once": Operation(
        steps(lambda s: s.put(new(1), new(2)), Stage.start, lambda s: s.put(new(3, 1, 2), new(4, 3))),
        lambda s: s.end(s.done(id(1)), s.done(id(2))),
        DONE * 2,
        LOST * 2,
        {id(1): C, id(2): C, id(3): W, id(4): B},
    ),
    "a chain fails and strands a line": Operation(
        steps(
            lambda s: chain_of_two(s, unique=Unique.in_flight()),
            lambda s: s.put(
                new(2, 1, unique=Unique.in_flight(), key="2"),
                new(3, 2, options=BURIED),
                new(4, 3),
                new(5, 4, runs_anyway=True),
            ),
        ),
        lambda s: s.end(s.done(next_id(1), Move.FAIL)),
        DONE,
        LOST,
        {id(1): C, next_id(1): F, id(2): F, id(3): F, id(4): F, id(5): W},
    ),
    "a chain is lost for good and strands who waits": Operation(
        steps(chain_of_two, lambda s: s.put(new(2, 1)), lambda s: _tick(s, LEASE)),
        lambda s: s.end(s.done(next_id(1), Move.PERISH)),
        DONE,
        LOST,
        {id(1): C, next_id(1): F, id(2): F},
    ),
    "a transaction completes a job, goes on with one that waits, and writes a row": Operation(
        steps(lambda s: s.put(new(1), new(2, queue="r"), new(4, 1)), Stage.start),
        complete_with_an_order,
        DONE,
        LOST,
        {id(1): C, next_id(1): B, id(2): W, id(4): B, id(5): W},
    ),
    "a chain is made with its blockers": Operation(
        lambda s: s.put(new(1)),
        lambda s: s.put(new(2, 1), new(3, 1, 2, unique=Unique.in_flight())),
        ["created"] * 2,
        ["created"] * 2,
        {id(1): W, id(2): B, id(3): B},
    ),
    "a failed chain is retried": Operation(
        failed_chain_with_a_line,
        lambda s: s.amend(1, Amendment.RETRY),
        [Amended.RETRIED],
        [Amended.RUNNING],
        {id(1): C, next_id(1): W, id(2): F, id(3): F},
    ),
    "a stranded job is retried, and waits again": Operation(
        steps(failed_chain_with_a_line, lambda s: s.amend(1, Amendment.RETRY)),
        lambda s: s.amend(2, Amendment.RETRY),
        [Amended.RETRIED],
        [Amended.RUNNING],
        {id(1): C, next_id(1): W, id(2): B, id(3): F},
    ),
    "a chain that others wait for is revoked": Operation(
        steps(
            lambda s: chain_of_two(s, unique=Unique.in_flight()),
            lambda s: s.put(new(2, 1), new(3, 2), new(4, 1, runs_anyway=True)),
            lambda s: s.end(s.done(next_id(1), Move.RETRY, delay=1_000)),
        ),
        lambda s: s.amend(1, Amendment.REVOKE),
        [Amended.REVOKED],
        [Amended.FINISHED],
        {id(1): C, next_id(1): X, id(2): F, id(3): F, id(4): W},
    ),
    "a chain that others wait for is deleted": Operation(
        steps(
            lambda s: chain_of_two(s, unique=Unique.in_flight()),
            lambda s: s.put(new(2, 1), new(3, 2), new(4, 1, runs_anyway=True)),
            lambda s: s.end(s.done(next_id(1), Move.RETRY, delay=1_000)),
        ),
        lambda s: s.amend(1, Amendment.DELETE_WITH_WAITING),
        [Amended.DELETED],
        [Amended.NOT_FOUND],
        {id(2): F, id(3): F, id(4): W},
    ),
}


async def _tick(stage: Stage, span: int) -> None:
    stage.clock.tick(span)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    Watched.before_statement = None
    loop.close()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where the operation is first done."""
    return tmp_path / "origin"


@pytest.fixture
def origin(disk: Path, loop: asyncio.AbstractEventLoop) -> Iterator[Stage]:
    """The store there; there is a table of the user's, too."""
    stage = on_disk(disk, FakeClock())

    async def prepare() -> None:
        async with stage.store.transaction(5) as transaction:
            await transaction.execute("create table orders (number integer)")

    loop.run_until_complete(prepare())
    yield stage
    Watched.before_statement = None
    loop.run_until_complete(stage.store.close())


@pytest.mark.accepts("Q14", "Q15", "Q16")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_process_that_dies_leaves_all_or_nothing(
    name: str, tmp_path: Path, loop: asyncio.AbstractEventLoop, disk: Path, origin: Stage
) -> None:
    operation = OPERATIONS[name]
    loop.run_until_complete(operation.prepare(origin))
    before, now, leases = dump(disk), origin.clock.now, dict(origin.leases)
    images: list[Path] = []

    def take_image(_: str = "") -> None:
        images.append(tmp_path / f"image{len(images)}")
        copy_store(disk, images[-1])

    Watched.before_statement = take_image
    answer = loop.run_until_complete(operation.operate(origin))
    Watched.before_statement = None
    take_image()
    after = dump(disk)
    assert answer == operation.first
    assert states(after) == operation.states
    assert len(images) > 3, "an operation begins, writes and commits"
    done: list[bool] = []
    for image in images:
        seen = dump(image)
        assert seen in (before, after)
        done.append(seen == after)
        loop.run_until_complete(repeat(operation, on_disk(image, FakeClock(now), leases), done[-1]))
        assert without_leases(dump(image)) == without_leases(after)
        loop.run_until_complete(run_to_the_end(on_disk(image, FakeClock(now))))
        nobody_is_stuck(dump(image))
    assert done == sorted(done), "what is committed stays so"
    assert (done[0], done[-1]) == (False, True)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_statement_that_fails_leaves_nothing_and_can_be_repeated(
    name: str, loop: asyncio.AbstractEventLoop, disk: Path, origin: Stage
) -> None:
    operation = OPERATIONS[name]
    loop.run_until_complete(operation.prepare(origin))
    before = dump(disk)
    failing, fired, answer = 0, True, None
    while fired:
        failing += 1
        seen, fired = 0, False

        def fail(_: str, at: int = failing) -> None:
            nonlocal seen, fired
            seen += 1
            if seen == at:
                fired = True
                raise apsw.FullError("injected: disk full")

        Watched.before_statement = fail
        try:
            answer = loop.run_until_complete(operation.operate(origin))
        except StoreFull:
            assert fired
        Watched.before_statement = None
        if fired:
            assert dump(disk) == before, f"statement {failing} failed"
    assert failing > 3, "an operation begins, writes and commits"
    assert answer == operation.first
    assert states(dump(disk)) == operation.states
    loop.run_until_complete(origin.drain())
    nobody_is_stuck(dump(disk))


async def repeat(operation: Operation, stage: Stage, done: bool) -> None:
    """Do it again, as one does who got no reply."""
    assert await operation.operate(stage) == (operation.again if done else operation.first)
    await stage.store.close()


async def run_to_the_end(stage: Stage) -> None:
    """Another worker takes over; at the end all keys are free, and everything can be pruned."""
    await stage.drain()
    stage.clock.tick(1)
    await stage.store.prune(Retention(0, 0, 0), EVERYTHING)
    assert await stage.store.keys() == []
    assert await stage.store.counts() == {}
    await stage.store.close()


Dump = dict[str, list[dict[str, Any]]]


def dump(path: Path) -> Dump:
    """Everything that is on disk."""
    connection = apsw.Connection(str(path / "jobs.db"))
    try:
        seen: Dump = {}
        for table in TABLES:
            names = [column[1] for column in connection.execute(f"pragma table_info({table})")]
            rows = connection.execute(f"select * from {table}")
            seen[table] = [dict(zip(names, row, strict=True)) for row in rows]
        return seen
    finally:
        connection.close()


def without_leases(seen: Dump) -> Dump:
    """But for tokens, which are made anew with each start."""
    jobs = [row | {"lease": row["lease"] is not None} for row in seen["onejob_job"]]
    return seen | {"onejob_job": jobs}


def states(seen: Dump) -> dict[JobId, str]:
    """How all jobs stand, but for dead letters."""
    return {
        JobId(str(UUID(bytes=row["id"]))): row["state"] for row in seen["onejob_job"] if row["origin"] is None
    }


def nobody_is_stuck(seen: Dump) -> None:
    """Each chain has one job for each place and has ended; who waits, waits for somebody."""
    chains: defaultdict[bytes, dict[int, str]] = defaultdict(dict)
    for row in seen["onejob_job"]:
        places = chains[row["chain"] or row["id"]]
        assert row["chain_index"] not in places, "two jobs at one place"
        places[row["chain_index"]] = row["state"]
    for places in chains.values():
        *earlier, last = [places[index] for index in range(len(places))]
        assert set(earlier) <= {State.COMPLETED}, "a chain went on after a job that did not complete"
        assert last in ENDED, "a chain is stuck"
    assert len(seen["orders"]) <= 1, "the user's row was written twice"
