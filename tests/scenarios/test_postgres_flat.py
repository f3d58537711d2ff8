"""Whatever lies in the tables, an operation reads only what it deals with: by plans made for them as they are, and by plans
that were made while they were empty, which connections keep.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from interleaving import COALESCE, LANE, LATEST, ONCE, RESTART
from plans import growing
from servers.stepping import Play, Session

from onejob.core.chain import continuation_id
from onejob.core.dedup import Unique
from onejob.core.job import ChainId, Claimed, JobId, Lease, NewJob, WorkerId
from onejob.core.lane import LanePlan, QueueChange, Rate
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Amendment, Ask, Beat, JobFilter, Retention
from onejob.stores.postgres import beating, inspect, limits, scheduling, settle
from onejob.stores.postgres.steps import Steps
from onejob.testing.conformance.schedules import schedule
from onejob.testing.conformance.steps import digest_of, job, put, start

pytestmark = pytest.mark.timeout(120)
CROWD = 20_000
"""So many jobs of each kind, and of keys and lanes."""
BATCH = 20
READS = 1_500
"""Rows and entries of indexes that an operation on one batch may read, in all tables together."""
WISH = Ask(WorkerId("w"), ("q",), BATCH)
DEBOUNCE = Unique.debounce(60)
RATED = LanePlan("rated", rate=Rate(5, 60_000))
WAITING_IN = "case n % 4 when 0 then 'crowd' when 1 then 'limited' else 'q' end"
Operation = Callable[[Session], Awaitable[object]]

_READ = """
select sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid))::bigint
from pg_class c
where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'i')
"""


def looking(look: Callable[..., Steps[object]], *given: object) -> Operation:
    """An operation by its generator."""
    return lambda session: session.act(lambda work: look(work, *given)).done()


async def prepared(play: Play) -> dict[str, Operation]:
    """The operations, on jobs that are made for them."""
    store = play.store
    await store.enqueue([job(unique=ONCE, key=f"kept {number}") for number in range(BATCH)])
    await put(store, job(unique=LATEST, key="latest"))
    bare, keyed = [
        await _started(
            play, queue, [job(queue=queue, unique=unique, key=f"{queue} {number}") for number in range(BATCH)]
        )
        for queue, unique in (("bare", None), ("keyed", ONCE))
    ]
    [revoked, *_] = await _started(play, "revoked", [job(queue="revoked")])
    await store.enqueue([job(queue="lanes", lane=LanePlan(f"lane {number}")) for number in range(BATCH)])
    await store.enqueue([job(queue="rates", lane=RATED) for _ in range(BATCH)])
    await put(store, job(queue="due", delay=1))
    await store.set_queue("limited", QueueChange(concurrency=BATCH, rate=Rate(BATCH, per=60)))
    await store.enqueue([job(queue="limited") for _ in range(BATCH)])
    await store.enqueue([job(priority=9) for _ in range(BATCH)])
    await put(store, job(unique=RESTART, key="restart"))
    await put(store, job(unique=DEBOUNCE, key="debounce"))
    awaited, failing = [await _started(play, queue, [job(queue=queue)]) for queue in ("awaited", "failing")]
    waits = msgspec.structs.replace(job(queue="after"), blockers=(awaited[0].id,))
    await put(store, waits)
    await store.put_schedules([schedule(play.clock)])
    play.clock.advance(11)

    def settling(jobs: list[Claimed], move: Move, **settings: Any) -> Operation:
        done = [Settlement(one.lease, move, **settings) for one in jobs]
        return lambda session: session.act(lambda work: settle.settle(work, done, WISH, os.urandom(8))).done()

    def goes_on(one: Claimed) -> NewJob:
        return job(id=continuation_id(ChainId(one.id), 1), queue="chain")

    ends = [Settlement(one.lease, Move.COMPLETE, then=goes_on(one)) for one in bare]
    stale = [Claimed(Lease(one.id, b"stale"), *_rest(one)) for one in bare]
    return {
        "one job": lambda session: session.enqueue(job()).done(),
        "many jobs": lambda session: session.enqueue(*(job() for _ in range(BATCH))).done(),
        "a new key": lambda session: session.enqueue(job(unique=ONCE, key="new")).done(),
        "many new keys": lambda session: session.enqueue_many(
            *(job(unique=ONCE, key=f"new {number}") for number in range(BATCH))
        ).done(),
        "many keys with care": lambda session: session.enqueue(
            *(job(unique=COALESCE, key=f"new {number}") for number in range(BATCH))
        ).done(),
        "many kept": lambda session: session.enqueue_many(
            *(job(unique=ONCE, key=f"kept {number}") for number in range(BATCH)), repetitive=True
        ).done(),
        "an update": lambda session: session.enqueue(job(unique=LATEST, key="latest", payload=b"2")).done(),
        "a restart": lambda session: session.enqueue(job(unique=RESTART, key="restart")).done(),
        "a postponement": lambda session: session.enqueue(job(unique=DEBOUNCE, key="debounce")).done(),
        "jobs of a lane": lambda session: session.enqueue(job(lane=LANE), job(lane=LANE)).done(),
        "a claim": lambda session: session.claim(limit=BATCH).done(),
        "a claim where nothing is": lambda session: session.claim(queues=("nothing",)).done(),
        "a claim of what is due": lambda session: session.claim(queues=("due",)).done(),
        "a claim in lanes": lambda session: session.claim(queues=("lanes",)).done(),
        "a claim in a lane with a rate": lambda session: session.claim(queues=("rates",)).done(),
        "a claim within limits": lambda session: session.claim(queues=("limited",), limit=BATCH).done(),
        "a claim of several queues": lambda session: session.claim(
            queues=("nothing", "q"), limit=BATCH
        ).done(),
        "schedules that are due": looking(scheduling.due, BATCH),
        "ends of chains that go on": lambda session: session.act(
            lambda work: settle.settle(work, ends, WISH, os.urandom(8))
        ).done(),
        "an end that somebody waits for": settling(awaited, Move.COMPLETE),
        "a dead letter": settling(failing, Move.FAIL, dead_letter="dead"),
        "bare ends": settling(bare, Move.COMPLETE),
        "ends of keys": settling(keyed, Move.COMPLETE),
        "retries": settling(bare, Move.RETRY, delay=1_000),
        "lost ends": settling(stale, Move.COMPLETE),
        "a beat": looking(beating.beat, Beat(WorkerId("bare"), 10_000)),
        "a look for lost workers": looking(beating.expired, BATCH),
        "a revocation": lambda session: session.amend(revoked.id, Amendment.REVOKE).done(),
        "a deletion": lambda session: session.amend(revoked.id, Amendment.DELETE).done(),
        "pruning": lambda session: session.prune(Retention(0, 0, 0), BATCH).done(),
        "pruning of nothing": lambda session: session.prune(Retention(10**9, 10**9, 10**9), BATCH).done(),
    }


def looks(id: JobId) -> dict[str, Operation]:
    """What people ask for."""
    return {
        "a job": looking(inspect.job, id),
        "the end of a chain": looking(inspect.last, id),
        "a key": looking(inspect.key, digest_of("kept 1")),
        "a page of jobs": looking(inspect.jobs, JobFilter(), BATCH, None),
        "a lane": looking(limits.lane, "lanes", "lane 1"),
        "dead letters": looking(inspect.dead, "buried", 0, BATCH),
        "followers": looking(inspect.followers, id),
        "blocked": looking(inspect.blocked, id, BATCH),
    }


@pytest.mark.parametrize("known", [False, True], ids=["never analysed", "analysed while nearly empty"])
async def test_no_operation_reads_what_it_does_not_deal_with(new_postgres_url: str, known: bool) -> None:
    async with Play(new_postgres_url) as play:
        # In a schema of its own: what the planner knows of one that others used before is anybody's guess.
        operations, user = await prepared(play), await play.user()
        if known:
            await analyse(play, user)
        old = await play.ours()
        await reads(play, old, operations)
        await crowd(play)
        by_old_plans = await reads(play, old, operations)
        await analyse(play, user)
        [seen] = (await play.store.jobs(JobFilter(), 1)).jobs
        found = await reads(play, await play.ours(), operations)
        found |= await reads(play, await play.reader(), looks(seen.id))
        assert (_many(found), _many(by_old_plans)) == ({}, {})
        assert growing(play.url, play.address.schema) == {}
        await user.execute(f"drop index {play.address.schema}.job_waiting")
        without = await reads(play, await play.ours(), {"a claim": operations["a claim"]})
        assert _many(without) != {}, "so it would be seen"
        assert growing(play.url, play.address.schema, ("claim.start",)) != {}


async def analyse(play: Play, user: Session) -> None:
    """Let the planner know what there is."""
    tables = (
        "job",
        "key",
        "lane",
        "touch",
        "start",
        "blocker",
        "recheck",
        "flag",
        "worker",
        "queue",
        "schedule",
    )
    await user.execute(f"analyze {', '.join(f'{play.address.schema}.{table}' for table in tables)}")


async def reads(play: Play, session: Session, operations: dict[str, Operation]) -> dict[str, int]:
    """How many rows and entries each operation reads; it is undone afterwards."""
    found: dict[str, int] = {}
    for name, operation in operations.items():
        session.guesses.burden = 0
        await session.begin()
        [(before,)] = await session.execute(_READ, play.address.schema)
        await operation(session)
        [(after,)] = await session.execute(_READ, play.address.schema)
        await session.rollback()
        found[name] = after - before
    return found


def _many(found: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in found.items() if count > READS}


async def crowd(play: Play) -> None:
    """Make many of everything: copies of jobs that the store wrote itself."""
    user = await play.user()
    schema = play.address.schema
    await put(play.store, job(queue="crowd"))
    await put(play.store, job(queue="crowd", delay=10**9))
    await put(play.store, job(queue="crowd", unique=ONCE, key="crowd"))
    await put(play.store, job(queue="crowd of lanes", lane=LANE))
    await start(play.store, queues=("crowd of lanes",))
    [ended] = await _started(play, "ended", [job(queue="ended")])
    [failed] = await _started(play, "failed", [job(queue="failed")])
    await play.store.settle([Settlement(ended.lease, Move.COMPLETE), Settlement(failed.lease, Move.FAIL)])
    columns = [
        name
        for (name,) in await user.execute(
            "select attname::text from pg_attribute where attrelid = $1::regclass and attnum > 0 and attidentity = ''",
            f"{schema}.job",
        )
    ]
    for kind, new in (
        ("state = 'waiting' and digest is null", {"queue": WAITING_IN, "priority": "n % 3"}),
        ("state = 'delayed'", {"due": "due + n"}),
        ("key is not null", {"digest": "decode(md5(n::text), 'hex')"}),
        ("lane is not null", {"lane": "n::text"}),
        ("state = 'completed'", {"ended": "ended - n"}),
        (
            "state = 'failed'",
            {"ended": "ended - n", "origin_queue": "'buried'", "origin": "md5(n::text)::uuid"},
        ),
    ):
        copied = {"id": "md5(state || coalesce(lane, key, '') || n)::uuid", **new}
        values = ", ".join(copied.get(name, name) for name in columns)
        await user.execute(
            f"insert into {schema}.job ({', '.join(columns)}) select {values} "
            f"from (select * from {schema}.job where {kind} and queue in ('crowd', 'crowd of lanes', 'ended', 'failed') limit 1) j, "
            f"generate_series(1, {CROWD}) n"
        )
    await user.execute(
        f"insert into {schema}.key (digest, text, queue, task, holder, generation, since) "
        f"select digest, key, queue, task, id, 1, since from {schema}.job j "
        f"where queue = 'crowd' and key is not null on conflict do nothing"
    )
    await user.execute(
        f"insert into {schema}.lane (queue, key, concurrency, hold) "
        f"select queue, lane, 1, false from {schema}.job where queue = 'crowd of lanes' on conflict do nothing"
    )
    # Chains that go on, who waits for others, and schedules of which none is due.
    await user.execute(
        f"update {schema}.job set chain = md5('chain' || seq)::uuid, chain_index = 1 where queue = 'ended' and chain is null"
    )
    await user.execute(
        f"insert into {schema}.blocker (job, place, chain, needed, live) "
        f"select md5('waits' || n)::uuid, 0, md5('chain' || n % 100)::uuid, true, true from generate_series(1, {CROWD}) n"
    )
    await user.execute(
        f"insert into {schema}.schedule (id, definition, declared, paused, since, next, fired, updated, revision) "
        f"select 'other ' || n, definition, declared, n % 2 = 0, since, next + 10000000000 * (n % 2), 0, updated, 1 "
        f"from {schema}.schedule, generate_series(1, {CROWD}) n"
    )
    await user.execute(
        f"insert into {schema}.touch (queue, lane) select 'crowd of lanes', n::text from generate_series(1, {CROWD}) n"
    )
    # In the queue whose rates are looked at: lanes with a rate of their own, and starts that theirs count.
    await user.execute(
        f"insert into {schema}.lane (queue, key, concurrency, rate_max, rate_per, hold) "
        f"select 'rates', 'other ' || n, 1, 10000, 60000, false from generate_series(1, {CROWD}) n"
    )
    await user.execute(
        f"insert into {schema}.start (queue, lane, at, job, lease) "
        f"select 'rates', 'other ' || n % 100, {play.clock()}, md5('start' || n)::uuid, ''::bytea "
        f"from generate_series(1, {CROWD}) n"
    )


async def _started(play: Play, queue: str, jobs: list[NewJob]) -> list[Claimed]:
    await play.store.enqueue(jobs)
    return await start(play.store, queues=(queue,), worker=queue)


def _rest(claimed: Claimed) -> list[object]:
    return [getattr(claimed, name) for name in claimed.__struct_fields__[1:]]
