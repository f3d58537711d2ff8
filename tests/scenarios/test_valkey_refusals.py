"""What only a database gives is refused on Valkey, at once and with the remedy; what needs none works."""

from __future__ import annotations

import pytest

from onejob import App, State, WrongCall, current_job
from onejob.store import JobFilter
from onejob.testing import adrain


async def test_rows_of_ones_own_cannot_be_in_the_stores_transaction(valkey_url: str) -> None:
    async with App(valkey_url) as app:
        with pytest.raises(WrongCall, match=r"a store on Valkey has no database.*connection of your own"):
            async with app.transaction() as tx:
                await tx.execute("insert into orders values (1)")


async def test_nothing_is_enqueued_in_a_transaction(valkey_url: str) -> None:
    async with App(valkey_url) as app:

        @app.task
        async def send(user: str) -> None: ...

        with pytest.raises(WrongCall, match=r"enqueue outside of the block.*continue_with"):
            async with app.transaction():
                await send.aenqueue("u1")
        assert await app.acount("") == 0


async def test_a_connection_of_ones_own_is_refused(valkey_url: str) -> None:
    async with App(valkey_url) as app:

        @app.task
        async def send(user: str) -> None: ...

        with pytest.raises(
            WrongCall, match=r"connection=… is for a store on PostgreSQL.*Commit your rows first"
        ):
            await send.using(connection=object()).aenqueue("u1")


def test_sync_code_is_refused_the_same(valkey_url: str) -> None:
    with App(valkey_url) as app:

        @app.task
        def send(user: str) -> None: ...

        with pytest.raises(WrongCall, match="a store on Valkey has no database"), app.transaction() as tx:
            tx.execute("insert into orders values (1)")
        with pytest.raises(WrongCall, match="enqueue outside of the block"), app.transaction():
            send.enqueue("u1")
        with pytest.raises(WrongCall, match=r"connection=… is for a store on PostgreSQL"):
            send.using(connection=object()).enqueue("u1")
        with pytest.raises(WrongCall, match=r"connection=… is for a store on PostgreSQL"):
            app.enqueue_many([send.job("u1")], connection=object())
        assert app.count("") == 0


async def test_many_on_a_connection_of_ones_own_are_refused(valkey_url: str) -> None:
    async with App(valkey_url) as app:

        @app.task
        async def send(user: str) -> None: ...

        with pytest.raises(WrongCall, match=r"connection=… is for a store on PostgreSQL"):
            await app.aenqueue_many([send.job("u1"), send.job("u2")], connection=object())
        assert await app.acount("") == 0


@pytest.mark.parametrize("sync", [False, True])
async def test_nothing_is_enqueued_in_complete_and_the_job_fails_with_the_remedy(
    sync: bool, valkey_url: str
) -> None:
    async with App(valkey_url) as app:

        @app.task
        async def send(user: str) -> None: ...

        @app.task(name="charge")
        async def charge() -> None:
            async with current_job().complete():
                await send.aenqueue("u1")

        @app.task(name="charge_in_a_thread")
        def charge_in_a_thread() -> None:
            with current_job().complete():
                send.enqueue("u1")

        receipt = await (charge_in_a_thread if sync else charge).aenqueue()
        await adrain(app)
        job = await app.ajob(receipt.id)
        assert job is not None
        assert job.state is not State.COMPLETED
        assert "enqueue outside of the block" in (job.error or "")
        assert "continue_with" in (job.error or "")
        assert [one.task for one in (await app.store.jobs(JobFilter())).jobs] == [job.task]


async def test_complete_ends_a_job_and_lets_its_chain_go_on(valkey_url: str) -> None:
    async with App(valkey_url) as app:

        @app.task
        async def ship(order: int) -> str:
            return f"order {order} is on its way"

        @app.task
        async def charge(order: int) -> None:
            async with current_job().complete():
                current_job().continue_with(ship, order)

        receipt = await charge.aenqueue(7)
        await adrain(app)
        assert await receipt.aresult(timeout=1) == "order 7 is on its way"


async def test_complete_with_rows_of_ones_own_fails_the_job_with_the_remedy(valkey_url: str) -> None:
    async with App(valkey_url) as app:

        @app.task
        async def charge(order: int) -> None:
            async with current_job().complete() as tx:
                await tx.execute("insert into paid values (7)")

        receipt = await charge.aenqueue(7)
        await adrain(app)
        job = await app.ajob(receipt.id)
        assert job is not None
        assert "current_job().idempotency_key" in (job.error or "")


async def test_there_is_no_schema_to_print(valkey_url: str) -> None:
    async with App(valkey_url) as app:
        with pytest.raises(WrongCall, match="no tables"):
            await app.store.migration_script()
