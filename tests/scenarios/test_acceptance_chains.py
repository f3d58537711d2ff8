"""Deduplication of chains: in flight, for ever, and inside a window (ACCEPTANCE.md, Q1 to Q13)."""

from __future__ import annotations

import pytest
from stage import Gate

from onejob import App, Fail, Outcome, Retry, State, Unique
from onejob.testing import FakeClock, aassert_enqueued, adrain


@pytest.mark.accepts("Q1")
async def test_without_a_policy_every_call_creates(app: App) -> None:
    @app.task
    async def reserve(order: int) -> None: ...

    receipts = [await reserve.aenqueue(1) for _ in range(3)]
    assert [receipt.outcome for receipt in receipts] == [Outcome.CREATED] * 3
    assert len({receipt.id for receipt in receipts}) == 3


@pytest.mark.accepts("Q2")
async def test_the_same_key_is_a_duplicate_and_another_is_not(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="order"))
    async def reserve(order: int) -> None: ...

    first = await reserve.aenqueue(1)
    assert (await reserve.aenqueue(1)).id == first.id
    assert (await reserve.aenqueue(2)).outcome is Outcome.CREATED


@pytest.mark.accepts("Q3")
async def test_a_policy_that_says_nothing_else_means_in_flight(app: App) -> None:
    @app.task(unique=Unique(by="order"))
    async def reserve(order: int) -> None: ...

    first = await reserve.aenqueue(1)
    assert (await reserve.aenqueue(1)).id == first.id
    await adrain(app)
    assert (await reserve.aenqueue(1)).outcome is Outcome.CREATED


@pytest.mark.accepts("Q4")
async def test_waiting_and_delayed_chains_count(app: App, clock: FakeClock) -> None:
    @app.task(unique=Unique(by="order"), retry=Retry(attempts=2, backoff=60))
    async def reserve(order: int) -> None:
        raise ConnectionError

    for order, delay in ((1, 0), (2, 30)):
        first = await reserve.using(delay=delay).aenqueue(order)
        assert (await reserve.aenqueue(order)).id == first.id
    retried = await reserve.aenqueue(3)
    await adrain(app)
    job = await app.ajob(retried)
    assert job is not None
    assert (job.state, job.failures) == (State.DELAYED, 1)
    assert (await reserve.aenqueue(3)).id == retried.id


@pytest.mark.accepts("Q4")
async def test_running_and_blocked_chains_count(app: App, gate: Gate) -> None:
    @app.task(unique=Unique(by="order"))
    async def reserve(order: int) -> None:
        await gate.pass_through()

    first = await reserve.aenqueue(1)
    async with gate.held(app):
        assert (await reserve.aenqueue(1)).id == first.id
        follower = await reserve.using(unique=Unique.coalesce(by="order")).aenqueue(1)
        job = await app.ajob(follower)
        assert job is not None
        assert job.state is State.BLOCKED
        assert (await reserve.aenqueue(1)).id == follower.id


@pytest.mark.accepts("Q5")
async def test_after_completion_the_same_key_creates_a_new_chain(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="order"))
    async def reserve(order: int) -> None: ...

    first = await reserve.aenqueue(1)
    await adrain(app)
    second = await reserve.aenqueue(1)
    assert second.outcome is Outcome.CREATED
    assert second.id != first.id


@pytest.mark.accepts("Q6")
@pytest.mark.parametrize("good", [True, False])
async def test_any_counts_finished_chains_too(app: App, good: bool) -> None:
    @app.task(unique=Unique.once(by="order", failed="keep"))
    async def reserve(order: int) -> None:
        if not good:
            raise Fail("no stock")

    first = await reserve.aenqueue(1)
    await adrain(app)
    again = await reserve.aenqueue(1)
    assert (again.outcome, again.id) == (Outcome.KEPT, first.id)


@pytest.mark.accepts("Q7")
async def test_without_a_window_once_is_for_ever(app: App, clock: FakeClock) -> None:
    @app.task(unique=Unique.once(by="order"))
    async def reserve(order: int) -> None: ...

    first = await reserve.aenqueue(1)
    await adrain(app)
    clock.advance(9 * 365 * 24 * 3600)
    async with app.worker():
        pass
    await app.store.prune(app.retention.stored(), 1_000)
    assert await app.ajob(first) is None, "its record is long pruned"
    again = await reserve.aenqueue(1)
    assert (again.outcome, again.id) == (Outcome.KEPT, first.id)


@pytest.mark.accepts("Q8")
async def test_any_with_a_window_counts_inside_it_only(app: App, clock: FakeClock) -> None:
    @app.task(unique=Unique.once(by="order", within=60, failed="keep"))
    async def reserve(order: int) -> None: ...

    first = await reserve.aenqueue(1)
    await adrain(app)
    clock.advance(59.999)
    assert (await reserve.aenqueue(1)).id == first.id
    clock.tick()
    assert (await reserve.aenqueue(1)).outcome is Outcome.CREATED


@pytest.mark.accepts("Q9")
async def test_an_incomplete_chain_older_than_the_window_no_longer_counts(app: App, clock: FakeClock) -> None:
    @app.task(unique=Unique.in_flight(by="order", within=60))
    async def reserve(order: int) -> None: ...

    first = await reserve.aenqueue(1)
    clock.advance(59.999)
    assert (await reserve.aenqueue(1)).id == first.id
    clock.tick()
    assert (await reserve.aenqueue(1)).outcome is Outcome.CREATED
    assert len(await adrain(app)) == 2


@pytest.mark.accepts("Q10")
async def test_a_window_is_measured_from_the_holders_creation(app: App, clock: FakeClock) -> None:
    @app.task(unique=Unique.once(by="order", within=60))
    async def reserve(order: int) -> None: ...

    await reserve.aenqueue(1)
    clock.advance(50)
    await adrain(app)
    assert (await reserve.aenqueue(1)).deduplicated
    clock.advance(10)
    assert not (await reserve.aenqueue(1)).deduplicated, "neither its end nor a duplicate moved the window"


@pytest.mark.accepts("Q11", "Q12")
async def test_a_duplicate_returns_the_existing_chain_and_says_so(app: App) -> None:
    @app.task(unique=Unique.once(by="order"))
    async def reserve(order: int) -> None: ...

    first = await reserve.aenqueue(1)
    second = await reserve.aenqueue(1)
    assert not first.deduplicated
    assert second.deduplicated
    assert (second.id, second.holder, second.holder_state) == (first.id, first.id, State.WAITING)
    assert str(second).startswith(f'kept: key "1" is held by {first.id} (waiting')


@pytest.mark.accepts("Q13")
async def test_a_kept_duplicates_input_is_ignored(app: App) -> None:
    seen: list[str] = []

    @app.task(unique=Unique.in_flight(by="order"))
    async def reserve(order: int, note: str) -> None:
        seen.append(note)

    await reserve.aenqueue(1, note="first")
    second = await reserve.aenqueue(1, note="second")
    assert second.payload_differs
    await aassert_enqueued(app, reserve, note="first")
    await adrain(app)
    assert seen == ["first"]
