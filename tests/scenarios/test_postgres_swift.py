"""Batches of newcomers with keys that need no transaction: which statements they take, and who may come in between."""

from __future__ import annotations

import pytest
from interleaving import COALESCE, ENDS, LATEST, ONCE, holder_of
from servers.stepping import Play

from onejob.absorbing import Count
from onejob.core.job import State
from onejob.core.judge import Answer, Outcome
from onejob.stores.postgres.absorbing import write
from onejob.stores.postgres.enqueue import enqueue
from onejob.stores.postgres.steps import Steps
from onejob.stores.postgres.work import Work
from onejob.testing.conformance.steps import job, look, start, total

pytestmark = pytest.mark.timeout(60)
MAKE, LOOK = "enqueue.make_all", "enqueue.look"


@pytest.mark.parametrize("repetitive", [False, True])
async def test_a_batch_of_new_keys_is_one_statement_or_a_look_and_one(
    postgres_url: str, repetitive: bool
) -> None:
    jobs = [
        job(unique=ONCE, key="a", max_crashes=1, payload=b"1"),
        job(unique=ONCE, key="b", max_crashes=2),
        job(unique=ONCE, key="d", max_crashes=2, delay=5_000),
        job(unique=LATEST, key="c", queue="other", priority=7, expires=9_000, options=b"{}"),
    ]
    async with Play(postgres_url) as play:
        ours = await play.ours()
        answers = await ours.enqueue_many(*jobs, repetitive=repetitive).done()
        assert [(one.id, one.outcome) for one in answers] == [(one.id, Outcome.CREATED) for one in jobs]
        assert ours.link.said == ([LOOK, MAKE] if repetitive else [MAKE])
        a, b, d, c = [await look(play.store, one.id) for one in jobs]
        assert (a.state, a.max_crashes, a.payload) == (State.WAITING, 1, b"1")
        assert (b.state, b.max_crashes, b.due) == (State.WAITING, 2, b.accepted)
        assert (d.state, d.max_crashes, d.due - d.accepted) == (State.DELAYED, 2, 5_000)
        assert (c.queue, c.priority, c.options, c.key) == ("other", 7, b"{}", "c")
        assert c.expires == c.accepted + 9_000
        assert await holder_of(play, "b") == b.id


@pytest.mark.parametrize("repetitive", [False, True])
async def test_a_batch_that_is_kept_is_one_look_and_writes_nothing(
    postgres_url: str, repetitive: bool
) -> None:
    first = [job(unique=COALESCE, key=key) for key in "ab"]
    second = [job(unique=COALESCE, key=key, payload=b"2") for key in "ba"]
    async with Play(postgres_url) as play:
        await play.store.enqueue(first)
        ours = await play.ours()
        answers = await ours.enqueue_many(*second, repetitive=repetitive).done()
        assert [(one.id, one.outcome, one.payload_differs) for one in answers] == [
            (first[1].id, Outcome.KEPT, True),
            (first[0].id, Outcome.KEPT, True),
        ]
        assert ours.link.said == [LOOK if repetitive else MAKE]
        assert await total(play.store) == 2


@pytest.mark.parametrize("repetitive", [False, True])
async def test_new_ones_among_those_kept_are_made_in_one_more_statement(
    postgres_url: str, repetitive: bool
) -> None:
    held = job(unique=ONCE, key="b")
    batch = [job(unique=ONCE, key=key) for key in "abc"]
    async with Play(postgres_url) as play:
        await play.store.enqueue([held])
        ours = await play.ours()
        answers = await ours.enqueue_many(*batch, repetitive=repetitive).done()
        assert [one.id for one in answers] == [batch[0].id, held.id, batch[2].id]
        assert [one.outcome for one in answers] == [Outcome.CREATED, Outcome.KEPT, Outcome.CREATED]
        assert ours.link.said == [LOOK if repetitive else MAKE, MAKE]
        assert [one.id for one in await start(play.store)] == [held.id, batch[0].id, batch[2].id]


async def test_a_key_that_is_taken_after_the_look_is_kept_in_the_end(postgres_url: str) -> None:
    held, faster = job(unique=ONCE, key="a"), job(unique=ONCE, key="b")
    batch = [job(unique=ONCE, key=key) for key in "abc"]
    async with Play(postgres_url) as play:
        await play.store.enqueue([held])
        ours = await play.ours()
        accepting = await ours.enqueue_many(*batch).after(MAKE)
        await play.store.enqueue([faster])
        answers = await accepting.done()
        assert [one.id for one in answers] == [held.id, faster.id, batch[2].id]
        assert [one.outcome for one in answers] == [Outcome.KEPT, Outcome.KEPT, Outcome.CREATED]
        assert await total(play.store) == 3


