"""The reading side: what observers see is what was committed, and looking changes nothing."""

from __future__ import annotations

from onejob.core.dedup import Unique
from onejob.core.filter import parse
from onejob.core.job import ChainId, JobId, State
from onejob.core.lane import LanePlan
from onejob.store import JobFilter, JobStore, Level
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.chains import go_on
from onejob.testing.conformance.steps import digest_of, job, look, new_id, put, run, start_one


class TestInspect:
    async def test_the_time_is_the_stores(self, store: JobStore, clock: FakeClock) -> None:
        assert await store.time() == clock.now
        clock.advance(1.5)
        assert await store.time() == clock.now

    async def test_a_job_that_never_was_is_none(self, store: JobStore) -> None:
        assert await store.job(new_id()) is None
        assert await store.key(digest_of("never")) is None

    async def test_jobs_are_listed_newest_first_page_by_page(self, store: JobStore) -> None:
        made = [job() for _ in range(7)]
        await store.enqueue(made)
        seen: list[JobId] = []
        cursor: str | None = None
        pages = 0
        while True:
            page = await store.jobs(JobFilter(), 3, cursor)
            seen += [found.id for found in page.jobs]
            pages += 1
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [newcomer.id for newcomer in reversed(made)]
        assert pages == 3

    async def test_every_field_of_a_filter_must_match(self, store: JobStore) -> None:
        wanted = job(unique=Unique.once(), queue="r", task="u")
        others = [job(queue="r"), job(task="u"), job(unique=Unique.once(), key="l", queue="r", task="u")]
        await store.enqueue([wanted, *others])
        found = await store.jobs(parse("queue:r task:u key:k state:waiting"))
        assert [seen.id for seen in found.jobs] == [wanted.id]
        none = await store.jobs(parse("queue:r state:running,failed"))
        assert none.jobs == []

    async def test_one_job_looks_the_same_alone_and_in_a_list(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.once(), delay=5, expires=50, priority=2))
        [listed] = (await store.jobs(JobFilter())).jobs
        assert await look(store, listed.id) == listed

    async def test_counts_are_per_queue_and_state(self, store: JobStore) -> None:
        await store.enqueue([job(), job(), job(delay=9), job(delay=9, lane=LanePlan("x")), job(queue="r")])
        await start_one(store)
        counts = await store.counts()
        assert counts == {
            "q": {State.RUNNING: 1, State.WAITING: 1, State.DELAYED: 2},
            "r": {State.WAITING: 1},
        }
        assert {type(number) for states in counts.values() for number in states.values()} == {int}

    async def test_a_key_shows_its_holder_and_how_often_it_was_taken(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = await put(store, job(unique=Unique.once(within=60)))
        key = await store.key(digest_of("k"))
        assert key is not None
        assert (key.text, key.queue, key.task, key.generation, key.ended_at) == ("k", "q", "t", 1, None)
        assert (key.holder.id, key.holder.state, key.holder.since) == (first.id, State.WAITING, clock.now)
        assert (key.holder.completed_until, key.holder.failed_until) == (clock.now + 60_000, None)
        second = await put(store, job(unique=Unique.once(within=60), force=True))
        key = await store.key(digest_of("k"))
        assert key is not None
        assert (key.holder.id, key.generation) == (second.id, 2)

    async def test_a_remembered_key_shows_how_and_when_its_holder_ended(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job(unique=Unique.once()))
        await run(store)
        ended = clock.now
        clock.advance(1)
        key = await store.key(digest_of("k"))
        assert key is not None
        assert (key.holder.state, key.ended_at) == (State.COMPLETED, ended)

    async def test_a_key_of_scope_queue_names_its_holders_task(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.once(scope="queue")))
        key = await store.key(digest_of("k", task=None))
        assert key is not None
        assert key.task == "t"

    async def test_keys_are_listed_by_queue_the_latest_first(self, store: JobStore, clock: FakeClock) -> None:
        for text, queue in (("a", "q"), ("b", "r"), ("c", "q")):
            await put(store, job(unique=Unique.once(), key=text, queue=queue))
            clock.tick()
        assert [key.text for key in await store.keys()] == ["c", "b", "a"]
        assert [key.text for key in await store.keys("q")] == ["c", "a"]
        assert [key.text for key in await store.keys(limit=1)] == ["c"]
        assert [key.queue for key in await store.keys(text="b")] == ["r"]
        assert await store.keys("q", text="b") == []

    async def test_the_longest_wait_is_told_per_queue(self, store: JobStore, clock: FakeClock) -> None:
        assert await store.waiting_since() == {}
        first = clock.now
        await store.enqueue([job(), job(queue="r"), job(delay=50_000)])
        clock.advance(5)
        await store.enqueue([job()])
        assert await store.waiting_since() == {"q": first, "r": first}
        await start_one(store)
        assert await store.waiting_since() == {"q": first + 5_000, "r": first}

    async def test_whose_turn_it_is_in_a_lane_waits_though_nobody_claims(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        first = clock.now
        await store.enqueue([job(lane=LanePlan("a")), job(lane=LanePlan("a"))])
        clock.advance(5)
        await store.enqueue([job(lane=LanePlan("b"), queue="r")])
        assert await store.waiting_since() == {"q": first, "r": first + 5_000}
        await start_one(store)
        assert await store.waiting_since() == {"r": first + 5_000}
        await store.enqueue([job(lane=LanePlan("a"))])
        assert await store.waiting_since() == {"r": first + 5_000}, "the slot of its lane is taken"

    async def test_a_store_exists_once_it_is_used(self, store: JobStore) -> None:
        await put(store, job())
        assert await store.exists()

    async def test_a_store_in_use_has_nothing_wrong_with_it(self, store: JobStore) -> None:
        await put(store, job(unique=Unique.coalesce()))
        first = await start_one(store)
        await put(store, job(unique=Unique.coalesce()))
        await go_on(store, first)
        wrong = [finding for finding in await store.checkup() if finding.level is Level.ERROR]
        assert wrong == []

    async def test_followers_are_listed_while_they_wait(self, store: JobStore) -> None:
        first = await put(store, job(unique=Unique.coalesce()))
        await start_one(store)
        second = await put(store, job(unique=Unique.coalesce()))
        assert await store.followers(ChainId(first.id)) == [second.id]
        assert await store.followers(ChainId(second.id)) == []

    async def test_nobody_delays_an_undisturbed_job(self, store: JobStore) -> None:
        waiting, done = await put(store, job()), await put(store, job())
        assert await store.delays(waiting.id) == []
        assert await store.undecided() == []
        await run(store)
        assert await store.delays(done.id) == []
        assert await store.delays(new_id()) == []
        assert await store.delays(JobId("no id")) == []

    async def test_looking_changes_nothing(self, store: JobStore, clock: FakeClock) -> None:
        made = await put(store, job(unique=Unique.once(), delay=5))
        clock.advance(1)
        before = await look(store, made.id)
        await store.jobs(JobFilter())
        await store.keys()
        await store.counts()
        await store.workers()
        await store.expired(10)
        assert await look(store, made.id) == before
