"""`release`: a key becomes vacant by an operator's word; its holder lives on without it."""

from __future__ import annotations

from onejob.core.dedup import Unique
from onejob.core.job import State
from onejob.core.judge import Outcome
from onejob.store import JobStore, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import AT_ONCE, digest_of, finish, job, put, run, start_one, state_of


class TestRelease:
    async def test_a_released_key_is_vacant_and_names_who_had_it(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.once()))
        assert await store.release(digest_of("k")) == first.id
        assert (await put(store, job(unique=Unique.once()))).outcome is Outcome.CREATED
        assert await state_of(store, first.id) is State.WAITING

    async def test_a_key_nobody_holds_has_nobody_to_name(self, store: JobStore) -> None:
        assert await store.release(digest_of("never")) is None

    async def test_a_key_is_released_for_the_holder_that_was_seen_only(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.once()))
        assert await store.release(digest_of("k"), holder=first.id) == first.id
        second = await put(store, job(unique=Unique.once()))
        assert await store.release(digest_of("k"), holder=first.id) is None, "it is another's by now"
        assert (await put(store, job(unique=Unique.once()))).id == second.id

    async def test_a_holder_that_lost_its_key_ends_without_touching_it(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.in_flight()))
        old = await start_one(store)
        await store.release(digest_of("k"))
        new = await put(store, job(unique=Unique.in_flight()))
        assert await finish(store, old) is Settled.DONE
        assert (await put(store, job(unique=Unique.in_flight()))).id == new.id

    async def test_what_is_remembered_for_ever_is_forgotten_on_release(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = await put(store, job(unique=Unique.once()))
        await run(store)
        clock.advance(3600)
        await store.prune(AT_ONCE, 100)
        assert await store.release(digest_of("k")) == first.id
        assert (await put(store, job(unique=Unique.once()))).outcome is Outcome.CREATED
