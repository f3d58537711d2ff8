"""Many jobs at once, chosen by a filter: listed, counted, retried, deleted, revoked."""

from __future__ import annotations

import pytest

from onejob import App, InvalidOption, JobFilter, State, Unique
from onejob.bulk import BATCH, amend_many
from onejob.store import Amended, Amendment
from onejob.testing import FakeClock, drain


def _fail(order: int) -> None:
    raise ValueError(f"no order {order}")


async def test_the_same_filter_lists_counts_and_retries(app: App) -> None:
    fail = app.task(name="shop.fail")(_fail)
    note = app.task(name="shop.note")(lambda: None)
    await app.aenqueue_many([fail.job(n) for n in range(5)])
    await note.aenqueue()
    await drain(app)
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


async def test_a_key_that_others_hold_is_reported_and_can_be_forced(app: App) -> None:
    fail = app.task(name="fail", unique=Unique.in_flight(by=()))(_fail)
    await fail.aenqueue(1)
    await drain(app)
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
    await drain(app)
    clock.advance(3600)
    await fail.aenqueue(2)
    await drain(app)
    assert [job.id for job in (await app.ajobs("state:failed older:1h")).jobs] == [old.id]
    assert [job.id for job in (await app.ajobs('error:"no order 1" ended:30m')).jobs] == [old.id]


async def test_a_page_needs_a_sensible_limit_and_a_real_cursor(app: App) -> None:
    for wrong in (0, -1, 10_001, True, "5"):
        with pytest.raises(InvalidOption, match="limit must be"):
            await app.ajobs(limit=wrong)  # type: ignore[arg-type]
    for cursor in ("", "x", "-1", 7):
        with pytest.raises(InvalidOption, match="cursor=…"):
            await app.ajobs(cursor=cursor)  # type: ignore[arg-type]
