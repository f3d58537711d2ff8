"""Two sessions and one store: every order in which their statements can meet that has ever lost, doubled or stuck a job.

Nothing here is left to chance: each session stops between two named statements, and the test lets the other one act.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from interleaving import (
    AT_ONCE_OR_NEVER,
    COALESCE,
    ENDS,
    LANE,
    LATEST,
    ONCE,
    RESTART,
    batch,
    holder_of,
    run_of,
    start_that,
)
from servers.stepping import Play

from onejob import App
from onejob.core import filter
from onejob.core.dedup import Unique
from onejob.core.job import JobId, NewJob, State
from onejob.core.judge import Answer, Outcome
from onejob.core.lifecycle import Move
from onejob.store import Amended, Amendment, Settled
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.failures import sqlstate
from onejob.testing.conformance.steps import (
    AT_ONCE,
    finish,
    job,
    look,
    put,
    run,
    start,
    started_ids,
    state_of,
    total,
)

pytestmark = pytest.mark.timeout(60)


class TestTwoForOneKey:
    """Only one has a free key; the other waits for what becomes of him."""

    @ENDS
    @pytest.mark.parametrize("alone", [True, False])
    @pytest.mark.parametrize("foreign", [False, True])
    async def test_the_loser_creates_if_the_winner_rolls_back_and_else_is_kept(
        self, postgres_url: str, end: str, alone: bool, foreign: bool
    ) -> None:
        first, second = job(unique=ONCE, payload=b"1"), job(unique=ONCE, payload=b"2")
        async with Play(postgres_url) as play:
            winner = await play.user()
            loser = await (play.user() if foreign else play.ours())
            await winner.begin()
            [won] = await winner.enqueue(first).done()
            assert (won.id, won.outcome) == (first.id, Outcome.CREATED)
            if foreign:
                await loser.begin()
            losing = loser.enqueue(*batch(second, alone=alone)).go()
            await loser.waits_for(winner)
            await winner.end(end)
            answer = (await losing.done())[0]
            if foreign:
                await loser.commit()
            one, other = (first, second) if end == "commit" else (second, first)
            assert (answer.id, answer.outcome) == (
                one.id,
                Outcome.KEPT if end == "commit" else Outcome.CREATED,
            )
            assert (await look(play.store, one.id)).payload == one.payload
            assert await play.store.job(other.id) is None
            assert await holder_of(play) == one.id

    @ENDS
    async def test_a_winner_that_is_not_committed_is_no_holder(self, postgres_url: str, end: str) -> None:
        """The store's own transaction, stopped before its commit, against a plain call."""
        async with Play(postgres_url) as play:
            one, two = await play.ours(), await play.ours()
            first, second = job(unique=LATEST, payload=b"1"), job(unique=LATEST, payload=b"2")
            winning = await one.enqueue(*batch(first, alone=False)).before("commit")
            losing = two.enqueue(second).go()
            await two.waits_for(one)
            if end == "commit":
                await winning.done()
            else:
                await winning.close()
                await one.rollback()
            [answer] = await losing.done()
            if end == "commit":
                assert (answer.id, answer.outcome) == (first.id, Outcome.UPDATED)
            else:
                assert (answer.id, answer.outcome) == (second.id, Outcome.CREATED)
            assert (await look(play.store, answer.id)).payload == b"2"

    async def test_batches_in_crossed_order_take_free_keys_with_nothing_else_in_hand(
        self, postgres_url: str
    ) -> None:
        async with Play(postgres_url) as play:
            await play.store.enqueue([job(unique=COALESCE, key=key) for key in ("b", "d")])
            assert len(await start(play.store)) == 2
            one, two = await play.ours(), await play.ours()
            mine = [job(unique=COALESCE, key=key, payload=b"1") for key in ("a", "b", "c", "d")]
            yours = [job(unique=COALESCE, key=key, payload=b"2") for key in ("d", "c", "b", "a")]
            first = await one.enqueue(*mine).before("enqueue.lock_keys")
            second = two.enqueue(*yours).go()
            await two.waits_for(one)
            assert [answer.id for answer in await first.done()] == [newcomer.id for newcomer in mine]
            answers = await second.done()
            assert [answer.id for answer in answers] == [newcomer.id for newcomer in reversed(mine)]
            assert {answer.outcome for answer in answers} == {Outcome.KEPT}

    async def test_batches_in_crossed_order_never_show_a_deadlock(self, postgres_url: str) -> None:
        keys = [str(number) for number in range(24)]
        async with Play(postgres_url) as play:
            user = await play.user()
            store = play.store

            async def by_user(jobs: list[NewJob]) -> list[Answer]:
                await user.begin()
                answers = await user.enqueue(*jobs).done()
                await user.commit()
                return answers

            for number in range(12):
                await store.enqueue([job(unique=LATEST, key=key) for key in keys[: 2 * number : 3]])
                running = await start(store, limit=number // 2)
                orders = (keys, keys[::-1], keys[12:] + keys[:12])
                batches = [[job(unique=LATEST, key=key, payload=b"new") for key in order] for order in orders]
                said = await asyncio.gather(
                    store.enqueue(batches[0]), store.enqueue(batches[1]), by_user(batches[2])
                )
                by_key = [
                    dict(zip(order, answers, strict=True))
                    for order, answers in zip(orders, said, strict=True)
                ]
                for key in keys:
                    answers = [one[key] for one in by_key]
                    assert len({answer.id for answer in answers}) == 1, "one key, one job"
                    assert (await look(store, answers[0].id)).payload == b"new"
                    assert sum(answer.outcome is Outcome.CREATED for answer in answers) <= 1
                live = await play.look("select key from {}.job where ended is null and state <> 'running'")
                assert len(live) == len({key for (key,) in live}) == len(keys)
                while running or (running := await start(store)):
                    for claimed in running:
                        await finish(store, claimed)
                    running = []
                assert await store.count(filter.parse("state:live")) == 0


CHANGES = {
    "update": LATEST,
    "postpone": Unique.debounce(1),
    "collect": Unique.collect(),
    "cancel": RESTART,
    "pin": COALESCE,
}
MOVING = [
    *(("update", kind, ended) for kind in ("alone", "in turn", "batch", "user") for ended in (False, True)),
    *((change, "alone", False) for change in ("postpone", "collect", "cancel")),
    *((change, "in turn", False) for change in ("postpone", "collect")),
    *((change, "batch", True) for change in ("postpone", "collect", "cancel")),
    *((change, "user", False) for change in ("postpone", "collect", "cancel", "pin")),
    ("pin", "user", True),
]
"""What is to become of a queued holder, who wants that, and whether it has even ended meanwhile."""


class TestHolderMoves:
    """Between the look at a queued holder and its change, the holder starts or ends."""

    @pytest.mark.parametrize(("change", "kind", "ended"), MOVING)
    async def test_a_holder_that_is_claimed_before_its_change_lands_is_followed(
        self, postgres_url: str, change: str, kind: str, ended: bool
    ) -> None:
        unique = CHANGES[change]
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=unique, payload=b"1", items=1))
            session = await (play.user() if kind == "user" else play.ours())
            session.guesses.contended = kind == "in turn"
            if kind == "user":
                await session.begin()
            newcomer = job(unique=unique, payload=b"2", items=1)
            acting = await session.enqueue(*batch(newcomer, alone=kind != "batch")).before(
                "enqueue.change_as_seen",
                "enqueue.lock_free_jobs",
                "enqueue.lock_jobs",
                "enqueue.pin_free_jobs",
                "enqueue.lock_keys",
            )
            play.clock.tick(1_000)
            claimed = await start_that(play, old.id)
            assert claimed.payload == b"1"
            if ended:
                await finish(play.store, claimed)
            answer = (await acting.done())[0]
            if kind == "user":
                await session.commit()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            seen = await look(play.store, newcomer.id)
            assert seen.payload == b"2"
            assert seen.state in ({State.WAITING, State.DELAYED} if ended else {State.BLOCKED})
            assert (await look(play.store, old.id)).payload == b"1"
            if not ended:
                assert await started_ids(play.store) == []
                await finish(play.store, claimed)
            play.clock.tick(1_000)
            await start_that(play, newcomer.id)

    @ENDS
    @pytest.mark.parametrize("foreign", [False, True])
    async def test_a_claim_that_is_not_committed_decides_by_its_commit(
        self, postgres_url: str, end: str, foreign: bool
    ) -> None:
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=LATEST, payload=b"1"))
            worker, caller = await play.ours(), await (play.user() if foreign else play.ours())
            await worker.begin()
            [claimed] = (await worker.claim().done()).jobs
            if foreign:
                await caller.begin()
            newcomer = job(unique=LATEST, payload=b"2")
            acting = caller.enqueue(newcomer).go()
            await caller.waits_for(worker)
            await worker.end(end)
            [answer] = await acting.done()
            if foreign:
                await caller.commit()
            if end == "commit":
                assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
                assert (await look(play.store, newcomer.id)).follows == old.id
                assert (await finish(play.store, claimed)) is Settled.DONE
                await start_that(play, newcomer.id)
            else:
                assert (answer.id, answer.outcome) == (old.id, Outcome.UPDATED)
                assert (await start_that(play, old.id)).payload == b"2"

    async def test_of_two_updates_none_is_lost(self, postgres_url: str) -> None:
        collect = Unique.collect()
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=collect, payload=b"[1]", items=1))
            one, two, three = await play.ours(), await play.ours(), await play.user()
            newcomers = [job(unique=collect, payload=b"[%d]" % number, items=1) for number in (2, 3, 4)]
            first = await one.enqueue(newcomers[0]).before("enqueue.change_as_seen")
            second = await two.enqueue(newcomers[1]).before("enqueue.change_as_seen")
            await three.begin()
            [third] = await three.enqueue(newcomers[2]).done()
            first.go()
            await one.waits_for(three)
            await three.commit()
            answers = [third, *(await first.done()), *(await second.done())]
            assert {(answer.id, answer.outcome) for answer in answers} == {(old.id, Outcome.COLLECTED)}
            seen = await look(play.store, old.id)
            assert sorted(seen.payload.split()) == [b"[1]", b"[2]", b"[3]", b"[4]"]

    async def test_who_finds_a_holder_changed_waits_for_its_row_and_looks_once(
        self, postgres_url: str
    ) -> None:
        collect = Unique.collect()
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=collect, payload=b"[1]", items=1))
            one, two = await play.ours(), await play.ours()
            acting = await one.enqueue(job(unique=collect, payload=b"[2]", items=1)).before(
                "enqueue.change_as_seen"
            )
            await two.begin()
            await two.enqueue(job(unique=collect, payload=b"[3]", items=1)).done()
            acting.go()
            await one.waits_for(two)
            await two.commit()
            [answer] = await acting.done()
            assert (answer.id, answer.outcome) == (old.id, Outcome.COLLECTED)
            assert one.link.said == [
                "enqueue.one",
                "enqueue.change_as_seen",
                "begin",
                "enqueue.savepoint",
                "enqueue.be_patient",
                "enqueue.lock_jobs",
                "enqueue.look",
                "enqueue.change_holders",
                "commit",
            ]
            one.link.said.clear()
            await one.enqueue(job(unique=collect, payload=b"[4]", items=1)).done()
            assert "enqueue.change_as_seen" not in one.link.said, "somebody else may change it again"
            one.link.said.clear()
            await one.enqueue(job(unique=collect, payload=b"[5]", items=1)).done()
            assert one.link.said == ["enqueue.one", "enqueue.change_as_seen"], "nobody else does any more"
            seen = await look(play.store, old.id)
            assert sorted(seen.payload.split()) == [b"[1]", b"[2]", b"[3]", b"[4]", b"[5]"]

    @pytest.mark.parametrize("deadlock_timeout", ["1s", "50ms"])
    async def test_users_who_cross_each_other_follow_rather_than_deadlock(
        self, postgres: Any, postgres_url: str, deadlock_timeout: str
    ) -> None:
        """Each has changed what the other one wants to change next; even if the server finds that out at once."""
        async with Play(f"{postgres.url}?schema={parse(postgres_url).schema}") as play:
            old = {key: (await put(play.store, job(unique=LATEST, key=key))).id for key in "ab"}
            one, two = await play.user(), await play.user()
            await two.execute(f"set deadlock_timeout = '{deadlock_timeout}'")
            for user, key in ((one, "a"), (two, "b")):
                await user.begin()
                await user.enqueue(job(unique=LATEST, key=key, payload=b"1")).done()
            newcomers = {key: job(unique=LATEST, key=key, payload=b"2") for key in "ab"}
            first = one.enqueue(newcomers["b"]).go()
            await one.waits_for(two)
            second = two.enqueue(newcomers["a"]).go()
            late, mine = (second, "a") if deadlock_timeout == "50ms" else (first, "b")
            [followed] = await late.done()
            assert (followed.id, followed.outcome) == (newcomers[mine].id, Outcome.CREATED)
            await (one if late is first else two).commit()
            other = second if late is first else first
            [answer] = await other.done()
            await (two if late is first else one).commit()
            assert answer.id in (*old.values(), *(newcomer.id for newcomer in newcomers.values()))
            started = {claimed.id: claimed for claimed in await start(play.store)}
            assert started.keys() == {*old.values()}
            for claimed in started.values():
                await finish(play.store, claimed)
            followers = {claimed.id: claimed for claimed in await start(play.store)}
            for key in "ab":
                newest = followers.get(newcomers[key].id) or started[old[key]]
                assert newest.payload == b"2", "what was said last runs last"


