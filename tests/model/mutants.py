"""Known bugs of queues of this kind, each as a switch: in the judgement, or in a store that errs on purpose.

A mutant that no test notices means that the tests are too weak.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from onejob.core import judge as judging
from onejob.core.dedup import FOREVER, Rules, Standing, Verdict
from onejob.core.job import JobId, Lease, NewJob, State
from onejob.core.judge import Answer, Decision, Holder, Outcome
from onejob.core.lifecycle import ENDING, Move, Settlement
from onejob.store import Amended, Amendment, Ask, Pruned, Retention, Settled, SettleReply
from onejob.stores.sqlite import amend
from onejob.stores.sqlite.store import SqliteStore
from onejob.testing.clock import FakeClock

replaced = msgspec.structs.replace


class ErringStore(SqliteStore):
    """The real store with one bug, done by hand on its rows after (or before) the real operation."""

    clock: FakeClock

    async def sql(self, statement: str, *values: Any) -> list[Any]:
        return await self._writer.run(lambda session: list(session.execute(statement, values)))


def raw(id: str) -> bytes:
    return uuid.UUID(id).bytes


class DuplicatesMoveTheWindow(ErringStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        answers = await super().enqueue(jobs, now=now)
        for job, answer in zip(jobs, answers, strict=True):
            if answer.outcome is not Outcome.CREATED and job.plan is not None:
                await self.sql(
                    "update onejob_key set since = ? where digest = ?", self.clock.now, job.plan.digest
                )
        return answers


class BulkRunsBackwards(ErringStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        return (await super().enqueue(jobs[::-1], now=now))[::-1]


class CollectPutsNewItemsFirst(ErringStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        answers = await super().enqueue(jobs, now=now)
        for answer in answers:
            if answer.outcome is Outcome.COLLECTED:
                [(payload,)] = await self.sql("select payload from onejob_job where id = ?", raw(answer.id))
                *older, newest = payload.split(b"\n")
                mixed = b"\n".join([newest, *older])
                await self.sql("update onejob_job set payload = ? where id = ?", mixed, raw(answer.id))
        return answers


class ForceLeavesTheKeyBehind(ErringStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        answers = await super().enqueue(jobs, now=now)
        for job, answer in zip(jobs, answers, strict=True):
            if job.plan is not None and job.plan.rules.forced and answer.holder is not None:
                values = raw(answer.holder), job.plan.digest
                await self.sql("update onejob_key set holder = ? where digest = ?", *values)
        return answers


class RunningHoldersAreUpdated(ErringStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        answers = await super().enqueue(jobs, now=now)
        for job, answer in zip(jobs, answers, strict=True):
            if answer.state is State.RUNNING and answer.holder is not None:
                await self.sql(
                    "update onejob_job set payload = ? where id = ?", job.payload, raw(answer.holder)
                )
        return answers


class RepeatedCallsAreNewCalls(ErringStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        known = await self.sql("select id from onejob_job")
        again = {id for (id,) in known}
        fresh = [replaced(job, id=JobId(str(uuid.uuid4()))) if raw(job.id) in again else job for job in jobs]
        return await super().enqueue(fresh, now=now)


class SettlingErrs(ErringStore):
    """What the bugs around `settle` share."""

    async def before(self, one: Settlement) -> Settlement:
        return one

    async def after(self, one: Settlement, settled: Settled) -> None:
        return None

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        done = [await self.before(one) for one in done]
        reply = await super().settle(done, None, now=now)
        for one, settled in zip(done, reply.settled, strict=True):
            await self.after(one, settled)
        return reply if ask is None else SettleReply(reply.settled, await self.claim(ask, now=now))


class FollowersStartAtARetry(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.DONE and one.move is Move.RETRY:
            free = "update onejob_job set follows = null, state = 'waiting' where follows = ?"
            await self.sql(free, raw(one.lease.id))


class FollowersOfFailedJobsStayBlocked(SettlingErrs):
    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        waiting = await self.sql("select id, follows from onejob_job where state = 'blocked'")
        reply = await super().settle(done, ask, now=now)
        failing = {raw(one.lease.id) for one in done if ENDING.get(one.move) is State.FAILED}
        for id, follows in waiting:
            if follows in failing:
                back = "update onejob_job set follows = ?, state = 'blocked' where id = ?"
                await self.sql(back, follows, id)
        return reply


class EndingTakesAnothersKey(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.DONE and one.move in ENDING:
            steal = "delete from onejob_key where digest = (select digest from onejob_job where id = ?)"
            await self.sql(steal, raw(one.lease.id))


class ZombiesMaySettle(SettlingErrs):
    async def before(self, one: Settlement) -> Settlement:
        rows = await self.sql("select lease from onejob_job where id = ?", raw(one.lease.id))
        return replaced(one, lease=Lease(one.lease.id, rows[0][0])) if rows and rows[0][0] else one


class RescuesBeatHeartbeats(SettlingErrs):
    async def before(self, one: Settlement) -> Settlement:
        if one.move in (Move.LOSE, Move.PERISH):
            kill = "update onejob_worker set alive_until = 0 where id = (select worker from onejob_job where id = ?)"
            await self.sql(kill, raw(one.lease.id))
        return one


class FlaggedJobsMayComplete(SettlingErrs):
    async def before(self, one: Settlement) -> Settlement:
        if one.move is Move.COMPLETE:
            await self.sql("update onejob_job set aborting = 0 where id = ?", raw(one.lease.id))
        return one


class HandingBackIsCharged(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.DONE and one.move is Move.HAND_BACK:
            await self.sql("update onejob_job set attempt = attempt + 1 where id = ?", raw(one.lease.id))


class CrashesChargeTheRetries(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.DONE and one.move is Move.LOSE:
            await self.sql("update onejob_job set failures = failures + 1 where id = ?", raw(one.lease.id))


class AmendingErrs(ErringStore):
    """What the bugs around `amend` share."""

    @abstractmethod
    async def after(self, id: bytes, amendment: Amendment, amended: Amended, followers: list[bytes]) -> None:
        """What goes wrong after the amendment."""

    async def amend(
        self,
        ids: Sequence[JobId],
        amendment: Amendment,
        *,
        states: frozenset[State] | None = None,
        now: int | None = None,
    ) -> list[Amended]:
        answers: list[Amended] = []
        for id in ids:
            rows = await self.sql("select id from onejob_job where follows = ?", raw(id))
            [amended] = await super().amend([id], amendment, states=states, now=now)
            await self.after(raw(id), amendment, amended, [row[0] for row in rows])
            answers.append(amended)
        return answers


class RevivedJobsGetANewWindow(AmendingErrs):
    async def after(self, id: bytes, amendment: Amendment, amended: Amended, followers: list[bytes]) -> None:
        if amended is Amended.RETRIED:
            await self.sql("update onejob_key set since = ? where holder = ?", self.clock.now, id)


class RevivedFollowersStartAtOnce(AmendingErrs):
    async def after(self, id: bytes, amendment: Amendment, amended: Amended, followers: list[bytes]) -> None:
        if amended is Amended.RETRIED:
            await self.sql("update onejob_job set follows = null, state = 'waiting' where id = ?", id)


class RevokingStrandsFollowers(AmendingErrs):
    async def after(self, id: bytes, amendment: Amendment, amended: Amended, followers: list[bytes]) -> None:
        if amended is Amended.REVOKED:
            for follower in followers:
                back = "update onejob_job set follows = ?, state = 'blocked' where id = ?"
                await self.sql(back, id, follower)


class RevokingALinkFreesWhatIsBehindIt(AmendingErrs):
    async def after(self, id: bytes, amendment: Amendment, amended: Amended, followers: list[bytes]) -> None:
        if amended in (Amended.REVOKED, Amended.DELETED):
            for follower in followers:
                free = "update onejob_job set follows = null, state = 'waiting' where id = ? and state = 'blocked'"
                await self.sql(free, follower)


class DeletingForgetsTheKey(AmendingErrs):
    async def after(self, id: bytes, amendment: Amendment, amended: Amended, followers: list[bytes]) -> None:
        if amended is Amended.DELETED:
            await self.sql("delete from onejob_key where holder = ?", id)


class PruningForgetsTheKey(ErringStore):
    async def prune(self, retention: Retention, limit: int, *, now: int | None = None) -> Pruned:
        pruned = await super().prune(retention, limit, now=now)
        await self.sql("delete from onejob_key where holder not in (select id from onejob_job)")
        return pruned


class PruningKeepsForgottenKeys(ErringStore):
    async def prune(self, retention: Retention, limit: int, *, now: int | None = None) -> Pruned:
        before = await self.sql("select * from onejob_key")
        pruned = await super().prune(retention, limit, now=now)
        for row in before:
            marks = ", ".join("?" * len(row))
            await self.sql(f"insert into onejob_key values ({marks}) on conflict do nothing", *row)
        return pruned


STORES: list[type[ErringStore]] = [
    DuplicatesMoveTheWindow,
    BulkRunsBackwards,
    CollectPutsNewItemsFirst,
    ForceLeavesTheKeyBehind,
    RunningHoldersAreUpdated,
    RepeatedCallsAreNewCalls,
    FollowersStartAtARetry,
    FollowersOfFailedJobsStayBlocked,
    EndingTakesAnothersKey,
    ZombiesMaySettle,
    RescuesBeatHeartbeats,
    FlaggedJobsMayComplete,
    HandingBackIsCharged,
    CrashesChargeTheRetries,
    RevivedJobsGetANewWindow,
    RevivedFollowersStartAtOnce,
    RevokingStrandsFollowers,
    RevokingALinkFreesWhatIsBehindIt,
    DeletingForgetsTheKey,
    PruningForgetsTheKey,
    PruningKeepsForgottenKeys,
]

Switch = Callable[[pytest.MonkeyPatch], None]


def the_edge_of_a_window_counts_as_inside(patch: pytest.MonkeyPatch) -> None:
    right = Rules.verdict
    patch.setattr(Rules, "verdict", lambda self, column, age: right(self, column, age - 1))


def keys_are_forgotten_late(patch: pytest.MonkeyPatch) -> None:
    right = Rules.forget_at

    def late(self: Rules, ended: Standing, since: int) -> int | None:
        until = right(self, ended, since)
        return until if until is None or until == FOREVER else until + 1

    patch.setattr(Rules, "forget_at", late)


def forgotten_keys_still_hold(patch: pytest.MonkeyPatch) -> None:
    right = Holder.at
    patch.setattr(Holder, "at", lambda self, now: self if self.state.ended else right(self, now))


def expired_holders_swallow_newcomers(patch: pytest.MonkeyPatch) -> None:
    right = Holder.at
    patch.setattr(Holder, "at", lambda self, now: right(replaced(self, expires=None), now))


def takers_forget_whom_the_holder_followed(patch: pytest.MonkeyPatch) -> None:
    right = judging._create
    patch.setattr(judging, "_create", lambda *given: replaced(right(*given), follows=None))


def cancel_does_not_wait_for_the_running_holder(patch: pytest.MonkeyPatch) -> None:
    right = judging._take

    def hasty(job: NewJob, holder: Holder, verdict: Verdict, now: int) -> Decision:
        made = right(job, holder, verdict, now)
        return replaced(made, follows=None) if verdict is Verdict.CANCEL else made

    patch.setattr(judging, "_take", hasty)


def later_counts_from_the_call(patch: pytest.MonkeyPatch) -> None:
    right = judging._take

    def drifting(job: NewJob, holder: Holder, verdict: Verdict, now: int) -> Decision:
        made = right(job, holder, verdict, now)
        if verdict is not Verdict.LATER:
            return made
        assert job.plan is not None
        due = now + (job.plan.rules.window or 0)
        return replaced(made, due=due, since=due)

    patch.setattr(judging, "_take", drifting)


def callers_inside_the_holder_are_strangers(patch: pytest.MonkeyPatch) -> None:
    right = judging.standing

    def distant(state: State, *, own: bool = False) -> Standing:
        return right(state, own=own and False)

    patch.setattr(judging, "standing", distant)


def running_counts_as_queued(patch: pytest.MonkeyPatch) -> None:
    right = judging.standing

    def blind(state: State, *, own: bool = False) -> Standing:
        return Standing.QUEUED if state is State.RUNNING else right(state, own=own)

    patch.setattr(judging, "standing", blind)


def postpone_passes_max_wait(patch: pytest.MonkeyPatch) -> None:
    right = judging._postpone
    patch.setattr(
        judging,
        "_postpone",
        lambda job, holder, rules, now: right(job, holder, replaced(rules, max_wait=None), now),
    )


def postpone_cuts_a_backoff_short(patch: pytest.MonkeyPatch) -> None:
    right = judging._postpone
    patch.setattr(
        judging,
        "_postpone",
        lambda job, holder, rules, now: right(job, replaced(holder, attempt=0), rules, now),
    )


def full_collections_are_not_hurried(patch: pytest.MonkeyPatch) -> None:
    right = judging._collect

    def slow(job: NewJob, holder: Holder, now: int) -> Decision:
        made = right(job, holder, now)
        change = None if made.change is None else replaced(made.change, due=holder.due)
        return replaced(made, change=change, hurry_holder=False)

    patch.setattr(judging, "_collect", slow)


def applied_calls_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    right = judging._change

    def forgetful(*given: Any, **named: Any) -> Decision:
        made = right(*given, **named)
        return replaced(made, change=None if made.change is None else replaced(made.change, calls=()))

    patch.setattr(judging, "_change", forgetful)


def operators_retries_take_held_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(amend, "may_revive", lambda *_: True)


def mismatches_are_kept(patch: pytest.MonkeyPatch) -> None:
    right = judging.judge

    def lenient(job: NewJob, found: Holder | None, now: int) -> Decision:
        if job.plan is not None:
            job = replaced(job, plan=replaced(job.plan, rules=replaced(job.plan.rules, strict=False)))
        return right(job, found, now)

    patch.setattr("onejob.stores.sqlite.enqueue.judge", lenient)


JUDGEMENTS: list[Switch] = [
    the_edge_of_a_window_counts_as_inside,
    keys_are_forgotten_late,
    forgotten_keys_still_hold,
    expired_holders_swallow_newcomers,
    takers_forget_whom_the_holder_followed,
    cancel_does_not_wait_for_the_running_holder,
    later_counts_from_the_call,
    callers_inside_the_holder_are_strangers,
    running_counts_as_queued,
    postpone_passes_max_wait,
    postpone_cuts_a_backoff_short,
    full_collections_are_not_hurried,
    applied_calls_are_not_remembered,
    operators_retries_take_held_keys,
    mismatches_are_kept,
]
