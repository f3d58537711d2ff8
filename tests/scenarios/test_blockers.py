"""Blockers: jobs that wait for chains, and what they are told of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from stage import Gate
from test_continuations import states, stored

from onejob import (
    App,
    Fail,
    InvalidOption,
    JobFailed,
    JobRevoked,
    ResultGone,
    Retention,
    Retry,
    State,
    StoreBusy,
    Unique,
    UnknownBlocker,
    current_job,
)
from onejob.core.chain import MAX_BLOCKERS
from onejob.core.lifecycle import Move
from onejob.store import Amended, Blocker, JobStore
from onejob.testing import FakeClock, adrain

NOWHERE = "0198f000-0000-7000-8000-000000000000"


@dataclasses.dataclass
class Parcel:
    weight: float


async def test_outputs_arrive_typed_and_in_order(app: App) -> None:
    seen: list[object] = []

    @app.task(name="weigh")
    async def weigh(weight: float) -> Parcel:
        return Parcel(weight)

    @app.task(name="name_it")
    def name_it(text: str) -> str:
        return text

    @app.task
    async def nothing() -> None: ...

    @app.task
    async def load() -> int:
        blockers = current_job().blockers
        seen.extend(blocker.output for blocker in blockers)
        seen.append([(blocker.id, blocker.task, blocker.state, blocker.error) for blocker in blockers[:1]])
        seen.append(repr(blockers[0]))
        return len(blockers)

    parts = [await name_it.aenqueue("b"), await weigh.aenqueue(2.5), await nothing.aenqueue()]
    receipt = await load.using(blockers=[parts[1], parts[0].id, parts[2]]).aenqueue()
    await adrain(app)
    first = parts[1].id
    assert seen == [
        Parcel(2.5),
        "b",
        None,
        [(first, "weigh", State.COMPLETED, None)],
        f"<Blocker {first}: completed>",
    ]
    assert await receipt.aresult() == 3


async def test_an_output_of_a_task_that_is_not_known_here_is_plain(store_url: str) -> None:
    async with App(store_url) as there, App(store_url) as here:

        @there.task
        async def weigh(weight: float) -> Parcel:
            return Parcel(weight)

        @here.task
        async def load() -> object:
            return current_job().blockers[0].output

        receipt = await weigh.aenqueue(2.5)
        await adrain(there)
        loaded = await load.using(blockers=[receipt]).aenqueue()
        await adrain(here)
        assert await loaded.aresult() == {"weight": 2.5}


async def test_without_blockers_there_are_none(app: App) -> None:
    @app.task
    async def load() -> int:
        return len(current_job().blockers)

    receipt = await load.using(blockers=()).aenqueue()
    await adrain(app)
    assert await receipt.aresult() == 0


@pytest.mark.parametrize("when", ["before", "while", "revoked"])
async def test_a_blocker_that_does_not_complete_fails_who_waits_for_it_and_so_on(app: App, when: str) -> None:
    @app.task(name="part")
    async def part() -> None:
        raise Fail("no stock")

    @app.task(name="merge", dead_letter="dead", retry=5)
    async def merge() -> None: ...

    first = await part.aenqueue()
    if when == "before":
        await adrain(app)
    second = await merge.using(blockers=[first]).aenqueue()
    third = await merge.using(blockers=[await part.using(delay=600).aenqueue(), second]).aenqueue()
    if when == "revoked":
        await app.arevoke(first)
    elif when == "while":
        await adrain(app, queues=["default"])
    why = "revoked: revoked" if when == "revoked" else "failed: Fail: no stock"
    assert (await stored(app, second)).error == f"BlockerFailed: it waited for job {first.id}, which {why}"
    with pytest.raises(
        JobFailed, match=f"BlockerFailed: it waited for job {second.id}, which failed: BlockerFailed"
    ):
        await third.aresult(timeout=5)
    assert {letter.origin for letter in await app.adead()} == {second.id, third.id}
    assert await app.aretry(third) is Amended.STRANDED, "retry what it waits for first"


@pytest.mark.parametrize("in_thread", [False, True])
async def test_it_runs_all_the_same_if_told_so(app: App, in_thread: bool) -> None:
    seen: list[object] = []

    @app.task(name="part")
    async def part(n: int) -> int:
        if n == 1:
            raise Fail("no stock")
        return n

    def look() -> None:
        for blocker in current_job().blockers:
            try:
                seen.append(blocker.output)
            except JobFailed as error:
                seen.append((type(error), str(error), error.id))

    @app.task(name="merge")
    async def merge() -> None:
        look()

    @app.task(name="merge_in_thread")
    def merge_in_thread() -> None:
        look()

    parts = [await part.aenqueue(n) for n in range(3)]
    parts.append(await part.using(delay=60).aenqueue(3))
    sender = merge_in_thread if in_thread else merge
    receipt = await sender.using(blockers=parts, on_blocker_failure="run").aenqueue()
    await app.arevoke(parts[3])
    await adrain(app)
    assert (await stored(app, receipt)).state is State.COMPLETED
    no = "has no output: its last job, of task 'part',"
    assert seen == [
        0,
        (JobFailed, f"Blocker {parts[1].id} {no} failed: Fail: no stock", parts[1].id),
        2,
        (JobRevoked, f"Blocker {parts[3].id} {no} revoked: by request", parts[3].id),
    ]


async def test_an_output_that_is_gone_says_so(app: App, gate: Gate) -> None:
    said: list[str] = []

    @app.task(name="part")
    async def part() -> int:
        return 1

    @app.task(name="merge", retry=Retry(2, backoff=0.0))
    async def merge() -> None:
        [blocker] = current_job().blockers
        try:
            assert blocker.output == 1
        except ResultGone as error:
            said.append(f"{blocker.state}: {error}")
            return
        await gate.pass_through()
        raise ConnectionError

    receipt = await part.aenqueue()
    await adrain(app)
    await merge.using(blockers=[receipt]).aenqueue()
    async with gate.held(app):
        assert await app.adelete(receipt) is Amended.AWAITED, "somebody has yet to read it"
        assert await app.adelete(receipt, cascade=True) is Amended.DELETED
    assert said == [
        f"None: Blocker {receipt.id} has no output any more: it was deleted, or pruned. App(retention=…) says how "
        "long ended jobs are kept."
    ]


async def test_deleting_what_others_wait_for_is_refused_or_revokes_it_to_them(app: App) -> None:
    @app.task
    async def part() -> None: ...

    @app.task
    async def merge() -> None: ...

    first = await part.using(delay=60).aenqueue()
    second = await merge.using(blockers=[first]).aenqueue()
    third = await merge.using(blockers=[first], on_blocker_failure="run").aenqueue()
    assert await app.adelete(first) is Amended.AWAITED
    assert await app.adelete(first, cascade=True) is Amended.DELETED
    assert (await stored(app, second)).state is State.FAILED
    assert "which revoked: deleted" in ((await stored(app, second)).error or "")
    assert (await stored(app, third)).state is State.WAITING


async def test_an_unknown_blocker_is_refused_and_harms_no_neighbour(app: App) -> None:
    @app.task
    async def merge(n: int) -> None: ...

    with pytest.raises(UnknownBlocker, match=f"Job {NOWHERE} is not on record"):
        await merge.using(blockers=[NOWHERE]).aenqueue(1)
    answers = await asyncio.gather(
        *(merge.aenqueue(n) for n in range(3)),
        merge.using(blockers=["order-9"]).aenqueue(3),
        return_exceptions=True,
    )
    assert [type(answer).__name__ for answer in answers] == ["Receipt"] * 3 + ["UnknownBlocker"]
    assert await app.acount() == 3
    with pytest.raises(UnknownBlocker):
        await app.aenqueue_many([merge.job(1), merge.using(blockers=[NOWHERE]).job(2)])
    assert await app.acount() == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"blockers": NOWHERE}, f"blockers=… must be a list of receipts or ids of jobs, not '{NOWHERE}'."),
        ({"blockers": 7}, "blockers=… must be a list of receipts or ids of jobs, not 7."),
        ({"blockers": [NOWHERE, 7]}, "blockers=… must be receipts or ids of jobs, but one is 7."),
        (
            {"blockers": map(str, range(MAX_BLOCKERS + 1))},
            "blockers=… may be at most 10,000, not 10,001: let some",
        ),
        (
            {"on_blocker_failure": "go"},
            'on_blocker_failure=… must be "fail" (this job then fails, too) or "run", not',
        ),
    ],
)
def test_senseless_blockers_are_refused_where_they_are_written(settings: Any, said: str) -> None:
    app = App("memory:")

    @app.task
    def merge() -> None: ...

    with pytest.raises(InvalidOption) as raised:
        merge.using(**settings)
    assert str(raised.value).startswith(said)
    with pytest.raises(InvalidOption, match="There is no option 'blockers'"):
        app.task(blockers=[])  # pyright: ignore[reportCallIssue]


async def test_a_kept_duplicate_keeps_the_holders_own_blockers(app: App) -> None:
    @app.task
    async def part() -> None: ...

    @app.task(unique=Unique.in_flight(by=()))
    async def merge() -> None: ...

    first, other = await part.aenqueue(), await part.using(delay=60).aenqueue()
    receipt = await merge.using(blockers=[first]).aenqueue()
    again = await merge.using(blockers=[other]).aenqueue()
    assert again.id == receipt.id
    await adrain(app)
    assert (await stored(app, receipt)).state is State.COMPLETED


@pytest.mark.usefixtures("database_url")
async def test_blockers_made_in_a_transaction_count_in_it(app: App) -> None:
    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def merge() -> int:
        return sum(blocker.output for blocker in current_job().blockers)

    async with app.transaction():
        parts = await app.aenqueue_many([part.job(n) for n in range(5)])
        receipt = await merge.using(blockers=parts).aenqueue()
    assert (await stored(app, receipt)).state is State.BLOCKED
    await adrain(app)
    assert await receipt.aresult() == 10


@pytest.mark.usefixtures("database_url")
async def test_a_fan_out_in_complete_is_made_once_however_often_its_handler_runs(app: App) -> None:
    @app.task(name="split", retry=3)
    async def split(count: int) -> None:
        job = current_job()
        async with job.complete():
            parts = await app.aenqueue_many([part.job(n) for n in range(count)])
            job.continue_with(merge.using(blockers=parts))
            if job.attempt < 3:
                raise ConnectionError

    @app.task(name="part")
    async def part(n: int) -> int:
        return n

    @app.task(name="merge")
    def merge() -> int:
        return sum(blocker.output for blocker in current_job().blockers)

    receipt = await split.aenqueue(100)
    await adrain(app, clock=_clock_of(app))
    assert await receipt.aresult() == sum(range(100))
    assert await app.acount("task:part") == 100


def _clock_of(app: App) -> FakeClock:
    assert isinstance(app.clock, FakeClock)
    return app.clock


async def test_blockers_that_cannot_be_read_now_are_read_later(
    app: App, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def part() -> int:
        return 1

    @app.task
    async def merge() -> int:
        return current_job().blockers[0].output

    receipt = await merge.using(blockers=[await part.aenqueue()]).aenqueue()
    store, failed = type(app.store), False
    inner = store.blockers

    async def blockers(self: JobStore, id: Any) -> list[Blocker]:
        nonlocal failed
        if not failed:
            failed = True
            raise StoreBusy("locked")
        return await inner(self, id)

    monkeypatch.setattr(store, "blockers", blockers)
    ran = await adrain(app, clock=clock)
    assert [one.move for one in ran] == [Move.COMPLETE, Move.SNOOZE, Move.COMPLETE]
    assert await receipt.aresult() == 1
    assert (await stored(app, receipt)).failures == 0


async def test_what_is_waited_for_outlives_its_retention(
    make_app: Callable[..., App], clock: FakeClock
) -> None:
    app = make_app(retention=Retention(completed=1))

    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def merge() -> int:
        return sum(blocker.output for blocker in current_job().blockers)

    parts = [await part.aenqueue(1), await part.using(delay=3600).aenqueue(2)]
    receipt = await merge.using(blockers=parts).aenqueue()
    await adrain(app)
    clock.advance(1800)
    await app.store.prune(app.retention.stored(), 1_000)
    assert (await stored(app, parts[0])).state is State.COMPLETED
    await adrain(app, clock=clock)
    assert await receipt.aresult() == 3


async def test_explain_and_drain_name_what_is_waited_for(app: App) -> None:
    @app.task(name="part")
    async def part() -> None: ...

    @app.task(name="merge", unique=Unique.coalesce(by=()))
    async def merge() -> None: ...

    parts = [await part.using(delay=60).aenqueue() for _ in range(5)]
    receipt = await merge.using(blockers=[await part.aenqueue(), *parts]).aenqueue()
    ran = await adrain(app)
    told = await app.aexplain(receipt)
    named = ", ".join(f"job {one.id} (task 'part', delayed)" for one in parts[:3])
    assert told.reasons[0] == (
        f"Job {receipt.id} of task 'merge' in queue 'default': blocked by 5 of its 6 blockers: {named} and 2 more."
    )
    assert told.blocked_by == tuple(one.id for one in parts)
    assert ran.left == {receipt.id: told.reasons[0]}
    one = await merge.using(blockers=parts[:1], unique=None).aenqueue()
    assert "blocked by 1 of its 1 blocker: job" in str(await app.aexplain(one))


async def test_a_chain_may_wait_in_the_middle(app: App) -> None:
    @app.task
    async def part() -> str:
        return "part"

    @app.task
    async def first() -> None:
        current_job().continue_with(second.using(blockers=[await part.using(delay=60).aenqueue()]))

    @app.task
    async def second() -> str:
        return current_job().blockers[0].output

    receipt = await first.aenqueue()
    await adrain(app)
    assert await states(app, receipt) == [State.COMPLETED, State.BLOCKED]
    await adrain(app, clock=_clock_of(app))
    assert await receipt.aresult() == "part"
