"""What an operation asks of PostgreSQL when nothing is in its way: one statement, and locks on nothing but its own."""

from __future__ import annotations

import pytest
from interleaving import COALESCE, LANE, LATEST, ONCE
from servers.stepping import Play, Session

from onejob.core.job import WorkerId
from onejob.core.judge import Outcome
from onejob.store import Ask
from onejob.stores import open_store
from onejob.testing.conformance.steps import job, look, put

ASK = Ask(WorkerId("w"), ("q",), 10)
BARE, FULL = "settle.complete_bare_and_start", "settle.complete_and_start"
READING = {"AccessShareLock"}


async def locks(play: Play, session: Session, table: str) -> set[str]:
    """How a session has locked a table; who reads rows without locking them has `READING`."""
    found = await play.look(
        f"select mode from pg_locks where pid = $1 and relation = '{{}}.{table}'::regclass", session.pid
    )
    return {mode for (mode,) in found}


class TestOneStatement:
    """The common case is one round trip and one commit."""

    async def test_enqueues(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            session = await play.ours()
            for newcomers, outcome, said in (
                ([job()], Outcome.CREATED, ["enqueue.insert_job"]),
                ([job(unique=ONCE)], Outcome.CREATED, ["enqueue.one"]),
                ([job(unique=ONCE)], Outcome.KEPT, ["enqueue.one"]),
                ([job(unique=LATEST)], Outcome.UPDATED, ["enqueue.one", "enqueue.change_as_seen"]),
            ):
                session.link.said.clear()
                assert [one.outcome for one in await session.enqueue(*newcomers).done()] == [outcome]
                assert session.link.said == said

    @pytest.mark.parametrize("count", [2, 500])
    async def test_bulk_is_a_set_however_large_it_is(self, postgres_url: str, count: int) -> None:
        async with Play(postgres_url) as play:
            session = await play.ours()
            await session.enqueue(*(job() for _ in range(count))).done()
            assert session.link.said == ["enqueue.insert_jobs"]
            keyed = [[job(unique=COALESCE, key=str(number)) for number in range(count)] for _ in range(2)]
            for newcomers, said in zip(keyed, (["enqueue.insert_new_jobs"], []), strict=True):
                session.link.said.clear()
                answers = await session.enqueue(*newcomers).done()
                assert [one.id for one in answers] == [one.id for one in keyed[0]]
                assert session.link.said == [
                    "begin",
                    "enqueue.savepoint",
                    "enqueue.take_new",
                    *said,
                    "commit",
                ]

    async def test_claims_and_settlements(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            await play.store.enqueue([job(), job()])
            session = await play.ours()
            [first] = (await session.claim(limit=1).done()).jobs
            assert session.link.said == ["claim.start"]
            session.link.said.clear()
            [second] = (await session.settle(first, wish=ASK).done()).claims.jobs
            assert session.link.said == [BARE]
            session.link.said.clear()
            await session.settle(second).done()
            assert session.link.said == ["settle.complete"]

    async def test_a_key_is_met_once_unawares(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            await play.store.enqueue([job(unique=COALESCE, key=key) for key in "abc"])
            session = await play.ours()
            [claimed] = (await session.claim(limit=1).done()).jobs
            for said in (BARE, FULL), (FULL,):
                session.link.said.clear()
                wish = Ask(WorkerId("w"), ("q",), 1)
                [claimed] = (await session.settle(claimed, wish=wish).done()).claims.jobs
                assert session.link.said == list(said)

    async def test_who_gives_a_slot_of_a_lane_back_arranges_it_at_once(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            jobs = [job(lane=LANE) for _ in range(3)]
            await play.store.enqueue(jobs)
            session = await play.ours()
            [claimed] = (await session.claim().done()).jobs
            for number in (1, 2):
                session.link.said.clear()
                [claimed] = (await session.settle(claimed, wish=ASK).done()).claims.jobs
                assert claimed.id == jobs[number].id
                settling = [BARE, FULL] if number == 1 else [FULL]
                arranging = ["begin", "lanes.take", "lanes.arrange", "claim.enter", "claim.start", "commit"]
                assert session.link.said == [*settling, *arranging]


class TestLocks:
    """Who locks what: see ADR 6."""

    async def test_a_claim_does_not_even_look_at_keys(self, postgres_url: str) -> None:
        async with Play(postgres_url) as play:
            await play.store.enqueue([job(unique=COALESCE), job(lane=LANE), job(lane=LANE)])
            session = await play.ours()
            await session.begin()
            assert len((await session.claim().done()).jobs) == 2
            assert await locks(play, session, "key") == set()
            assert "RowExclusiveLock" in await locks(play, session, "job")

    @pytest.mark.parametrize("foreign", [False, True])
    async def test_an_enqueue_locks_no_lane(self, postgres_url: str, foreign: bool) -> None:
        async with Play(postgres_url) as play:
            await put(play.store, job(lane=LANE))
            worker = await play.ours()
            await worker.claim().done()
            session = await (play.user() if foreign else play.ours())
            await session.begin()
            await session.enqueue(job(lane=LANE), job(lane=LANE, unique=LATEST)).done()
            assert await locks(play, session, "lane") <= READING


async def test_times_are_those_of_the_servers_clock_when_the_call_came(postgres_url: str) -> None:
    """Not when the user's transaction began, and not this machine's."""
    async with Play(postgres_url) as play:
        user = await play.user()
        store = open_store(postgres_url)
        await user.begin()
        [(began,)] = await user.execute("select (extract(epoch from now()) * 1000)::bigint")
        await user.execute("select pg_sleep(0.05)")
        newcomer = job(unique=ONCE)
        await store.join(user.connection).aenqueue([newcomer])
        [(ended,)] = await user.execute("select (extract(epoch from clock_timestamp()) * 1000)::bigint")
        await user.commit()
        assert began + 50 <= (await look(store, newcomer.id)).accepted <= ended
        await store.close()
