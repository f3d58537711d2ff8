"""Which jobs a filter finds: listed and counted alike, by every term of the grammar."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

from onejob.core.dedup import Unique
from onejob.core.filter import JobFilter, parse
from onejob.core.job import Claimed, JobId, NewJob
from onejob.core.lifecycle import Move
from onejob.core.options import JobOptions, encode_options
from onejob.store import JobStore
from onejob.testing.clock import FakeClock
from onejob.testing.conformance.chains import chain_of_two
from onejob.testing.conformance.steps import finish, job, put, start_one


class TestFilter:
    async def test_an_empty_filter_finds_everything_and_an_empty_field_nothing(self, store: JobStore) -> None:
        made = [job(), job(queue="r")]
        await store.enqueue(made)
        assert await _found(store, JobFilter()) == _newest_first(made)
        for nothing in (
            JobFilter(states=frozenset()),
            JobFilter(queues=frozenset()),
            JobFilter(origins=frozenset()),
            JobFilter(tasks=frozenset()),
            JobFilter(keys=frozenset()),
            JobFilter(chains=frozenset()),
            JobFilter(ids=frozenset()),
            JobFilter(schedules=frozenset()),
            JobFilter(errors=frozenset()),
        ):
            assert await _found(store, nothing) == []

    async def test_names_match_whole_or_by_a_star(self, store: JobStore) -> None:
        mail, mails, plain = job(queue="mail"), job(queue="mail-2"), job(queue="q")
        await store.enqueue([mail, mails, plain])
        assert await _found(store, "queue:mail") == [mail.id]
        assert await _found(store, "queue:mail*") == [mails.id, mail.id]
        assert await _found(store, "queue:q,mail") == [plain.id, mail.id]
        assert await _found(store, "queue:Mail") == []

    async def test_a_task_may_be_named_without_its_module(self, store: JobStore) -> None:
        own, other, near = job(task="shop.sync"), job(task="sync"), job(task="shop.resync")
        await store.enqueue([own, other, near])
        assert await _found(store, "task:sync") == [other.id, own.id]
        assert await _found(store, "task:shop.sync") == [own.id]
        assert await _found(store, JobFilter(tasks=frozenset({"sync"}))) == [other.id]

    async def test_states_and_keys_take_alternatives(self, store: JobStore) -> None:
        first, second = job(unique=Unique.once(), key="a,b"), job(unique=Unique.once(), key="c d")
        delayed = job(delay=9)
        await store.enqueue([first, second, delayed])
        await finish(store, await start_one(store))
        assert await _found(store, "state:completed") == [first.id]
        assert await _found(store, "state:completed,delayed") == [delayed.id, first.id]
        assert await _found(store, "state:queued") == [delayed.id, second.id]
        assert await _found(store, "state:live,ended") == [delayed.id, second.id, first.id]
        assert await _found(store, 'key:"a,b","c d"') == [second.id, first.id]
        assert await _found(store, "key:a") == []

    async def test_ids_match_from_their_beginning(self, store: JobStore) -> None:
        first, second = _job("01980000-0000-7000"), _job("01980000-0000-7001")
        third = _job("0198ffff-0000-7000")
        await store.enqueue([first, second, third])
        assert await _found(store, f"id:{first.id}") == [first.id]
        assert await _found(store, "id:01980000") == [second.id, first.id]
        assert await _found(store, "id:01980000-0000-7001") == [second.id]
        assert await _found(store, "id:0198FFF,019800000000700180") == [third.id, second.id]
        assert await _found(store, "id:aaaaaaaa") == []

    async def test_a_chain_is_found_by_its_id(self, store: JobStore) -> None:
        chain, second = await chain_of_two(store)
        lone = await put(store, job())
        assert await _found(store, f"chain:{chain}") == [second.id, chain]
        assert await _found(store, f"chain:{chain[:30]} state:running") == [second.id]
        assert await _found(store, f"chain:{lone.id},{chain}") == [lone.id, second.id, chain]
        assert await _found(store, f"chain:{second.id}") == [], "a continuation is not a chain"

    async def test_a_schedules_jobs_are_found_by_its_id(self, store: JobStore) -> None:
        daily, daily_besides = _scheduled("daily", 7), _scheduled("daily", None)
        weekly, near = _scheduled("weekly", 7), _scheduled("daily-2", 7)
        unreadable = job(options=b'{"schedule":"daily"')
        await store.enqueue([daily, daily_besides, weekly, near, job(), unreadable])
        assert await _found(store, "schedule:daily") == [daily_besides.id, daily.id]
        assert await _found(store, "schedule:daily*") == [near.id, daily_besides.id, daily.id]
        assert await _found(store, "schedule:weekly,daily-2 state:waiting") == [near.id, weekly.id]
        assert await _found(store, "schedule:*") == _newest_first([daily, daily_besides, weekly, near])
        assert await _found(store, "schedule:Daily") == []

    async def test_errors_match_by_a_part_in_any_case(self, store: JobStore) -> None:
        await store.enqueue([job(), job()])
        timeout, other = await start_one(store), await start_one(store)
        await finish(store, timeout, Move.FAIL, error="TimeoutError: 100% over\nTraceback …")
        await finish(store, other, Move.FAIL, error="ValueError: no_such order")
        assert await _found(store, "error:timeout") == [timeout.id]
        assert await _found(store, 'error:"100% OVER"') == [timeout.id]
        assert await _found(store, "error:noXsuch,%") == [timeout.id]
        assert await _found(store, "error:timeout,no_such") == _newest_first([timeout, other])

    async def test_arguments_match_by_their_text(self, store: JobStore) -> None:
        first = await _put(store, b'{"user_id":7,"tags":["red","blue"],"at":{"x":[1,{"y":2.5}]},"on":true}')
        second = await _put(
            store, b'{"user_id":"7","tags":[],"big":123456789012345678901234567890,"none":null}'
        )
        assert await _found(store, "args.user_id:7") == [second, first]
        assert await _found(store, "args.user_id:7 args.on:true") == [first]
        assert await _found(store, "args.tags:blue") == [first]
        assert await _found(store, "args.tags[0]:red,green") == [first]
        assert await _found(store, "args.tags[0]:blue") == []
        assert await _found(store, "args.at.x[1].y:2.5") == [first]
        assert await _found(store, "args.at:1") == []
        assert await _found(store, "args.big:123456789012345678901234567890") == [second]
        assert await _found(store, "args.none:null") == [second]
        assert await _found(store, "args.missing:null") == []

    async def test_collected_and_compressed_arguments_are_found(self, store: JobStore) -> None:
        collected = await _put(store, b'{"items":[1]}\n{"items":[2]}')
        packed = await _put(store, gzip.compress(b'{"items":[3]}'))
        await _put(store, b"\x80\x04not a payload")
        await _put(store, gzip.compress(b'{"items":[3]}')[:-9])
        assert await _found(store, "args.items:2") == [collected]
        assert await _found(store, "args.items:3") == [packed]

    async def test_ages_are_measured_on_the_stores_clock(self, store: JobStore, clock: FakeClock) -> None:
        old = await put(store, job())
        clock.advance(60)
        new = await put(store, job())
        assert await _found(store, "older:1m") == [old.id]
        assert await _found(store, "newer:1m") == [new.id]
        assert await _found(store, "older:59s") == [old.id]
        assert await _found(store, "older:0s newer:61s") == [new.id, old.id]
        await finish(store, await start_one(store))
        assert await _found(store, "ended:1s") == []
        clock.advance(1)
        assert await _found(store, "ended:1s") == [old.id]

    async def test_pages_of_a_filter_leave_nothing_out(self, store: JobStore) -> None:
        made = [job(queue=queue) for queue in "qrqrqrqrq"]
        await store.enqueue(made)
        seen: list[JobId] = []
        cursor: str | None = None
        while True:
            page = await store.jobs(parse("queue:q"), 2, cursor)
            seen += [found.id for found in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == [newcomer.id for newcomer in reversed(made) if newcomer.queue == "q"]


async def _found(store: JobStore, wanted: str | JobFilter) -> list[JobId]:
    """What a filter lists, which is also what it counts."""
    filter = parse(wanted) if isinstance(wanted, str) else wanted
    listed = [found.id for found in (await store.jobs(filter)).jobs]
    assert await store.count(filter) == len(listed)
    return listed


async def _put(store: JobStore, payload: bytes) -> JobId:
    return (await put(store, job(payload=payload))).id


def _scheduled(schedule: str, slot: int | None) -> NewJob:
    return job(options=encode_options(JobOptions(schedule=schedule, slot=slot)))


def _job(beginning: str) -> NewJob:
    return job(id=JobId(f"{beginning}-8000-000000000001"))


def _newest_first(jobs: Sequence[NewJob | Claimed]) -> list[JobId]:
    return [one.id for one in reversed(jobs)]
