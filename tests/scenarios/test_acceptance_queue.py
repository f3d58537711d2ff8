"""Modes of deduplication and retries of the advanced queue (ACCEPTANCE.md, G23 to G28 and G45 to G49)."""

from __future__ import annotations

import pytest

from onejob import App, Exponential, Fixed, Outcome, Retry, State, Unique
from onejob.testing import FakeClock, adrain


@pytest.mark.accepts("G23")
async def test_a_call_names_an_id_and_a_mode(app: App) -> None:
    @app.task
    async def charge(order: int) -> None: ...

    once = charge.using(unique=Unique.once(key="order-9"))
    first = await once.aenqueue(9)
    assert (await once.aenqueue(10)).id == first.id
    assert (first.key, (await charge.aenqueue(9)).outcome) == ("order-9", Outcome.CREATED)


@pytest.mark.accepts("G24")
async def test_simple_skips_if_the_id_exists_in_any_state(app: App, clock: FakeClock) -> None:
    good = True

    @app.task(unique=Unique.once(by="order", failed="keep"))
    async def charge(order: int) -> None:
        assert good

    for good in (True, False):
        first = await charge.aenqueue(int(good))
        assert (await charge.aenqueue(int(good))).id == first.id
        await adrain(app)
        clock.advance(3600)
        assert (await charge.aenqueue(int(good))).id == first.id
    revoked = await charge.aenqueue(7)
    await app.arevoke(revoked)
    assert (await charge.aenqueue(7)).id == revoked.id


@pytest.mark.accepts("G25")
async def test_throttle_lets_the_first_in_the_window_win(app: App, clock: FakeClock) -> None:
    seen: list[int] = []

    @app.task(unique=Unique.throttle(10, by=()))
    async def refresh(number: int) -> None:
        seen.append(number)

    for number in range(25):
        await refresh.aenqueue(number)
        await adrain(app)
        clock.advance(1)
    assert seen == [0, 10, 20]


@pytest.mark.accepts("G25")
async def test_a_trailing_throttle_never_loses_the_last(app: App, clock: FakeClock) -> None:
    seen: list[tuple[int, int]] = []
    begun = clock.now

    @app.task(unique=Unique.throttle(10, trailing=True, by=()))
    async def refresh(number: int) -> None:
        seen.append(((clock.now - begun) // 1000, number))

    for number in range(6):
        await refresh.aenqueue(number)
        await adrain(app)
        clock.advance(1)
    await adrain(app, clock=clock)
    assert seen == [(0, 0), (10, 5)]


@pytest.mark.accepts("G26")
async def test_debounce_runs_only_the_last_once_it_is_quiet(app: App, clock: FakeClock) -> None:
    seen: list[int] = []

    @app.task(unique=Unique.debounce(5, by=()))
    async def index(number: int) -> None:
        seen.append(number)

    for number in range(4):
        await index.aenqueue(number)
        clock.advance(4)
        await adrain(app)
        assert seen == []
    clock.advance(1)
    await adrain(app)
    assert seen == [3]


@pytest.mark.accepts("G26")
async def test_a_debounce_that_is_never_quiet_runs_at_max_wait(app: App, clock: FakeClock) -> None:
    seen: list[int] = []

    @app.task(unique=Unique.debounce(5, max_wait=12, by=()))
    async def index(number: int) -> None:
        seen.append(number)

    for number in range(12):
        await index.aenqueue(number)
        clock.advance(1)
        await adrain(app)
    assert seen == [11]


@pytest.mark.accepts("G27")
async def test_a_skipped_call_can_be_told_apart(app: App) -> None:
    @app.task(unique=Unique.once())
    async def charge(order: int) -> None: ...

    first, second = await charge.aenqueue(1), await charge.aenqueue(1)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert first.new_or_none() is first
    assert second.new_or_none() is None


@pytest.mark.accepts("G28")
async def test_ids_are_independent_per_queue(app: App) -> None:
    @app.task(unique=Unique.once(by="order"))
    async def charge(order: int) -> None: ...

    receipts = [await charge.using(queue=queue).aenqueue(1) for queue in ("a", "b", "a")]
    assert [receipt.deduplicated for receipt in receipts] == [False, False, True]


async def waits(app: App, clock: FakeClock, id: str) -> list[float]:
    """Seconds between the attempts of a job that always fails."""
    spans: list[float] = []
    while True:
        await adrain(app)
        job = await app.ajob(id)
        assert job is not None
        if job.state is State.FAILED:
            return spans
        spans.append((job.due - clock.now) / 1000)
        clock.now = job.due


@pytest.mark.accepts("G45")
async def test_exponential_waits_double(app: App, clock: FakeClock) -> None:
    @app.task(retry=Retry(attempts=5, backoff=Exponential(1.0)))
    async def flaky() -> None:
        raise ConnectionError("down")

    receipt = await flaky.aenqueue()
    assert await waits(app, clock, receipt.id) == [1, 2, 4, 8]


@pytest.mark.accepts("G46")
async def test_fixed_waits_stay_the_same(app: App, clock: FakeClock) -> None:
    @app.task(retry=Retry(attempts=4, backoff=Fixed(2.5)))
    async def flaky() -> None:
        raise ConnectionError("down")

    receipt = await flaky.aenqueue()
    assert await waits(app, clock, receipt.id) == [2.5, 2.5, 2.5]


@pytest.mark.accepts("G47")
async def test_jitter_spreads_each_wait_within_its_share(app: App, clock: FakeClock) -> None:
    @app.task(retry=Retry(attempts=41, backoff=Fixed(100, jitter=0.1)))
    async def flaky() -> None:
        raise ConnectionError("down")

    receipt = await flaky.aenqueue()
    spans = await waits(app, clock, receipt.id)
    assert len(spans) == 40
    assert all(90 <= span <= 110 for span in spans)
    assert len(set(spans)) > 20


@pytest.mark.accepts("G48")
async def test_a_named_strategy_sees_the_attempt_and_the_error(app: App, clock: FakeClock) -> None:
    class TooManyRequests(Exception):
        retry_after = 7

    asked: list[tuple[int, type]] = []

    @app.backoff("retry-after")
    def retry_after(failures: int, error: BaseException) -> float:
        asked.append((failures, type(error)))
        return getattr(error, "retry_after", 1) * failures

    @app.task(retry=Retry(attempts=3, backoff="retry-after"))
    async def call() -> None:
        raise TooManyRequests

    receipt = await call.aenqueue()
    assert await waits(app, clock, receipt.id) == [7, 14]
    assert asked == [(1, TooManyRequests), (2, TooManyRequests)]


@pytest.mark.accepts("G49")
async def test_when_retries_are_exhausted_the_job_has_failed(app: App, clock: FakeClock) -> None:
    runs: list[int] = []

    @app.task(retry=3, unique=Unique.in_flight())
    async def flaky() -> None:
        runs.append(1)
        raise ConnectionError("down")

    receipt = await flaky.aenqueue()
    await adrain(app, clock=clock)
    job = await app.ajob(receipt)
    assert job is not None
    assert (job.state, job.failures, job.attempt, len(runs)) == (State.FAILED, 3, 3, 3)
    assert "down" in (job.error or "")
    assert (await flaky.aenqueue()).outcome is Outcome.CREATED, "a terminal failure frees the key"
