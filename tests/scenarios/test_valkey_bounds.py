"""No call holds a Valkey server up for long, however much there is to be done: a script runs only so many commands, and the rest
comes with the next one. Commands are counted, and not seconds, which depend on the machine; and because one command may do
much, so is, in units of simple commands, the time for which the server's processor was busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Lock
from typing import Any

import msgspec
import pytest
import valkey as driver
from servers.layout_checks import inspect_layout, left_over
from servers.valkey import ValkeyServer

from onejob import Every, Rate, Unique
from onejob.core.chain import continuation_id
from onejob.core.job import ChainId, Claimed, JobId, NewJob, State, WorkerId
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import Move, Settlement
from onejob.core.schedule import Definition, Template
from onejob.core.schedule import put as put_schedule
from onejob.store import Amended, Amendment, Ask, Beat, JobFilter, Settled
from onejob.stores.valkey.client import Client
from onejob.stores.valkey.office import Office
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import AT_ONCE, LEASE, beat, job, put

MANY = 1_300
"""Several times what one call deals with."""
MOST = 3_000
"""Commands of one call: a few milliseconds, at about a microsecond each."""


class Meter:
    """How many commands the calls of a store run on the server, and how long that is busy; the most of any one of them."""

    def __init__(self, server: ValkeyServer) -> None:
        self._client = driver.Valkey(port=server.port)
        self.most = 0
        self.longest = 0.0
        """Seconds."""

    def look(self) -> tuple[int, float]:
        """Commands that were run so far, inside scripts, too; and seconds of its main thread."""
        found = self._client.info("stats", "cpu")
        busy = found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"]
        return found["total_commands_processed"], busy

    def note(self, before: tuple[int, float]) -> None:
        commands, busy = self.look()
        self.most, self.longest = (
            max(self.most, commands - before[0] - 1),
            max(self.longest, busy - before[1]),
        )

    def of_commands(self, number: int) -> float:
        """Seconds that so many simple commands of a script take."""
        script = "for n = 1, ARGV[1] do redis.call('HSET', KEYS[1], n % 100, n) end"
        before = self.look()
        self._client.eval(script, 1, "{measured}", number)
        return self.look()[1] - before[1]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def meter(own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    meter = Meter(own_valkey)
    weigh(meter, monkeypatch)
    yield meter
    meter.close()


def weigh(measure: Meter | Scales, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a measure note what each call took."""
    ask, under_way = Client.ask_at, Lock()

    async def weighed(self: Client, *arguments: Any) -> Any:
        # One at a time, whichever thread it comes from: the server counts all commands together.
        while not under_way.acquire(blocking=False):  # noqa: ASYNC110 - other loops hold it, too
            await asyncio.sleep(0.0005)
        try:
            before: Any = measure.look()
            answer = await ask(self, *arguments)
            measure.note(before)
        finally:
            under_way.release()
        return answer

    monkeypatch.setattr(Client, "ask_at", weighed)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(own_valkey: ValkeyServer, meter: Meter, clock: FakeClock) -> Iterator[ValkeyStore]:
    store = ValkeyStore(own_valkey.url, clock=clock)
    yield store
    asyncio.run(store.close())


class Scales:
    """How many bytes a call brings and takes away, and by how many what the server holds grows; the most of any one of them."""

    def __init__(self, server: ValkeyServer) -> None:
        self._client = driver.Valkey(port=server.port)
        self.moved = self.grown = 0

    def look(self) -> tuple[int, int]:
        """Bytes that went over the network so far, and bytes that are held."""
        found = self._client.info("stats", "memory")
        return found["total_net_input_bytes"] + found["total_net_output_bytes"], found["used_memory_dataset"]

    def note(self, before: tuple[int, int]) -> None:
        moved, held = self.look()
        self.moved, self.grown = max(self.moved, moved - before[0]), max(self.grown, held - before[1])

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def scales(own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scales]:
    scales = Scales(own_valkey)
    weigh(scales, monkeypatch)
    yield scales
    scales.close()


