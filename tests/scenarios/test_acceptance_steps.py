"""Chains of several steps: continuations and blockers (ACCEPTANCE.md, Q14 to Q22)."""

from __future__ import annotations

import asyncio

import pytest
from stage import Gate

from onejob import App, Receipt, Retry, State, Unique, WrongCall, current_job
from onejob.core.chain import continuation_id
from onejob.core.errors import InvalidOption
from onejob.core.job import ChainId, Claimed, Job, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask, Beat, Settled
from onejob.testing import adrain


async def places(app: App, receipt: Receipt[object]) -> list[tuple[int, str, State]]:
    """A chain as one reads it: place, task, state."""
    return [(job.chain_index, job.task, job.state) for job in await app.achain(receipt)]


@pytest.mark.accepts("Q14", "Q20")
async def test_every_job_has_its_place_and_a_chain_is_a_line(app: App) -> None:
    seen: list[tuple[str, int]] = []

    @app.task(name="step", queue="steps")
    async def step(left: int) -> int:
        job = current_job()
        seen.append((job.chain, job.chain_index))
        if left:
            job.continue_with(step, left - 1)
        return left

    receipt = await step.aenqueue(3)
    await adrain(app)
    assert seen == [(receipt.id, 0), (receipt.id, 1), (receipt.id, 2), (receipt.id, 3)]
    assert await places(app, receipt) == [(n, "step", State.COMPLETED) for n in range(4)]
    assert len({job.id for job in await app.achain(receipt)}) == 4
    other = await step.aenqueue(0)
    assert [job.chain_index for job in await app.achain(other)] == [0]


async def _run_twice(app: App, asked: tuple[Settlement, Settlement]) -> list[Settled]:
    replies = await asyncio.gather(*(app.store.settle([one]) for one in asked))
    return [settled for reply in replies for settled in reply.settled]


async def _claimed(app: App) -> Claimed:
    await app.store.beat(Beat(WorkerId("w"), 60_000))
    [claimed] = (await app.store.claim(Ask(WorkerId("w"), ("default",), 1))).jobs
    return claimed


async def _next(app: App) -> list[Job]:
    return [job for job in (await app.ajobs("state:live,ended")).jobs if job.chain_index == 1]


@pytest.mark.accepts("Q15", "Q16")
async def test_a_completion_that_is_repeated_finds_the_first_continuation(app: App) -> None:
    """Its reply was lost, so the worker says it again: the lease is spent, and nothing is made a second time."""

    @app.task
    async def first() -> None: ...

    @app.task
    async def second(number: int) -> None: ...

    await first.aenqueue()
    claimed = await _claimed(app)
    call = second.job(1)
    then = call.planner.new_job(call, continuation_id(claimed.chain, 1), None, lambda: 0)
    again = Settlement(claimed.lease, Move.COMPLETE, then=then)
    assert (await app.store.settle([again])).settled == [Settled.DONE]
    assert (await app.store.settle([again])).settled == [Settled.LOST]
    [made] = await _next(app)
    assert (made.id, made.task, made.state) == (then.id, second.name, State.WAITING)


@pytest.mark.accepts("Q16")
async def test_a_run_that_is_retried_makes_one_continuation(app: App) -> None:
    runs: list[int] = []

    @app.task(retry=Retry(3, backoff=0.0))
    async def first() -> None:
        current_job().continue_with(second)
        runs.append(current_job().attempt)
        if len(runs) < 3:
            raise ConnectionError

    @app.task
    async def second() -> None: ...

    receipt = await first.aenqueue()
    await adrain(app)
    assert runs == [1, 2, 3]
    assert [task for _, task, _ in await places(app, receipt)] == [first.name, second.name]


@pytest.mark.accepts("Q17")
@pytest.mark.parametrize("_round", range(5))
async def test_of_two_at_the_same_moment_one_creates(app: App, _round: int) -> None:
    @app.task
    async def first() -> None: ...

    @app.task
    async def second(number: int) -> None: ...

    await first.aenqueue()
    claimed = await _claimed(app)
    id = continuation_id(claimed.chain, 1)

    def ending(number: int) -> Settlement:
        call = second.job(number)
        then = call.planner.new_job(call, id, None, lambda: 0)
        return Settlement(claimed.lease, Move.COMPLETE, then=then)

    settled = await _run_twice(app, (ending(1), ending(2)))
    assert sorted(settled) == [Settled.DONE, Settled.LOST]
    assert [job.id for job in await _next(app)] == [id]


