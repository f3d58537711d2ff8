"""`enqueue`, corner by corner: what each verdict writes into whom, as DESIGN.md section 3 decided it."""

from __future__ import annotations

import msgspec
import pytest

from onejob.core.dedup import Unique, Verdict
from onejob.core.job import NewJob, State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import Move
from onejob.store import Amendment, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    finish,
    job,
    look,
    put,
    run,
    start,
    start_one,
    started_ids,
    state_of,
    total,
)


def _sized(newcomer: NewJob, size: int) -> NewJob:
    """The same, as if its payload had been compressed."""
    assert newcomer.plan is not None
    return msgspec.structs.replace(newcomer, plan=msgspec.structs.replace(newcomer.plan, size=size))


class TestCorners:
    async def test_an_update_keeps_id_place_and_acceptance(self, store: JobStore, clock: FakeClock) -> None:
        first = await put(store, job(unique=Unique.latest()))
        accepted = clock.now
        await put(store, job())
        clock.advance(2)
        answer = await put(store, job(unique=Unique.latest(), payload=b'{"v":2}', priority=9))
        assert answer.payload_differs
        assert answer.options_differ
        seen = await look(store, first.id)
        assert (seen.payload, seen.accepted, seen.due, seen.updated) == (
            b'{"v":2}',
            accepted,
            accepted,
            clock.now,
        )
        assert seen.priority == 0
        assert (await started_ids(store))[0] == first.id

    async def test_a_started_job_is_never_updated(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.latest()))
        await start_one(store)
        second = await put(store, job(unique=Unique.latest(), payload=b'{"v":2}'))
        assert second.id != first.id
        assert (await look(store, first.id)).payload == b'{"v":1}'

    async def test_a_retry_wait_counts_as_queued(self, store: JobStore, clock: FakeClock) -> None:
        first = await put(store, job(unique=Unique.latest()))
        await finish(store, await start_one(store), Move.RETRY, delay=5_000)
        answer = await put(store, job(unique=Unique.latest(), payload=b'{"v":2}'))
        assert (answer.id, answer.outcome) == (first.id, Outcome.UPDATED)
        assert (await look(store, first.id)).due == clock.now + 5_000

    async def test_debounce_starts_the_quiet_period_again(self, store: JobStore, clock: FakeClock) -> None:
        unique = Unique.debounce(2, max_wait=5)
        first = await put(store, job(unique=unique))
        begun = clock.now
        assert (await look(store, first.id)).due == begun + 2_000
        clock.advance(1.5)
        assert (await put(store, job(unique=unique))).outcome is Outcome.POSTPONED
        assert (await look(store, first.id)).due == begun + 3_500
        clock.advance(2.5)
        await put(store, job(unique=unique))
        assert (await look(store, first.id)).due == begun + 5_000, "max_wait counts from the first call"
        clock.advance(1)
        answer = await put(store, job(unique=unique, payload=b'{"v":9}'))
        assert (answer.id, answer.outcome) == (first.id, Outcome.UPDATED), "past max_wait it is an update"
        assert (await look(store, first.id)).due == begun + 5_000

    async def test_a_due_but_unclaimed_job_goes_back_when_postponed(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.debounce(2)
        first = await put(store, job(unique=unique))
        clock.advance(3)
        await put(store, job(unique=unique))
        assert await started_ids(store) == []
        assert await state_of(store, first.id) is State.DELAYED

    async def test_a_postponed_retry_keeps_its_backoff(self, store: JobStore, clock: FakeClock) -> None:
        unique = Unique.debounce(1)
        first = await put(store, job(unique=unique))
        clock.advance(1)
        await finish(store, await start_one(store), Move.RETRY, delay=60_000)
        until = clock.now + 60_000
        await put(store, job(unique=unique))
        assert (await look(store, first.id)).due == until

    async def test_collect_appends_in_order_and_keeps_the_first_due_time(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.collect(wait=5)
        begun = clock.now
        first = await put(store, job(unique=unique, payload=b"[1]", items=1))
        for payload in (b"[2]", b"[3]"):
            clock.advance(1)
            assert (
                await put(store, job(unique=unique, payload=payload, items=1))
            ).outcome is Outcome.COLLECTED
        seen = await look(store, first.id)
        assert (seen.payload, seen.items, seen.due) == (b"[1]\n[2]\n[3]", 3, begun + 5_000)

    async def test_a_full_collection_is_due_at_once_and_the_next_call_follows(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.collect(wait=60, max_items=2)
        first = await put(store, job(unique=unique, items=1))
        await put(store, job(unique=unique, items=1))
        third = await put(store, job(unique=unique, items=1))
        assert (await look(store, first.id)).items == 2
        assert (await look(store, third.id)).follows == first.id
        assert await started_ids(store) == [first.id]

    async def test_a_collection_is_as_big_as_its_payloads_were_before_compression(
        self, store: JobStore
    ) -> None:
        unique = Unique.collect(wait=60)
        packed = b"\x1f\x8b\x00\xff\n\x00"
        sizes = (400_000, 400_000, 400_000)
        calls = [_sized(job(unique=unique, payload=packed, items=1), size) for size in sizes]
        first, second, third = [await put(store, call) for call in calls]
        assert (second.outcome, second.id) == (Outcome.COLLECTED, first.id)
        assert (await look(store, first.id)).payload == packed + b"\n" + packed
        assert (third.outcome, (await look(store, third.id)).follows) == (Outcome.CREATED, first.id)
        plain = job(unique=unique, key="plain", payload=b"x" * 600_000, items=1)
        late = _sized(job(unique=unique, key="plain", payload=packed, items=1), 500_000)
        batch = await store.enqueue([plain, late])
        assert [answer.outcome for answer in batch] == [Outcome.CREATED, Outcome.CREATED]

    async def test_what_does_not_fit_leaves_the_collection_due_and_follows(self, store: JobStore) -> None:
        unique = Unique.collect(wait=60, max_items=3)
        first = await put(store, job(unique=unique, items=2))
        second = await put(store, job(unique=unique, items=2))
        assert second.outcome is Outcome.CREATED
        assert (await look(store, second.id)).follows == first.id
        assert await started_ids(store) == [first.id]

    async def test_later_is_due_when_the_window_ends_and_starts_keep_their_distance(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.throttle(10, trailing=True)
        begun = clock.now
        await put(store, job(unique=unique))
        await run(store)
        clock.advance(3)
        second = await put(store, job(unique=unique))
        assert (await look(store, second.id)).due == begun + 10_000
        clock.advance(8)
        await run(store)
        third = await put(store, job(unique=unique))
        assert (await look(store, third.id)).due == begun + 20_000

    async def test_cancel_revokes_a_queued_holder_and_flags_a_running_one(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.restart()))
        second = await put(store, job(unique=Unique.restart()))
        assert await state_of(store, first.id) is State.REVOKED
        assert await started_ids(store) == [second.id]
        third = await put(store, job(unique=Unique.restart()))
        assert (await look(store, second.id)).aborting
        seen = await look(store, third.id)
        assert (seen.state, seen.follows) == (State.BLOCKED, second.id)

    async def test_who_takes_a_key_from_a_follower_follows_the_same_job(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.latest()))
        claimed = await start_one(store)
        second = await put(store, job(unique=Unique.latest()))
        third = await put(store, job(unique=Unique.restart()))
        assert await state_of(store, second.id) is State.REVOKED
        assert (await look(store, third.id)).follows == first.id
        assert await started_ids(store) == []
        await finish(store, claimed)
        assert await started_ids(store) == [third.id]

    @pytest.mark.parametrize("amendment", [Amendment.REVOKE, Amendment.DELETE])
    async def test_who_comes_after_a_follower_that_never_started_follows_the_same_job(
        self, store: JobStore, amendment: Amendment
    ) -> None:
        first = await put(store, job(unique=Unique.latest()))
        claimed = await start_one(store)
        second = await put(store, job(unique=Unique.latest()))
        await store.amend([second.id], amendment)
        third = await put(store, job(unique=Unique.latest()))
        assert (await look(store, third.id)).follows == first.id
        assert await started_ids(store) == []
        await finish(store, claimed)
        assert await started_ids(store) == [third.id]

    async def test_force_takes_the_key_and_leaves_the_holder_alone(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.once()))
        second = await put(store, job(unique=Unique.once(), force=True))
        assert second.outcome is Outcome.CREATED
        assert (await put(store, job(unique=Unique.once()))).id == second.id
        await run(store)
        assert await state_of(store, first.id) is State.COMPLETED
        assert (await put(store, job(unique=Unique.once()))).id == second.id

    async def test_a_raise_is_rejected_and_writes_nothing(self, store: JobStore) -> None:
        unique = Unique.in_flight(queued="raise")
        first = await put(store, job(unique=unique))
        answer = await put(store, job(unique=unique))
        assert (answer.outcome, answer.id, answer.verdict) == (Outcome.REJECTED, first.id, Verdict.RAISE)
        assert await total(store) == 1

    async def test_a_mismatch_is_rejected_only_if_the_arguments_differ(self, store: JobStore) -> None:
        unique = Unique.once(mismatch="raise")
        first = await put(store, job(unique=unique))
        same = await put(store, job(unique=unique))
        assert (same.outcome, same.payload_differs) == (Outcome.KEPT, False)
        other = await put(store, job(unique=unique, payload=b'{"v":2}'))
        assert (other.outcome, other.id, other.payload_differs) == (Outcome.REJECTED, first.id, True)

    @pytest.mark.parametrize(
        "unique", [Unique.in_flight(), Unique.in_flight(running="raise"), Unique.restart()]
    )
    async def test_a_job_that_enqueues_itself_follows_itself(self, store: JobStore, unique: Unique) -> None:
        first = await put(store, job(unique=unique))
        claimed = await start_one(store)
        answer = await put(store, job(unique=unique, caller=first.id))
        assert (answer.outcome, answer.verdict) == (Outcome.CREATED, Verdict.FOLLOW)
        assert not (await look(store, first.id)).aborting
        assert await started_ids(store) == []
        await finish(store, claimed)
        assert await started_ids(store) == [answer.id]

    async def test_the_newcomers_policy_judges_and_the_holders_remembers(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.in_flight()))
        await run(store)
        assert (await put(store, job(unique=Unique.once()))).outcome is Outcome.CREATED
        await run(store)
        assert (await put(store, job(unique=Unique.throttle(60)))).outcome is Outcome.KEPT

    async def test_an_expired_holder_swallows_nobody(self, store: JobStore, clock: FakeClock) -> None:
        first = await put(store, job(unique=Unique.in_flight(), expires=1_000))
        clock.tick(999)
        assert (await put(store, job(unique=Unique.in_flight()))).id == first.id
        clock.tick(1)
        second = await put(store, job(unique=Unique.in_flight()))
        assert second.outcome is Outcome.CREATED
        assert await started_ids(store) == [second.id]

    async def test_a_follower_waits_out_retries_and_rescues(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job(unique=Unique.coalesce()))
        claimed = await start_one(store)
        second = await put(store, job(unique=Unique.coalesce()))
        await finish(store, claimed, Move.RETRY)
        assert await state_of(store, second.id) is State.BLOCKED
        claimed = await start_one(store)
        assert claimed.id != second.id
        await finish(store, claimed, Move.FAIL)
        assert [started.id for started in await start(store)] == [second.id]

    async def test_a_key_is_forgotten_when_its_holders_window_ends_swept_or_not(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = await put(store, job(unique=Unique.once(within=5)))
        await run(store)
        clock.tick(4_999)
        assert (await put(store, job(unique=Unique.once()))).id == first.id
        clock.tick(1)
        assert (await put(store, job(unique=Unique.once()))).outcome is Outcome.CREATED

    async def test_who_comes_later_waits_for_a_held_key_beyond_the_window(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        held = Unique.throttle(5, trailing=True, hold=True)
        await put(store, job(unique=held))
        holder = await start_one(store, lease=60_000)
        later = await put(store, job(unique=held, payload=b"{}"))
        clock.advance(5)
        assert await state_of(store, later.id) is State.BLOCKED
        await finish(store, holder)
        assert await started_ids(store) == [later.id]
