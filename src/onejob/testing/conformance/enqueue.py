"""`enqueue`: newcomers are accepted in order, judged by their own policy, and written with their key or not at all."""

from __future__ import annotations

import pytest

from onejob.core.dedup import Unique, Verdict
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import Move
from onejob.store import JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    AT_ONCE,
    digest_of,
    finish,
    job,
    look,
    put,
    run,
    start_one,
    started_ids,
    total,
)

PRESETS = {
    "in_flight": Unique.in_flight(),
    "once": Unique.once(),
    "throttle": Unique.throttle(60),
    "trailing": Unique.throttle(60, trailing=True),
    "coalesce": Unique.coalesce(),
    "latest": Unique.latest(),
    "debounce": Unique.debounce(1),
    "collect": Unique.collect(max_items=10),
    "restart": Unique.restart(),
}

TABLE = {
    "in_flight": "keep keep run run",
    "once": "keep keep keep run",
    "throttle": "keep keep keep keep",
    "trailing": "update later later later",
    "coalesce": "keep follow run run",
    "latest": "update follow run run",
    "debounce": "postpone follow run run",
    "collect": "collect follow run run",
    "restart": "cancel cancel run run",
}

CELLS = [
    (preset, column, verdict)
    for preset, row in TABLE.items()
    for column, verdict in zip(("queued", "running", "completed", "failed"), row.split(), strict=True)
]

OUTCOMES = {
    "keep": Outcome.KEPT,
    "update": Outcome.UPDATED,
    "postpone": Outcome.POSTPONED,
    "collect": Outcome.COLLECTED,
}


async def bring_to(store: JobStore, clock: FakeClock, column: str) -> None:
    """Take the only job to a column of the table."""
    if column == "queued":
        return
    clock.advance(1)
    claimed = await start_one(store)
    if column == "completed":
        await finish(store, claimed)
    elif column == "failed":
        await finish(store, claimed, Move.FAIL)


