"""A time window with payload override (ACCEPTANCE.md, N1 to N8 and N10 to N30)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from stage import Gate

from onejob import APP_WINDOW, App, ArgumentsInvalid, Outcome, State, Unique
from onejob.tasks import Task
from onejob.testing import FakeClock, adrain

Webhook = Task[..., None]


def webhook(app: App, *, seen: list[int] | None = None, within: object = APP_WINDOW) -> Webhook:
    """The task of the documents: one job per entity inside the window, with the newest data."""

    @app.task(
        name="webhook:send",
        unique=Unique.latest(by=("entity_id", "entity_type"), within=within, overlap=True),
    )
    async def send(entity_id: str, entity_type: str | None = None, data: int = 0) -> None:
        if seen is not None:
            seen.append(data)

    return send


@pytest.fixture
def app(make_app: Callable[..., App]) -> App:
    return make_app(window=5)


@pytest.mark.accepts("N1")
@pytest.mark.parametrize("source", ["argument", "environment"])
async def test_the_default_window_comes_from_configuration(
    make_app: Callable[..., App], clock: FakeClock, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "environment":
        monkeypatch.setenv("ONEJOB_WINDOW", "5")
    send = webhook(make_app(**({"window": 5} if source == "argument" else {})))
    first = await send.aenqueue("a")
    clock.advance(4.999)
    assert (await send.aenqueue("a")).id == first.id
    clock.tick()
    assert (await send.aenqueue("a")).outcome is Outcome.CREATED


@pytest.mark.accepts("N2", "N3")
@pytest.mark.parametrize("window", [0, -1, -0.5])
async def test_a_window_of_zero_or_less_turns_deduplication_off(
    make_app: Callable[..., App], window: float
) -> None:
    for send in (webhook(make_app(window=window)), webhook(make_app(), within=window)):
        receipts = [await send.aenqueue("a") for _ in range(3)]
        assert [receipt.outcome for receipt in receipts] == [Outcome.CREATED] * 3


@pytest.mark.accepts("N4", "N5")
async def test_the_key_is_task_entity_and_type_and_any_difference_separates(app: App) -> None:
    send = webhook(app)

    @app.task(name="email:send", unique=Unique.latest(by=("entity_id", "entity_type"), within=5))
    async def email(entity_id: str, entity_type: str = "") -> None: ...

    first = await send.aenqueue("a", "task")
    assert (await send.aenqueue("a", "task")).id == first.id
    others = [
        await send.aenqueue("b", "task"),
        await send.aenqueue("a", "user"),
        await email.aenqueue("a", "task"),
    ]
    assert [other.outcome for other in others] == [Outcome.CREATED] * 3


@pytest.mark.accepts("N6")
async def test_other_fields_are_not_part_of_the_key(app: App) -> None:
    send = webhook(app)
    first = await send.aenqueue("a", data=1)
    assert (await send.aenqueue("a", data=2)).id == first.id


@pytest.mark.accepts("N7")
async def test_a_missing_type_equals_an_empty_one_and_still_deduplicates(app: App) -> None:
    send = webhook(app)
    first = await send.aenqueue("a")
    for same in (None, ""):
        receipt = await send.aenqueue("a", same)
        assert (receipt.id, receipt.outcome) == (first.id, Outcome.UPDATED)


@pytest.mark.accepts("N8")
async def test_without_an_entity_nothing_is_deduplicated(app: App) -> None:
    @app.task(unique=Unique.latest(by=lambda entity_id: entity_id, within=5))
    async def send(entity_id: str | None = None) -> None: ...

    assert [(await send.aenqueue()).outcome for _ in range(3)] == [Outcome.CREATED] * 3
    assert (await send.aenqueue("a")).id == (await send.aenqueue("a")).id


@pytest.mark.accepts("N10")
async def test_the_handler_sees_the_newest_payload_once(app: App) -> None:
    seen: list[int] = []
    send = webhook(app, seen=seen)
    for data in (1, 2, 3):
        await send.aenqueue("a", data=data)
    await adrain(app)
    assert seen == [3]


@pytest.mark.accepts("N11")
async def test_an_update_keeps_the_id_and_moves_the_update_time(app: App, clock: FakeClock) -> None:
    send = webhook(app)
    first = await send.aenqueue("a", data=1)
    clock.advance(2)
    second = await send.aenqueue("a", data=2)
    job = await app.ajob(first)
    assert job is not None
    assert second.id == first.id
    assert (job.updated - job.accepted, job.updated) == (2_000, clock.now)


@pytest.mark.accepts("N12")
async def test_created_updated_updated_and_after_the_window_a_new_job(app: App, clock: FakeClock) -> None:
    send = webhook(app)
    receipts = []
    for _ in range(4):
        receipts.append(await send.aenqueue("a"))
        clock.advance(2)
    assert [str(receipt.outcome) for receipt in receipts] == ["created", "updated", "updated", "created"]
    assert len({receipt.id for receipt in receipts}) == 2


@pytest.mark.accepts("N13")
async def test_exactly_at_the_edge_is_not_a_duplicate(app: App, clock: FakeClock) -> None:
    send = webhook(app)
    first = await send.aenqueue("a")
    clock.advance(5)
    assert (await send.aenqueue("a")).id != first.id


@pytest.mark.accepts("N14")
async def test_only_queued_jobs_count(app: App, gate: Gate) -> None:
    @app.task(unique=Unique.latest(by="entity_id", within=5, overlap=True))
    async def send(entity_id: str) -> None:
        await gate.pass_through()

    first = await send.aenqueue("a")
    async with gate.held(app):
        second = await send.aenqueue("a")
        job = await app.ajob(second)
        assert job is not None
        assert (second.outcome, job.state) == (Outcome.CREATED, State.WAITING)
    assert (await send.aenqueue("a")).id not in (first.id, second.id), "finished ones do not count either"


@pytest.mark.accepts("N15", "N16")
async def test_an_id_always_comes_back_and_new_jobs_get_fresh_ones(app: App, clock: FakeClock) -> None:
    send = webhook(app)
    ids = []
    for _ in range(6):
        receipt = await send.aenqueue("a")
        job = await app.ajob(receipt)
        assert job is not None
        assert job.id == receipt.id
        ids.append(receipt.id)
        clock.advance(3)
    assert [ids[0] == ids[1], ids[1] == ids[2], ids[2] == ids[3], ids[4] == ids[5]] == [
        True,
        False,
        True,
        True,
    ]


@pytest.mark.accepts("N17")
async def test_many_at_once_make_one_job_with_the_last_payload(app: App) -> None:
    seen: list[int] = []
    send = webhook(app, seen=seen)
    receipts = await asyncio.gather(*(send.aenqueue("a", data=number) for number in range(100)))
    assert len({receipt.id for receipt in receipts}) == 1
    assert sorted(str(receipt.outcome) for receipt in receipts) == ["created"] + ["updated"] * 99
    await adrain(app)
    assert seen == [99]


@pytest.mark.accepts("N17", "N18")
def test_threads_and_apps_at_once_make_one_job(make_app: Callable[..., App]) -> None:
    one = make_app(window=5)
    apps = [one, make_app(window=5), make_app(window=5)]
    sends = [webhook(app) for app in apps]

    def shoot(number: int) -> str:
        return sends[number % len(sends)].enqueue("a", data=number).id

    with ThreadPoolExecutor(12) as threads:
        ids = list(threads.map(shoot, range(120)))
    assert len(set(ids)) == 1
    assert sum(sum(states.values()) for states in one.counts().values()) == 1


@pytest.mark.accepts("N19")
async def test_an_error_leaves_nothing_behind_and_is_raised(app: App) -> None:
    send = webhook(app)
    await send.aenqueue("kept", data=1)
    with pytest.raises(ArgumentsInvalid):
        await app.aenqueue_many([send.job("kept", data=2), send.job("a"), send.job(entity_id=["no"])])
    [job] = (await app.ajobs()).jobs
    assert b"1" in job.payload
    assert (await send.aenqueue("a")).outcome is Outcome.CREATED, "no key was left behind"


@pytest.mark.accepts("N19")
@pytest.mark.usefixtures("database_url")
async def test_an_error_rolls_the_transaction_back_and_is_raised(app: App) -> None:
    send = webhook(app)
    await send.aenqueue("kept", data=1)

    async def fail_half_way() -> None:
        async with app.transaction():
            await send.aenqueue("kept", data=2)
            await send.aenqueue("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_half_way()
    [job] = (await app.ajobs()).jobs
    assert b"1" in job.payload
    assert (await send.aenqueue("a")).outcome is Outcome.CREATED, "no key was left behind"


@pytest.mark.accepts("N20")
async def test_the_window_can_differ_per_call(app: App, clock: FakeClock) -> None:
    send = webhook(app)
    patient = send.using(unique=Unique.latest(by=("entity_id", "entity_type"), within=30, overlap=True))
    first = await send.aenqueue("a")
    clock.advance(20)
    assert (await patient.aenqueue("a")).id == first.id
    assert (await send.aenqueue("a")).id != first.id


@pytest.mark.accepts("N21")
async def test_hostile_text_is_only_text(app: App) -> None:
    send = webhook(app)
    for hostile in ("'; drop table onejob_job; --", '" or 1=1', "%_*?[a]", "a\nb", "ключ 🔑", "{}", "\\"):
        first = await send.aenqueue(hostile, hostile)
        assert first.outcome is Outcome.CREATED
        assert (await send.aenqueue(hostile, hostile)).id == first.id
    assert len(await adrain(app)) == 7


@pytest.mark.accepts("N22")
async def test_with_deduplication_off_no_key_is_touched(make_app: Callable[..., App]) -> None:
    app = make_app(window=0)
    send = webhook(app)
    receipt = await send.aenqueue("a")
    job = await app.ajob(receipt)
    assert job is not None
    assert (receipt.key, job.key, job.digest) == (None, None, None)
    assert await app.store.keys() == []


@pytest.mark.accepts("N23", "N24")
async def test_both_outcomes_are_logged_with_task_and_id(app: App, caplog: pytest.LogCaptureFixture) -> None:
    send = webhook(app)
    with caplog.at_level(logging.INFO, logger="onejob"):
        first = await send.aenqueue("a")
        await send.aenqueue("a", data=2)
    created, updated = (record for record in caplog.records if record.name == "onejob")
    assert "webhook:send" in created.getMessage()
    assert created.getMessage().startswith(f"created: {first.id}")
    assert updated.getMessage().startswith('updated: key "a/-" is held by ' + first.id)


@pytest.mark.accepts("N25")
async def test_deduplication_is_observable_by_the_caller(app: App) -> None:
    send = webhook(app)
    first, second = await send.aenqueue("a", data=1), await send.aenqueue("a", data=2)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert (second.outcome, second.payload_differs, second.holder) == (Outcome.UPDATED, True, first.id)


@pytest.mark.accepts("N26")
@pytest.mark.parametrize("cause", ["double hook", "rapid updates", "external retry", "network retry"])
async def test_each_usual_cause_ends_in_one_job_with_the_latest_payload(
    app: App, clock: FakeClock, cause: str
) -> None:
    seen: list[int] = []
    send = webhook(app, seen=seen)
    match cause:
        case "double hook":
            await asyncio.gather(send.aenqueue("a", data=9), send.aenqueue("a", data=9))
        case "rapid updates":
            for data in (7, 8, 9):
                await send.aenqueue("a", data=data)
                clock.advance(0.3)
        case "external retry":
            await send.aenqueue("a", data=9)
            clock.advance(4)
            await send.aenqueue("a", data=9)
        case _:
            await send.aenqueue("a", data=8)
            call = send.job("a", data=9)
            repeated = call.planner.new_job(call, (await send.aenqueue("b")).id, None, clock)
            lost = [await app.store.enqueue([repeated]) for _ in range(2)]
            assert lost[0][0].id == lost[1][0].id
            await send.aenqueue("a", data=9)
    await adrain(app)
    assert seen.count(9) == 1
    assert 8 not in seen


@pytest.mark.accepts("N27")
async def test_explain_says_why_duplicates_still_appear(
    app: App, make_app: Callable[..., App], clock: FakeClock
) -> None:
    send = webhook(app)
    await send.aenqueue("a")
    clock.advance(6)
    assert "window of 5 s has passed" in str(await send.aexplain("a"))
    await adrain(app)
    assert "Nobody holds key" in str(await send.aexplain("a"))
    assert "window is zero or negative" in str(await webhook(make_app(window=0)).aexplain("a"))
    assert "no unique=" in str(await send.using(unique=None).aexplain("a"))


@pytest.mark.accepts("N28")
async def test_explain_says_why_a_job_was_not_created(app: App, clock: FakeClock) -> None:
    send = webhook(app)
    first = await send.aenqueue("a", data=1)
    clock.advance(1)
    await send.aenqueue("a", data=2)
    await send.aenqueue("a", data=2)
    why = await send.aexplain("a", data=3)
    assert (why.holder, why.holder_state, why.holder_age) == (first.id, State.WAITING, 1)
    assert (why.absorbed, why.differing) == (2, 1)
    assert (why.next_outcome, why.next_verdict) == (Outcome.UPDATED, "update")
    assert "inside its window of 5 s, which ends in 4 s" in str(why)


@pytest.mark.accepts("N29")
async def test_a_full_history_is_possible_with_window_zero(make_app: Callable[..., App]) -> None:
    seen: list[int] = []
    app = make_app(window=0)
    send = webhook(app, seen=seen)
    for data in range(5):
        await send.aenqueue("a", data=data)
    await adrain(app)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.accepts("N30")
@pytest.mark.parametrize("window", [5, 30, 60, 0])
async def test_windows_change_by_configuration_alone(
    make_app: Callable[..., App], clock: FakeClock, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setenv("ONEJOB_WINDOW", str(window))
    send = webhook(make_app())
    first = await send.aenqueue("a")
    if window:
        clock.advance(window - 0.001)
        assert (await send.aenqueue("a")).id == first.id
        clock.tick()
    assert (await send.aenqueue("a")).id != first.id
