"""`amend`: what an operator asks of a job, one true answer each."""

from __future__ import annotations

import pytest

from onejob.core.dedup import Unique
from onejob.core.job import JobId, State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import Move
from onejob.store import Amended, Amendment, JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    finish,
    job,
    look,
    new_id,
    put,
    run,
    start,
    start_one,
    started_ids,
    state_of,
)


async def ask(store: JobStore, id: str, amendment: Amendment) -> Amended:
    """Amend one job."""
    [amended] = await store.amend([(await look(store, id)).id], amendment)
    return amended


class TestStates:
    async def test_only_what_is_still_as_it_was_seen_is_changed(self, store: JobStore) -> None:
        done, running, queued = job(), job(), job(delay=1_000)
        await put(store, done)
        await run(store)
        await store.enqueue([running, queued])
        await start_one(store)
        ids = [done.id, running.id, queued.id, new_id()]
        for amendment in Amendment:
            answers = await store.amend(ids, amendment, states=frozenset({State.FAILED}))
            assert answers == [Amended.MOVED] * 3 + [Amended.NOT_FOUND]
        assert [await state_of(store, id) for id in ids[:3]] == ["completed", "running", "delayed"]
        seen = frozenset({State.COMPLETED, State.DELAYED})
        answers = await store.amend(ids, Amendment.DELETE, states=seen)
        assert answers == [Amended.DELETED, Amended.MOVED, Amended.DELETED, Amended.NOT_FOUND]

    async def test_what_is_no_id_is_not_found(self, store: JobStore) -> None:
        answers = await store.amend([JobId("no id")], Amendment.DELETE, states=frozenset(State))
        assert answers == [Amended.NOT_FOUND]


class TestRevoke:
    async def test_each_state_has_its_answer(self, store: JobStore) -> None:
        done, running, queued = job(), job(), job(delay=1_000)
        await put(store, done)
        await run(store)
        await store.enqueue([running, queued])
        await start_one(store)
        ids = [done.id, running.id, queued.id, new_id()]
        assert await store.amend(ids, Amendment.REVOKE) == [
            Amended.FINISHED,
            Amended.FLAGGED,
            Amended.REVOKED,
            Amended.NOT_FOUND,
        ]
        assert await state_of(store, queued.id) is State.REVOKED
        seen = await look(store, running.id)
        assert (seen.state, seen.aborting) == (State.RUNNING, True)

    async def test_a_revoked_job_frees_its_key(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.in_flight()))
        await ask(store, first.id, Amendment.REVOKE)
        assert (await put(store, job(unique=Unique.in_flight()))).outcome is Outcome.CREATED

    async def test_a_flagged_job_keeps_its_key_until_it_has_ended(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.in_flight()))
        claimed = await start_one(store)
        await ask(store, first.id, Amendment.REVOKE)
        assert (await put(store, job(unique=Unique.in_flight()))).id == first.id
        await finish(store, claimed)
        assert (await put(store, job(unique=Unique.in_flight()))).outcome is Outcome.CREATED

    async def test_a_revoked_job_frees_its_followers(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.coalesce()))
        claimed = await start_one(store)
        follower = await put(store, job(unique=Unique.coalesce()))
        await finish(store, claimed, Move.RETRY, delay=1_000)
        await ask(store, claimed.id, Amendment.REVOKE)
        assert await started_ids(store) == [follower.id]

    async def test_revoking_a_link_joins_its_followers_to_the_job_before_it(self, store: JobStore) -> None:
        unique = Unique.latest(queued="follow")
        first = await put(store, job(unique=unique))
        claimed = await start_one(store)
        second = await put(store, job(unique=unique))
        third = await put(store, job(unique=unique))
        await ask(store, second.id, Amendment.REVOKE)
        assert (await look(store, third.id)).follows == first.id
        assert await started_ids(store) == []
        await finish(store, claimed)
        assert await started_ids(store) == [third.id]