class TestEnqueue:
    async def test_a_job_without_a_plan_is_always_created(self, store: JobStore) -> None:
        answers = await store.enqueue([job(), job(), job()])
        assert [answer.outcome for answer in answers] == [Outcome.CREATED] * 3
        assert await total(store) == 3

    async def test_a_new_job_is_stored_as_it_was_given(self, store: JobStore, clock: FakeClock) -> None:
        made = job(
            payload=b'{"a":"\\u0000"}', priority=-7, options=b'{"attempts":3}', max_crashes=0, expires=90
        )
        await put(store, made)
        seen = await look(store, made.id)
        assert (seen.payload, seen.priority, seen.options) == (made.payload, -7, made.options)
        assert (seen.queue, seen.task, seen.state) == ("q", "t", State.WAITING)
        assert (seen.accepted, seen.due, seen.expires) == (clock.now, clock.now, clock.now + 90)
        assert (seen.attempt, seen.failures, seen.crashes, seen.max_crashes) == (0, 0, 0, 0)
        assert (seen.chain, seen.chain_index, seen.key) == (made.id, 0, None)

    async def test_a_delayed_job_is_due_later(self, store: JobStore, clock: FakeClock) -> None:
        answer = await put(store, job(delay=500))
        seen = await look(store, answer.id)
        assert (seen.state, seen.due) == (State.DELAYED, clock.now + 500)

    @pytest.mark.parametrize(("preset", "column", "verdict"), CELLS)
    async def test_every_cell_of_the_table(
        self, store: JobStore, clock: FakeClock, preset: str, column: str, verdict: str
    ) -> None:
        unique = PRESETS[preset]
        first = await put(store, job(unique=unique, items=1))
        await bring_to(store, clock, column)
        second = job(unique=unique, payload=b'{"v":2}', items=1)
        answer = await put(store, second)
        if verdict in OUTCOMES:
            assert (answer.outcome, answer.id) == (OUTCOMES[verdict], first.id)
            assert await total(store) == 1
        else:
            assert (answer.outcome, answer.id) == (Outcome.CREATED, second.id)
            assert await total(store) == 2
        if verdict in ("keep", "update", "postpone", "follow", "later", "cancel"):
            assert (answer.holder, answer.verdict.word) == (first.id, verdict)

    async def test_keys_of_other_tasks_and_queues_do_not_meet(self, store: JobStore) -> None:
        once = Unique.once()
        answers = await store.enqueue(
            [
                job(unique=once),
                job(unique=once, task="u"),
                job(unique=once, queue="r"),
                job(unique=once, key="l"),
            ]
        )
        assert [answer.outcome for answer in answers] == [Outcome.CREATED] * 4

    async def test_a_key_of_scope_queue_is_shared_by_all_its_tasks(self, store: JobStore) -> None:
        shared = Unique.once(scope="queue")
        first = await put(store, job(unique=shared))
        assert (await put(store, job(unique=shared, task="u"))).id == first.id
        assert (await put(store, job(unique=shared, queue="r"))).outcome is Outcome.CREATED

    @pytest.mark.parametrize("preset", ["in_flight", "once", "throttle"])
    async def test_a_window_is_half_open(self, store: JobStore, clock: FakeClock, preset: str) -> None:
        unique = Unique.throttle(5) if preset == "throttle" else getattr(Unique, preset)(within=5)
        first = await put(store, job(unique=unique))
        clock.tick(4_999)
        assert (await put(store, job(unique=unique))).id == first.id
        clock.tick(1)
        assert (await put(store, job(unique=unique))).outcome is Outcome.CREATED

    async def test_rejected_duplicates_never_move_a_window(self, store: JobStore, clock: FakeClock) -> None:
        unique = Unique.latest(within=5, overlap=True)
        await put(store, job(unique=unique))
        for _ in range(4):
            clock.advance(1)
            assert (await put(store, job(unique=unique))).outcome is Outcome.UPDATED
        clock.advance(1)
        assert (await put(store, job(unique=unique))).outcome is Outcome.CREATED

    async def test_hold_keeps_the_key_of_a_live_holder_past_its_window(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.in_flight(within=5, hold=True)
        first = await put(store, job(unique=unique))
        clock.advance(9)
        assert (await put(store, job(unique=unique))).id == first.id
        await run(store)
        assert (await put(store, job(unique=unique))).outcome is Outcome.CREATED

    async def test_past_its_window_a_live_holder_is_followed_or_passed(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = await put(store, job(unique=Unique.latest(within=5)))
        clock.advance(5)
        second = await put(store, job(unique=Unique.latest(within=5)))
        assert (second.outcome, second.verdict) == (Outcome.CREATED, Verdict.FOLLOW)
        assert (await look(store, second.id)).follows == first.id
        assert await started_ids(store) == [first.id]

    async def test_the_same_id_again_gets_the_same_answer(self, store: JobStore) -> None:
        made = job(unique=Unique.in_flight())
        answers = await store.enqueue([made, job(), made])
        assert [(answer.id, answer.outcome) for answer in answers[::2]] == [(made.id, Outcome.CREATED)] * 2
        await run(store)
        again = await put(store, made)
        assert (again.id, again.outcome) == (made.id, Outcome.CREATED)
        assert await total(store) == 2

    async def test_an_old_retry_cannot_overwrite_newer_data(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.latest()))
        old = job(unique=Unique.latest(), payload=b'{"v":2}')
        await store.enqueue([old, job(unique=Unique.latest(), payload=b'{"v":3}')])
        answer = await put(store, old)
        assert (answer.id, answer.outcome) == (first.id, Outcome.UPDATED)
        assert (await look(store, first.id)).payload == b'{"v":3}'

    async def test_a_retried_call_is_answered_with_the_job_it_changed(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.latest()))
        change = job(unique=Unique.latest(), payload=b'{"v":2}')
        await put(store, change)
        await put(store, job(unique=Unique.latest(), force=True))
        answer = await put(store, change)
        assert (answer.id, answer.outcome) == (first.id, Outcome.UPDATED)

    async def test_a_retried_call_adds_its_items_once(self, store: JobStore) -> None:
        unique = Unique.collect(wait=5)
        first = await put(store, job(unique=unique, payload=b"[1]", items=1))
        more = job(unique=unique, payload=b"[2]", items=1)
        await store.enqueue([more, more])
        await put(store, more)
        assert (await look(store, first.id)).payload == b"[1]\n[2]"

    async def test_bulk_is_the_same_calls_in_order(self, store: JobStore) -> None:
        latest = Unique.latest()
        batch = [
            job(unique=latest, payload=b'{"v":1}'),
            job(),
            job(unique=latest, payload=b'{"v":2}'),
            job(unique=latest, key="other", payload=b'{"v":3}'),
            job(unique=latest, payload=b'{"v":4}'),
        ]
        answers = await store.enqueue(batch)
        assert [answer.outcome.value for answer in answers] == [
            "created",
            "created",
            "updated",
            "created",
            "updated",
        ]
        assert {answers[2].id, answers[4].id} == {batch[0].id}
        assert (await look(store, batch[0].id)).payload == b'{"v":4}'

    async def test_a_mixed_bulk_starts_in_order(self, store: JobStore) -> None:
        once = Unique.once()
        batch = [
            job(unique=once, key="a"),
            job(),
            job(unique=once, key="b"),
            job(),
            job(unique=once, key="c"),
        ]
        await store.enqueue(batch)
        assert await started_ids(store) == [made.id for made in batch]

    async def test_a_bulk_over_several_queues_answers_in_order(self, store: JobStore) -> None:
        batch = [job(queue=queue) for queue in ("q", "r", "q", "s", "r")]
        assert [answer.id for answer in await store.enqueue(batch)] == [made.id for made in batch]

    async def test_an_empty_bulk_is_answered_with_nothing(self, store: JobStore) -> None:
        assert await store.enqueue([]) == []

    async def test_absorbed_duplicates_are_counted(self, store: JobStore) -> None:
        unique = Unique.once()
        await put(store, job(unique=unique))
        await store.enqueue([job(unique=unique), job(unique=unique, payload=b"{}"), job(unique=unique)])
        key = await store.key(digest_of("k"))
        assert key is not None
        assert (key.absorbed, key.differing, key.generation) == (3, 1, 1)

    async def test_a_kept_call_names_a_pruned_holder_that_is_still_remembered(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = await put(store, job(unique=Unique.once()))
        await run(store)
        clock.advance(1)
        await store.prune(AT_ONCE, 100)
        assert await store.job(first.id) is None
        answer = await put(store, job(unique=Unique.once()))
        assert (answer.outcome, answer.id, answer.state) == (Outcome.KEPT, first.id, State.COMPLETED)
