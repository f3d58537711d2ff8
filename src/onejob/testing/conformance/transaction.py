"""`transaction`: the user's own writes and enqueues commit together, or neither does.

For stores that have one; what these tests write for the user is plain SQL.
"""

from __future__ import annotations

import asyncio

import pytest

from onejob.core.dedup import Unique
from onejob.core.errors import TransactionTimeout, UnknownBlocker
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import Move, Settlement
from onejob.store import JobStore, Settled
from onejob.testing.conformance.blockers import waiting_for
from onejob.testing.conformance.chains import next_of
from onejob.testing.conformance.steps import (
    digest_of,
    job,
    new_id,
    put,
    start_one,
    started_ids,
    state_of,
    total,
)


class Boom(Exception):
    """What goes wrong inside a user's block."""


class TestTransaction:
    async def test_a_store_with_transactions_says_which_sql_it_speaks(self, store: JobStore) -> None:
        assert store.dialect in ("sqlite", "postgresql")

    async def test_rows_and_jobs_commit_together(self, store: JobStore) -> None:
        made = job(unique=Unique.once())
        async with store.transaction(5) as tx:
            await tx.execute("create table orders (number integer)")
            await tx.execute("insert into orders values (:number)", {"number": 7})
            [answer] = await tx.enqueue([made])
            assert answer.outcome is Outcome.CREATED
        async with store.transaction(5) as tx:
            assert await tx.execute("select number from orders") == [(7,)]
        assert await started_ids(store) == [made.id]

    async def test_an_error_rolls_everything_back_and_is_raised(self, store: JobStore) -> None:
        async with store.transaction(5) as tx:
            await tx.execute("create table orders (number integer)")
        with pytest.raises(Boom):
            async with store.transaction(5) as tx:
                await tx.execute("insert into orders values (1)")
                await tx.enqueue([job(unique=Unique.once())])
                raise Boom
        assert await total(store) == 0
        assert await store.key(digest_of("k")) is None
        async with store.transaction(5) as tx:
            assert await tx.execute("select * from orders") == []
        assert (await put(store, job(unique=Unique.once()))).outcome is Outcome.CREATED

    async def test_a_bad_statement_is_raised_and_rolls_back(self, store: JobStore) -> None:
        with pytest.raises(Exception, match="nowhere"):
            async with store.transaction(5) as tx:
                await tx.enqueue([job()])
                await tx.execute("insert into nowhere values (1)")
        assert await total(store) == 0

    async def test_a_duplicate_inside_is_judged_like_any_other(self, store: JobStore) -> None:
        async with store.transaction(5) as tx:
            [first] = await tx.enqueue([job(unique=Unique.once())])
            [second] = await tx.enqueue([job(unique=Unique.once())])
        assert (second.outcome, second.id) == (Outcome.KEPT, first.id)

    async def test_nobody_sees_it_before_the_commit(self, store: JobStore) -> None:
        async with store.transaction(5) as tx:
            await tx.enqueue([job()])
            assert await total(store) == 0
        assert await total(store) == 1

    async def test_a_block_that_takes_too_long_is_rolled_back(self, store: JobStore) -> None:
        with pytest.raises(TransactionTimeout):
            async with store.transaction(0.05) as tx:
                await tx.enqueue([job()])
                await asyncio.sleep(0.3)
                await tx.enqueue([job()])
        assert await total(store) == 0
        assert (await put(store, job())).outcome is Outcome.CREATED

    async def test_a_cancelled_block_is_rolled_back_and_lets_others_on(self, store: JobStore) -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with store.transaction(30) as tx:
                await tx.enqueue([job()])
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await put(store, job())).outcome is Outcome.CREATED
        assert await total(store) == 1

    async def test_a_refused_call_leaves_nothing_in_a_transaction_that_goes_on(self, store: JobStore) -> None:
        fine, wanted = job(), waiting_for(new_id())
        async with store.transaction(5) as tx:
            with pytest.raises(UnknownBlocker):
                await tx.enqueue([fine, wanted])
            other = job()
            await tx.enqueue([other])
        assert await started_ids(store) == [other.id]

    async def test_a_transaction_completes_and_goes_on_in_one_commit(self, store: JobStore) -> None:
        made = await put(store, job())
        claimed = await start_one(store)
        done = Settlement(claimed.lease, Move.COMPLETE, then=next_of(claimed))
        with pytest.raises(RuntimeError, match="mine"):
            async with store.transaction(5) as transaction:
                await transaction.settle(done)
                raise RuntimeError("mine")
        assert await state_of(store, made.id) is State.RUNNING
        async with store.transaction(5) as transaction:
            reply = await transaction.settle(done)
        assert reply.settled == [Settled.DONE]
        assert [one.state for one in await store.chain(made.id)] == [State.COMPLETED, State.WAITING]
