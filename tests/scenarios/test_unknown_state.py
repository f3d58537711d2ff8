"""A state that only a newer onejob knows: whoever meets such a job says so, and nobody passes over it.

On Valkey each queue names the format of its records, so that a newer one is refused as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from stored import stored_id, table

from onejob import OnejobError, Unique
from onejob.core.job import JobId, State
from onejob.core.lifecycle import Move
from onejob.store import Amendment, JobFilter, JobStore
from onejob.stores import open_store
from onejob.testing.conformance.steps import digest_of, finish, job, put, start_one

UNKNOWN = "does not know"

VIEWS: dict[str, Callable[[JobStore, JobId], Awaitable[object]]] = {
    "job": lambda store, id: store.job(id),
    "jobs": lambda store, id: store.jobs(JobFilter()),
    "counts": lambda store, id: store.counts(),
    "chain": lambda store, id: store.chain(id),
    "last": lambda store, id: store.last(id),
    "key": lambda store, id: store.key(digest_of("k")),
    "keys": lambda store, id: store.keys(),
    "duplicate": lambda store, id: put(store, job(unique=Unique.once())),
    **{
        f"{amendment}{' of some states' if states else ''}": (
            lambda store, id, amendment=amendment, states=states: store.amend([id], amendment, states=states)
        )
        for amendment in Amendment
        for states in (None, frozenset({State.WAITING}))
    },
}


@asynccontextmanager
async def suspended(url: str, *, ended: bool) -> AsyncIterator[tuple[JobStore, JobId]]:
    """A store in which a newer onejob has put a job into a state of its own, before or after its end."""
    store = open_store(url)
    try:
        answer = await put(store, job(unique=Unique.once()))
        if ended:
            await finish(store, await start_one(store), Move.COMPLETE)
        async with store.transaction(10) as tx:
            statement = f"update {table(url, 'job')} set state = 'suspended' where id = :id"
            await tx.execute(statement, {"id": stored_id(url, answer.id)})
        yield store, answer.id
    finally:
        await store.close()


@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
@pytest.mark.parametrize("view", VIEWS)
async def test_who_meets_a_state_that_he_does_not_know_says_so(
    view: str, ended: bool, database_url: str
) -> None:
    async with asyncio.timeout(30), suspended(database_url, ended=ended) as (store, id):
        with pytest.raises(OnejobError, match=UNKNOWN):
            await VIEWS[view](store, id)


async def test_it_is_left_as_it_is(database_url: str) -> None:
    async with asyncio.timeout(30), suspended(database_url, ended=False) as (store, _):
        other = await put(store, job())
        assert (await start_one(store)).id == other.id
        with pytest.raises(OnejobError, match=UNKNOWN):
            await store.counts()
