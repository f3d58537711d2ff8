"""Lanes and limits as observers see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onejob.core.job import JobId
from onejob.core.lane import QueueLimits
from onejob.sql.ids import id_from_bytes
from onejob.sql.lanes import limits_of, plan_of
from onejob.store import LaneView
from onejob.stores.valkey.asking import everywhere
from onejob.stores.valkey.forms import raw_id, shown_id
from onejob.stores.valkey.office import Office
from onejob.stores.valkey.wire import blob, blob_or_false


async def limits(office: Office) -> dict[str, QueueLimits]:
    """The limits of every queue that has any; see `Inspector.limits`."""
    found = await everywhere(office, "limits")
    return {queue: limits_of(*row) for queue, row in found if row is not None}


async def lane(office: Office, queue: str, key: str) -> LaneView | None:
    """One lane; see `Inspector.lane`."""
    row = await office.look("lane", queue, (key,))
    return None if row is None else _view(queue, row)


async def lanes(office: Office, queue: str | None, limit: int) -> list[LaneView]:
    """Lanes in use, by queue and key; see `Inspector.lanes`."""
    found: list[LaneView] = []
    for name in await office.queues() if queue is None else [queue]:
        after: bytes | None = None
        while len(found) < limit:
            rows, after = await office.look("lanes_in_use", name, (blob_or_false(after), limit - len(found)))
            found += [_view(name, row) for row in rows]
            if after is None:
                break
    return found


async def ahead(office: Office, id: JobId, limit: int) -> int:
    """How many have their turn before a job; see `Inspector.ahead`."""
    raw = raw_id(id)
    queue = None if raw is None else await office.find_one(raw)
    if raw is None or queue is None:
        return 0
    return min(await office.look("ahead", queue, (blob(raw),)), limit)


def _view(queue: str, row: Sequence[Any]) -> LaneView:
    key, concurrency, most, per, hold, holders, taken, ready, head, opens_at = row
    return LaneView(
        queue=queue,
        plan=plan_of(key.decode(), concurrency, most, per, hold),
        holders=[id_from_bytes(id) for id in holders],
        taken=taken,
        ready=ready,
        head=shown_id(head),
        opens_at=opens_at,
    )
