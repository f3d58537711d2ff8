"""The words in which conformance tests speak: make a job, put it, start it, end it, look at it."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable

from onejob.core.dedup import Plan, Unique, compile_rules, forced
from onejob.core.identity import Realm, fingerprint, key_text
from onejob.core.job import ChainId, Claimed, Job, JobId, NewJob, State, WorkerId
from onejob.core.judge import Answer
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask, Beat, JobStore, Pulse, Retention, Settled

LEASE = 30_000
DAY = 24 * 3_600_000
AT_ONCE = Retention(completed=0, failed=0, revoked=0)

_numbers = itertools.count(1)
_salt = int.from_bytes(os.urandom(6), "big") << 76


def new_id() -> JobId:
    """An id of the kind clients make: a UUID of version 7, later ones greater."""
    number = _salt | 0x7 << 76 | 0x2 << 62 | next(_numbers)
    return JobId(str(uuid.UUID(int=number)))


def digest_of(key: str, *, queue: str = "q", task: str | None = "t") -> bytes:
    """The digest that `job(key=…)` gives its plan."""
    return Realm(queue, task).digest((key,))


def job(  # noqa: PLR0913 - one keyword for each thing a test may vary
    *,
    unique: Unique | None = None,
    key: str = "k",
    payload: bytes = b'{"v":1}',
    items: int = 0,
    force: bool = False,
    id: JobId | None = None,
    queue: str = "q",
    task: str = "t",
    priority: int = 0,
    delay: int = 0,
    expires: int | None = None,
    max_crashes: int = 3,
    options: bytes | None = None,
    caller: str | None = None,
    lane: LanePlan | None = None,
) -> NewJob:
    """A newcomer; with `unique` it claims `key`."""
    plan = None
    rules = None if unique is None else compile_rules(unique, app_window=None)
    if unique is not None and rules is not None:
        realm_task = None if unique.scope == "queue" else task
        plan = Plan(
            digest=digest_of(key, queue=queue, task=realm_task),
            text=key_text((key,)),
            rules=forced(rules) if force else rules,
            fingerprint=fingerprint(payload),
            items=items,
        )
    return NewJob(
        id=id or new_id(),
        queue=queue,
        task=task,
        payload=payload,
        plan=plan,
        priority=priority,
        delay=delay,
        expires=expires,
        max_crashes=max_crashes,
        options=options,
        caller=None if caller is None else ChainId(caller),
        lane=lane,
    )


async def put(store: JobStore, newcomer: NewJob) -> Answer:
    """Enqueue one job."""
    [answer] = await store.enqueue([newcomer])
    return answer


async def start(
    store: JobStore,
    *,
    limit: int = 100,
    worker: str = "w",
    queues: Iterable[str] = ("q",),
    lease: int = LEASE,
) -> list[Claimed]:
    """Claim what is due for a worker that beats first."""
    await beat(store, worker, lease)
    claims = await store.claim(Ask(WorkerId(worker), tuple(queues), limit))
    return claims.jobs


async def start_one(store: JobStore, *, worker: str = "w", lease: int = LEASE) -> Claimed:
    """Claim one job, which must be there."""
    started = await start(store, limit=1, worker=worker, lease=lease)
    assert len(started) == 1, "a job was expected to be due"
    return started[0]


async def started_ids(store: JobStore, *, worker: str = "w", queues: Iterable[str] = ("q",)) -> list[JobId]:
    """Claim everything that is due and name it."""
    return [claimed.id for claimed in await start(store, worker=worker, queues=queues)]


async def beat(store: JobStore, worker: str = "w", lease: int = LEASE) -> Pulse:
    """A sign of life."""
    return await store.beat(Beat(WorkerId(worker), lease))


async def finish(
    store: JobStore,
    claimed: Claimed,
    move: Move = Move.COMPLETE,
    *,
    delay: int = 0,
    result: bytes | None = None,
    error: str | None = None,
) -> Settled:
    """Settle one attempt."""
    reply = await store.settle([Settlement(claimed.lease, move, delay, result, error)])
    [settled] = reply.settled
    return settled


async def run(store: JobStore, move: Move = Move.COMPLETE) -> Claimed:
    """Start one job and end its attempt."""
    claimed = await start_one(store)
    assert await finish(store, claimed, move) is Settled.DONE
    return claimed


async def look(store: JobStore, id: str) -> Job:
    """A job that must be there."""
    found = await store.job(JobId(id))
    assert found is not None, f"job {id} is gone"
    return found


async def state_of(store: JobStore, id: str) -> State:
    """Where a job stands."""
    return (await look(store, id)).state


async def total(store: JobStore) -> int:
    """How many jobs there are, in whatever state."""
    return sum(sum(states.values()) for states in (await store.counts()).values())
