"""prune, release, set_queue, and the counts of absorbed duplicates: what keepers and operators do to whole queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from onejob.core.job import JobId
from onejob.core.lane import QueueChange, QueueLimits
from onejob.sql.ids import id_from_bytes
from onejob.sql.lanes import limits_of
from onejob.store import Pruned, Retention
from onejob.stores.valkey.bounds import PORTION
from onejob.stores.valkey.office import DESK, Delivered, Office, portions
from onejob.stores.valkey.wire import blob, id_blob

DEAD_WORKER_KEPT: Final = 24 * 3600_000


async def prune(office: Office, retention: Retention, limit: int, now: int) -> Pruned:
    """Remove what has been kept long enough; see `Store.prune`."""
    before = (now - retention.completed, now - retention.failed, now - retention.revoked)
    jobs = keys = gone = 0
    for queue in await office.queues():
        left = limit
        while left > 0:
            delivered, some = Delivered(), min(left, PORTION)
            removed, forgotten, expired, cut = await office.call(
                "prune", queue, (*before, some), now=now, delivered=delivered
            )
            jobs += removed + delivered.dropped
            keys += forgotten
            gone += expired
            done = max(removed, forgotten, expired)
            left = left - done if cut or done >= some else 0
    workers = await _forget_workers(office, now)
    return Pruned(jobs, keys, workers, gone, more=max(jobs, keys, gone) >= limit)


async def release(office: Office, digest: bytes, holder: JobId | None) -> JobId | None:
    """Make a key vacant; see `Store.release`. A digest does not say its queue."""
    seen = False if holder is None else id_blob(holder)
    for queue in await office.queues():
        raw = await office.call("release", queue, (blob(digest), seen))
        if raw is not None:
            return id_from_bytes(raw)
    return None


async def set_queue(office: Office, queue: str, change: QueueChange) -> QueueLimits:
    """Change a queue's limits; see `Store.set_queue`."""
    await office.register([queue])
    rate = "drop" if change.remove_rate else "keep" if change.rate is None else "set"
    paused = "keep" if change.paused is None else "yes" if change.paused else "no"
    row = await office.call(
        "set_queue",
        queue,
        (
            False if change.concurrency is None else change.concurrency,
            rate,
            0 if change.rate is None else change.rate.max,
            0 if change.rate is None else change.rate.window,
            paused,
        ),
    )
    return limits_of(*row)


async def count_absorbed(office: Office, queue: str, counts: Iterable[tuple[bytes, str, int, int]]) -> None:
    """Add duplicates to the counts of their keys: digest, holder, how many, how many with other arguments."""
    rows = [
        (blob(digest), id_blob(holder), absorbed, differing) for digest, holder, absorbed, differing in counts
    ]
    for some in portions(rows):
        await office.call("absorb", queue, some)


async def _forget_workers(office: Office, now: int) -> int:
    """Forget workers that are long dead and hold no job; how many."""
    names, workers = await office.look("registered", DESK, delivers=True)
    dead = [row[0].decode() for row in workers if row[7] <= now - DEAD_WORKER_KEPT]
    if not dead:
        return 0
    queues = [name.decode() for name in names]
    held = await asyncio.gather(*(office.look("held", queue, dead) for queue in queues))
    idle = [worker for place, worker in enumerate(dead) if not any(counts[place] for counts in held)]
    if idle:
        await asyncio.gather(
            *(office.call("leave", queue, (worker,)) for queue in queues for worker in idle),
            office.call("unregister", DESK, (idle,)),
        )
    return len(idle)