TAKEOVERS = {
    "force": (ONCE, True),
    "follow": (COALESCE, False),
    "cancel": (RESTART, False),
}


@pytest.fixture(params=TAKEOVERS)
def takeover(request: pytest.FixtureRequest) -> tuple[Unique, bool]:
    """A policy, and whether the newcomer forces its way: who takes a key from a running holder."""
    return TAKEOVERS[request.param]


class TestTakeoverAgainstFinish:
    """A key is taken while its holder is being settled."""

    @ENDS
    async def test_the_holder_ends_while_somebody_has_taken_its_key(
        self, postgres_url: str, takeover: tuple[Unique, bool], end: str
    ) -> None:
        unique, force = takeover
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=unique))
            claimed = await start_that(play, old.id)
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            newcomer = job(unique=unique, force=force, payload=b"2")
            [answer] = await user.enqueue(newcomer).done()
            assert answer.outcome is Outcome.CREATED
            assert (await worker.settle(claimed).done()).settled == [Settled.DONE]
            assert await run_of(worker) == []
            await user.end(end)
            if end == "rollback":
                assert await state_of(play.store, old.id) is State.COMPLETED
                newcomer = job(unique=unique, force=force, payload=b"3")
                assert (await put(play.store, newcomer)).outcome is Outcome.CREATED
            assert await run_of(worker) == [newcomer.id]
            assert await holder_of(play) == newcomer.id
            assert (await look(play.store, newcomer.id)).aborting is False

    async def test_the_holder_ends_between_the_look_and_the_takeover(
        self, postgres_url: str, takeover: tuple[Unique, bool]
    ) -> None:
        unique, force = takeover
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=unique))
            claimed = await start_that(play, old.id)
            session = await play.ours()
            newcomer = job(unique=unique, force=force, payload=b"2")
            taking = await session.enqueue(newcomer).before("enqueue.lock_keys")
            assert await finish(play.store, claimed) is Settled.DONE
            [answer] = await taking.done()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            await start_that(play, newcomer.id)
            assert await holder_of(play) == newcomer.id

    async def test_the_holder_ends_once_its_key_is_locked(
        self, postgres_url: str, takeover: tuple[Unique, bool]
    ) -> None:
        """Short transactions of our own say in the holder's row that it is waited for, and that is not lost."""
        unique, force = takeover
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=unique))
            claimed = await start_that(play, old.id)
            taker, worker = await play.ours(), await play.ours()
            newcomer = job(unique=unique, force=force, payload=b"2")
            taking = await taker.enqueue(newcomer).before("commit")
            settling = worker.settle(claimed).go()
            if not force:
                await worker.waits_for(taker)
            await taking.done()
            assert (await settling.done()).settled[0] in (Settled.DONE, Settled.REVOKED)
            assert await run_of(worker) == [newcomer.id]
            assert await holder_of(play) == newcomer.id

    @ENDS
    async def test_the_end_is_written_and_not_committed(
        self, postgres_url: str, takeover: tuple[Unique, bool], end: str
    ) -> None:
        unique, force = takeover
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=unique))
            claimed = await start_that(play, old.id)
            worker, taker = await play.ours(), await play.ours()
            await worker.begin()
            assert (await worker.settle(claimed).done()).settled == [Settled.DONE]
            newcomer = job(unique=unique, force=force, payload=b"2")
            taking = taker.enqueue(newcomer).go()
            await taker.waits_for(worker)
            await worker.end(end)
            [answer] = await taking.done()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            if end == "rollback" and not force:
                assert (await look(play.store, newcomer.id)).follows == old.id
                assert await started_ids(play.store) == []
                assert (await look(play.store, old.id)).aborting is (unique is RESTART)
                await finish(play.store, claimed)
            await start_that(play, newcomer.id)
            assert await holder_of(play) == newcomer.id