async def filled(store: ValkeyStore, **settings: Any) -> list[NewJob]:
    """Many jobs, of which each may have a key."""
    jobs = [job(key=str(number), **settings) for number in range(MANY)]
    for at in range(0, MANY, 1_000):
        await store.enqueue(jobs[at : at + 1_000])
    return jobs


async def run_all(store: ValkeyStore, move: Move = Move.COMPLETE) -> int:
    """Start and end everything, as much at a time as there is."""
    await beat(store)
    ask = Ask(WorkerId("w"), ("q",), MANY)
    claims, count = await store.claim(ask), 0
    while claims.jobs:
        count += len(claims.jobs)
        reply = await store.settle([Settlement(one.lease, move) for one in claims.jobs], ask)
        assert set(reply.settled) == {Settled.DONE}
        claims = reply.claims
    return count


async def emptied(store: ValkeyStore, clock: FakeClock) -> int:
    """Prune until nothing is left; how many there were."""
    clock.advance(1)
    count = (found := await store.prune(AT_ONCE, 1_000)).jobs
    while found.more:
        count += (found := await store.prune(AT_ONCE, 1_000)).jobs
    return count


@pytest.mark.parametrize("kind", ["plain", "keyed", "delayed", "expiring"])
async def test_many_jobs_come_run_and_go(
    kind: str, store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    settings: dict[str, Any] = {
        "plain": {},
        "keyed": {"unique": Unique.latest()},
        "delayed": {"delay": 1_000},
        "expiring": {"expires": 1_000},
    }[kind]
    await filled(store, **settings)
    if kind == "keyed":
        await filled(store, **settings)
    clock.advance(2)
    assert await run_all(store) == (0 if kind == "expiring" else MANY)
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


HEAVY, WEIGHT = 250, 200_000
"""As many as one call deals with, and how many bytes each has."""
HEAVIEST = 5_000_000
"""Bytes of one call: twice as much as it may begin with, and a little."""


async def test_heavy_jobs_come_run_fail_are_buried_and_bring_results_a_few_at_a_time(
    own_valkey: ValkeyServer, clock: FakeClock, scales: Scales
) -> None:
    store = ValkeyStore(own_valkey.url, clock=clock)
    load = b'"' + b"x" * WEIGHT + b'"'
    try:
        await store.enqueue([msgspec.structs.replace(job(), payload=load) for _ in range(HEAVY)])
        await beat(store)
        claimed = (await store.claim(Ask(WorkerId("w"), ("q",), HEAVY))).jobs
        assert [one.payload for one in claimed] == [load] * HEAVY
        clock.advance(LEASE)
        assert [one.job.payload for one in await store.expired(HEAVY)][:10] == [load] * 10
        await beat(store)
        buried = [Settlement(one.lease, Move.FAIL, error="no", dead_letter="graves") for one in claimed]
        assert (await store.settle(buried)).settled == [Settled.DONE] * HEAVY
        assert (await store.counts())["graves"][State.WAITING] == HEAVY
        ask = Ask(WorkerId("w"), ("graves",), HEAVY - 1, stock=1)
        copies = (await store.claim(ask)).jobs
        assert len({one.lease.id for one in copies}) == HEAVY
        done = [Settlement(one.lease, Move.COMPLETE, result=load) for one in copies]
        assert (await store.settle(done)).settled == [Settled.DONE] * HEAVY
        await emptied(store, clock)
        assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    finally:
        await store.close()
    assert scales.moved <= HEAVIEST
    assert scales.grown <= 2 * HEAVIEST, "a copy, and a message that brings it"


async def test_to_remove_a_job_costs_no_commands_of_its_own(
    store: ValkeyStore, clock: FakeClock, meter: Meter
) -> None:
    for _ in range(2):
        await filled(store)
    assert await run_all(store) == 2 * MANY
    before = meter.look()[0]
    assert await emptied(store, clock) == 2 * MANY
    metering = 4 * 2 * MANY / 250
    assert meter.look()[0] - before - metering <= 2 * MANY


FOLLOWERS = 3 * MANY
FOLLOW = Unique(queued="run", running="follow", completed="run", failed="run")


async def followed(store: ValkeyStore) -> Claimed:
    """A running job that many follow."""
    first = job(key="k", unique=FOLLOW)
    await put(store, first)
    await beat(store)
    [running] = (await store.claim(Ask(WorkerId("w"), ("q",), 1))).jobs
    for _ in range(6):
        await store.enqueue([job(key="k", unique=FOLLOW) for _ in range(FOLLOWERS // 6)])
    assert (await store.counts())["q"] == {State.RUNNING: 1, State.BLOCKED: FOLLOWERS}
    return running


async def test_a_job_that_many_follow_lets_them_go_some_at_a_time(
    store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    running = await followed(store)
    meter.most = 0
    await store.settle([Settlement(running.lease, Move.COMPLETE)])
    assert meter.most <= MOST
    assert (await store.counts())["q"] == {State.COMPLETED: 1, State.WAITING: FOLLOWERS}
    assert inspect_layout(own_valkey.url) == []
    assert await run_all(store) == FOLLOWERS
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])


async def test_a_job_that_runs_again_before_all_who_follow_it_have_gone_is_followed_by_the_rest(
    store: ValkeyStore, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await followed(store)
    monkeypatch.setattr(Office, "deliver", _nobody_delivers)
    await store.settle([Settlement(running.lease, Move.FAIL, error="no")])
    gone = (await store.counts())["q"][State.WAITING]
    assert 0 < gone < FOLLOWERS, "its worker died in the midst of it"
    assert await store.amend([running.lease.id], Amendment.RETRY) == [Amended.RETRIED]
    monkeypatch.undo()
    await store.expired(1)
    assert (await store.counts())["q"] == {State.WAITING: gone + 1, State.BLOCKED: FOLLOWERS - gone}
    assert await run_all(store) == FOLLOWERS + 1
    assert inspect_layout(own_valkey.url) == []


async def _nobody_delivers(*_: Any, **__: Any) -> None:
    """What was left in an outbox stays there."""


async def test_a_rescuer_reads_of_many_dead_workers_only_what_it_can_rescue(
    store: ValkeyStore, clock: FakeClock, meter: Meter
) -> None:
    limit, workers = 250, 20
    for _ in range(4):
        await filled(store)
    for number in range(workers):
        await beat(store, f"w{number}")
        clock.advance(1)
        claimed = (await store.claim(Ask(WorkerId(f"w{number}"), ("q",), limit))).jobs
        assert len(claimed) == limit
    clock.advance(LEASE)
    left, meter.most = limit * workers, 0
    while found := await store.expired(limit):
        assert len(found) == limit
        await store.settle([Settlement(one.job.lease, Move.COMPLETE) for one in found])
        left -= limit
    assert left == 0
    assert meter.most <= MOST


def fan_in(jobs: list[NewJob]) -> NewJob:
    return msgspec.structs.replace(job(), blockers=tuple(one.id for one in jobs))


async def test_a_job_that_waits_for_many_is_made_let_go_and_forgotten(
    store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    waiting = fan_in(blockers)
    await put(store, waiting)
    assert inspect_layout(own_valkey.url) == []
    assert len(await store.blockers(waiting.id)) == MANY
    assert await run_all(store) == MANY + 1
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


async def test_a_job_that_waits_for_many_is_revoked_revived_and_waits_again(
    store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    waiting = fan_in(blockers)
    await put(store, waiting)
    for _ in range(2):
        assert await store.amend([waiting.id], Amendment.REVOKE) == [Amended.REVOKED]
        assert inspect_layout(own_valkey.url) == []
        assert await store.amend([waiting.id], Amendment.RETRY) == [Amended.RETRIED]
        assert inspect_layout(own_valkey.url) == []
        found = await store.job(waiting.id)
        assert found is not None
        assert found.state is State.BLOCKED
    assert await run_all(store) == MANY + 1
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


@pytest.mark.parametrize("ended", [0, 1, MANY - 1, MANY])
async def test_it_waits_for_those_only_that_have_not_ended(
    ended: int, store: ValkeyStore, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    await beat(store)
    ask = Ask(WorkerId("w"), ("q",), ended)
    done = (await store.claim(ask)).jobs
    await store.settle([Settlement(one.lease, Move.COMPLETE) for one in done])
    waiting = fan_in(blockers)
    await put(store, waiting)
    found = await store.job(waiting.id)
    assert found is not None
    assert found.state is (State.WAITING if ended == MANY else State.BLOCKED)
    assert inspect_layout(own_valkey.url) == []
    assert await run_all(store) == MANY - ended + 1


async def test_one_of_many_that_failed_before_ends_it_and_leaves_nothing(
    store: ValkeyStore, clock: FakeClock, own_valkey: ValkeyServer
) -> None:
    blockers = await filled(store)
    await beat(store)
    [first] = (await store.claim(Ask(WorkerId("w"), ("q",), 1))).jobs
    await store.settle([Settlement(first.lease, Move.FAIL, error="no")])
    waiting = fan_in(blockers)
    await put(store, waiting)
    found = await store.job(waiting.id)
    assert found is not None
    assert found.state is State.FAILED
    assert inspect_layout(own_valkey.url) == []
    assert await run_all(store) == MANY - 1
    await emptied(store, clock)
    assert left_over(own_valkey.url) == []


async def test_a_long_chain_is_looked_through_revoked_and_dropped(
    store: ValkeyStore, clock: FakeClock, meter: Meter, own_valkey: ValkeyServer
) -> None:
    first = job()
    await put(store, first)
    await beat(store)
    ask = Ask(WorkerId("w"), ("q",), 1)
    claims = await store.claim(ask)
    for index in range(1, MANY):
        [running] = claims.jobs
        then = job(id=JobId(continuation_id(ChainId(first.id), index)))
        last = index == MANY - 1
        reply = await store.settle(
            [Settlement(running.lease, Move.COMPLETE, then=then)], None if last else ask
        )
        claims = reply.claims
    assert len(await store.chain(first.id)) == MANY
    assert await store.amend([first.id], Amendment.REVOKE) == [Amended.REVOKED]
    assert await store.amend([first.id], Amendment.DELETE) == [Amended.DELETED]
    assert await store.count(JobFilter()) == 0
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


async def test_a_worker_with_many_jobs_keeps_all_of_them_and_what_they_say(
    store: ValkeyStore, own_valkey: ValkeyServer, meter: Meter
) -> None:
    await filled(store)
    await beat(store)
    claimed = (await store.claim(Ask(WorkerId("w"), ("q",), MANY))).jobs
    meter.most = 0
    progress = {one.id: str(number).encode() for number, one in enumerate(claimed)}
    pulse = await store.beat(Beat(WorkerId("w"), LEASE, progress=progress))
    assert pulse.held == {one.id: one.lease.token for one in claimed}
    assert meter.most <= MOST
    last = await store.job(claimed[-1].id)
    assert last is not None
    assert last.progress == str(MANY - 1).encode()
    assert inspect_layout(own_valkey.url) == []


async def test_many_schedules_are_listed_some_at_a_time(store: ValkeyStore, meter: Meter) -> None:
    definition = Definition(Every(60), Template("q", "t", b"{}"))
    found = [put_schedule(None, f"s{number:04}", definition, declared=False, now=0) for number in range(MANY)]
    made = [one for one in found if one is not None]
    await store.put_schedules(made)
    meter.most = 0
    assert [one.id for one in await store.schedules()] == [one.id for one in made]
    assert [one.id for one in await store.schedules([made[7].id, "none"])] == [made[7].id]
    assert meter.most <= 400, "a page of 250, and a little"


WIDE, TURNS, FORGOTTEN = 1_000, 250, 500
"""Who may run in a wide lane; of those, who is let in at a time; and starts that are forgotten at a time."""
WIDE_LANES = {
    "wide": LanePlan("wide", concurrency=WIDE),
    "rated": LanePlan("wide", concurrency=WIDE, rate=Rate(5_000, per=60)),
    "held": LanePlan("wide", concurrency=WIDE, rate=Rate(5_000, per=60), hold=True),
}


async def worked_off_from(lane: LanePlan, store: ValkeyStore, many: int = MANY) -> None:
    """Many jobs of a wide lane start, as many as may at a time; each fails once before it completes."""
    jobs = [job(lane=lane) for _ in range(many)]
    for at in range(0, len(jobs), 1_000):
        await store.enqueue(jobs[at : at + 1_000])
        assert await turns(store) <= TURNS
    await beat(store)
    claimed = await all_that_may_start(store)
    assert len(claimed) == min(many, lane.concurrency)
    starts = 0
    while claimed:
        starts += len(claimed)
        assert starts <= 2 * len(jobs)
        assert len(claimed) <= lane.concurrency
        await beat(store)
        await store.settle(
            [Settlement(one.lease, Move.COMPLETE if one.failures else Move.RETRY) for one in claimed]
        )
        claimed = await all_that_may_start(store)
        assert await turns(store) <= TURNS
    assert starts == 2 * len(jobs)


async def turns(store: ValkeyStore) -> int:
    """How many jobs have been let in, and may start."""
    return (await store.counts())["q"].get(State.WAITING, 0)


@pytest.mark.parametrize(
    "lane", ["rated", *(pytest.param(name, marks=pytest.mark.torture) for name in ("wide", "held"))]
)
async def test_a_wide_lane_runs_as_many_as_it_may_and_all_of_its_jobs(
    lane: str, store: ValkeyStore, clock: FakeClock, own_valkey: ValkeyServer, meter: Meter
) -> None:
    await worked_off_from(WIDE_LANES[lane], store)
    assert inspect_layout(own_valkey.url) == []
    clock.advance(60_001)
    for left in range(2 * MANY, 0, -FORGOTTEN) if WIDE_LANES[lane].rate else [0]:
        index = own_valkey.execute("ZRANGEBYLEX", "{onejob:q}:index", "[S", "(T")
        assert len(index) == left
        await store.claim(Ask(WorkerId("w"), ("q",), 1))
    await emptied(store, clock)
    assert (inspect_layout(own_valkey.url), left_over(own_valkey.url)) == ([], [])
    assert meter.most <= MOST


async def all_that_may_start(store: ValkeyStore) -> list[Claimed]:
    found: list[Claimed] = []
    while some := (await store.claim(Ask(WorkerId("w"), ("q",), WIDE))).jobs:
        found += some
    return found


@pytest.mark.torture
async def test_the_longest_call_of_all_is_short(store: ValkeyStore, clock: FakeClock, meter: Meter) -> None:
    widest = LanePlan("widest", concurrency=10_000, rate=Rate(10_000, per=60), hold=True)
    await worked_off_from(widest, store, 4_000)
    clock.advance(60_001)
    await emptied(store, clock)
    keyed = await filled(store, unique=Unique.latest())
    await filled(store, unique=Unique.latest())
    assert await run_all(store) == MANY
    await put(store, fan_in(keyed))
    await filled(store, delay=1_000)
    ids = [one.id for one in await filled(store)]
    for at in range(0, MANY, 1_000):
        await store.amend(ids[at : at + 1_000], Amendment.REVOKE)
    clock.advance(1_000)
    assert await run_all(store) == MANY + 1
    await emptied(store, clock)
    unit = min(meter.of_commands(1_000) for _ in range(10))
    assert meter.longest <= 20 * unit, f"{meter.longest:.3f} s, and 1,000 simple commands take {unit:.3f}"
