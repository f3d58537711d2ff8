"""Chains: the next job exists if and only if the one before it completed with it, and the key goes to the last end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onejob.core.chain import continuation_id
from onejob.core.dedup import Unique
from onejob.core.job import ChainId, Claimed, JobId, NewJob, State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import SETTLING, Move, Settlement
from onejob.store import Amended, Amendment, JobStore, Settled, SettleReply
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    AT_ONCE,
    LEASE,
    digest_of,
    finish,
    job,
    look,
    put,
    run,
    start_one,
    started_ids,
    state_of,
)


def next_of(claimed: Claimed, **settings: Any) -> NewJob:
    """The job that continues a chain after this one."""
    id = continuation_id(claimed.chain, claimed.chain_index + 1)
    return msgspec.structs.replace(job(id=id, task="next"), **settings)


async def go_on(store: JobStore, claimed: Claimed, **settings: Any) -> SettleReply:
    """Complete a job and continue its chain."""
    return await store.settle([Settlement(claimed.lease, Move.COMPLETE, then=next_of(claimed, **settings))])


async def chain_of_two(store: JobStore, unique: Unique | None = None) -> tuple[JobId, Claimed]:
    """A chain whose second job runs: its id, and that job."""
    first = await put(store, job(unique=unique))
    await go_on(store, await start_one(store))
    return first.id, await start_one(store)


async def chain_that_follows_again(store: JobStore) -> tuple[JobId, Claimed]:
    """A chain that failed at its second job, and was retried while another ran under its key; and that one."""
    latest = Unique.latest()
    chain, second = await chain_of_two(store, latest)
    await finish(store, second, Move.FAIL)
    await put(store, job(unique=latest))
    holder = await start_one(store)
    between = await put(store, job(unique=latest, payload=b"2"))
    await store.amend([between.id], Amendment.REVOKE)
    assert await store.amend([chain], Amendment.RETRY) == [Amended.RETRIED]
    assert (await look(store, second.id)).follows == holder.id
    return chain, holder


class TestChains:
    async def test_a_lone_job_is_a_chain_of_one(self, store: JobStore) -> None:
        made = await put(store, job())
        claimed = await start_one(store)
        assert (claimed.chain, claimed.chain_index) == (made.id, 0)
        assert [one.id for one in await store.chain(made.id)] == [made.id]

    @pytest.mark.accepts("Q14")
    async def test_a_chain_goes_on_in_the_commit_that_completes_a_job(self, store: JobStore) -> None:
        made = await put(store, job())
        reply = await go_on(store, await start_one(store), payload=b'{"step":1}')
        assert reply.settled == [Settled.DONE]
        second = await start_one(store)
        assert (second.chain, second.chain_index, second.payload) == (made.id, 1, b'{"step":1}')
        await go_on(store, second)
        assert [(one.chain_index, one.state) for one in await store.chain(second.id)] == [
            (0, State.COMPLETED),
            (1, State.COMPLETED),
            (2, State.WAITING),
        ]

    @pytest.mark.parametrize("move", sorted(SETTLING - {Move.COMPLETE}))
    async def test_no_other_move_makes_the_next_job(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        made = await put(store, job())
        claimed = await start_one(store)
        clock.tick(LEASE)
        await store.settle([Settlement(claimed.lease, move, then=next_of(claimed))])
        assert len(await store.chain(made.id)) == 1

    async def test_a_lost_lease_makes_no_next_job(self, store: JobStore, clock: FakeClock) -> None:
        made = await put(store, job())
        claimed = await start_one(store)
        clock.tick(LEASE)
        await finish(store, claimed, Move.LOSE)
        assert (await go_on(store, claimed)).settled == [Settled.LOST]
        assert len(await store.chain(made.id)) == 1

    async def test_a_revoked_job_does_not_go_on(self, store: JobStore) -> None:
        made = await put(store, job())
        claimed = await start_one(store)
        await store.amend([made.id], Amendment.REVOKE)
        assert (await go_on(store, claimed)).settled == [Settled.REVOKED]
        assert [one.state for one in await store.chain(made.id)] == [State.REVOKED]

    @pytest.mark.accepts("Q15", "Q16")
    async def test_a_settlement_that_comes_again_finds_the_first(self, store: JobStore) -> None:
        made = await put(store, job())
        claimed = await start_one(store)
        await go_on(store, claimed)
        assert (await go_on(store, claimed)).settled == [Settled.LOST]
        assert len(await store.chain(made.id)) == 2

    @pytest.mark.parametrize(
        ("change", "answer"),
        [({}, Settled.DONE), ({"task": "other"}, Settled.DIVERGED), ({"payload": b"{}"}, Settled.DIVERGED)],
    )
    async def test_a_job_that_is_at_that_place_already_stands(
        self, store: JobStore, change: dict[str, object], answer: Settled
    ) -> None:
        await put(store, job())
        claimed = await start_one(store)
        there = next_of(claimed, queue="elsewhere")
        await store.enqueue([there])
        reply = await go_on(store, claimed, **change)
        assert reply.settled == [answer]
        assert (await look(store, there.id)).task == "next"
        assert await state_of(store, claimed.id) is State.COMPLETED

    async def test_the_next_job_may_be_delayed_or_wait_in_another_queue(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job())
        first = await start_one(store)
        await go_on(store, first, queue="r", delay=5)
        assert await started_ids(store, queues=("r",)) == []
        clock.advance(5)
        assert await started_ids(store, queues=("r",)) == [continuation_id(first.chain, 1)]

    @pytest.mark.accepts("Q18")
    async def test_a_continuation_has_no_key(self, store: JobStore) -> None:
        _, second = await chain_of_two(store, Unique.in_flight())
        seen = await look(store, second.id)
        assert (seen.key, seen.digest) == (None, None)


class TestKeysOfChains:
    @pytest.mark.accepts("Q21")
    async def test_a_chain_holds_its_key_until_its_last_job_has_ended(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store, Unique.in_flight())
        again = await put(store, job(unique=Unique.in_flight()))
        assert (again.id, again.outcome, again.state) == (chain, Outcome.KEPT, State.RUNNING)
        await finish(store, second)
        assert (await put(store, job(unique=Unique.in_flight()))).outcome is Outcome.CREATED

    async def test_a_chain_whose_next_job_waits_counts_as_running(self, store: JobStore) -> None:
        chain = await put(store, job(unique=Unique.latest()))
        await go_on(store, await start_one(store), delay=1_000)
        again = await put(store, job(unique=Unique.latest(), payload=b"{}"))
        assert (again.outcome, again.state, again.holder) == (Outcome.CREATED, State.RUNNING, chain.id)
        assert (await look(store, again.id)).follows == chain.id

    async def test_who_follows_waits_for_the_chains_end(self, store: JobStore) -> None:
        _, second = await chain_of_two(store, Unique.latest())
        follower = await put(store, job(unique=Unique.latest(), payload=b"{}"))
        assert await state_of(store, follower.id) is State.BLOCKED
        await finish(store, second)
        assert await started_ids(store) == [follower.id]

    async def test_a_chain_is_remembered_as_its_last_job_ended(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store, Unique.once())
        await finish(store, second, Move.FAIL)
        assert (await put(store, job(unique=Unique.once()))).id != chain

    async def test_a_completed_chain_is_remembered(self, store: JobStore, clock: FakeClock) -> None:
        chain, second = await chain_of_two(store, Unique.once())
        await finish(store, second)
        clock.advance(1)
        await store.prune(AT_ONCE, 100)
        assert await store.chain(chain) == []
        again = await put(store, job(unique=Unique.once()))
        assert (again.id, again.outcome, again.state) == (chain, Outcome.KEPT, State.COMPLETED)

    async def test_its_own_running_chain_is_followed_by_what_a_continuation_enqueues(
        self, store: JobStore
    ) -> None:
        chain, second = await chain_of_two(store, Unique.in_flight())
        again = await put(store, job(unique=Unique.in_flight(), caller=second.chain))
        assert again.outcome is Outcome.CREATED
        assert (await look(store, again.id)).follows == chain
        await finish(store, second)
        assert await started_ids(store) == [again.id]

    async def test_nothing_of_a_living_chain_is_pruned(self, store: JobStore, clock: FakeClock) -> None:
        chain, second = await chain_of_two(store, Unique.in_flight())
        clock.advance(1)
        await store.prune(AT_ONCE, 100)
        assert len(await store.chain(chain)) == 2
        await finish(store, second)
        clock.advance(1)
        await store.prune(AT_ONCE, 100)
        assert await store.chain(chain) == []
        assert await store.key(digest_of("k")) is None


class TestChainsAsAWhole:
    async def test_revoking_a_chain_flags_or_ends_its_last_job(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store)
        assert await store.amend([chain], Amendment.REVOKE) == [Amended.FLAGGED]
        assert await finish(store, second) is Settled.REVOKED
        assert await store.amend([chain], Amendment.REVOKE) == [Amended.FINISHED]

    async def test_a_chain_is_retried_from_the_job_that_failed(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store, Unique.in_flight())
        await finish(store, second, Move.FAIL)
        assert await store.amend([chain], Amendment.RETRY) == [Amended.RETRIED]
        again = await put(store, job(unique=Unique.in_flight()))
        assert (again.id, again.state) == (chain, State.RUNNING)
        assert (await run(store)).id == second.id
        assert await store.amend([chain], Amendment.RETRY) == [Amended.FINISHED]

    async def test_a_chain_whose_key_another_holds_is_retried_only_without_it(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store, Unique.in_flight())
        await finish(store, second, Move.FAIL)
        other = await put(store, job(unique=Unique.in_flight()))
        assert await store.amend([second.id], Amendment.RETRY) == [Amended.KEPT]
        assert await store.amend([second.id], Amendment.RETRY_WITHOUT_KEY) == [Amended.RETRIED]
        key = await store.key(digest_of("k"))
        assert key is not None
        assert key.holder.id == other.id
        assert (await look(store, chain)).key is None

    async def test_who_follows_a_retried_chain_waits_for_whom_that_followed(self, store: JobStore) -> None:
        chain, holder = await chain_that_follows_again(store)
        follower = await put(store, job(unique=Unique.latest(), payload=b"3"))
        assert (await look(store, follower.id)).follows == chain
        await store.amend([chain], Amendment.REVOKE)
        assert await store.followers(holder.chain) == [follower.id]
        await finish(store, holder)
        assert await started_ids(store) == [follower.id]

    async def test_deleting_a_chain_deletes_all_of_it(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store)
        assert await store.amend([chain], Amendment.DELETE) == [Amended.RUNNING]
        await finish(store, second, Move.RETRY, delay=1_000)
        assert await store.amend([chain], Amendment.DELETE) == [Amended.DELETED]
        assert await store.chain(second.id) == []

    async def test_a_bulk_amendment_leaves_alone_a_chain_that_goes_on(self, store: JobStore) -> None:
        chain, _ = await chain_of_two(store)
        done = frozenset({State.COMPLETED})
        assert await store.amend([chain], Amendment.DELETE, states=done) == [Amended.MOVED]

    async def test_a_lost_continuation_is_rescued_like_any_job(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        chain, second = await chain_of_two(store)
        clock.tick(LEASE)
        [found] = await store.expired(10)
        assert (found.job.chain, found.job.chain_index) == (ChainId(chain), 1)
        await finish(store, found.job, Move.LOSE)
        assert (await start_one(store)).id == second.id

    async def test_the_last_job_says_how_a_chain_stands(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store)
        await finish(store, second, result=b"42")
        last = await store.last(chain)
        assert last is not None
        assert (last.id, last.result) == (second.id, b"42")
        assert await store.last(JobId("no such job")) is None
