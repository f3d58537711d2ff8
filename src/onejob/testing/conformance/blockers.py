"""Blockers: a job waits until all chains that it names have ended, and fails with the first that did not complete."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onejob.core.dedup import Unique
from onejob.core.errors import UnknownBlocker
from onejob.core.job import ChainId, Claimed, JobId, NewJob, State
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import Move, Settlement
from onejob.core.options import JobOptions, encode_options
from onejob.store import Amended, Amendment, Blocker, JobStore, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.chains import chain_of_two, chain_that_follows_again, go_on, next_of
from onejob.testing.conformance.steps import (
    AT_ONCE,
    finish,
    job,
    look,
    new_id,
    put,
    run,
    start_one,
    started_ids,
    state_of,
)


def waiting_for(*blockers: str, runs_anyway: bool = False, **settings: Any) -> NewJob:
    """A newcomer that waits for others."""
    named = tuple(JobId(id) for id in blockers)
    return msgspec.structs.replace(
        job(**settings),
        blockers=named,
        runs_anyway=runs_anyway,
    )


async def start_that(store: JobStore, id: str) -> Claimed:
    """Start the one job that is due, which must be this."""
    claimed = await start_one(store)
    assert claimed.id == id
    return claimed


class TestBlockers:
    @pytest.mark.accepts("Q22")
    async def test_a_job_waits_until_all_its_blockers_have_ended(self, store: JobStore) -> None:
        one, two = await put(store, job()), await put(store, job())
        blocked = await put(store, waiting_for(one.id, two.id))
        assert await state_of(store, blocked.id) is State.BLOCKED
        await run(store)
        assert await state_of(store, blocked.id) is State.BLOCKED
        await run(store)
        assert await started_ids(store) == [blocked.id]

    async def test_blockers_that_have_ended_hold_up_nobody(self, store: JobStore) -> None:
        one = await put(store, job())
        await run(store)
        blocked = await put(store, waiting_for(one.id))
        assert await started_ids(store) == [blocked.id]

    async def test_a_blocker_is_a_chain_and_its_last_job_lets_go(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store)
        blocked = await put(store, waiting_for(second.id))
        assert await store.blocked(second.chain) == [blocked.id]
        await finish(store, second, result=b"7")
        claimed = await start_that(store, blocked.id)
        assert claimed.blockers == 1
        assert await store.blockers(blocked.id) == [
            Blocker(second.chain, State.COMPLETED, "next", b"7"),
        ]
        assert chain == second.chain

    async def test_outputs_come_in_the_order_in_which_blockers_were_named(self, store: JobStore) -> None:
        made = [await put(store, job()) for _ in range(3)]
        blocked = await put(store, waiting_for(*(one.id for one in reversed(made))))
        for number in range(3):
            await finish(store, await start_one(store), result=b"%d" % number)
        assert [one.result for one in await store.blockers(blocked.id)] == [b"2", b"1", b"0"]

    async def test_the_same_blocker_blocks_many_and_counts_once_for_each(self, store: JobStore) -> None:
        one = await put(store, job())
        blocked = [await put(store, waiting_for(one.id, one.id)) for _ in range(3)]
        await run(store)
        assert await started_ids(store) == [made.id for made in blocked]

    async def test_a_blocker_may_be_in_the_same_batch(self, store: JobStore) -> None:
        first = job()
        second = waiting_for(first.id)
        await store.enqueue([first, second])
        assert await started_ids(store) == [first.id]

    @pytest.mark.parametrize("unknown", ["", "no id", "0198f000-0000-7000-8000-000000000000"])
    async def test_an_unknown_blocker_refuses_the_call_and_leaves_nothing(
        self, store: JobStore, unknown: str
    ) -> None:
        wanted = waiting_for(unknown, unique=Unique.restart())
        holder = await put(store, job(unique=Unique.restart()))
        with pytest.raises(UnknownBlocker, match="is not on record"):
            await store.enqueue([wanted])
        assert await store.job(wanted.id) is None
        assert await state_of(store, holder.id) is State.WAITING

    async def test_a_blocked_job_that_is_not_due_yet_is_delayed_afterwards(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        one = await put(store, job())
        blocked = await put(store, waiting_for(one.id, delay=10))
        await run(store)
        assert await state_of(store, blocked.id) is State.DELAYED
        clock.advance(10)
        assert await started_ids(store) == [blocked.id]

    async def test_a_repeated_call_waits_once(self, store: JobStore) -> None:
        one = await put(store, job())
        wanted = waiting_for(one.id)
        await put(store, wanted)
        await put(store, wanted)
        assert len(await store.blockers(wanted.id)) == 1

    async def test_a_repeated_call_is_answered_even_if_its_blocker_is_gone(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        one = await put(store, job())
        wanted = waiting_for(one.id)
        answer = await put(store, wanted)
        await run(store)
        await run(store)
        clock.advance(1)
        await store.amend([one.id], Amendment.DELETE)
        assert await put(store, wanted) == answer

    async def test_who_has_ended_waits_for_nobody(self, store: JobStore) -> None:
        one = await put(store, job())
        blocked = await put(store, waiting_for(one.id))
        assert await store.blocked(ChainId(one.id)) == [blocked.id]
        await store.amend([blocked.id], Amendment.REVOKE)
        assert await store.blocked(ChainId(one.id)) == []

    async def test_who_follows_and_waits_needs_both_to_end(self, store: JobStore) -> None:
        one = await put(store, job(queue="r"))
        await put(store, job(unique=Unique.latest()))
        holder = await start_one(store)
        both = await put(store, waiting_for(one.id, unique=Unique.latest(), payload=b"{}"))
        await finish(store, holder)
        assert await state_of(store, both.id) is State.BLOCKED
        [other] = [await started_ids(store, queues=("r",))]
        assert other == [one.id]


class TestFailedBlockers:
    @pytest.mark.parametrize("queue", ["q", "r"])
    @pytest.mark.parametrize("lane", [None, LanePlan("lane")])
    async def test_who_fails_at_once_holds_no_key_for_the_next_of_its_batch(
        self, store: JobStore, queue: str, lane: LanePlan | None
    ) -> None:
        blocker = await put(store, job(queue=queue))
        await store.amend([blocker.id], Amendment.REVOKE)
        first = waiting_for(blocker.id, unique=Unique.in_flight())
        second = job(unique=Unique.once(), lane=lane)
        answers = await store.enqueue([first, second, first])
        assert [answer.id for answer in answers] == [first.id, second.id, first.id]
        assert await state_of(store, first.id) is State.FAILED
        assert await started_ids(store) == [second.id]

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_a_failed_blocker_fails_who_needs_it_with_the_reason(
        self, store: JobStore, when: str
    ) -> None:
        one = await put(store, job())
        claimed = await start_one(store)
        if when == "after":
            await finish(store, claimed, Move.FAIL, error="boom\nfar below")
        blocked = await put(store, waiting_for(one.id))
        anyway = await put(store, waiting_for(one.id, runs_anyway=True))
        if when == "before":
            await finish(store, claimed, Move.FAIL, error="boom\nfar below")
        seen = await look(store, blocked.id)
        assert seen.state is State.FAILED
        assert seen.error == f"BlockerFailed: it waited for job {one.id}, which failed: boom"
        assert await started_ids(store) == [anyway.id]

    async def test_a_revoked_blocker_does_too_and_so_down_the_line(self, store: JobStore) -> None:
        one = await put(store, job())
        two = await put(store, waiting_for(one.id))
        three = await put(store, waiting_for(two.id))
        await store.amend([one.id], Amendment.REVOKE)
        assert await state_of(store, three.id) is State.FAILED

    async def test_a_long_line_of_waiting_jobs_fails_as_a_whole(self, store: JobStore) -> None:
        first = await put(store, job())
        line = [waiting_for(first.id)]
        for _ in range(1_500):
            line.append(waiting_for(line[-1].id))
        for start in range(0, len(line), 1_000):
            await store.enqueue(line[start : start + 1_000])
        await store.amend([first.id], Amendment.REVOKE)
        assert await state_of(store, line[-1].id) is State.FAILED

    async def test_who_is_stranded_gives_its_key_and_is_buried(self, store: JobStore) -> None:
        one = await put(store, job())
        options = encode_options(JobOptions(dead_letter="dead"))
        blocked = await put(store, waiting_for(one.id, unique=Unique.in_flight(), options=options))
        await store.amend([one.id], Amendment.REVOKE)
        assert (await put(store, job(unique=Unique.in_flight()))).id != blocked.id
        [letter] = await store.dead("q", 0, 10)
        assert letter.origin == blocked.id

    async def test_a_stranded_job_is_retried_once_its_blocker_runs_again(self, store: JobStore) -> None:
        one = await put(store, job())
        blocked = await put(store, waiting_for(one.id))
        await run(store, Move.FAIL)
        assert await store.amend([blocked.id], Amendment.RETRY) == [Amended.STRANDED]
        assert await store.amend([one.id, blocked.id], Amendment.RETRY) == [Amended.RETRIED, Amended.RETRIED]
        assert await state_of(store, blocked.id) is State.BLOCKED
        await run(store)
        assert await started_ids(store) == [blocked.id]


class TestBlockersOfContinuations:
    async def test_a_chain_may_go_on_with_a_job_that_waits(self, store: JobStore) -> None:
        await put(store, job())
        first = await start_one(store)
        other = await put(store, job())
        await go_on(store, first, blockers=(other.id,))
        assert await state_of(store, next_of(first).id) is State.BLOCKED
        await run(store)
        assert await started_ids(store) == [next_of(first).id]

    async def test_chains_that_would_wait_for_each_other_are_refused_and_told(self, store: JobStore) -> None:
        made = await put(store, job())
        first = await start_one(store)
        other = await put(store, waiting_for(made.id))
        third = await put(store, waiting_for(other.id))
        reply = await go_on(store, first, blockers=(third.id,))
        assert reply.settled == [Settled.REFUSED]
        path = f"{made.id} → {third.id} → {other.id} → {made.id}"
        assert reply.reasons == {made.id: f"BlockerCycle: these would wait for each other for ever: {path}"}
        assert await state_of(store, made.id) is State.RUNNING
        assert (await go_on(store, first, blockers=(made.id,))).settled == [Settled.REFUSED]
        assert await finish(store, first) is Settled.DONE

    async def test_a_blocker_that_goes_on_in_the_same_batch_is_still_waited_for(
        self, store: JobStore
    ) -> None:
        for _ in range(2):
            await put(store, job())
        first, other = await start_one(store), await start_one(store)
        done = [
            Settlement(first.lease, Move.COMPLETE, then=next_of(first, blockers=(other.id,))),
            Settlement(other.lease, Move.COMPLETE, then=next_of(other)),
        ]
        assert (await store.settle(done)).settled == [Settled.DONE, Settled.DONE]
        assert await state_of(store, next_of(first).id) is State.BLOCKED
        assert (await run(store)).id == next_of(other).id
        assert await started_ids(store) == [next_of(first).id]

    async def test_chains_of_one_batch_cannot_wait_for_each_other(self, store: JobStore) -> None:
        for _ in range(2):
            await put(store, job())
        first, other = await start_one(store), await start_one(store)
        done = [
            Settlement(first.lease, Move.COMPLETE, then=next_of(first, blockers=(other.id,))),
            Settlement(other.lease, Move.COMPLETE, then=next_of(other, blockers=(first.id,))),
        ]
        reply = await store.settle(done)
        assert reply.settled == [Settled.DONE, Settled.REFUSED]
        assert reply.reasons[other.id].startswith("BlockerCycle: ")

    async def test_a_retried_chain_that_follows_cannot_block_whom_it_follows(self, store: JobStore) -> None:
        chain, holder = await chain_that_follows_again(store)
        assert (await go_on(store, holder, blockers=(chain,))).settled == [Settled.REFUSED]

    async def test_a_follower_of_the_chain_cannot_block_it(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.latest()))
        first = await start_one(store)
        follower = await put(store, job(unique=Unique.latest(), payload=b"{}"))
        assert (await go_on(store, first, blockers=(follower.id,))).settled == [Settled.REFUSED]

    async def test_an_unknown_blocker_is_refused(self, store: JobStore) -> None:
        await put(store, job())
        first = await start_one(store)
        reply = await go_on(store, first, blockers=(new_id(),))
        assert reply.settled == [Settled.REFUSED]
        assert reply.reasons[first.id].startswith("UnknownBlocker: ")

    async def test_what_is_refused_leaves_the_rest_of_its_batch_alone(self, store: JobStore) -> None:
        await put(store, job())
        await put(store, job())
        first, second = await start_one(store), await start_one(store)
        done = [
            Settlement(first.lease, Move.COMPLETE, then=next_of(first, blockers=(new_id(),))),
            Settlement(second.lease, Move.COMPLETE),
        ]
        assert (await store.settle(done)).settled == [Settled.REFUSED, Settled.DONE]

    async def test_a_failed_blocker_of_the_next_job_ends_the_chain(self, store: JobStore) -> None:
        other = await put(store, job())
        await run(store, Move.FAIL)
        made = await put(store, job(unique=Unique.in_flight()))
        first = await start_one(store)
        assert (await go_on(store, first, blockers=(other.id,))).settled == [Settled.DONE]
        assert [one.state for one in await store.chain(made.id)] == [State.COMPLETED, State.FAILED]
        assert (await put(store, job(unique=Unique.in_flight()))).id != made.id


class TestDeletingBlockers:
    async def test_a_chain_that_others_wait_for_is_not_deleted_unless_asked(self, store: JobStore) -> None:
        one = await put(store, job())
        blocked = await put(store, waiting_for(one.id))
        assert await store.amend([one.id], Amendment.DELETE) == [Amended.AWAITED]
        assert await store.amend([one.id], Amendment.DELETE_WITH_WAITING) == [Amended.DELETED]
        assert await state_of(store, blocked.id) is State.FAILED

    async def test_outputs_that_are_yet_to_be_read_are_neither_deleted_nor_pruned(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        one = await put(store, job())
        await finish(store, await start_one(store), result=b"1")
        two = await put(store, job(delay=1_000))
        blocked = await put(store, waiting_for(one.id, two.id))
        clock.advance(100)
        await store.prune(AT_ONCE, 100)
        assert await store.amend([one.id], Amendment.DELETE) == [Amended.AWAITED]
        clock.advance(900)
        await run(store)
        await finish(store, await start_that(store, blocked.id))
        assert await store.amend([one.id], Amendment.DELETE) == [Amended.DELETED]
        assert [seen.state for seen in await store.blockers(blocked.id)] == [None, State.COMPLETED]

    async def test_nothing_is_left_of_what_was_waited_for(self, store: JobStore, clock: FakeClock) -> None:
        one = await put(store, job())
        blocked = await put(store, waiting_for(one.id))
        await run(store)
        await run(store)
        clock.advance(1)
        await store.prune(AT_ONCE, 100)
        assert await store.blockers(blocked.id) == []
        assert await store.job(one.id) is None
