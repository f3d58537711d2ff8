"""Known bugs of lanes, limits and dead letters, each as a switch; see `mutants`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from mutants import AmendingErrs, ErringStore, SettlingErrs, Switch, raw, replaced

from onejob.core.job import NewJob
from onejob.core.judge import Answer, Outcome
from onejob.core.lane import LanePlan, Rate
from onejob.core.lifecycle import ENDING, Settlement
from onejob.store import Amended, Amendment, Ask, Claims, Settled
from onejob.stores.sqlite import amend, claim, dead, enqueue, lanes, settle
from onejob.stores.sqlite.rates import Window
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements


class SlotsAreNotFreedByRetries(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.DONE and one.move not in ENDING:
            keep = "update onejob_job set place = 3, state = 'delayed' where id = ? and lane is not null"
            await self.sql(keep, raw(one.lease.id))


class LateWorkersFreeTheSlot(SettlingErrs):
    async def after(self, one: Settlement, settled: Settled) -> None:
        if settled is Settled.LOST:
            await self.sql("update onejob_job set place = null where id = ?", raw(one.lease.id))


class RetriesAreNotCounted(ErringStore):
    async def claim(self, ask: Ask, *, now: int | None = None) -> Claims:
        claims = await super().claim(ask, now=now)
        for job in claims.jobs:
            if job.attempt > 1:
                await self.sql("delete from onejob_start where lease = ?", job.lease.token)
        return claims


class RevokingTheHeadReleasesNobody(AmendingErrs):
    async def after(self, id: bytes, amendment: Amendment, amended: Amended, followers: list[bytes]) -> None:
        if amended is Amended.REVOKED:
            park = "update onejob_job set state = 'parked' where lane is not null and state = 'waiting'"
            await self.sql(park)


class DuplicatesSetTheLimits(ErringStore):
    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Answer]:
        answers = await super().enqueue(jobs, now=now)
        for job, answer in zip(jobs, answers, strict=True):
            if job.lane is not None and answer.outcome is not Outcome.CREATED:
                change = "update onejob_lane set concurrency = ?, hold = ? where queue = ? and key = ?"
                await self.sql(change, job.lane.concurrency, job.lane.hold, job.queue, job.lane.key)
        return answers


STORES: list[type[ErringStore]] = [
    SlotsAreNotFreedByRetries,
    LateWorkersFreeTheSlot,
    RetriesAreNotCounted,
    RevokingTheHeadReleasesNobody,
    DuplicatesSetTheLimits,
]


def a_lane_of_one_goes_by_priority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LanePlan, "ordered", property(lambda _: False))


def rates_are_counted_in_fixed_buckets(patch: pytest.MonkeyPatch) -> None:
    right = lanes.window

    def in_buckets(session: Session, queue: str, lane: str, rate: Rate, now: int) -> Window:
        shorter = replaced(rate, per=max(now % rate.window, 1) / 1000)
        return replaced(right(session, queue, lane, shorter, now), rate=rate)

    patch.setattr(lanes, "window", in_buckets)
    patch.setattr(claim, "window", in_buckets)


def the_edge_of_a_rates_window_counts_as_inside(patch: pytest.MonkeyPatch) -> None:
    right = lanes.window

    def late(session: Session, queue: str, lane: str, rate: Rate, now: int) -> Window:
        return right(session, queue, lane, rate, now - 1)

    patch.setattr(lanes, "window", late)
    patch.setattr(claim, "window", late)


def hold_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "_lanes_that_hold", lambda *_: set())


def the_first_jobs_limits_stand(patch: pytest.MonkeyPatch) -> None:
    right = enqueue.put

    def lasting(session: Session, queue: str, plan: LanePlan, former: LanePlan | None) -> None:
        if former is None:
            right(session, queue, plan, former)

    patch.setattr(enqueue, "put", lasting)


def a_delayed_job_holds_up_its_lane(patch: pytest.MonkeyPatch) -> None:
    sql = statements("lanes")
    gate = "where l.queue = :queue and l.key in carray(:lanes)"
    assert gate in sql["release_next"]
    stuck = f"""{gate} and not exists (
        select 1 from onejob_job d
        where d.queue = :queue and d.lane = l.key and d.state = 'delayed' and d.ended is null)"""
    patch.setitem(sql, "release_next", sql["release_next"].replace(gate, stuck))


def a_lane_opens_only_with_the_next_event(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "open_lanes", lambda *_: None)


def a_queues_limit_holds_per_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(statements("set_queue"), "running", "select 0 where :queue is not null")


def a_pause_is_not_seen_by_who_settles(patch: pytest.MonkeyPatch) -> None:
    right = settle.claim

    def heedless(session: Session, ask: Ask, now: int | None) -> Claims:
        paused = session.rows("select name from onejob_queue where paused", ())
        session.run("update onejob_queue set paused = 0", ())
        claims = right(session, ask, now)
        session.executemany("update onejob_queue set paused = 1 where name = ?", paused)
        return claims

    patch.setattr(settle, "claim", heedless)


def revived_jobs_start_whatever_their_lane_says(patch: pytest.MonkeyPatch) -> None:
    right = amend.back_to_lane

    def at_once(session: Session, queue: str, lane: str | None, brought: bytes | None) -> None:
        right(session, queue, lane, brought)
        if lane is not None:
            session.lanes.pop((queue, lane), None)
            session.run(
                "update onejob_job set state = 'waiting' where state = 'parked' and lane = ?", (lane,)
            )

    patch.setattr(amend, "back_to_lane", at_once)


def a_postponed_head_releases_nobody(patch: pytest.MonkeyPatch) -> None:
    right = Session.touch

    def untouched(self: Session, queue: str, lane: str | None, how: Touch) -> None:
        if how != Touch.RETURNED | Touch.LEFT:
            right(self, queue, lane, how)

    patch.setattr(Session, "touch", untouched)


def retries_leave_the_dead_letter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dead, "remove", lambda *_: None)


def what_is_made_again_from_a_dead_letter_forgets_its_grave(patch: pytest.MonkeyPatch) -> None:
    right = dead.with_dead_letter
    patch.setattr(
        dead, "with_dead_letter", lambda options, queue: right(options, queue) if queue is None else options
    )


def who_follows_what_is_made_again_waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(statements("enqueue"), "follow_holder", "select 1 where :id is null and :digest is null")


SWITCHES: list[Switch] = [
    a_lane_of_one_goes_by_priority,
    rates_are_counted_in_fixed_buckets,
    the_edge_of_a_rates_window_counts_as_inside,
    hold_is_ignored,
    the_first_jobs_limits_stand,
    a_delayed_job_holds_up_its_lane,
    a_lane_opens_only_with_the_next_event,
    a_queues_limit_holds_per_claim,
    a_pause_is_not_seen_by_who_settles,
    revived_jobs_start_whatever_their_lane_says,
    a_postponed_head_releases_nobody,
    retries_leave_the_dead_letter,
    what_is_made_again_from_a_dead_letter_forgets_its_grave,
    who_follows_what_is_made_again_waits_for_ever,
]
