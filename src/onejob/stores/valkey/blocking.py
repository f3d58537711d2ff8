"""Blockers: which chains jobs are to wait for, where those are, and whether they would wait for each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from onejob.core.chain import circle, path_to, unknown_blocker
from onejob.core.dedup import CREATING, Standing
from onejob.core.errors import UnknownBlocker
from onejob.core.job import ChainId, NewJob, State
from onejob.core.judge import judge
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.stores.valkey import inspect
from onejob.stores.valkey.forms import raw_id
from onejob.stores.valkey.newcomers import Waited
from onejob.stores.valkey.office import Office
from onejob.stores.valkey.wire import blob_or_false, blobs, id_blob

_ENDED_BADLY: Final = frozenset({State.FAILED, State.REVOKED})


async def waits(
    office: Office, jobs: Sequence[NewJob], now: int | None = None, *, together: bool = True
) -> dict[str, list[Waited]]:
    """The chains that jobs are to wait for, by the jobs' ids; raises `UnknownBlocker`.

    `together`: they are newcomers of one call, and may wait for those before them.
    """
    blocked = [job for job in jobs if job.blockers]
    if not blocked:
        return {}
    named = {raw for job in blocked for id in job.blockers if (raw := raw_id(id)) is not None}
    roots = await inspect.roots(office, list(named))
    if together:
        at = await inspect.time(office) if now is None else now
        taken: set[bytes] = set()
        for job in jobs:
            await _check(office, job, roots)
            raw = id_to_bytes(job.id)
            if raw in named and raw not in roots and await _comes(office, job, taken, at):
                roots[raw] = raw, job.queue
            if job.plan is not None:
                taken.add(job.plan.digest)
    else:
        for job in jobs:
            _refuse_unknown(job, roots)
    errors = await _errors(office, roots)
    return {job.id: _of(job, roots, errors) for job in blocked}


async def _comes(office: Office, job: NewJob, taken: Collection[bytes], now: int) -> bool:
    """True if a newcomer will be made a job, so that one behind it may wait for it. `taken` are the keys of those before it."""
    plan = job.plan
    if plan is None:
        return True
    if plan.digest in taken:
        return plan.rules.verdict(Standing.QUEUED, 0) in CREATING
    found = await inspect.key(office, plan.digest)
    return judge(job, None if found is None else found.holder, now).creates


async def refusal(office: Office, job: NewJob, own: bytes) -> tuple[str | None, list[Waited]]:
    """Why a chain's next job cannot be made, because of whom it would wait for; and whom that is."""
    if not job.blockers:
        return None, []
    try:
        chains = (await waits(office, [job], together=False))[job.id]
    except UnknownBlocker as error:
        return f"UnknownBlocker: {error}", []
    path = await _way_back(office, {chain: queue for chain, queue, _ in chains}, own)
    return None if path is None else circle([ChainId(id_from_bytes(chain)) for chain in path]), chains


async def _check(office: Office, job: NewJob, known: Collection[bytes]) -> None:
    """Refuse a blocker that is not on record, unless the call was accepted before."""
    if all(raw_id(id) in known for id in job.blockers):
        return
    digest = blob_or_false(None if job.plan is None else job.plan.digest)
    [repeated] = await office.look("repeated", job.queue, [(id_blob(job.id), digest)])
    if not repeated:
        _refuse_unknown(job, known)


def _refuse_unknown(job: NewJob, known: Collection[bytes]) -> None:
    for id in job.blockers:
        if raw_id(id) not in known:
            raise UnknownBlocker(unknown_blocker(id))


async def _errors(office: Office, roots: Mapping[bytes, tuple[bytes, str]]) -> dict[bytes, str]:
    """Why those of the chains failed that did; their last jobs may be in other queues than their first."""
    found = await inspect.standings(office, list(set(roots.values())))
    return {
        chain: error for chain, (state, error) in found.items() if error is not None and state in _ENDED_BADLY
    }


def _of(job: NewJob, roots: Mapping[bytes, tuple[bytes, str]], errors: Mapping[bytes, str]) -> list[Waited]:
    chains = dict(roots[raw] for id in job.blockers if (raw := raw_id(id) or b"") in roots)
    return [(chain, queue, errors.get(chain, False)) for chain, queue in chains.items()]


async def _way_back(office: Office, chains: dict[bytes, str], own: bytes) -> list[bytes] | None:
    """How one of these chains comes to wait for `own`; level by level over those who wait, None if none does."""
    origins = dict.fromkeys(chains, own)
    level = dict(chains)
    while level and own not in level:
        edges = await _edges(office, level)
        level = {}
        for waiting, awaited, queue in edges:
            if awaited not in origins:
                origins[awaited] = waiting
                level[awaited] = queue
    if own not in level:
        return None
    last = origins.pop(own, None)
    return [own, own] if last is None or last == own else [*path_to(last, origins), own]


async def _edges(office: Office, chains: Mapping[bytes, str]) -> list[tuple[bytes, bytes, str]]:
    """Who waits for whom, and in which queue that one is: the chains by their first jobs, whom their last wait for."""
    edges: list[tuple[bytes, bytes, str]] = []
    looking = {chain: (chain, queue) for chain, queue in chains.items()}
    while looking:
        by_queue: dict[str, list[tuple[bytes, bytes]]] = {}
        for chain, (job, queue) in looking.items():
            by_queue.setdefault(queue, []).append((chain, job))
        looking = {}
        for queue, some in by_queue.items():
            rows = await office.look("waits", queue, blobs([job for _, job in some]))
            for (chain, _), row in zip(some, rows, strict=True):
                if row is None:
                    continue
                if row[0] is not None:
                    looking[chain] = (row[0], row[1].decode())
                else:
                    edges += [(chain, awaited, where.decode()) for awaited, where in row[1]]
    return edges
