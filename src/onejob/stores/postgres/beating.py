"""beat, leave and expired: workers live on, or are missed."""

from __future__ import annotations

import msgspec

from onejob.core.job import JobId, WorkerId
from onejob.store import Beat, Expired, Pulse
from onejob.stores.postgres.claim import claimed
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work


def beat(work: Work, sign: Beat) -> Steps[Pulse]:
    """Prolong a worker's leases; see `Store.beat`. One statement, so that a heart beats in one round trip."""
    queues = msgspec.json.encode(sign.queues).decode()
    parameters = (sign.worker, queues, sign.host, sign.pid, sign.concurrency, sign.lease, work.now)
    if sign.progress:
        ids = sorted(sign.progress)
        news = [sign.progress[id] for id in ids]
        rows = yield from ask("beat.beat_with_progress", *parameters, ids, news)
    else:
        rows = yield from ask("beat.beat", *parameters)
    held: dict[JobId, bytes] = {}
    aborting: set[JobId] = set()
    for raw, lease, flagged in rows:
        id = JobId(str(raw))
        held[id] = lease
        if flagged:
            aborting.add(id)
    return Pulse(held, frozenset(aborting))


def leave(work: Work, worker: WorkerId) -> Steps[None]:
    """Forget a worker; see `Store.leave`."""
    yield from ask("beat.leave", worker)


def expired(work: Work, limit: int) -> Steps[list[Expired]]:
    """Running jobs whose workers are gone; see `Store.expired`."""
    rows = yield from ask("expired.expired", limit, work.now)
    return [Expired(claimed(row, row[18], row[19]), WorkerId(row[20])) for row in rows]