async def test_a_duplicate_counts_once_though_its_batch_was_judged_twice(postgres_url: str) -> None:
    held, faster = job(unique=ONCE, key="a"), job(unique=ONCE, key="b")
    batch = [job(unique=ONCE, key=key) for key in "abc"]
    works: list[Work] = []

    def accept(work: Work) -> Steps[list[Answer]]:
        works.append(work)
        return enqueue(work, batch, alone=True)

    async with Play(postgres_url) as play:
        await play.store.enqueue([held])
        ours = await play.ours()
        accepting = await ours.act(accept).after(MAKE)
        await play.store.enqueue([faster])
        await accepting.done()
        assert [holder for _, holder, _ in works[0].absorbed] == [held.id, faster.id]


async def test_a_holder_that_starts_after_the_look_is_followed_if_a_transaction_is_needed(
    postgres_url: str,
) -> None:
    held = job(unique=LATEST, key="a")
    batch = [job(unique=LATEST, key=key, payload=b"2") for key in "ab"]
    async with Play(postgres_url) as play:
        await play.store.enqueue([held])
        ours = await play.ours()
        accepting = await ours.enqueue_many(*batch).after(MAKE)
        await start(play.store)
        answers = await accepting.done()
        assert [(one.id, one.outcome) for one in answers] == [(one.id, Outcome.CREATED) for one in batch]
        follower = await look(play.store, batch[0].id)
        assert (follower.state, follower.follows) == (State.BLOCKED, held.id)


@ENDS
async def test_who_waits_for_anothers_new_key_gets_what_becomes_of_it(postgres_url: str, end: str) -> None:
    theirs = job(unique=ONCE, key="b")
    batch = [job(unique=ONCE, key=key) for key in "abc"]
    async with Play(postgres_url) as play:
        user, ours = await play.user(), await play.ours()
        await user.begin()
        await user.enqueue(theirs).done()
        accepting = ours.enqueue_many(*batch).go()
        await ours.waits_for(user)
        await user.end(end)
        answers = await accepting.done()
        middle = theirs if end == "commit" else batch[1]
        assert [one.id for one in answers] == [batch[0].id, middle.id, batch[2].id]
        assert await total(play.store) == 3


async def test_a_batch_that_is_sent_again_gets_its_own_answers(postgres_url: str) -> None:
    batch = [job(unique=ONCE, key=key) for key in "abc"]
    async with Play(postgres_url) as play:
        ours = await play.ours()
        first = await ours.enqueue_many(*batch[:2]).done()
        assert batch[1].plan is not None
        assert first[1].id == batch[1].id
        await play.store.release(batch[1].plan.digest)
        answers = await ours.enqueue_many(*batch).done()
        assert [(one.id, one.outcome) for one in answers] == [(one.id, Outcome.CREATED) for one in batch]
        assert await total(play.store) == 3


async def test_counts_are_written_where_the_key_is_free_and_its_holder_the_one_that_was_counted(
    postgres_url: str,
) -> None:
    jobs = {key: job(unique=ONCE, key=key) for key in "abcd"}
    digests = {key: one.plan.digest for key, one in jobs.items() if one.plan is not None}
    holders = {**jobs, "c": jobs["a"]}  # c has gone on to another meanwhile
    counts = [Count("", digests[key], holders[key].id, 3 + (key == "d"), 1) for key in "dcba"]
    async with Play(postgres_url) as play:
        await play.store.enqueue(list(jobs.values()))
        ours, user = await play.ours(), await play.user()
        await user.begin()
        await user.execute(
            f"select 1 from {play.address.schema}.key where digest = $1 for update", digests["b"]
        )
        left = await ours.act(lambda _: write(counts)).done()
        await user.commit()
        assert [(one.digest, one.tries) for one in left] == [(digests["c"], 1), (digests["b"], 1)]
        left = await ours.act(lambda _: write(left)).done()
        assert [(one.digest, one.tries) for one in left] == [(digests["c"], 2)]
        found = await play.look("select digest, absorbed, differing from {}.key")
        assert {row[0]: row[1:] for row in found} == {
            digests["a"]: (3, 1),
            digests["b"]: (3, 1),
            digests["c"]: (0, 0),
            digests["d"]: (4, 1),
        }
