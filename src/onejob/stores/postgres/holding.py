"""Keys and the jobs that hold them: find them, take those that are free, and lock what is to be changed.

A statement's snapshot is older than the locks it waited for, so nothing is decided in a statement that may have
waited: who locks looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

import msgspec

from onejob.core.job import NewJob
from onejob.core.judge import Holder
from onejob.sql.rows import ReadId, Row, holder_of
from onejob.stores.postgres.failures import DEADLOCK, LOCK_NOT_AVAILABLE, sqlstate
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work

ROW_PATIENCE: Final = "1000"
"""Milliseconds: a queued job that cannot be locked for so long counts as running."""

_DIGEST, _VERSION, _NOW, _TAKEN = 17, 19, 20, 21
_id = cast("ReadId", str)  # without a function of ours in between: every duplicate comes here


class Kinds:
    """What many rows have in common is sent once: arrays of it, and each row's place in them."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, kind: tuple[object, ...]) -> int:
        """The place of a kind, from 1."""
        return self._numbers.setdefault(kind, len(self._numbers) + 1)

    def columns(self, width: int) -> list[list[object]]:
        """The kinds, column by column."""
        return [list(column) for column in zip(*self._numbers, strict=True)] or [[] for _ in range(width)]


class Seen(msgspec.Struct):
    """What an operation knows about keys, their holders, and what it has made its own."""

    now: int = 0
    held: dict[bytes, Holder] = {}
    versions: dict[str, str] = {}
    """Holders' rows as they were seen: another version is another row."""
    ours: dict[bytes, str] = {}
    """Keys that nobody had, and the newcomers that they were recorded for, whose jobs are not written yet."""
    known: set[str] = set()
    """Ids that were accepted before."""
    locked: set[bytes] = set()
    rows: set[str] = set()
    """Queued jobs that are locked: nobody else can move them."""
    pinned: set[str] = set()
    """Queued jobs that stay so until the transaction ends."""
    stuck: set[str] = set()
    """Queued jobs that others kept locked for too long."""
    wanted: set[bytes] = set()
    """Keys of others that it takes to go on."""
    careful: bool = False
    """Somebody else may be bringing the same jobs, or the same keys."""
    written: bool = False
    """Something was written already that must not be undone."""

    @property
    def has_locked(self) -> bool:
        """True if something of others' is locked."""
        return bool(self.locked or self.rows or self.pinned)

    def again(self) -> Seen:
        """What is still known after all has been undone."""
        return Seen(stuck=self.stuck, wanted=self.wanted, careful=True)


def find_holders(work: Work, digests: Iterable[bytes]) -> Steps[dict[bytes, Holder]]:
    """The records of keys joined with the jobs that hold them; those without a record are left out."""
    rows = yield from ask("enqueue.find_holders", list(digests))
    return {row[_DIGEST]: holder_of(row, _id) for row in rows}


def find_holder(work: Work, digest: bytes) -> Steps[Holder | None]:
    """A key's record joined with its job, or None if there is no record."""
    return (yield from find_holders(work, [digest])).get(digest)


def settings(job: NewJob) -> tuple[object, ...]:
    """What newcomers of a task mostly have in common, whatever their arguments."""
    return (job.queue, job.task, job.options, job.max_crashes, job.priority, job.delay, job.expires)


def take(work: Work, seen: Seen, jobs: Sequence[NewJob]) -> Steps[bool]:
    """Take those keys of newcomers that nobody has, and look at all others; False if somebody was faster: look again."""
    first: dict[bytes, NewJob] = {}
    ids: list[str] = []
    known = seen.known
    for job in jobs:
        if (plan := job.plan) is not None:
            seen.held.pop(plan.digest, None)
            if plan.digest not in first and job.id not in known:
                first[plan.digest] = job
            else:
                ids.append(job.id)
        elif job.lane is not None or job.blockers:
            ids.append(job.id)
    kinds = Kinds()
    numbers: list[int] = []
    texts: list[str] = []
    for job in first.values():
        plan = job.plan
        assert plan is not None
        numbers.append(kinds.number((job.queue, job.task, *plan.rules.memory)))
        texts.append(plan.text)
    columns = (list(first), texts, [job.id for job in first.values()], numbers)
    # Whoever has something must not wait for somebody else's new key.
    only_look = not seen.written and (seen.has_locked or bool(seen.ours))
    statement = "enqueue.take" if seen.careful else "enqueue.take_new"
    rows = yield from ask(statement, work.now, *columns, *kinds.columns(4), ids, only_look)
    taken = read(seen, rows)
    if only_look:
        return True
    tried = {
        digest: job.id
        for digest, job in first.items()
        if digest not in seen.held and digest not in seen.ours and job.id not in known
    }
    if taken != len(tried):
        return False
    seen.ours.update(tried)
    return True


def read(seen: Seen, rows: Sequence[Row]) -> int:
    """Note what `take` or `one` returned; how many keys were taken."""
    taken = 0
    held, versions = seen.held, seen.versions
    seen.ours = {}
    for row in rows:
        digest = row[_DIGEST]
        if digest is None:
            if row[_NOW] is None:
                seen.known.add(str(row[0]))
            else:
                seen.now, taken = row[_NOW], row[_TAKEN]
        elif row[1] is None:  # only in the transaction that will write the holder's job
            seen.ours[digest] = str(row[0])
        else:
            held[digest] = holder = holder_of(row, _id)
            versions[holder.id] = row[_VERSION]
    return taken


def lock_keys(seen: Seen, digests: Iterable[bytes]) -> Steps[None]:
    """Lock keys' records, so that they may be taken from their holders; what is gone is not locked."""
    rows = yield from ask("enqueue.lock_keys", sorted(digests))
    seen.locked.update(row[0] for row in rows)


def lock_rows(seen: Seen, ids: set[str], *, share: bool, patient: bool) -> Steps[bool]:
    """Lock queued jobs, against any change or (`share`) only against a start; True if all are locked, and as seen.

    Those that others keep are stuck, unless one is `patient`: then the wait is as long as the connection allows.
    """
    verb, mine = ("pin", seen.pinned) if share else ("lock", seen.rows)
    wanted, rows = sorted(ids), None
    if len(wanted) == 1:  # mostly it is free, and then this is all
        rows = yield from ask(f"enqueue.{verb}_free_jobs", wanted)
    if not rows:
        waiting = f"enqueue.{verb}_jobs"
        rows = (yield from ask(waiting, wanted)) if patient else (yield from _in_time(waiting, wanted))
    stuck = rows is None
    if rows is None:
        rows = yield from ask(f"enqueue.{verb}_free_jobs", wanted)
    locked = {str(id): version for id, version in rows}
    mine.update(locked)
    if stuck:
        seen.stuck.update(ids - locked.keys())
    else:
        seen.stuck -= ids
    return all(locked.get(id) == seen.versions.get(id) for id in wanted)


def _in_time(statement: str, ids: list[str]) -> Steps[list[Row] | None]:
    """Lock jobs; None if that takes too long, or would take for ever. The transaction's own patience stays as it was."""
    yield from ask("enqueue.savepoint_wait")
    [(former, _)] = yield from ask("enqueue.be_patient", ROW_PATIENCE)
    try:
        rows = yield from ask(statement, ids)
    except Exception as error:
        if sqlstate(error) not in (LOCK_NOT_AVAILABLE, DEADLOCK):
            raise
        yield from ask("enqueue.rollback_to_wait")
        yield from ask("enqueue.release_wait")
        return None
    yield from ask("enqueue.be_patient", former)
    yield from ask("enqueue.release_wait")
    return rows
