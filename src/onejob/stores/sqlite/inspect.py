"""inspect: rows as the snapshots that observers see."""

from __future__ import annotations

from onejob.core.job import ChainId, Job, JobId, State
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.rows import job_of, state_of, worker_of
from onejob.store import Blocker, DeadErrors, JobFilter, Key, Page, WorkerView
from onejob.stores.sqlite.enqueue import find_holder
from onejob.stores.sqlite.selection import parameters
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements


def job(session: Session, id: JobId) -> Job | None:
    """One job, or None."""
    try:
        raw = id_to_bytes(id)
    except ValueError:
        return None
    row = session.first(statements("inspect")["job"], {"id": raw})
    return None if row is None else job_of(row, id_from_bytes)


def jobs(session: Session, filter: JobFilter, limit: int, cursor: str | None) -> Page:
    """A page of jobs, newest first."""
    wanted = parameters(session, filter, cursor)
    rows = session.rows(statements("inspect")["jobs"], {**wanted, "limit": limit + 1})
    more = len(rows) > limit
    rows = rows[:limit]
    return Page([job_of(row, id_from_bytes) for row in rows], str(rows[-1][-1]) if more else None)


def count(session: Session, filter: JobFilter) -> int:
    """How many jobs match."""
    [(found,)] = session.rows(statements("inspect")["count"], parameters(session, filter, None))
    return found


def waiting_since(session: Session) -> dict[str, int]:
    """Since when the longest waiting job of each queue has been due."""
    return dict(session.rows(statements("inspect")["waiting_since"], ()))


def key(session: Session, digest: bytes) -> Key | None:
    """One key's record with its holder."""
    row = session.first(statements("inspect")["key"], {"digest": digest})
    holder = find_holder(session, digest)
    if row is None or holder is None:
        return None
    text, queue, task, generation, absorbed, differing, ended_at = row
    return Key(
        digest=digest,
        text=text,
        queue=queue,
        task=task,
        holder=holder,
        generation=generation,
        absorbed=absorbed,
        differing=differing,
        ended_at=ended_at,
    )


def keys(session: Session, queue: str | None, text: str | None, limit: int) -> list[Key]:
    """Keys on record, the most recently taken first."""
    digests = session.rows(statements("inspect")["keys"], {"queue": queue, "text": text, "limit": limit})
    found = (key(session, digest) for (digest,) in digests)
    return [one for one in found if one is not None]


def counts(session: Session) -> dict[str, dict[State, int]]:
    """Jobs per queue and state."""
    table: dict[str, dict[State, int]] = {}
    for queue, state, count in session.execute(statements("inspect")["counts"]):
        table.setdefault(str(queue), {})[state_of(state)] = int(count)
    return table


def workers(session: Session) -> list[WorkerView]:
    """Workers on record."""
    rows = session.rows(statements("inspect")["workers"], {"now": session.now()})
    return [worker_of(row) for row in rows]


def chain(session: Session, id: JobId) -> list[Job]:
    """All jobs of a chain, by place."""
    return _by_ids(session, "chain", id)


def last(session: Session, id: JobId) -> Job | None:
    """The last job of a chain."""
    found = _by_ids(session, "last", id)
    return found[0] if found else None


def blockers(session: Session, id: JobId) -> list[Blocker]:
    """The chains that a job waits or waited for."""
    found = session.execute(statements("inspect")["blockers"], {"id": id_to_bytes(id)})
    return [
        Blocker(
            ChainId(id_from_bytes(chain)),
            None if state is None else state_of(state),
            task or "",
            result,
            error,
        )
        for chain, state, task, result, error in found  # there may be thousands, which are not to be held twice
    ]


def blocked(session: Session, chain: ChainId, limit: int) -> list[JobId]:
    """Jobs that wait for a chain as one of their blockers."""
    rows = session.rows(statements("inspect")["blocked"], {"chain": id_to_bytes(chain), "limit": limit})
    return [id_from_bytes(row[0]) for row in rows]


def _by_ids(session: Session, statement: str, id: JobId) -> list[Job]:
    try:
        rows = session.rows(statements("inspect")[statement], {"id": id_to_bytes(id)})
    except ValueError:
        return []
    found = (job(session, id_from_bytes(row[0])) for row in rows)
    return [one for one in found if one is not None]


def followers(session: Session, chain: ChainId) -> list[JobId]:
    """Jobs that wait for this chain to end."""
    rows = session.rows(statements("inspect")["followers"], {"id": id_to_bytes(chain)})
    return [id_from_bytes(row[0]) for row in rows]


def dead(session: Session, queue: str | None, start: int, stop: int) -> list[Job]:
    """A range of dead letters; see `Inspector.dead`."""
    statement = statements("dead")["range_of_all" if queue is None else "range"]
    wanted = {"start": start, "limit": max(stop - start, 0)}
    rows = session.rows(statement, wanted if queue is None else {**wanted, "queue": queue})
    found = (job(session, id_from_bytes(row[0])) for row in rows)
    return [job for job in found if job is not None]


def dead_errors(session: Session, queue: str | None, limit: int) -> list[DeadErrors]:
    """Dead letters by error; see `Inspector.dead_errors`."""
    rows = session.rows(statements("dead")["errors"], {"queue": queue, "limit": limit})
    return [
        DeadErrors(error, count, id_from_bytes(id), first, last) for error, count, id, first, last, _ in rows
    ]