class TestRetryAgainstTakeover:
    """An operator retries a job whose key somebody is taking."""

    FAILED_COUNTS = Unique.throttle(3600)
    """A failed holder keeps its key on record."""

    async def failed(self, play: Play, unique: Unique) -> JobId:
        old = await put(play.store, job(unique=unique))
        await finish(play.store, await start_that(play, old.id), Move.FAIL)
        return old.id

    @ENDS
    @pytest.mark.parametrize("recorded", [False, True])
    async def test_the_takeover_came_first(self, postgres_url: str, end: str, recorded: bool) -> None:
        unique = self.FAILED_COUNTS if recorded else ONCE
        async with Play(postgres_url) as play:
            old = await self.failed(play, unique)
            user, operator = await play.user(), await play.ours()
            await user.begin()
            newcomer = job(unique=unique, force=recorded)
            [answer] = await user.enqueue(newcomer).done()
            assert answer.outcome is Outcome.CREATED
            retrying = operator.amend(old, Amendment.RETRY).go()
            await operator.waits_for(user)
            await user.end(end)
            [amended] = await retrying.done()
            if end == "commit":
                assert amended is Amended.KEPT
                assert await state_of(play.store, old) is State.FAILED
                await start_that(play, newcomer.id)
            else:
                assert amended is Amended.RETRIED
                assert await holder_of(play) == old
                await start_that(play, old)

    @ENDS
    @pytest.mark.parametrize("recorded", [False, True])
    async def test_the_retry_came_first(self, postgres_url: str, end: str, recorded: bool) -> None:
        unique = self.FAILED_COUNTS if recorded else ONCE
        async with Play(postgres_url) as play:
            old = await self.failed(play, unique)
            operator, caller = await play.ours(), await play.ours()
            retrying = await operator.amend(old, Amendment.RETRY).before("commit")
            newcomer = job(unique=unique, force=recorded)
            taking = caller.enqueue(newcomer).go()
            await caller.waits_for(operator)
            if end == "commit":
                assert await retrying.done() == [Amended.RETRIED]
            else:
                await retrying.close()
                await operator.rollback()
            [answer] = await taking.done()
            expected = newcomer.id if recorded or end == "rollback" else old
            assert answer.id == expected
            assert answer.outcome is (Outcome.KEPT if expected == old else Outcome.CREATED)
            started = {claimed.id for claimed in await start(play.store)}
            assert started == {newcomer.id, old} - ({newcomer.id} if expected == old else set()) - (
                {old} if end == "rollback" else set()
            )
            assert await holder_of(play) == expected

    async def test_one_that_follows_again_is_let_go(self, postgres_url: str) -> None:
        """The key's record says whom the next holder waits for, and that one ends before the retry is committed."""
        async with Play(postgres_url) as play:
            running = await put(play.store, job(unique=LATEST))
            claimed = await start_that(play, running.id)
            follower = await put(play.store, job(unique=LATEST, payload=b"2"))
            assert await play.store.amend([follower.id], Amendment.REVOKE) == [Amended.REVOKED]
            operator, worker = await play.ours(), await play.ours(AT_ONCE_OR_NEVER)
            retrying = await operator.amend(follower.id, Amendment.RETRY).before("ending.mark")
            assert (await worker.settle(claimed).done()).settled == [Settled.DONE]
            assert await retrying.done() == [Amended.RETRIED]
            assert await run_of(worker) == [follower.id]


