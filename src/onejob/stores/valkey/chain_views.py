"""Chains as observers see them, over all queues in which their jobs lie; and who waits for whom.

A chain's next job in another queue is on its way for a moment: who looks for the last one has it delivered first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from onejob.core.job import ChainId, Job, JobId, State
from onejob.sql.ids import id_from_bytes
from onejob.store import Blocker
from onejob.stores.valkey.asking import everywhere, together
from onejob.stores.valkey.bounds import PORTION
from onejob.stores.valkey.forms import STATES, raw_id, text_of
from onejob.stores.valkey.office import Office, portions
from onejob.stores.valkey.showing import job_of
from onejob.stores.valkey.wire import blob, blob_or_false, blobs


async def chain(office: Office, id: JobId) -> list[Job]:
    """All jobs of a chain, by place; see `Inspector.chain`."""
    raw = raw_id(id)
    root = None if raw is None else (await roots(office, [raw])).get(raw)
    if raw is None or root is None:
        return []
    return await jobs_of_chain(office, *root)


async def last(office: Office, id: JobId) -> Job | None:
    """The last job of a chain; see `Inspector.last`."""
    raw = raw_id(id)
    queue = None if raw is None else await office.find_one(raw)
    if raw is None or queue is None:
        return None
    found = await _ends(office, {raw: _Start(None, raw, queue)}, _Part.JOB)
    end = found.get(raw)
    return None if end is None or end.part is None else job_of(end.part, end.queue)


async def jobs_of_chain(office: Office, chain: bytes, queue: str) -> list[Job]:
    """A chain's jobs in their order, given the queue of the first."""
    found: list[Job] = []
    id: bytes | None = chain
    source, was_delivered = queue, False
    while id is not None:
        rows, next_id, next_queue = await office.look("chain", queue, (blob(chain), blob(id)))
        if rows:
            found += [job_of(row, queue) for row in rows]
            source, was_delivered = queue, False
            id, queue = next_id, "" if next_queue is None else next_queue.decode()
        elif found and not was_delivered:
            await office.deliver(source)
            was_delivered = True
        else:
            break
    return found


async def blockers(office: Office, id: JobId) -> list[Blocker]:
    """The chains that a job waits or waited for; see `Inspector.blockers`."""
    raw = raw_id(id)
    queue = None if raw is None else await office.find_one(raw)
    if raw is None or queue is None:
        return []
    places = await blocker_places(office, raw, queue)
    starts = {chain: _Start(chain, chain, where) for chain, where in places}
    found = await _ends(office, starts, _Part.OUTCOME)
    return [_blocker(chain, found.get(chain)) for chain, _ in places]


async def blocker_places(office: Office, id: bytes, queue: str) -> list[tuple[bytes, str]]:
    """Those chains and the queues of their first jobs, in the order given when the job was made."""
    return [(chain, where.decode()) for chain, where in await office.look("blockers", queue, (blob(id),))]


async def blocked(office: Office, chain: ChainId, limit: int) -> list[JobId]:
    """Jobs that wait for a chain; see `Inspector.blocked`."""
    raw = raw_id(chain)
    queue = None if raw is None else await office.find_one(raw)
    found: list[JobId] = []
    if raw is None or queue is None:
        return found
    member: bytes | None = None
    while len(found) < limit:
        asked = (blob(raw), blob_or_false(member), min(limit - len(found), PORTION))
        ids, member = await office.look("blocked", queue, asked)
        found += map(id_from_bytes, ids)
        if member is None:
            break
    return found


async def followers(office: Office, chain: ChainId) -> list[JobId]:
    """Jobs that start only after a chain has ended; see `Inspector.followers`."""
    raw = raw_id(chain)
    found = [] if raw is None else await everywhere(office, "followers", (blob(raw),))
    return [id_from_bytes(id) for _, ids in found for id in ids]


async def roots(office: Office, ids: Sequence[bytes]) -> dict[bytes, tuple[bytes, str]]:
    """The first jobs of the chains that jobs belong to, and their queues; unknown jobs are left out."""
    wanted = list(dict.fromkeys(ids))
    found = await together(_roots(office, some) for some in portions(wanted))
    return {id: root for some in found for id, root in some.items()}