@pytest.mark.accepts("Q18")
async def test_a_continuation_has_no_key_whatever_its_tasks_policy(app: App, gate: Gate) -> None:
    @app.task
    async def first() -> None:
        current_job().continue_with(second, 7)

    @app.task(unique=Unique.in_flight(by="order"))
    async def second(order: int) -> None:
        assert current_job().key is None
        await gate.pass_through()

    receipt = await first.aenqueue()
    async with gate.held(app):
        _, continuation = await app.achain(receipt)
        assert (continuation.key, continuation.digest) == (None, None)
        assert not (await second.aenqueue(7)).deduplicated, "the continuation holds no key"

    @app.task
    async def wrong() -> None:
        current_job().continue_with(second.using(unique=Unique.once(key="x")), 7)

    refused = await wrong.aenqueue()
    await adrain(app)
    job = await app.ajob(refused)
    assert job is not None
    assert job.state is State.FAILED
    assert job.error is not None
    assert job.error.startswith(f"{InvalidOption.__name__}: A continuation has no key")


@pytest.mark.accepts("Q19")
@pytest.mark.parametrize("inside", [False, True])
async def test_a_second_continuation_raises(app: App, inside: bool) -> None:
    raised: list[str] = []

    @app.task
    async def first() -> None:
        job = current_job()
        job.continue_with(second, 1)
        try:
            if inside:
                async with job.complete():
                    job.continue_with(second, 2)
            else:
                job.continue_with(second, 2)
        except WrongCall as error:
            raised.append(str(error))

    @app.task
    async def second(number: int) -> int:
        return number

    receipt = await first.aenqueue()
    await adrain(app)
    assert raised[0].startswith("continue_with can only be called once")
    assert await receipt.aresult() == 1, "the first one stands"


@pytest.mark.accepts("Q21")
async def test_a_chain_is_complete_when_its_last_job_completed_without_continuing(
    app: App, gate: Gate
) -> None:
    @app.task(unique=Unique.in_flight(by="order"))
    async def first(order: int) -> str:
        current_job().continue_with(second, order)
        return "first"

    @app.task
    async def second(order: int) -> str:
        await gate.pass_through()
        return "second"

    receipt = await first.aenqueue(1)
    async with gate.held(app):
        assert [state for *_, state in await places(app, receipt)] == [State.COMPLETED, State.RUNNING]
        again = await first.aenqueue(1)
        assert (again.id, again.deduplicated) == (receipt.id, True), "the chain holds its key to its end"
        with pytest.raises(TimeoutError):
            await receipt.aresult(timeout=0)
    assert await receipt.aresult() == "second"
    assert not (await first.aenqueue(1)).deduplicated


@pytest.mark.accepts("Q22")
async def test_fan_out_is_by_blockers(app: App) -> None:
    order: list[str] = []

    @app.task(name="split")
    async def split(count: int) -> None:
        parts = await app.aenqueue_many([part.job(n) for n in range(count)])
        current_job().continue_with(merge.using(blockers=parts))

    @app.task(name="part")
    async def part(n: int) -> int:
        order.append("part")
        if n == 1:
            current_job().continue_with(longer, n)
        return n

    @app.task(name="longer", queue="longer")
    async def longer(n: int) -> int:
        order.append("longer")
        return n * 100

    @app.task(name="merge")
    async def merge() -> list[int]:
        order.append("merge")
        return [blocker.output for blocker in current_job().blockers]

    receipt = await split.aenqueue(3)
    await adrain(app, queues=["default"])
    _, waiting = await app.achain(receipt)
    assert (waiting.state, waiting.blockers) == (State.BLOCKED, 3), "one of its blockers has not ended"
    assert order == ["part"] * 3
    await adrain(app)
    assert order == ["part", "part", "part", "longer", "merge"]
    assert await receipt.aresult() == [0, 100, 2]


@pytest.mark.accepts("Q22")
async def test_a_job_whose_blockers_have_ended_is_not_blocked(app: App) -> None:
    @app.task
    async def part(n: int) -> int:
        return n

    @app.task
    async def merge() -> list[int]:
        return [blocker.output for blocker in current_job().blockers]

    parts = [await part.aenqueue(n) for n in range(2)]
    await adrain(app)
    merged = await merge.using(blockers=[parts[1].id, parts[0], ChainId(parts[1].id)]).aenqueue()
    job = await app.ajob(merged)
    assert job is not None
    assert (job.state, job.blockers) == (State.WAITING, 2)
    await adrain(app)
    assert await merged.aresult() == [1, 0], "each once, in the order given"
