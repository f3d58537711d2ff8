"""Chains where they meet the rest: cancelling newcomers, pruning, dead letters, and ids that are taken already."""

from __future__ import annotations

import pytest

from onejob.core.dedup import Unique
from onejob.core.job import ChainId, Claimed, JobId, State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import Move
from onejob.store import Amended, Amendment, JobStore, Retention, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.blockers import waiting_for
from onejob.testing.conformance.chains import chain_of_two, go_on, next_of
from onejob.testing.conformance.dead import OPTIONS, amended, buried, fail, letter_id
from onejob.testing.conformance.steps import (
    AT_ONCE,
    digest_of,
    finish,
    job,
    look,
    put,
    run,
    start,
    start_one,
    started_ids,
    state_of,
)

HOUR = 3600_000


async def chain_that_failed(store: JobStore, unique: Unique | None = None) -> tuple[JobId, Claimed]:
    """A chain whose second job has failed and left a dead letter: its id, and that job."""
    made = await put(store, job(unique=unique))
    await go_on(store, await start_one(store), options=OPTIONS)
    second = await start_one(store)
    assert await fail(store, second) is Settled.DONE
    return made.id, second


class TestCancelledChains:
    async def test_who_cancels_a_chain_flags_its_running_job_and_follows(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store, Unique.restart())
        newcomer = await put(store, job(unique=Unique.restart(), payload=b"2"))
        assert (await look(store, second.id)).aborting
        assert (await look(store, newcomer.id)).follows == chain
        assert (await go_on(store, second)).settled == [Settled.REVOKED]
        assert await started_ids(store) == [newcomer.id]

    async def test_who_cancels_a_chain_that_is_between_two_jobs_ends_it_and_starts(
        self, store: JobStore
    ) -> None:
        await put(store, job(unique=Unique.restart()))
        first = await start_one(store)
        await go_on(store, first, delay=HOUR)
        newcomer = await put(store, job(unique=Unique.restart(), payload=b"2"))
        assert await state_of(store, next_of(first).id) is State.REVOKED
        assert await started_ids(store) == [newcomer.id]

    async def test_who_cancels_whom_it_waits_for_fails_with_it(self, store: JobStore) -> None:
        chain = await put(store, job(unique=Unique.restart()))
        await go_on(store, await start_one(store), delay=HOUR)
        newcomer = await put(store, waiting_for(chain.id, unique=Unique.restart()))
        assert await state_of(store, newcomer.id) is State.FAILED


class TestStrandedHolders:
    async def test_a_holder_that_is_stranded_by_a_call_is_not_kept_by_the_next_of_its_batch(
        self, store: JobStore
    ) -> None:
        cancelled = await put(store, job(unique=Unique.restart(), key="a"))
        stranded = await put(store, waiting_for(cancelled.id, unique=Unique.in_flight(), key="b"))
        batch = [job(unique=Unique.restart(), key="a"), job(unique=Unique.in_flight(), key="b")]
        answers = await store.enqueue(batch)
        assert [answer.id for answer in answers] == [one.id for one in batch]
        assert await state_of(store, stranded.id) is State.FAILED


