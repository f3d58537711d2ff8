"""Dead letters: a copy exists if and only if its original failed, and goes when either of the two is retried."""

from __future__ import annotations

import uuid

import pytest

from onejob.core.dead_letter import copy_id
from onejob.core.dedup import Unique
from onejob.core.filter import parse
from onejob.core.job import Claimed, Job, JobId, State
from onejob.core.judge import Outcome
from onejob.core.lifecycle import ENDING, MOVES, SETTLING, Lost, Move, Raised, Settlement, after_attempt
from onejob.core.options import JobOptions, encode_options
from onejob.store import Amended, Amendment, JobFilter, JobStore, Settled
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.steps import (
    AT_ONCE,
    LEASE,
    finish,
    job,
    look,
    put,
    start,
    start_one,
    started_ids,
    state_of,
    total,
)

OPTIONS = encode_options(JobOptions(timeout=5_000, dead_letter="dead"))
COPIED = encode_options(JobOptions(timeout=5_000))
RETRIES = (Amendment.RETRY, Amendment.RETRY_WITHOUT_KEY)


def letter_id(original: str) -> JobId:
    """The id under which a job's dead letter is found."""
    return JobId(str(uuid.UUID(bytes=copy_id(uuid.UUID(original).bytes))))


async def fail(store: JobStore, claimed: Claimed, error: str = "ValueError: no") -> Settled:
    """End an attempt for good, with a dead letter."""
    [settled] = (
        await store.settle([Settlement(claimed.lease, Move.FAIL, error=error, dead_letter="dead")])
    ).settled
    return settled


async def buried(
    store: JobStore, *, unique: Unique | None = None, error: str = "ValueError: no", queue: str = "q"
) -> tuple[Job, Job]:
    """A job that has failed, and its dead letter."""
    made = job(unique=unique, options=OPTIONS, queue=queue, priority=3)
    await put(store, made)
    [claimed] = await start(store, limit=1, queues=(queue,))
    assert claimed.id == made.id
    assert await fail(store, claimed, error) is Settled.DONE
    return await look(store, made.id), await look(store, letter_id(made.id))


async def amended(store: JobStore, id: str, amendment: Amendment) -> Amended:
    """Amend one job."""
    [answer] = await store.amend([JobId(id)], amendment)
    return answer


