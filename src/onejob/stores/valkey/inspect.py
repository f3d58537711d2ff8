"""inspect: what observers ask of a store. Lists of jobs are in `listing`, chains in `chain_views`, lanes in `lane_views`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from onejob.core.job import ChainId, Job, JobId, WorkerId
from onejob.core.judge import Holder
from onejob.sql.ids import id_from_bytes
from onejob.store import Key, WorkerView
from onejob.stores.valkey.asking import everywhere, together
from onejob.stores.valkey.chain_views import (
    blocked,
    blocker_places,
    blockers,
    chain,
    followers,
    last,
    roots,
    standings,
)
from onejob.stores.valkey.dead_errors import dead_errors
from onejob.stores.valkey.forms import STATES, calls_of, raw_id, text_of
from onejob.stores.valkey.listing import count, counts, dead, jobs
from onejob.stores.valkey.office import DESK, Office
from onejob.stores.valkey.showing import load
from onejob.stores.valkey.wire import blob_or_false, blobs

__all__ = [
    "blocked",
    "blocker_places",
    "blockers",
    "chain",
    "count",
    "counts",
    "dead",
    "dead_errors",
    "followers",
    "job",
    "jobs",
    "key",
    "keys",
    "last",
    "roots",
    "standings",
    "time",
    "waiting_since",
    "workers",
]

KEYS_AT_ONCE: Final = 200


async def time(office: Office) -> int:
    """The store's clock."""
    return await office.look("time", DESK)


async def job(office: Office, id: JobId) -> Job | None:
    """One job, or None."""
    raw = raw_id(id)
    queue = None if raw is None else await office.find_one(raw)
    if raw is None or queue is None:
        return None
    found = await load(office, {queue: [raw]})
    return found.get(raw)


async def waiting_since(office: Office) -> dict[str, int]:
    """Since when the longest waiting job of each queue has been due; see `Inspector.waiting_since`."""
    queues = await office.queues()
    found = await together(_waiting_since(office, queue) for queue in queues)
    return {queue: since for queue, since in zip(queues, found, strict=True) if since is not None}


async def key(office: Office, digest: bytes) -> Key | None:
    """One key's record with its holder; see `Inspector.key`. A digest does not say its queue."""
    for queue, [row] in await everywhere(office, "key", blobs([digest])):
        if row is not None:
            return _key(digest, queue, row)
    return None


async def keys(office: Office, queue: str | None, limit: int, text: str | None) -> list[Key]:
    """Keys on record, the most recently taken first; see `Inspector.keys`."""
    queues = await office.queues() if queue is None else [queue]
    listed = await together(_digests(office, name, limit, text) for name in queues)
    latest = sorted((one for some in listed for one in some), key=lambda one: one[0], reverse=True)[:limit]
    by_queue: dict[str, list[bytes]] = {}
    for _, digest, name in latest:
        by_queue.setdefault(name, []).append(digest)
    found = await together(_keys(office, name, digests) for name, digests in by_queue.items())
    known = {digest: one for some in found for digest, one in some.items()}
    return [known[digest] for _, digest, _ in latest if digest in known]


async def workers(office: Office) -> list[WorkerView]:
    """Workers on record, alive or not, by when they started; see `Inspector.workers`."""
    names, records = await office.look("registered", DESK)
    now = await time(office)
    ids = [record[0].decode() for record in records]
    held = await everywhere(office, "held", ids, [name.decode() for name in names]) if ids else []
    found = [
        WorkerView(
            id=WorkerId(id),
            queues=tuple(queue.decode() for queue in record[1]),
            host=text_of(record[2]) or "",
            pid=record[3],
            concurrency=record[4],
            started=record[5],
            seen=record[6],
            alive=record[7] > now,
            running=sum(numbers[place] for _, numbers in held),
        )
        for place, (id, record) in enumerate(zip(ids, records, strict=True))
    ]
    return sorted(found, key=lambda worker: worker.started)


async def _waiting_since(office: Office, queue: str) -> int | None:
    since, member = None, None
    while True:
        asked = (blob_or_false(member), False if since is None else since)
        since, member = await office.look("waiting_since", queue, asked)
        if member is None:
            return since


async def _digests(office: Office, queue: str, limit: int, text: str | None) -> list[tuple[int, bytes, str]]:
    """When keys of a queue were taken, and which."""
    found: dict[bytes, tuple[int, bytes, str]] = {}
    members: list[bytes] | None = None
    while len(found) < limit:
        asked = (
            False if members is None else blobs(members),
            limit - len(found),
            False if text is None else text,
        )
        rows, members = await office.look("keys", queue, asked)
        found |= {digest: (since, digest, queue) for since, digest in rows}
        if members is None:
            break
    return list(found.values())


async def _keys(office: Office, queue: str, digests: Sequence[bytes]) -> dict[bytes, Key]:
    found: dict[bytes, Key] = {}
    at = 0
    while at < len(digests):
        some = list(digests[at : at + KEYS_AT_ONCE])
        rows = await office.look("key", queue, blobs(some))
        for digest, row in zip(some, rows, strict=False):  # it gives fewer if their holders are large
            if row is not None:
                found[digest] = _key(digest, queue, row)
        at += len(rows)
    return found


def _key(digest: bytes, queue: str, row: Sequence[Any]) -> Key:
    text, task, generation, absorbed, differing, ended_at, holder = row
    return Key(
        digest=digest,
        text=text_of(text) or "",
        queue=queue,
        task=text_of(task) or "",
        holder=_holder(holder),
        generation=generation,
        absorbed=absorbed,
        differing=differing,
        ended_at=ended_at,
    )


def _holder(row: Sequence[Any]) -> Holder:
    return Holder(
        id=ChainId(id_from_bytes(row[0])),
        state=STATES[row[1]],
        since=row[2],
        completed_until=row[3],
        failed_until=row[4],
        accepted=row[5],
        due=row[6],
        attempt=row[7],
        priority=row[8],
        options=row[9],
        expires=row[10],
        follows=None if row[11] is None else ChainId(id_from_bytes(row[11])),
        fingerprint=row[12],
        items=row[13],
        size=row[14],
        calls=calls_of(row[15]),
        gone=bool(row[16]),
        lane=text_of(row[17]),
    )
