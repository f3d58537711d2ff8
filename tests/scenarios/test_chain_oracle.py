"""The oracle of the chain storm can fail: what it says of stores that have been tampered with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from chain_oracle import READ, RECORD, Oracle, told_commits

from onejob import App, Unique
from onejob.core.chain import continuation_id
from onejob.core.job import Claimed
from onejob.core.lifecycle import Move, Settlement
from onejob.store import JobStore
from onejob.testing.conformance.blockers import waiting_for
from onejob.testing.conformance.steps import job, put, start_one


@asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[App]:
    with told_commits():
        async with App(f"sqlite:///{folder / 'storm.db'}") as app:
            await app.store.open()
            await tamper(app, RECORD)
            yield app


async def judged(app: App) -> Oracle:
    async with app.transaction() as tx:
        return Oracle().replay(await tx.execute(READ))


async def tamper(app: App, *statements: str) -> None:
    async with app.transaction() as tx:
        for statement in statements:
            await tx.execute(statement)


async def go_on(store: JobStore, claimed: Claimed) -> None:
    then = job(id=continuation_id(claimed.chain, claimed.chain_index + 1))
    await store.settle([Settlement(claimed.lease, Move.COMPLETE, then=then)])


async def finish(store: JobStore, claimed: Claimed, move: Move = Move.COMPLETE) -> None:
    await store.settle([Settlement(claimed.lease, move)])


_COLUMNS = (
    "queue, task, state, priority, due, accepted, updated, since, max_crashes, payload, chain, chain_index"
)
_COPY = f"insert into onejob_job (id, {_COLUMNS}) select randomblob(16), {_COLUMNS}"


async def second_at_a_place(app: App) -> None:
    await put(app.store, job())
    await go_on(app.store, await start_one(app.store))
    await tamper(app, "drop index onejob_job_chain", f"{_COPY} from onejob_job where chain_index = 1")


async def next_job_later(app: App) -> None:
    await put(app.store, job())
    await finish(app.store, await start_one(app.store))
    columns = _COLUMNS.replace("chain, chain_index", "id, 1").replace("state", "'waiting'")
    await tamper(
        app, f"insert into onejob_job (id, {_COLUMNS}) select randomblob(16), {columns} from onejob_job"
    )


async def next_job_too_early(app: App) -> None:
    await put(app.store, job())
    columns = _COLUMNS.replace("chain, chain_index", "id, 1")
    await tamper(
        app, f"insert into onejob_job (id, {_COLUMNS}) select randomblob(16), {columns} from onejob_job"
    )


async def forgotten_by_its_blocker(app: App) -> None:
    await app.store.enqueue([first := job(), waiting_for(first.id)])
    await tamper(app, "update onejob_blocker set live = 0")
    await finish(app.store, await start_one(app.store))


async def blocked_by_nobody(app: App) -> None:
    await put(app.store, job())
    await tamper(app, "update onejob_job set state = 'blocked'")


async def started_too_early(app: App) -> None:
    await app.store.enqueue([first := job(delay=60_000), waiting_for(first.id)])
    await tamper(app, "update onejob_job set state = 'waiting' where state = 'blocked'")
    await start_one(app.store)


async def ended_twice(app: App) -> None:
    await put(app.store, job())
    await finish(app.store, await start_one(app.store))
    await tamper(app, "update onejob_job set state = 'waiting', ended = null")
    await start_one(app.store)


async def two_of_a_key(app: App) -> None:
    await put(app.store, job(unique=Unique.in_flight()))
    await go_on(app.store, await start_one(app.store))
    await app.store.enqueue([job(unique=Unique.in_flight(), force=True, priority=9)])
    await start_one(app.store)


MUTANTS: dict[str, Callable[[App], Awaitable[None]]] = {
    "is a second one at place 1 of its chain": second_at_a_place,
    "at place 1 was not made in the commit that completed the one before it": next_job_later,
    "was not made in the commit that completed the one before it": next_job_too_early,
    "is blocked although nothing that it waits for lives": forgotten_by_its_blocker,
    "at place 0 is blocked although nothing that it waits for lives": blocked_by_nobody,
    "for which it waits, had not ended": started_too_early,
    "goes on although its chain had ended": ended_twice,
    "started although another chain of its key ran": two_of_a_key,
}
"""What the oracle should say, and how a store comes to deserve it."""


@pytest.mark.parametrize("complaint", MUTANTS)
async def test_the_oracle_sees_a_store_that_goes_wrong(complaint: str, tmp_path: Path) -> None:
    async with recorded(tmp_path) as app:
        await MUTANTS[complaint](app)
        violations = (await judged(app)).violations
    assert any(complaint in violation for violation in violations), violations


async def test_the_oracle_has_nothing_to_say_of_a_store_that_is_left_alone(tmp_path: Path) -> None:
    async with recorded(tmp_path) as app:
        store = app.store
        await store.enqueue(
            [first := job(unique=Unique.in_flight()), second := waiting_for(first.id), waiting_for(second.id)]
        )
        await go_on(store, await start_one(store))
        await finish(store, await start_one(store))
        await finish(store, await start_one(store), Move.FAIL)
        oracle = await judged(app)
    assert (oracle.violations, oracle.stuck()) == ([], [])
    assert (len(oracle.chains), oracle.released, oracle.stranded) == (3, 1, 1)


async def test_the_oracle_names_a_chain_that_is_stuck(tmp_path: Path) -> None:
    async with recorded(tmp_path) as app:
        made = await put(app.store, job())
        await go_on(app.store, await start_one(app.store))
        assert (await judged(app)).stuck() == [UUID(made.id).hex]