async def standings(
    office: Office, chains: Sequence[tuple[bytes, str]]
) -> dict[bytes, tuple[State, str | None]]:
    """How chains stand, given their first jobs and the queues of those: state and error of the last job.

    A chain that is gone is left out. One whose next job is on its way waits.
    """
    starts = {chain: _Start(chain, chain, queue) for chain, queue in chains}
    found = await _ends(office, starts, _Part.STATE)
    return {chain: (end.state, end.error) for chain, end in found.items()}


class _Part(IntEnum):
    """How much of a chain's last job is wanted."""

    STATE = 0
    """Its state and error. A next one that is on its way is not delivered; its chain waits."""
    OUTCOME = 1
    """Also its task and its result."""
    JOB = 2
    """All of it."""


class _Start(msgspec.Struct, frozen=True):
    """A job from which to look for its chain's last; None is the chain that it is of."""

    chain: bytes | None
    id: bytes
    queue: str


class _End(msgspec.Struct, frozen=True):
    """The last job of a chain."""

    queue: str
    state: State
    error: str | None = None
    part: Any = None
    """What was wanted of it beside these."""


async def _roots(office: Office, ids: Sequence[bytes]) -> dict[bytes, tuple[bytes, str]]:
    by_queue: dict[str, list[bytes]] = {}
    for id, queue in (await office.find(ids)).items():
        by_queue.setdefault(queue, []).append(id)
    answers = await together(office.look("roots", queue, blobs(some)) for queue, some in by_queue.items())
    found: dict[bytes, tuple[bytes, str]] = {}
    for some, rows in zip(by_queue.values(), answers, strict=True):
        for id, row in zip(some, rows, strict=True):
            if row is not None:
                found[id] = (row[0], row[1].decode())
    return found


async def _ends(office: Office, starts: Mapping[bytes, _Start], part: _Part) -> dict[bytes, _End]:
    """The last jobs of chains, from queue to queue; chains whose first look finds nothing are left out."""
    found: dict[bytes, _End] = {}
    looking = dict(starts)
    were_delivered: set[bytes] = set()
    while looking:
        rows = await _look_for_ends(office, looking, part)
        further: dict[bytes, _Start] = {}
        sources: set[str] = set()
        for name, row in rows.items():
            start, before = looking[name], found.get(name)
            if row is None and before is not None and part is _Part.STATE:
                found[name] = _End(before.queue, State.WAITING)
            elif row is None and before is not None and start.id not in were_delivered:
                were_delivered.add(start.id)
                sources.add(before.queue)
                further[name] = start
            elif row:
                chain, _, state, error, next_id, next_queue, shown = row
                found[name] = _End(start.queue, STATES[state], text_of(error), shown)
                if next_id is not None:
                    further[name] = _Start(chain, next_id, next_queue.decode())
        for source in sources:
            await office.deliver(source)
        looking = further
    return found


async def _look_for_ends(office: Office, starts: Mapping[bytes, _Start], part: _Part) -> dict[bytes, Any]:
    by_queue: dict[str, list[bytes]] = {}
    for name, start in starts.items():
        by_queue.setdefault(start.queue, []).append(name)

    async def look(queue: str, names: list[bytes]) -> dict[bytes, Any]:
        rows: dict[bytes, Any] = {}
        while len(rows) < len(names):
            some = names[len(rows) : len(rows) + PORTION]
            asked = [(blob_or_false(starts[name].chain), blob(starts[name].id)) for name in some]
            answer = await office.look("ends", queue, (asked, int(part)))
            rows.update(zip(some, answer, strict=False))  # it gives fewer if they are large
        return rows

    found = await together(look(queue, names) for queue, names in by_queue.items())
    return {name: row for some in found for name, row in some.items()}


def _blocker(chain: bytes, end: _End | None) -> Blocker:
    id = ChainId(id_from_bytes(chain))
    if end is None:
        return Blocker(id, None)
    task, result = end.part
    return Blocker(id, end.state, task.decode("utf-8", "replace"), result, end.error)
