"""Many jobs at once, chosen by a filter: listed, counted, retried, deleted, revoked."""

from __future__ import annotations

from typing import Any, cast

import pytest

from onejob import App, InvalidOption, JobFilter, Receipt, State, Unique
from onejob.bulk import BATCH, affected, amend_many
from onejob.store import Amended, Amendment, JobStore, Page
from onejob.testing import FakeClock, adrain


def _fail(order: int) -> None:
    raise ValueError(f"no order {order}")


async def test_the_same_filter_lists_counts_and_retries(app: App) -> None:
    fail = app.task(name="shop.fail")(_fail)
    note = app.task(name="shop.note")(lambda: None)
    await app.aenqueue_many([fail.job(n) for n in range(5)])
    await note.aenqueue()
    await adrain(app)
    wanted = "state:failed task:fail args.order:1,3"
    assert await app.acount(wanted) == 2
    assert {job.payload for job in (await app.ajobs(wanted)).jobs} == {b'{"order":1}', b'{"order":3}'}
    assert await app.aretry_many(wanted) == {Amended.RETRIED: 2}
    assert await app.acount("state:waiting") == 2
    assert await app.acount(JobFilter(states=frozenset({State.FAILED}))) == 3


async def test_sync_code_has_the_same(make_app) -> None:
    import asyncio

    def in_a_thread() -> None:
        app = make_app()
        fail = app.task(name="fail")(_fail)
        app.enqueue_many([fail.job(n) for n in range(3)])
        assert app.count() == 3
        assert app.revoke_many("task:fail args.order:0") == {Amended.REVOKED: 1}
        assert app.delete_many("state:queued") == {Amended.DELETED: 2}
        assert app.retry_many("state:revoked") == {Amended.RETRIED: 1}

    await asyncio.to_thread(in_a_thread)


async def test_revoked_jobs_come_back_only_when_asked_for(app: App) -> None:
    fail = app.task(name="fail")(_fail)
    receipt = await fail.aenqueue(1)
    await app.arevoke(receipt)
    assert await app.aretry_many("task:fail") == {}
    assert await app.aretry_many("state:revoked") == {Amended.RETRIED: 1}


async def test_who_waits_for_others_is_retried_after_them(app: App) -> None:
    fail, add_up = app.task(name="fail")(_fail), app.task(name="add_up")(lambda: None)
    parts = [await fail.aenqueue(n) for n in range(2)]
    sums = [await add_up.using(blockers=parts).aenqueue()]
    sums += [await add_up.using(blockers=sums).aenqueue()]
    await adrain(app)
    assert await app.aretry_many("task:add_up") == {Amended.STRANDED: 2}
    assert await app.aretry_many("state:failed") == {Amended.RETRIED: 4}
    assert [(await app.ajob(one.id)).state for one in sums] == [State.BLOCKED] * 2


async def test_a_key_that_others_hold_is_reported_and_can_be_forced(app: App) -> None:
    fail = app.task(name="fail", unique=Unique.in_flight(by=()))(_fail)
    await fail.aenqueue(1)
    await adrain(app)
    await fail.aenqueue(2)
    assert await app.aretry_many("state:failed") == {Amended.KEPT: 1}
    assert await app.aretry_many("state:failed", force=True) == {Amended.RETRIED: 1}


async def test_each_job_is_changed_once_however_many_batches_it_takes(app: App) -> None:
    fail = app.task(name="fail")(_fail)
    total = 2 * BATCH + 1
    await app.aenqueue_many([fail.job(n) for n in range(total)])
    batches: list[int] = []
    outcomes = await amend_many(app.store, "state:live", Amendment.REVOKE, on_batch=batches.append)
    assert outcomes == {Amended.REVOKED: total}
    assert batches == [BATCH, BATCH, 1]
    assert await app.aretry_many("state:revoked") == {Amended.RETRIED: total}
    assert await app.adelete_many("state:waiting") == {Amended.DELETED: total}
    assert await app.acount() == 0