class TestIsolation:
    """A user's transaction that sees the past must not decide by it."""

    @pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
    @pytest.mark.parametrize("alone", [True, False])
    async def test_a_key_that_was_taken_since_raises_and_doubles_nothing(
        self, postgres_url: str, isolation: str, alone: bool
    ) -> None:
        async with Play(postgres_url) as play:
            user = await play.user()
            await user.begin(isolation)
            await user.execute("select txid_current()")
            first = await put(play.store, job(unique=ONCE))
            with pytest.raises(Exception, match="could not serialize") as raised:
                await user.enqueue(*batch(job(unique=ONCE), alone=alone)).done()
            assert sqlstate(raised.value) == "40001"
            await user.rollback()
            assert await total(play.store) == 1
            assert await holder_of(play) == first.id

    @pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
    @pytest.mark.parametrize("unique", [COALESCE, LATEST, RESTART], ids=["keep", "update", "cancel"])
    async def test_a_holder_that_moved_since_raises_and_doubles_nothing(
        self, postgres_url: str, isolation: str, unique: Unique
    ) -> None:
        async with Play(postgres_url) as play:
            first = await put(play.store, job(unique=unique))
            user = await play.user()
            await user.begin(isolation)
            await user.execute("select txid_current()")
            claimed = await start_that(play, first.id)
            with pytest.raises(Exception, match="could not serialize") as raised:
                await user.enqueue(job(unique=unique, payload=b"2")).done()
            assert sqlstate(raised.value) == "40001"
            await user.rollback()
            await user.begin(isolation)
            await user.execute("select txid_current()")
            await finish(play.store, claimed)
            with pytest.raises(Exception, match="could not serialize"):
                await user.enqueue(job(unique=unique, payload=b"3")).done()
            await user.rollback()
            assert await total(play.store) == 1

    @pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
    async def test_without_a_conflict_they_work_like_any_other(
        self, postgres_url: str, isolation: str
    ) -> None:
        async with Play(postgres_url) as play:
            user = await play.user()
            await user.begin(isolation)
            newcomer, twin = job(unique=LATEST), job(unique=LATEST, payload=b"2")
            assert [one.outcome for one in await user.enqueue(newcomer, twin).done()] == [
                Outcome.CREATED,
                Outcome.UPDATED,
            ]
            await user.commit()
            assert (await start_that(play, newcomer.id)).payload == b"2"


