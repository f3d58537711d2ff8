"""Settling jobs that are taken to be bare: those that are not are settled as ever, by one more statement."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from interleaving import COALESCE, LANE, LATEST
from servers.stepping import Act, Play, Session

from onejob.core.job import Claimed, Lease, NewJob, State, WorkerId
from onejob.core.lane import QueueChange
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Amendment, Ask, Settled, SettleReply
from onejob.stores.postgres import bare, claim, settle
from onejob.testing.conformance.steps import job, look, put, start, state_of

pytestmark = pytest.mark.timeout(60)
BARE, FULL, START = "settle.complete_bare_and_start", "settle.complete_and_start", "claim.start"


def exchanging(session: Session, jobs: Sequence[Claimed]) -> Act[SettleReply]:
    """Complete jobs and claim the next, as the store does it."""
    done = [Settlement(one.lease, Move.COMPLETE, result=b"done") for one in jobs]
    wish = Ask(WorkerId("w"), ("q",), 10)
    session.link.said.clear()
    return session.act(lambda work: settle.settle(work, done, wish, os.urandom(8)))


async def exchanged(session: Session, jobs: Sequence[Claimed]) -> SettleReply:
    """The same, to its end."""
    return await exchanging(session, jobs).done()


async def test_bare_jobs_are_completed_and_the_next_start_in_order(postgres_url: str) -> None:
    jobs = [job(), job(), job(priority=1), job(), job(delay=5_000)]
    async with Play(postgres_url) as play:
        await play.store.enqueue(jobs)
        running = await start(play.store, limit=2)
        session = await play.ours()
        reply = await exchanged(session, running)
        assert session.link.said == [BARE]
        assert [one.id for one in running] == [jobs[2].id, jobs[0].id]
        assert [one.id for one in reply.claims.jobs] == [jobs[1].id, jobs[3].id]
        assert reply.claims.next_due is not None
        assert 0 < reply.claims.next_due <= 5_000
        ended = await look(play.store, running[0].id)
        assert (ended.state, ended.result, ended.error) == (State.COMPLETED, b"done", None)
        assert [one.state for one in [await look(play.store, one.id) for one in reply.claims.jobs]] == [
            State.RUNNING
        ] * 2
        assert (await exchanged(session, reply.claims.jobs)).settled == [Settled.DONE] * 2


@pytest.mark.parametrize("more", [job(unique=COALESCE), job(lane=LANE)], ids=["key", "lane"])
async def test_if_one_has_more_all_are_settled_by_the_next_statement(postgres_url: str, more: NewJob) -> None:
    async with Play(postgres_url) as play:
        await play.store.enqueue([job(), more, job()])
        running = await start(play.store)
        await put(play.store, job())
        session = await play.ours()
        settling = exchanging(session, running)
        await settling.before(FULL)
        assert session.link.said == [BARE]
        assert [await state_of(play.store, one.id) for one in running] == [State.RUNNING] * 3, "one commit"
        reply = await settling.done()
        assert reply.settled == [Settled.DONE] * 3
        assert len(reply.claims.jobs) == 1
        assert session.guesses.burden == bare.BURDENED
        assert [await state_of(play.store, one.id) for one in running] == [State.COMPLETED] * 3


async def test_a_lease_that_is_lost_stays_so(postgres_url: str) -> None:
    async with Play(postgres_url) as play:
        await play.store.enqueue([job(), job()])
        mine, lost = await start(play.store)
        stale = Claimed(
            Lease(lost.id, b"another!"), *(getattr(lost, name) for name in lost.__struct_fields__[1:])
        )
        reply = await exchanged(await play.ours(), [mine, stale])
        assert reply.settled == [Settled.DONE, Settled.LOST]
        assert await state_of(play.store, lost.id) is State.RUNNING


async def test_a_flag_is_seen(postgres_url: str) -> None:
    async with Play(postgres_url) as play:
        await play.store.enqueue([job(), job()])
        flagged, other = await start(play.store)
        await play.store.amend([flagged.id], Amendment.REVOKE)
        reply = await exchanged(await play.ours(), [flagged, other])
        assert reply.settled == [Settled.REVOKED, Settled.DONE]


@pytest.mark.parametrize("change", [QueueChange(concurrency=1), QueueChange(paused=True)])
async def test_limits_are_heeded(postgres_url: str, change: QueueChange) -> None:
    async with Play(postgres_url) as play:
        await play.store.enqueue([job() for _ in range(3)])
        running = await start(play.store, limit=1)
        await play.store.set_queue("q", change)
        session = await play.ours()
        reply = await exchanged(session, running)
        assert session.link.said[:2] == [BARE, START]
        assert reply.settled == [Settled.DONE]
        assert len(reply.claims.jobs) == (0 if change.paused else 1)


async def test_a_worker_that_nobody_knows_is_put_on_record(postgres_url: str) -> None:
    async with Play(postgres_url) as play:
        await play.store.enqueue([job(), job()])
        running = await start(play.store, limit=1)
        await play.store.leave(WorkerId("w"))
        reply = await exchanged(await play.ours(), running)
        assert len(reply.claims.jobs) == 1
        assert [one.id for one in await play.store.workers()] == ["w"]


async def test_what_somebody_has_is_come_back_for(postgres_url: str) -> None:
    held = job(unique=LATEST)
    async with Play(postgres_url) as play:
        await play.store.enqueue([job(), held])
        running = await start(play.store, limit=1)
        user, session = await play.user(), await play.ours()
        await user.begin()
        await user.enqueue(job(unique=LATEST, payload=b"2")).done()
        reply = await exchanged(session, running)
        assert (reply.settled, reply.claims.jobs) == ([Settled.DONE], [])
        assert reply.claims.next_due == claim.LOCKED_PAUSE
        await user.commit()
        [claimed] = await start(play.store)
        assert (claimed.id, claimed.payload) == (held.id, b"2")


async def test_what_moved_after_the_statement_began_is_come_back_for(postgres_url: str) -> None:
    """Its row is not where the statement sees it any more."""
    held = job(unique=LATEST)
    async with Play(postgres_url) as play:
        await play.store.enqueue([job(), held])
        running = await start(play.store, limit=1)
        user, session = await play.user(), await play.ours("10s")
        await user.begin()
        schema = play.address.schema
        await user.execute(f"select from {schema}.job where id = $1 for update", running[0].id)
        settling = exchanging(session, running).go()
        await session.waits_for(user)
        await put(play.store, job(unique=LATEST, payload=b"2"))
        await user.commit()
        reply = await settling.done()
        assert (reply.settled, reply.claims.jobs) == ([Settled.DONE], [])
        assert reply.claims.next_due == claim.LOCKED_PAUSE
        [claimed] = (await exchanged(session, [])).claims.jobs
        assert (claimed.id, claimed.payload, claimed.attempt) == (held.id, b"2", 1)