class TestDead:
    async def test_dead_letters_are_found_by_the_queue_of_their_originals(self, store: JobStore) -> None:
        _, copy = await buried(store)
        _, other = await buried(store, queue="r")
        for text, found in (
            ("origin:q", [copy.id]),
            ("origin:*", [other.id, copy.id]),
            ("origin:dead", []),
            ("origin:q,r queue:dead state:waiting error:valueerror", [other.id, copy.id]),
        ):
            assert [one.id for one in (await store.jobs(parse(text))).jobs] == found
            assert await store.count(parse(text)) == len(found)

    async def test_dead_letters_wait_for_a_person(self, store: JobStore) -> None:
        await buried(store)
        assert await store.waiting_since() == {}
        waiting = await put(store, job(queue="dead"))
        assert await store.waiting_since() == {"dead": (await look(store, waiting.id)).due}

    async def test_an_original_that_is_made_again_holds_the_key_that_still_names_it(
        self, store: JobStore
    ) -> None:
        unique = Unique.latest(failed="keep")
        original, copy = await buried(store, unique=unique)
        assert await amended(store, original.id, Amendment.DELETE) is Amended.DELETED
        assert await amended(store, copy.id, Amendment.RETRY) is Amended.RETRIED
        newcomer = job(unique=unique, payload=b'{"a":2}')
        answer = await put(store, newcomer)
        assert (answer.outcome, answer.id) == (Outcome.UPDATED, original.id)
        assert (await look(store, original.id)).payload == newcomer.payload
        await finish(store, await start_one(store))
        assert (await put(store, job(unique=unique))).outcome is Outcome.CREATED

    async def test_who_follows_an_original_that_is_made_again_starts_when_it_has_ended(
        self, store: JobStore
    ) -> None:
        unique = Unique.latest(failed="keep")
        original, copy = await buried(store, unique=unique)
        await amended(store, original.id, Amendment.DELETE)
        await amended(store, copy.id, Amendment.RETRY)
        claimed = await start_one(store)
        follower = await put(store, job(unique=unique))
        assert (claimed.id, (await look(store, follower.id)).follows) == (original.id, original.id)
        assert await started_ids(store) == []
        await finish(store, claimed)
        assert await started_ids(store) == [follower.id]

    async def test_a_failed_job_leaves_a_copy_that_waits_elsewhere(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        original, copy = await buried(store, unique=Unique.once(failed="keep"))
        assert (original.state, original.queue, original.origin) == (State.FAILED, "q", None)
        assert (copy.state, copy.queue, copy.due) == (State.WAITING, "dead", clock.now)
        assert (copy.origin, copy.origin_queue) == (original.id, "q")
        assert (copy.task, copy.payload, copy.priority, copy.error) == (
            original.task,
            original.payload,
            original.priority,
            "ValueError: no",
        )
        assert (copy.key, copy.digest, copy.plan, copy.follows) == (None, None, None, None)
        assert (copy.attempt, copy.failures, copy.crashes) == (0, 0, 0)
        assert (original.options, copy.options) == (OPTIONS, COPIED)

    async def test_without_a_dead_letter_nothing_is_copied(self, store: JobStore) -> None:
        await put(store, job())
        await finish(store, await start_one(store), Move.FAIL, error="no")
        assert await total(store) == 1

    @pytest.mark.parametrize("move", sorted(SETTLING))
    async def test_a_copy_exists_if_and_only_if_the_job_failed(
        self, store: JobStore, clock: FakeClock, move: Move
    ) -> None:
        await put(store, job(options=OPTIONS))
        claimed = await start_one(store)
        if MOVES[move].orphaned:
            clock.tick(LEASE)
        await store.settle([Settlement(claimed.lease, move, error="no", dead_letter="dead")])
        failed = await state_of(store, claimed.id) is State.FAILED
        assert failed == (ENDING.get(move) is State.FAILED)
        assert (await store.job(letter_id(claimed.id)) is not None) == failed

    async def test_a_flagged_job_that_fails_ends_revoked_without_a_copy(self, store: JobStore) -> None:
        await put(store, job(options=OPTIONS))
        claimed = await start_one(store)
        await amended(store, claimed.id, Amendment.REVOKE)
        assert await fail(store, claimed) is Settled.REVOKED
        assert await total(store) == 1

    async def test_a_late_worker_buries_nothing(self, store: JobStore, clock: FakeClock) -> None:
        await put(store, job(options=OPTIONS))
        late = await start_one(store)
        clock.tick(LEASE)
        await finish(store, late, Move.LOSE)
        again = await start_one(store, worker="other")
        assert await fail(store, late) is Settled.LOST
        assert await total(store) == 1
        await finish(store, again)
        assert await fail(store, again) is Settled.LOST
        assert await total(store) == 1

    async def test_a_job_whose_workers_are_lost_is_buried_by_its_own_options(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        await put(store, job(options=OPTIONS, max_crashes=0))
        await start_one(store)
        clock.tick(LEASE)
        [lost] = await store.expired(10)
        await store.settle([after_attempt(lost.job, Lost(lost.worker))])
        copy = await look(store, letter_id(lost.job.id))
        assert (copy.queue, copy.state) == ("dead", State.WAITING)
        assert (copy.error or "").startswith("Lost: ")

    async def test_any_worker_of_its_queue_may_run_a_copy_which_is_not_copied_again(
        self, store: JobStore
    ) -> None:
        original, copy = await buried(store)
        [claimed] = await start(store, queues=("dead",))
        assert (claimed.id, claimed.attempt, claimed.key) == (copy.id, 1, None)
        await store.settle([after_attempt(claimed, Raised("still no", attempts=1, retry_in=0))])
        seen = await look(store, copy.id)
        assert (seen.state, seen.error, seen.origin) == (State.FAILED, "still no", original.id)
        assert await total(store) == 2

    async def test_many_fail_in_one_batch(self, store: JobStore) -> None:
        await store.enqueue([job(options=OPTIONS) for _ in range(5)])
        started = await start(store)
        await store.settle(
            [Settlement(one.lease, Move.FAIL, error="no", dead_letter="dead") for one in started]
        )
        letters = await store.dead("q", 0, 10)
        assert [one.origin for one in letters] == [one.id for one in reversed(started)]


class TestRetryOfTheDead:
    @pytest.mark.parametrize("which", ["original", "copy"])
    @pytest.mark.parametrize("amendment", RETRIES)
    async def test_a_retry_of_either_revives_the_original_and_removes_the_copy(
        self, store: JobStore, clock: FakeClock, which: str, amendment: Amendment
    ) -> None:
        original, copy = await buried(store, unique=Unique.in_flight())
        clock.advance(1)
        chosen = original.id if which == "original" else copy.id
        assert await amended(store, chosen, amendment) is Amended.RETRIED
        seen = await look(store, original.id)
        assert (seen.state, seen.due, seen.failures, seen.key) == (State.WAITING, clock.now, 0, "k")
        assert await store.job(copy.id) is None
        assert await store.dead(None, 0, 10) == []
        assert await started_ids(store, queues=("q", "dead")) == [original.id]

    async def test_a_revived_job_that_fails_again_is_buried_again(self, store: JobStore) -> None:
        original, copy = await buried(store)
        await amended(store, copy.id, Amendment.RETRY)
        await fail(store, await start_one(store), "ValueError: never")
        assert (await look(store, copy.id)).error == "ValueError: never"
        assert [one.origin for one in await store.dead("q", 0, 10)] == [original.id]

    @pytest.mark.parametrize("which", ["original", "copy"])
    async def test_a_retry_is_kept_out_while_another_holds_the_key(self, store: JobStore, which: str) -> None:
        original, copy = await buried(store, unique=Unique.in_flight())
        other = await put(store, job(unique=Unique.in_flight()))
        chosen = original.id if which == "original" else copy.id
        assert await amended(store, chosen, Amendment.RETRY) is Amended.KEPT
        assert await state_of(store, original.id) is State.FAILED
        assert await look(store, copy.id) == copy
        assert await amended(store, chosen, Amendment.RETRY_WITHOUT_KEY) is Amended.RETRIED
        assert (await look(store, original.id)).key is None
        assert await store.job(copy.id) is None
        assert (await put(store, job(unique=Unique.in_flight()))).id == other.id

    @pytest.mark.parametrize("which", ["original", "copy"])
    async def test_while_the_copy_runs_neither_is_retried(self, store: JobStore, which: str) -> None:
        original, copy = await buried(store)
        [claimed] = await start(store, queues=("dead",))
        chosen = original.id if which == "original" else copy.id
        assert await amended(store, chosen, Amendment.RETRY) is Amended.RUNNING
        assert await state_of(store, original.id) is State.FAILED
        await finish(store, claimed)
        assert await amended(store, copy.id, Amendment.RETRY) is Amended.FINISHED

    @pytest.mark.parametrize("end", ["revoked", "failed"])
    async def test_a_copy_that_has_ended_without_success_may_still_be_retried(
        self, store: JobStore, end: str
    ) -> None:
        original, copy = await buried(store)
        if end == "revoked":
            await amended(store, copy.id, Amendment.REVOKE)
        else:
            [claimed] = await start(store, queues=("dead",))
            await finish(store, claimed, Move.FAIL)
        assert await amended(store, copy.id, Amendment.RETRY) is Amended.RETRIED
        assert await state_of(store, original.id) is State.WAITING
        assert await store.job(copy.id) is None

    @pytest.mark.parametrize("which", ["original", "copy"])
    async def test_an_original_that_is_gone_is_made_again(
        self, store: JobStore, clock: FakeClock, which: str
    ) -> None:
        original, copy = await buried(store, unique=Unique.in_flight())
        clock.advance(1)
        await store.prune(AT_ONCE, 100)
        assert await store.job(original.id) is None
        assert await look(store, copy.id) == copy
        other = await put(store, job(unique=Unique.in_flight()))
        chosen = original.id if which == "original" else copy.id
        assert await amended(store, chosen, Amendment.RETRY) is Amended.RETRIED
        seen = await look(store, original.id)
        assert (seen.state, seen.queue, seen.payload, seen.key) == (
            State.WAITING,
            "q",
            original.payload,
            None,
        )
        assert (seen.origin, seen.options, seen.due) == (None, OPTIONS, clock.now)
        assert await store.job(copy.id) is None
        assert set(await started_ids(store)) == {original.id, other.id}

    async def test_revoking_a_copy_leaves_the_original_alone(self, store: JobStore) -> None:
        original, copy = await buried(store)
        assert await amended(store, copy.id, Amendment.REVOKE) is Amended.REVOKED
        assert await look(store, original.id) == original
        assert await amended(store, original.id, Amendment.REVOKE) is Amended.FINISHED


class TestDeleteOfTheDead:
    async def test_deleting_a_copy_leaves_the_original(self, store: JobStore) -> None:
        original, copy = await buried(store)
        assert await amended(store, copy.id, Amendment.DELETE) is Amended.DELETED
        assert await look(store, original.id) == original
        assert await amended(store, copy.id, Amendment.RETRY) is Amended.NOT_FOUND
        assert await amended(store, original.id, Amendment.RETRY) is Amended.RETRIED

    async def test_deleting_the_original_leaves_the_copy_and_then_means_it(self, store: JobStore) -> None:
        original, copy = await buried(store)
        assert await amended(store, original.id, Amendment.DELETE) is Amended.DELETED
        assert await look(store, copy.id) == copy
        assert await amended(store, original.id, Amendment.DELETE) is Amended.DELETED
        assert await total(store) == 0
        assert await amended(store, original.id, Amendment.DELETE) is Amended.NOT_FOUND

    async def test_a_deleted_original_can_be_had_back(self, store: JobStore) -> None:
        original, copy = await buried(store)
        await amended(store, original.id, Amendment.DELETE)
        assert await amended(store, copy.id, Amendment.RETRY) is Amended.RETRIED
        assert await started_ids(store) == [original.id]


class TestListOfTheDead:
    async def test_dead_letters_are_listed_by_the_queue_they_come_from(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        made: list[Job] = []
        for queue in ("q", "r", "q", "q"):
            made.append((await buried(store, queue=queue))[1])
            clock.advance(1)
        first, other, second, third = made
        assert await store.dead("q", 0, 50) == [third, second, first]
        assert await store.dead("q", 1, 2) == [second]
        assert await store.dead("q", 3, 9) == await store.dead("q", 1, 1) == []
        assert await store.dead(None, 0, 50) == [third, second, other, first]
        assert await store.dead("dead", 0, 50) == []
        listed = await store.jobs(JobFilter(), 50)
        assert {one.id: one for one in listed.jobs}[first.id] == first

    async def test_what_has_been_dealt_with_is_not_listed(self, store: JobStore) -> None:
        _, ran = await buried(store)
        [claimed] = await start(store, queues=("dead",))
        assert [one.id for one in await store.dead("q", 0, 9)] == [ran.id]
        await finish(store, claimed)
        _, dropped = await buried(store)
        await amended(store, dropped.id, Amendment.REVOKE)
        assert await store.dead("q", 0, 9) == []
        assert await store.dead_errors("q") == []

    async def test_dead_letters_are_counted_by_the_first_line_of_their_error(
        self, store: JobStore, clock: FakeClock
    ) -> None:
        begun = clock.now
        letters: list[Job] = []
        for error in ("ValueError: no\n  a.py:1", "KeyError: 'x'", "ValueError: no\n  b.py:2"):
            letters.append((await buried(store, error=error))[1])
            clock.advance(1)
        await buried(store, queue="r", error="KeyError: 'x'")
        common, rare = await store.dead_errors("q")
        assert (common.error, common.count, common.sample) == ("ValueError: no", 2, letters[2].id)
        assert (common.first, common.last) == (begun, begun + 2_000)
        assert (rare.error, rare.count, rare.sample) == ("KeyError: 'x'", 1, letters[1].id)
        assert {(one.error, one.count) for one in await store.dead_errors(None)} == {
            ("ValueError: no", 2),
            ("KeyError: 'x'", 2),
        }
        assert len(await store.dead_errors(None, 1)) == 1

    async def test_a_dead_letter_absorbs_no_call(self, store: JobStore) -> None:
        original, _ = await buried(store, unique=Unique.in_flight())
        answer = await put(store, job(unique=Unique.in_flight()))
        assert (answer.outcome, answer.id == original.id) == (Outcome.CREATED, False)