class TestPruneOfChains:
    @pytest.mark.parametrize(
        ("retention", "left"),
        [(Retention(completed=0, failed=HOUR, revoked=0), 2), (Retention(HOUR, failed=0, revoked=HOUR), 0)],
    )
    async def test_a_chain_goes_as_a_whole_by_how_its_last_job_ended(
        self, store: JobStore, clock: FakeClock, retention: Retention, left: int
    ) -> None:
        chain, second = await chain_of_two(store)
        await finish(store, second, Move.FAIL)
        clock.advance(1)
        await store.prune(retention, 100)
        assert len(await store.chain(chain)) == left

    async def test_a_chain_that_is_retried_late_still_has_its_key(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        chain, second = await chain_of_two(store, Unique.in_flight())
        await finish(store, second, Move.FAIL)
        clock.advance(1)
        await store.prune(Retention(completed=0, failed=HOUR, revoked=0), 100)
        assert await store.amend([second.id], Amendment.RETRY) == [Amended.RETRIED]
        assert (await put(store, job(unique=Unique.in_flight()))).id == chain

    async def test_a_limit_splits_no_chain(self, store: JobStore, clock: FakeClock) -> None:
        chains = [await chain_of_two(store) for _ in range(2)]
        for _, second in chains:
            await finish(store, second)
        clock.advance(1)
        pruned = await store.prune(AT_ONCE, 1)
        assert (pruned.jobs, pruned.more) == (2, True)
        left = [len(await store.chain(chain)) for chain, _ in chains]
        assert sorted(left) == [0, 2]


class TestDeadChains:
    @pytest.mark.parametrize("which", ["chain", "job", "letter"])
    async def test_a_retry_by_any_id_revives_the_last_job_and_removes_its_dead_letter(
        self, store: JobStore, which: str
    ) -> None:
        chain, second = await chain_that_failed(store, Unique.in_flight())
        letter = letter_id(second.id)
        named = {"chain": chain, "job": second.id, "letter": letter}[which]
        assert await amended(store, named, Amendment.RETRY) is Amended.RETRIED
        assert await store.job(letter) is None
        again = await put(store, job(unique=Unique.in_flight()))
        assert (again.id, again.outcome) == (chain, Outcome.KEPT)
        assert await started_ids(store) == [second.id]

    async def test_while_the_dead_letter_runs_the_chain_is_not_retried(self, store: JobStore) -> None:
        chain, _ = await chain_that_failed(store)
        [copy] = await start(store, queues=("dead",))
        assert await amended(store, chain, Amendment.RETRY) is Amended.RUNNING
        await go_on(store, copy, queue="dead", delay=HOUR)
        assert await amended(store, chain, Amendment.RETRY) is Amended.RUNNING

    async def test_a_dead_letter_that_has_gone_on_is_meant_by_an_original_that_is_gone(
        self, store: JobStore
    ) -> None:
        original, letter = await buried(store)
        assert await amended(store, original.id, Amendment.DELETE) is Amended.DELETED
        [copy] = await start(store, queues=("dead",))
        await go_on(store, copy, queue="dead")
        [last] = await start(store, queues=("dead",))
        assert await amended(store, original.id, Amendment.DELETE) is Amended.RUNNING
        assert await finish(store, last) is Settled.DONE
        assert await amended(store, original.id, Amendment.DELETE) is Amended.DELETED
        assert await store.job(letter.id) is None

    async def test_a_dead_letter_that_has_gone_on_goes_with_all_its_jobs(self, store: JobStore) -> None:
        original, letter = await buried(store)
        [copy] = await start(store, queues=("dead",))
        await go_on(store, copy, queue="dead")
        [last] = await start(store, queues=("dead",))
        await finish(store, last, Move.FAIL)
        assert await amended(store, letter.id, Amendment.RETRY) is Amended.RETRIED
        assert await store.chain(last.id) == []
        assert await started_ids(store) == [original.id]

    async def test_who_waits_for_a_dead_letter_fails_when_the_original_is_retried(
        self, store: JobStore
    ) -> None:
        original, letter = await buried(store)
        blocked = await put(store, waiting_for(letter.id))
        assert await amended(store, original.id, Amendment.RETRY) is Amended.RETRIED
        assert await state_of(store, blocked.id) is State.FAILED

    async def test_a_continuation_made_again_from_its_dead_letter_is_a_chain_of_its_own(
        self, store: JobStore
    ) -> None:
        chain, second = await chain_that_failed(store)
        await amended(store, chain, Amendment.DELETE)
        assert await amended(store, second.id, Amendment.RETRY) is Amended.RETRIED
        made = await look(store, second.id)
        assert (made.chain, made.chain_index) == (second.id, 0)


class TestTakenPlaces:
    async def test_a_chain_whose_next_place_a_stranger_has_ends_there(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.latest()))
        first = await start_one(store)
        stranger = next_of(first, queue="elsewhere")
        await store.enqueue([stranger])
        follower = await put(store, job(unique=Unique.latest(), payload=b"2"))
        blocked = await put(store, waiting_for(first.id))
        await go_on(store, first)
        assert (await look(store, stranger.id)).chain == ChainId(stranger.id)
        assert await started_ids(store) == [follower.id, blocked.id]

    async def test_its_key_is_forgotten_then(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.in_flight()))
        first = await start_one(store)
        await store.enqueue([next_of(first, queue="elsewhere")])
        await go_on(store, first)
        assert await store.key(digest_of("k")) is None


class TestRepeatedCallsWithBlockers:
    async def test_a_call_that_changed_its_holder_is_answered_even_if_its_blocker_is_gone(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        one = await put(store, job(queue="q"))
        await run(store)
        await put(store, job(unique=Unique.latest(), delay=HOUR))
        again = waiting_for(one.id, unique=Unique.latest(), payload=b"2")
        answer = await put(store, again)
        assert answer.outcome is Outcome.UPDATED
        clock.advance(1)
        assert await amended(store, one.id, Amendment.DELETE) is Amended.DELETED
        repeated = await put(store, again)
        assert (repeated.id, repeated.outcome) == (answer.id, Outcome.UPDATED)