@pytest.mark.parametrize("text", ["", "  "])
async def test_an_empty_text_changes_nothing(app: App, text: str) -> None:
    fail = app.task(name="fail")(_fail)
    await fail.aenqueue(1)
    for change in (app.aretry_many, app.adelete_many, app.arevoke_many):
        with pytest.raises(InvalidOption, match="every job there is"):
            await change(text)
    assert await app.acount(text) == 1
    assert await app.adelete_many(JobFilter()) == {Amended.DELETED: 1}


async def test_old_failed_jobs_are_found_by_age(app: App, clock: FakeClock) -> None:
    fail = app.task(name="fail")(_fail)
    old = await fail.aenqueue(1)
    await adrain(app)
    clock.advance(3600)
    await fail.aenqueue(2)
    await adrain(app)
    assert [job.id for job in (await app.ajobs("state:failed older:1h")).jobs] == [old.id]
    assert [job.id for job in (await app.ajobs('error:"no order 1" ended:30m')).jobs] == [old.id]


async def test_a_page_needs_a_sensible_limit_and_a_real_cursor(app: App) -> None:
    for wrong in (0, -1, 10_001, True, "5"):
        with pytest.raises(InvalidOption, match="limit must be"):
            await app.ajobs(limit=wrong)  # type: ignore[arg-type]
    for cursor in ("", "x", "-1", 7):
        with pytest.raises(InvalidOption, match="cursor=…"):
            await app.ajobs(cursor=cursor)  # type: ignore[arg-type]


class Reviving:
    """A store in which somebody revives a job between the look at it and the change."""

    def __init__(self, app: App, job: Receipt[None]) -> None:
        self._app, self._job = app, job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app.store, name)

    async def jobs(self, *arguments: Any) -> Page:
        found = await self._app.store.jobs(*arguments)
        await self._app.aretry(self._job)
        return found


async def test_a_job_that_was_revived_in_between_is_not_deleted(app: App) -> None:
    fail = app.task(name="fail")(_fail)
    revived, _ = [await fail.aenqueue(n) for n in (1, 2)]
    await adrain(app)
    store = cast("JobStore", Reviving(app, revived))
    assert await amend_many(store, "state:failed", Amendment.DELETE) == {Amended.MOVED: 1, Amended.DELETED: 1}
    job = await app.ajob(revived)
    assert job is not None
    assert job.state is State.WAITING


@pytest.mark.parametrize(
    "text", ["queue:mail-dead", "origin:mail", "origin:mail state:waiting", "queue:mail*"]
)
async def test_dead_letters_are_retried_where_a_filter_names_them(app: App, text: str) -> None:
    fail = app.task(name="fail", queue="mail", dead_letter="mail-dead")(_fail)
    lost, kept = [await fail.aenqueue(n) for n in (1, 2)]
    other = await app.task(name="other", dead_letter="other-dead")(_fail).aenqueue(3)
    await adrain(app)
    if text != "queue:mail*":
        await app.adelete(lost)
    assert await app.aretry_many(text) == {Amended.RETRIED: 2}
    for receipt, state in ((lost, State.WAITING), (kept, State.WAITING), (other, State.FAILED)):
        job = await app.ajob(receipt)
        assert job is not None
        assert job.state is state
    assert [letter.origin for letter in await app.adead()] == [other.id]


async def test_without_their_queue_dead_letters_are_meant_by_their_originals(app: App) -> None:
    fail = app.task(name="fail", queue="mail", dead_letter="mail-dead")(_fail)
    await fail.aenqueue(1)
    await adrain(app)
    assert [await app.acount(part) for part in affected("error:order", Amendment.RETRY)] == [1]
    assert await app.aretry_many("error:order") == {Amended.RETRIED: 1}
    assert await app.adead() == []


async def test_a_dead_letter_that_was_dealt_with_is_not_retried(app: App) -> None:
    fail = app.task(name="fail", queue="mail", dead_letter="mail-dead")(_fail)
    receipt = await fail.aenqueue(1)
    await adrain(app)
    [letter] = await app.adead()
    await app.arevoke(letter.id)
    assert await app.aretry_many("queue:mail-dead") == {}
    assert await app.aretry_many("origin:mail") == {}
    assert await app.aretry_many("origin:mail state:revoked") == {Amended.RETRIED: 1}
    job = await app.ajob(receipt)
    assert job is not None
    assert job.state is State.WAITING
