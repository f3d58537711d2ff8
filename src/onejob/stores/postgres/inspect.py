"""inspect: rows as the snapshots that observers see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onejob.core.job import ChainId, Job, JobId, State
from onejob.sql.ids import written_out
from onejob.sql.rows import Row, job_of, state_of, worker_of
from onejob.store import Blocker, DeadErrors, Delay, JobFilter, Key, Page, WorkerView
from onejob.stores.postgres.holding import find_holders
from onejob.stores.postgres.selection import BEYOND, Selection, select
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work

MOST_PRIORITIES = 1_000
"""Pairs of queue and priority that are looked up one by one, before all jobs are looked at instead."""
FIRST_LOOK = 100
LONGEST_LOOK = 2_000
"""How many candidates are looked into at once: more where payloads are small. One can have a megabyte."""
LOOK_BYTES = 4 * 1024 * 1024


def time(work: Work) -> Steps[int]:
    """The store's clock."""
    [(now,)] = yield from ask("inspect.time", work.now)
    return now


def job(work: Work, id: JobId) -> Steps[Job | None]:
    """One job, or None."""
    found = yield from _by_ids([id])
    return found[0] if found else None


def jobs(work: Work, filter: JobFilter, limit: int, cursor: str | None) -> Steps[Page]:
    """A page of jobs, newest first."""
    wanted = yield from select(work, filter, cursor)
    if wanted.reads_contents:
        places = yield from _look_into(wanted, limit + 1)
        rows = yield from ask("inspect.jobs_at", places[: limit + 1])
    else:
        rows = yield from ask("inspect.jobs" + wanted.variant, *wanted.values, limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    return Page([_job(row) for row in rows], str(rows[-1][-1]) if more and rows else None)


def count(work: Work, filter: JobFilter) -> Steps[int]:
    """How many jobs match."""
    wanted = yield from select(work, filter, None)
    if not wanted.reads_contents:
        [(number,)] = yield from ask("inspect.count" + wanted.variant, *wanted.values)
        return number
    return len((yield from _look_into(wanted, BEYOND)))


def waiting_since(work: Work) -> Steps[dict[str, int]]:
    """Since when the longest waiting job of each queue has been due."""
    rows = yield from ask("inspect.waiting_since", MOST_PRIORITIES)
    if len(rows) >= MOST_PRIORITIES:
        rows = yield from ask("inspect.waiting_since_by_all")
    longest: dict[str, int] = {}
    for queue, due in [*rows, *(yield from ask("lane_views.waiting_unseen", work.now))]:
        if due is not None:
            longest[queue] = min(due, longest.get(queue, due))
    return longest


def key(work: Work, digest: bytes) -> Steps[Key | None]:
    """One key's record with its holder."""
    found = yield from _keys(work, (yield from ask("inspect.keys_by_digest", [digest])))
    return found[0] if found else None


def keys(work: Work, queue: str | None, text: str | None, limit: int) -> Steps[list[Key]]:
    """Keys on record, the most recently taken first."""
    if text is not None and "\0" in text:
        return []
    return (yield from _keys(work, (yield from ask("inspect.keys", queue, text, limit))))


def counts(work: Work) -> Steps[dict[str, dict[State, int]]]:
    """Jobs per queue and state."""
    table: dict[str, dict[State, int]] = {}
    for queue, state, number in (yield from ask("inspect.counts")):
        table.setdefault(queue, {})[state_of(state)] = number
    return table


def workers(work: Work) -> Steps[list[WorkerView]]:
    """Workers on record, alive or not."""
    return [worker_of(row) for row in (yield from ask("inspect.workers", work.now))]


def chain(work: Work, id: JobId) -> Steps[list[Job]]:
    """All jobs of a chain, by place."""
    known = written_out(id)
    return [] if known is None else [_job(row) for row in (yield from ask("inspect.chain", known))]


def last(work: Work, id: JobId) -> Steps[Job | None]:
    """The last job of a chain."""
    known = written_out(id)
    rows = [] if known is None else (yield from ask("inspect.last", known))
    return _job(rows[0]) if rows else None


def blockers(work: Work, id: JobId) -> Steps[list[Blocker]]:
    """The chains that a job waits or waited for."""
    known = written_out(id)
    rows = [] if known is None else (yield from ask("inspect.blockers", known))
    return [
        Blocker(ChainId(str(chain)), None if state is None else state_of(state), task or "", *rest)
        for chain, state, task, *rest in rows
    ]


def blocked(work: Work, chain: ChainId, limit: int) -> Steps[list[JobId]]:
    """Jobs that wait for a chain as one of their blockers."""
    known = written_out(chain)
    return [] if known is None else _ids((yield from ask("inspect.blocked", known, limit)))


def followers(work: Work, chain: ChainId) -> Steps[list[JobId]]:
    """Jobs that wait for this chain to end."""
    known = written_out(chain)
    return [] if known is None else _ids((yield from ask("inspect.followers", known)))


def dead(work: Work, queue: str | None, start: int, stop: int) -> Steps[list[Job]]:
    """A range of dead letters; see `Inspector.dead`."""
    rows = yield from ask("dead.range", queue, start, max(stop - start, 0))
    return (yield from _by_ids(_ids(rows)))


def dead_errors(work: Work, queue: str | None, limit: int) -> Steps[list[DeadErrors]]:
    """Dead letters by error; see `Inspector.dead_errors`."""
    rows = yield from ask("dead.errors", queue, limit)
    return [
        DeadErrors(error, number, JobId(str(id)), first, last) for error, number, id, first, last, _ in rows
    ]


def delays(work: Work, id: JobId) -> Steps[list[Delay]]:
    """Whose open transactions keep a due job from being started; see `Inspector.delays`."""
    known = written_out(id)
    return _delays([] if known is None else (yield from ask("inspect.delays", known)))


def undecided(work: Work) -> Steps[list[Delay]]:
    """Whose open transactions have taken keys; see `Inspector.undecided`."""
    return _delays((yield from ask("inspect.undecided")))


def _delays(rows: Iterable[Row]) -> list[Delay]:
    return [
        Delay(
            what=what,
            session=session,
            gid=gid,
            application=application or "",
            address=address,
            age=age,
            idle=(state or "").startswith("idle in transaction"),
            query=_said(query or ""),
        )
        for what, session, gid, application, address, state, age, query in rows
    ]


def _look_into(wanted: Selection, most: int) -> Steps[list[int]]:
    """The places of jobs that match, newest first; few more than `most`, as candidates come in pages."""
    found: list[int] = []
    at, size, reads_payloads = BEYOND, FIRST_LOOK, bool(wanted.filter.args)
    while len(found) < most:
        statement = "inspect.contents" + wanted.variant
        rows = yield from ask(statement, *wanted.before(at), size, reads_payloads)
        found += [seq for seq, options, payload in rows if wanted.holds(options, payload)]
        if len(rows) < size:
            break
        at = rows[-1][0]
        largest = max(len(payload or b"") for _, _, payload in rows)
        size = max(FIRST_LOOK, min(LONGEST_LOOK, size * 4, LOOK_BYTES // (largest + 1)))
    return found


def _keys(work: Work, rows: Sequence[Row]) -> Steps[list[Key]]:
    if not rows:
        return []
    holders = yield from find_holders(work, [row[0] for row in rows])
    return [
        Key(
            digest=digest,
            text=text,
            queue=queue,
            task=task,
            holder=holders[digest],
            generation=generation,
            absorbed=absorbed,
            differing=differing,
            ended_at=ended_at,
        )
        for digest, text, queue, task, generation, absorbed, differing, ended_at in rows
        if digest in holders
    ]


def _by_ids(ids: Iterable[JobId]) -> Steps[list[Job]]:
    known = [id for id in map(written_out, ids) if id is not None]
    return [_job(row) for row in (yield from ask("inspect.jobs_by_ids", known))] if known else []


def _ids(rows: Iterable[Row]) -> list[JobId]:
    return [JobId(str(row[0])) for row in rows]


def _job(row: Row) -> Job:
    return job_of(row, lambda id: JobId(str(id)))


def _said(query: str) -> str:
    """A statement in one line, without the comment that ours begin with."""
    return " ".join(line.strip() for line in query.splitlines() if not line.lstrip().startswith("--")).strip()
