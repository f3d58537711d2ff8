"""Two sessions and one store: jobs end, claims come, and somebody's transaction is open on what that entails.

As in test_postgres_interleavings.py, each session stops between two named statements, and the test lets the other one act.
"""

from __future__ import annotations

import pytest
from interleaving import (
    AT_ONCE_OR_NEVER,
    COALESCE,
    ENDS,
    LANE,
    LATEST,
    ONCE,
    drain,
    run_of,
    start_that,
)
from servers.stepping import Play, Session

from onejob.core.job import Claimed, JobId, State, WorkerId
from onejob.core.judge import Outcome
from onejob.core.lifecycle import Lost, Move, after_attempt
from onejob.store import Ask, Beat, Settled
from onejob.stores.postgres import beating
from onejob.testing.conformance.blockers import waiting_for
from onejob.testing.conformance.chains import chain_of_two, next_of
from onejob.testing.conformance.steps import (
    LEASE,
    job,
    look,
    put,
    start,
    state_of,
)

pytestmark = pytest.mark.timeout(60)


class TestSettlingNeverWaits:
    """A user's transaction is open on whatever a settlement touches beside its own job."""

    @ENDS
    async def test_for_its_key_its_follower_and_its_lane(self, postgres_url: str, end: str) -> None:
        async with Play(postgres_url) as play:
            first = await put(play.store, job(unique=LATEST, lane=LANE, payload=b"1"))
            claimed = await start_that(play, first.id)
            follower = await put(play.store, job(unique=LATEST, lane=LANE, payload=b"2"))
            assert (await look(play.store, follower.id)).follows == first.id
            blocked = await put(play.store, waiting_for(first.id))
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            [updated] = await user.enqueue(job(unique=LATEST, lane=LANE, payload=b"3")).done()
            assert (updated.id, updated.outcome) == (follower.id, Outcome.UPDATED)
            newcomer = job(unique=LATEST, lane=LANE, payload=b"4", force=True)
            await user.enqueue(newcomer).done()
            other = job(unique=ONCE, lane=LANE, key="other")
            await user.enqueue(other).done()
            await user.execute(f"select from {play.address.schema}.job where id = $1 for update", blocked.id)
            reply = await worker.settle(claimed, wish=Ask(WorkerId("w"), ("q",), 10)).done()
            assert (reply.settled, reply.claims.jobs) == ([Settled.DONE], [])
            assert reply.claims.next_due is not None, "somebody has to look again"
            assert await run_of(worker) == []
            await user.end(end)
            ran = await drain(worker)
            assert ran[:2] in ([follower.id, blocked.id], [blocked.id, follower.id])
            assert ran[2:] == ([newcomer.id, other.id] if end == "commit" else [])
            payload = (await look(play.store, follower.id)).payload
            assert payload == (b"3" if end == "commit" else b"2")

    @ENDS
    @pytest.mark.parametrize("move", [Move.COMPLETE, Move.FAIL])
    async def test_for_those_who_would_fail_with_it(self, postgres_url: str, end: str, move: Move) -> None:
        async with Play(postgres_url) as play:
            first = await put(play.store, job())
            claimed = await start_that(play, first.id)
            blocked = await put(play.store, waiting_for(first.id))
            behind = await put(play.store, waiting_for(blocked.id, runs_anyway=True))
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            await user.execute(f"select from {play.address.schema}.job where id = $1 for update", blocked.id)
            assert (await worker.settle(claimed, move).done()).settled == [Settled.DONE]
            assert await run_of(worker) == []
            await user.end(end)
            expected = blocked.id if move is Move.COMPLETE else behind.id
            assert await run_of(worker) == [expected]
            assert await play.look("select count(*) from {}.recheck") == [(0,)]

    async def test_who_dies_after_an_end_leaves_a_note_of_what_it_entails(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            first = await put(play.store, job(unique=COALESCE))
            claimed = await start_that(play, first.id)
            follower = await put(play.store, job(unique=COALESCE))
            blocked = await put(play.store, waiting_for(first.id))
            dying, worker = await play.ours(), await play.ours(AT_ONCE_OR_NEVER)
            await dying.settle(claimed).before("ending.mark")
            await dying.close()
            assert await state_of(play.store, first.id) is State.COMPLETED
            assert sorted(await run_of(worker)) == sorted([follower.id, blocked.id])

    async def test_for_a_user_who_keeps_its_duplicate(self, postgres_url: str) -> None:
        """Even one that has locked the key's record by hand, for as long as he likes."""
        async with Play(postgres_url) as play:
            first = await put(play.store, job(unique=ONCE))
            claimed = await start_that(play, first.id)
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            await user.execute(f"select from {play.address.schema}.key for update")
            [answer] = await user.enqueue(job(unique=ONCE)).done()
            assert (answer.id, answer.outcome) == (first.id, Outcome.KEPT)
            assert (await worker.settle(claimed, Move.FAIL).done()).settled == [Settled.DONE]
            await user.commit()
            again = await put(play.store, job(unique=ONCE))
            assert again.outcome is Outcome.CREATED, "the key was not tidied, and reads as vacant"
            assert await run_of(worker) == [again.id]


class TestEndsBeforeTheCommit:
    """A user's transaction makes a job that waits for a chain, and the chain ends before the commit."""

    @ENDS
    async def test_a_follower_is_let_go_by_the_next_claim(self, postgres_url: str, end: str) -> None:
        async with Play(postgres_url) as play:
            holder = await put(play.store, job(unique=COALESCE))
            claimed = await start_that(play, holder.id)
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            newcomer = job(unique=COALESCE)
            await user.enqueue(newcomer).done()
            await worker.settle(claimed).done()
            assert await run_of(worker) == []
            await user.end(end)
            assert await run_of(worker) == ([newcomer.id] if end == "commit" else [])
            assert await play.look("select count(*) from {}.recheck") == [(0,)]

    @pytest.mark.parametrize("move", [Move.COMPLETE, Move.FAIL])
    async def test_a_blocked_job_is_let_go_or_fails_by_the_next_claim(
        self, postgres_url: str, move: Move
    ) -> None:
        async with Play(postgres_url) as play:
            one, two = await put(play.store, job()), await put(play.store, job())
            first, second = await start(play.store)
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            newcomer = waiting_for(one.id, two.id)
            await user.enqueue(newcomer).done()
            await worker.settle(first).done()
            await worker.settle(second, move).done()
            await user.commit()
            assert await run_of(worker) == ([newcomer.id] if move is Move.COMPLETE else [])
            if move is Move.FAIL:
                assert await state_of(play.store, newcomer.id) is State.FAILED

    async def test_a_chain_that_goes_on_is_waited_for_to_its_end(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            chain, second = await chain_of_two(play.store, COALESCE)
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            follower, blocked = job(unique=COALESCE), waiting_for(chain)
            await user.enqueue(follower).done()
            await user.enqueue(blocked).done()
            await worker.settle(second, then=next_of(second)).done()
            [third] = (await worker.claim().done()).jobs
            await user.commit()
            assert await run_of(worker) == [], "its third job runs"
            await worker.settle(third).done()
            assert sorted(await run_of(worker)) == sorted([follower.id, blocked.id])

    @pytest.mark.parametrize("at", ["ending.mark", "commit"])
    @pytest.mark.parametrize("goes_on", [False, True])
    async def test_one_of_our_own_is_let_go_at_once(self, postgres_url: str, at: str, goes_on: bool) -> None:
        """The chain ends, or goes on, between the insert of who waits for it and the mark that says so, or after it."""
        async with Play(postgres_url) as play:
            holder = await put(play.store, job(unique=COALESCE))
            claimed = await start_that(play, holder.id)
            caller, worker = await play.ours(), await play.ours()
            newcomer = waiting_for(holder.id, unique=COALESCE)
            acting = await caller.enqueue(newcomer).before(at)
            settling = worker.settle(claimed, then=next_of(claimed) if goes_on else None).go()
            if at == "commit":
                await worker.waits_for(caller)
                await acting.done()
                await settling.done()
            else:
                await settling.done()
                await acting.done()
            if goes_on:
                [second] = (await worker.claim().done()).jobs
                assert second.chain_index == 1
                await worker.settle(second).done()
            assert await run_of(worker) == [newcomer.id]

    async def test_whoever_waits_meets_an_end_that_is_not_committed(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            holder = await put(play.store, job(unique=COALESCE))
            claimed = await start_that(play, holder.id)
            worker, caller = await play.ours(), await play.ours(AT_ONCE_OR_NEVER)
            await worker.begin()
            await worker.settle(claimed).done()
            newcomer = waiting_for(holder.id)
            await caller.enqueue(newcomer).done()
            assert await run_of(caller) == []
            await worker.commit()
            assert await run_of(caller) == [newcomer.id]


class TestLanes:
    """Claims and settlements meet at one lane: never two at once, never nobody for ever, always in order."""

    @pytest.mark.parametrize("known", [True, False])
    async def test_two_claims_at_once_start_one(self, postgres_url: str, known: bool) -> None:
        """Only where both want to write down the same new lane, the second waits for the first one's commit."""
        made = [job(lane=LANE) for _ in range(3)]
        async with Play(postgres_url) as play:
            await play.store.enqueue(made[:2])
            one, two = await play.ours(), await play.ours(AT_ONCE_OR_NEVER if known else "20s")
            if known:
                assert (await one.claim(limit=0).done()).jobs == []
            await put(play.store, made[2])
            first = await one.claim(worker="one").before("commit")
            second = two.claim(worker="two").go()
            if not known:
                await two.waits_for(one)
                await first.done()
            claims = await second.done()
            assert claims.jobs == []
            [claimed] = (await first.done()).jobs
            assert claimed.id == made[0].id
            assert await run_of(two) == []
            await two.settle(claimed).done()
            assert await drain(two) == [made[1].id, made[2].id]

    @pytest.mark.parametrize("at", ["lanes.take", "lanes.arrange", "claim.start", "commit"])
    async def test_a_claim_while_the_slot_is_freed_leaves_nobody_behind(
        self, postgres_url: str, at: str
    ) -> None:
        made = [job(lane=LANE) for _ in range(2)]
        async with Play(postgres_url) as play:
            await play.store.enqueue(made)
            [running] = await start(play.store)
            await put(play.store, job(lane=LANE))  # so that there is something to arrange
            one, two = await play.ours(), await play.ours(AT_ONCE_OR_NEVER)
            claiming = one.claim(worker="one")
            await claiming.after("claim.start")
            await claiming.before(at)
            await two.settle(running).done()
            started = [claimed.id for claimed in (await claiming.done()).jobs]
            started += await run_of(two)
            assert started == [made[1].id]
            assert await run_of(two) == []

    @ENDS
    async def test_an_end_that_is_not_committed_frees_no_slot(self, postgres_url: str, end: str) -> None:
        made = [job(lane=LANE) for _ in range(2)]
        async with Play(postgres_url) as play:
            await play.store.enqueue(made)
            [running] = await start(play.store)
            one, two = await play.ours(), await play.ours(AT_ONCE_OR_NEVER)
            await one.begin()
            await one.settle(running).done()
            assert await run_of(two) == []
            await one.end(end)
            if end == "rollback":
                assert await run_of(two) == []
                await two.settle(running).done()
            assert await run_of(two) == [made[1].id]

    @pytest.mark.parametrize("arranged", [False, True])
    async def test_an_older_job_that_commits_later_is_still_first(
        self, postgres_url: str, arranged: bool
    ) -> None:
        async with Play(postgres_url) as play:
            first = await put(play.store, job(lane=LANE))
            running = await start_that(play, first.id)
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            older, younger = job(lane=LANE), job(lane=LANE)
            await user.enqueue(older).done()
            await put(play.store, younger)
            await worker.settle(running).done()
            if arranged:  # it is the younger one's turn, but nobody has room for it
                await worker.claim(limit=0).done()
                assert await state_of(play.store, younger.id) is State.WAITING
            await user.commit()
            [claimed] = (await worker.claim().done()).jobs
            assert claimed.id == older.id
            assert await run_of(worker) == []
            await worker.settle(claimed).done()
            assert await run_of(worker) == [younger.id]

    @ENDS
    async def test_the_oldest_of_a_lane_is_not_passed_while_a_user_has_it(
        self, postgres_url: str, end: str
    ) -> None:
        async with Play(postgres_url) as play:
            oldest = await put(play.store, job(lane=LANE, unique=LATEST))
            younger = await put(play.store, job(lane=LANE))
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            await user.enqueue(job(lane=LANE, unique=LATEST, payload=b"2")).done()
            claims = await worker.claim().done()
            assert (claims.jobs, claims.next_due is not None) == ([], True)
            await user.end(end)
            [claimed] = (await worker.claim().done()).jobs
            assert (claimed.id, claimed.payload == b"2") == (oldest.id, end == "commit")
            await worker.settle(claimed).done()
            assert await run_of(worker) == [younger.id]


class TestCompletionAgainstRescue:
    """A `complete()` block is open while somebody takes its job for lost."""

    async def opened(self, play: Play) -> tuple[Claimed, JobId, JobId]:
        """The second job of a chain, which runs, and who follows and who waits for that chain."""
        chain, second = await chain_of_two(play.store, COALESCE)
        follower = await put(play.store, job(unique=COALESCE, payload=b"2"))
        blocked = await put(play.store, waiting_for(chain))
        user = await play.user()
        await user.execute("create table booking (number integer)")
        return second, follower.id, blocked.id

    async def completing(self, play: Play, second: Claimed) -> Session:
        user = await play.user()
        await user.begin()
        await user.execute("insert into booking values (1)")
        return user

    async def rescue(self, play: Play, session: Session) -> list[Settled]:
        [found] = await play.store.expired(10)
        settlement = after_attempt(found.job, Lost(found.worker))
        reply = await session.settle(
            found.job, settlement.move, delay=settlement.delay, error=settlement.error
        ).done()
        return reply.settled

    async def rows(self, play: Play) -> tuple[int, int]:
        [(bookings,)] = await play.look("select count(*) from booking")
        [(members,)] = await play.look("select count(*) from {}.job where chain_index = 2")
        return bookings, members

    @ENDS
    async def test_the_block_came_first(self, postgres_url: str, end: str) -> None:
        async with Play(postgres_url) as play:
            second, follower, blocked = await self.opened(play)
            user, rescuer = await self.completing(play, second), await play.ours(AT_ONCE_OR_NEVER)
            reply = await user.settle(second, then=next_of(second)).done()
            assert reply.settled == [Settled.DONE]
            play.clock.tick(LEASE)
            assert await self.rescue(play, rescuer) == [Settled.LOST], "and it does not wait"
            assert await run_of(rescuer) == []
            await user.end(end)
            if end == "commit":
                assert await self.rows(play) == (1, 1)
                assert await play.store.expired(10) == []
                assert await state_of(play.store, second.id) is State.COMPLETED
            else:
                assert await self.rows(play) == (0, 0)
                assert await self.rescue(play, rescuer) == [Settled.DONE]
                play.clock.tick(60_000)
            [claimed] = (await rescuer.claim(worker="other").done()).jobs
            assert claimed.chain_index == (2 if end == "commit" else 1)
            await rescuer.settle(claimed).done()
            assert sorted(await run_of(rescuer)) == sorted([follower, blocked])

    @ENDS
    async def test_the_rescuer_came_first(self, postgres_url: str, end: str) -> None:
        async with Play(postgres_url) as play:
            second, follower, blocked = await self.opened(play)
            user, rescuer = await self.completing(play, second), await play.ours()
            play.clock.tick(LEASE)
            await rescuer.begin()
            assert await self.rescue(play, rescuer) == [Settled.DONE]
            settling = user.settle(second, then=next_of(second)).go()
            await user.waits_for(rescuer)
            await rescuer.end(end)
            reply = await settling.done()
            if end == "commit":
                assert reply.settled == [Settled.LOST]
                await user.rollback()  # as the block does then
                assert await self.rows(play) == (0, 0)
                play.clock.tick(60_000)
            else:
                assert reply.settled == [Settled.DONE]
                await user.commit()
                assert await self.rows(play) == (1, 1)
            [claimed] = (await rescuer.claim(worker="other").done()).jobs
            assert claimed.chain_index == (1 if end == "commit" else 2)
            await rescuer.settle(claimed).done()
            assert sorted(await run_of(rescuer)) == sorted([follower, blocked])

    @ENDS
    async def test_a_heartbeat_that_is_not_committed_yet_counts(self, postgres_url: str, end: str) -> None:
        async with Play(postgres_url) as play:
            second, _, _ = await self.opened(play)
            heart, rescuer = await play.ours(), await play.ours(AT_ONCE_OR_NEVER)
            play.clock.tick(LEASE)
            await heart.begin()
            await heart.act(lambda work: beating.beat(work, Beat(WorkerId("w"), LEASE))).done()
            assert await self.rescue(play, rescuer) == [Settled.LOST]
            await heart.end(end)
            expired = [found.job.id for found in await play.store.expired(10)]
            assert expired == ([] if end == "commit" else [second.id])

    async def test_chains_that_come_to_wait_for_each_other_unseen_end(self, postgres_url: str) -> None:
        """Two open blocks, neither of which can see what the other makes."""
        async with Play(postgres_url) as play:
            await play.store.enqueue([job(), job()])
            one, two = await start(play.store)
            users = [await play.user(), await play.user()]
            worker = await play.ours(AT_ONCE_OR_NEVER)
            for user, mine, other in zip(users, (one, two), (two, one), strict=True):
                await user.begin()
                blocked = next_of(mine, blockers=(other.id,))
                assert (await user.settle(mine, then=blocked).done()).settled == [Settled.DONE]
            for user in users:
                await user.commit()
            for _ in range(2):
                assert await run_of(worker) == []
            states = await play.look("select state, error from {}.job where chain_index = 1 order by seq")
            assert [state for state, _ in states] == ["failed", "failed"], states

    @ENDS
    async def test_a_chain_that_ends_in_an_open_block_lets_go_by_its_commit(
        self, postgres_url: str, end: str
    ) -> None:
        async with Play(postgres_url) as play:
            second, follower, blocked = await self.opened(play)
            user, worker = await self.completing(play, second), await play.ours(AT_ONCE_OR_NEVER)
            assert (await user.settle(second).done()).settled == [Settled.DONE]
            assert await run_of(worker) == []
            await user.end(end)
            started = await run_of(worker)
            assert sorted(started) == (sorted([follower, blocked]) if end == "commit" else [])

    async def test_who_begins_to_wait_meanwhile_is_not_forgotten(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            second, follower, blocked = await self.opened(play)
            user, caller = await self.completing(play, second), await play.ours(AT_ONCE_OR_NEVER)
            assert (await user.settle(second).done()).settled == [Settled.DONE]
            newcomer = waiting_for(second.id)
            await caller.enqueue(newcomer).done()
            assert await run_of(caller) == []
            await user.commit()
            assert sorted(await run_of(caller)) == sorted([follower, blocked, newcomer.id])