class TestFreshness:
    """A call that is folded into a queued job in a user's transaction is seen by a run that starts after the commit."""

    @ENDS
    async def test_a_holder_does_not_start_before_the_commit_of_who_was_folded_into_it(
        self, postgres_url: str, end: str
    ) -> None:
        async with Play(postgres_url) as play:
            holder = await put(play.store, job(unique=COALESCE))
            one, two, worker = await play.user(), await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            for user in (one, two):
                await user.begin()
                [answer] = await user.enqueue(job(unique=COALESCE)).done()
                assert (answer.id, answer.outcome) == (holder.id, Outcome.KEPT)
            claims = await worker.claim().done()
            assert claims.jobs == []
            assert claims.next_due is not None
            assert claims.next_due <= 1_000, "workers look again soon"
            await one.end(end)
            assert await run_of(worker) == []
            await two.commit()
            assert await run_of(worker) == [holder.id]

    async def test_a_holder_that_started_before_the_pin_is_followed(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            holder = await put(play.store, job(unique=COALESCE))
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            newcomer = job(unique=COALESCE)
            acting = await user.enqueue(newcomer).before("enqueue.pin_free_jobs")
            [claimed] = (await worker.claim().done()).jobs
            [answer] = await acting.done()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            assert (await worker.settle(claimed).done()).settled == [Settled.DONE]
            assert await run_of(worker) == []
            await user.commit()
            assert await run_of(worker) == [newcomer.id]
            assert holder.id == claimed.id

    async def test_one_that_is_due_for_more_than_five_seconds_counts_as_running(
        self, postgres_url: str
    ) -> None:
        async with Play(postgres_url) as play:
            holder = await put(play.store, job(unique=COALESCE))
            user, worker = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            play.clock.tick(4_999)
            [kept] = await user.enqueue(job(unique=COALESCE)).done()
            assert (kept.id, kept.outcome) == (holder.id, Outcome.KEPT)
            await user.rollback()
            await user.begin()
            play.clock.tick(2)
            newcomer, twin = job(unique=COALESCE), job(unique=COALESCE)
            [answer, again] = await user.enqueue(newcomer, twin).done()
            assert (answer.id, answer.outcome, answer.state) == (newcomer.id, Outcome.CREATED, State.WAITING)
            assert (again.id, again.outcome) == (newcomer.id, Outcome.KEPT)
            [claimed] = (await worker.claim().done()).jobs
            assert claimed.id == holder.id, "it starves for nobody"
            await user.commit()
            assert await run_of(worker) == []
            await worker.settle(claimed).done()
            assert await run_of(worker) == [newcomer.id]

    @pytest.mark.parametrize("foreign", [False, True])
    async def test_one_that_cannot_be_locked_within_a_second_is_followed_and_why_names_the_session(
        self, postgres_url: str, foreign: bool
    ) -> None:
        async with Play(postgres_url) as play:
            holder = await put(play.store, job(unique=COALESCE))
            other, caller = await play.user(), await (play.user() if foreign else play.ours())
            await other.begin()
            await other.enqueue(job(unique=COALESCE)).done()
            if foreign:
                await caller.begin()
            newcomer = job(unique=LATEST, payload=b"2")
            [answer] = await caller.enqueue(newcomer).done()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            if foreign:
                assert await caller.execute("show lock_timeout") == [("0",)], (
                    "his own patience stays as it was"
                )
                await caller.commit()
            assert (await look(play.store, newcomer.id)).follows == holder.id
            app = App(postgres_url, clock=play.clock)
            [delay] = await app.store.delays(holder.id)
            assert (delay.session, delay.idle) == (other.pid, True)
            assert f"Database session {other.pid} " in str(await app.aexplain(holder.id))
            await app.aclose()
            await other.rollback()
            claimed = await start_that(play, holder.id)
            await finish(play.store, claimed)
            assert (await start_that(play, newcomer.id)).payload == b"2"


class TestKeptWritesNothing:
    @pytest.mark.parametrize("unique", [ONCE, COALESCE], ids=["once", "coalesce"])
    async def test_a_kept_duplicate_writes_no_row_version(self, own_postgres: Any, unique: Unique) -> None:
        versions = "select 'job', ctid, xmin, xmax from {0}.job union all select 'key', ctid, xmin, xmax from {0}.key"
        writes = (
            "select sum(n_tup_ins), sum(n_tup_upd), sum(n_tup_del), sum(n_dead_tup) from pg_stat_user_tables "
            "where schemaname = '{}'"
        )
        async with Play(f"{own_postgres.url}?schema=jobs") as play:
            holder = await put(play.store, job(unique=unique))
            await play.store.enqueue(
                [job(unique=unique, key="other"), job(unique=unique, key="third", lane=LANE)]
            )
            caller = await play.ours()

            async def duplicates(count: int) -> None:
                for _ in range(count):
                    [answer] = await caller.enqueue(job(unique=unique)).done()
                    assert (answer.id, answer.outcome) == (holder.id, Outcome.KEPT)
                twins = [
                    job(unique=unique, key=key, lane=lane) for key, lane in (("k", None), ("third", LANE))
                ]
                answers = await caller.enqueue(*twins * count).done()
                assert {answer.outcome for answer in answers} == {Outcome.KEPT}
                await caller.execute("select pg_stat_force_next_flush()")

            async def stand() -> tuple[Any, ...]:
                return await play.look(versions), await play.look(writes)

            await duplicates(10)
            before = await stand()
            for _ in range(3):  # what the server writes on its own account is no fault of ours
                [(log,)] = await play.look("select pg_current_wal_insert_lsn()::text")
                await duplicates(100)
                [(more,)] = await play.look("select pg_current_wal_insert_lsn()::text")
                if more == log:
                    break
            assert more == log
            assert await stand() == before


class TestPruneAndDelete:
    """What is removed while somebody looks at it, or takes it."""

    @ENDS
    async def test_a_key_that_is_being_forgotten_is_taken_once(self, postgres_url: str, end: str) -> None:
        unique = Unique.once(within=10)
        async with Play(postgres_url) as play:
            await put(play.store, job(unique=unique))
            await run(play.store)
            play.clock.tick(10_000)
            pruner, caller = await play.ours(), await play.ours()
            pruning = await pruner.prune(AT_ONCE).before("commit")
            newcomer = job(unique=unique)
            taking = caller.enqueue(newcomer).go()
            await caller.waits_for(pruner)
            if end == "commit":
                await pruning.done()
            else:
                await pruning.close()
                await pruner.rollback()
            [answer] = await taking.done()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            assert await holder_of(play) == newcomer.id
            await play.store.prune(AT_ONCE, 100)
            assert await holder_of(play) == newcomer.id
            await start_that(play, newcomer.id)

    @ENDS
    async def test_a_key_that_is_being_taken_is_not_forgotten(self, postgres_url: str, end: str) -> None:
        unique = Unique.once(within=10)
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=unique))
            await run(play.store)
            play.clock.tick(10_000)
            user, pruner = await play.user(), await play.ours(AT_ONCE_OR_NEVER)
            await user.begin()
            newcomer = job(unique=unique)
            await user.enqueue(newcomer).done()
            await pruner.prune(AT_ONCE).done()
            await user.end(end)
            await pruner.prune(AT_ONCE).done()
            assert await holder_of(play) == (newcomer.id if end == "commit" else None)
            assert await play.store.job(old.id) is None
            twin = await put(play.store, job(unique=unique))
            assert twin.outcome is (Outcome.KEPT if end == "commit" else Outcome.CREATED)

    async def test_the_memory_of_a_pruned_job_keeps_its_duplicates_throughout(
        self, postgres_url: str
    ) -> None:
        async with Play(postgres_url) as play:
            old = await put(play.store, job(unique=ONCE))
            await run(play.store)
            pruner, caller = await play.ours(), await play.ours(AT_ONCE_OR_NEVER)
            pruning = await pruner.prune(AT_ONCE).before("prune.drop_keys")
            for _ in range(2):
                [answer] = await caller.enqueue(job(unique=ONCE)).done()
                assert (answer.id, answer.outcome) == (old.id, Outcome.KEPT)
                await pruning.done()
            assert await play.store.job(old.id) is None

    @ENDS
    @pytest.mark.parametrize("foreign", [False, True])
    async def test_a_follower_that_is_deleted_leaves_whom_it_followed_to_the_next(
        self, postgres_url: str, end: str, foreign: bool
    ) -> None:
        async with Play(postgres_url) as play:
            first = await put(play.store, job(unique=LATEST))
            claimed = await start_that(play, first.id)
            follower = await put(play.store, job(unique=LATEST, payload=b"2"))
            operator, caller = await play.ours(), await (play.user() if foreign else play.ours())
            deleting = await operator.amend(follower.id, Amendment.DELETE).before("commit")
            if foreign:
                await caller.begin()
            newcomer = job(unique=LATEST, payload=b"3")
            acting = caller.enqueue(newcomer).go()
            await caller.waits_for(operator)
            if end == "commit":
                assert await deleting.done() == [Amended.DELETED]
            else:
                await deleting.close()
                await operator.rollback()
            [answer] = await acting.done()
            if foreign:
                await caller.commit()
            expected = newcomer.id if end == "commit" else follower.id
            assert answer.id == expected
            assert (await look(play.store, expected)).follows == first.id
            assert await started_ids(play.store) == [], "never two at once"
            await finish(play.store, claimed)
            assert (await start_that(play, expected)).payload == b"3"

    @ENDS
    async def test_a_holder_is_deleted_while_somebody_comes_to_follow_it(
        self, postgres_url: str, end: str
    ) -> None:
        unique = Unique.in_flight(queued="follow")
        async with Play(postgres_url) as play:
            first = await put(play.store, job(unique=unique))
            user, operator = await play.user(), await play.ours()
            await user.begin()
            newcomer = job(unique=unique)
            [answer] = await user.enqueue(newcomer).done()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            deleting = operator.amend(first.id, Amendment.DELETE).go()
            await operator.waits_for(user)
            await user.end(end)
            assert await deleting.done() == [Amended.DELETED]
            assert await started_ids(play.store) == ([newcomer.id] if end == "commit" else [])
            assert await holder_of(play) == (newcomer.id if end == "commit" else None)

    async def test_somebody_comes_to_follow_a_holder_that_is_being_deleted(self, postgres_url: str) -> None:
        unique = Unique.in_flight(queued="follow")
        async with Play(postgres_url) as play:
            first = await put(play.store, job(unique=unique))
            operator, caller = await play.ours(), await play.ours()
            deleting = await operator.amend(first.id, Amendment.DELETE).before("commit")
            newcomer = job(unique=unique)
            acting = caller.enqueue(newcomer).go()
            await caller.waits_for(operator)
            assert await deleting.done() == [Amended.DELETED]
            [answer] = await acting.done()
            assert (answer.id, answer.outcome) == (newcomer.id, Outcome.CREATED)
            await start_that(play, newcomer.id)