class TestRetry:
    @pytest.mark.parametrize("end", ["failed", "revoked"])
    async def test_an_ended_job_is_revived_with_a_fresh_budget(
        self, store: JobStore, clock: FakeClock, end: str
    ) -> None:
        made = job(expires=1_000 if end == "revoked" else None)
        await put(store, made)
        if end == "failed":
            await run(store, Move.FAIL)
        else:
            clock.tick(1_000)
            await started_ids(store)
        clock.advance(1)
        assert await ask(store, made.id, Amendment.RETRY) is Amended.RETRIED
        seen = await look(store, made.id)
        assert (seen.state, seen.due, seen.failures, seen.crashes) == (State.WAITING, clock.now, 0, 0)
        assert (seen.ended, seen.aborting, seen.payload) == (None, False, made.payload)
        assert await started_ids(store) == [made.id]

    async def test_each_other_state_has_its_answer(self, store: JobStore) -> None:
        done, running, queued = job(), job(), job(delay=1_000)
        await put(store, done)
        await run(store)
        await store.enqueue([running, queued])
        await start_one(store)
        ids = [done.id, running.id, queued.id, new_id()]
        assert await store.amend(ids, Amendment.RETRY) == [
            Amended.FINISHED,
            Amended.RUNNING,
            Amended.RUNNING,
            Amended.NOT_FOUND,
        ]

    async def test_a_revived_job_holds_its_key_again_in_its_old_window(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        unique = Unique.once(within=10)
        first = await put(store, job(unique=unique))
        await run(store, Move.FAIL)
        clock.advance(4)
        await ask(store, first.id, Amendment.RETRY)
        assert (await put(store, job(unique=unique))).id == first.id
        clock.advance(6)
        assert (await put(store, job(unique=unique))).outcome is Outcome.CREATED

    async def test_a_retry_is_kept_out_while_another_holds_the_key(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.in_flight()))
        await run(store, Move.FAIL)
        second = await put(store, job(unique=Unique.in_flight()))
        assert await ask(store, first.id, Amendment.RETRY) is Amended.KEPT
        assert await state_of(store, first.id) is State.FAILED
        assert (await put(store, job(unique=Unique.in_flight()))).id == second.id

    async def test_a_forced_retry_runs_without_the_key(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.in_flight()))
        await run(store, Move.FAIL)
        second = await put(store, job(unique=Unique.in_flight()))
        assert await ask(store, first.id, Amendment.RETRY_WITHOUT_KEY) is Amended.RETRIED
        for claimed in await start(store):
            if claimed.id == first.id:
                await finish(store, claimed)
        assert (await put(store, job(unique=Unique.in_flight()))).id == second.id

    async def test_a_revived_follower_waits_behind_the_same_job(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.latest()))
        claimed = await start_one(store)
        second = await put(store, job(unique=Unique.latest()))
        await ask(store, second.id, Amendment.REVOKE)
        assert await ask(store, second.id, Amendment.RETRY) is Amended.RETRIED
        assert await started_ids(store) == []
        assert (await look(store, second.id)).follows == first.id
        await finish(store, claimed)
        assert await started_ids(store) == [second.id]


class TestDelete:
    async def test_each_state_has_its_answer(self, store: JobStore) -> None:
        done, running, queued = job(), job(), job(delay=1_000)
        await put(store, done)
        await run(store)
        await store.enqueue([running, queued])
        await start_one(store)
        ids = [done.id, running.id, queued.id, new_id()]
        assert await store.amend(ids, Amendment.DELETE) == [
            Amended.DELETED,
            Amended.RUNNING,
            Amended.DELETED,
            Amended.NOT_FOUND,
        ]
        assert await store.job(done.id) is None
        assert await store.job(queued.id) is None
        assert await state_of(store, running.id) is State.RUNNING

    async def test_a_deleted_live_job_counts_as_revoked(self, store: JobStore) -> None:
        freed = await put(store, job(unique=Unique.once()))
        kept = await put(store, job(unique=Unique.throttle(60), key="kept"))
        await store.amend([freed.id, kept.id], Amendment.DELETE)
        assert (await put(store, job(unique=Unique.once()))).outcome is Outcome.CREATED
        answer = await put(store, job(unique=Unique.throttle(60), key="kept"))
        assert (answer.outcome, answer.id, answer.state) == (Outcome.KEPT, kept.id, State.REVOKED)

    async def test_a_deleted_job_leaves_its_end_in_its_key(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.once()))
        await run(store)
        await ask(store, first.id, Amendment.DELETE)
        answer = await put(store, job(unique=Unique.once()))
        assert (answer.outcome, answer.id, answer.state) == (Outcome.KEPT, first.id, State.COMPLETED)
        assert not answer.payload_differs

    async def test_a_deleted_job_frees_its_followers(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.coalesce()))
        claimed = await start_one(store)
        follower = await put(store, job(unique=Unique.coalesce()))
        await finish(store, claimed, Move.RETRY, delay=1_000)
        await ask(store, claimed.id, Amendment.DELETE)
        assert await started_ids(store) == [follower.id]
