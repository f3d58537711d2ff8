"""amend: what operators ask of a chain, whose jobs may lie in several queues; step by step, each safe by itself.

Somebody else may act between two steps. A step that finds that its job has moved says so, and we look again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from onejob.core.dead_letter import copy_id, with_dead_letter
from onejob.core.dedup import decode_rules
from onejob.core.job import ENDED, QUEUED, JobId, NewJob, State
from onejob.sql.ids import id_from_bytes
from onejob.store import Amended, Amendment
from onejob.stores.valkey import inspect
from onejob.stores.valkey.forms import STATES, raw_id, shown_id
from onejob.stores.valkey.newcomers import newcomer, rules_form
from onejob.stores.valkey.office import Delivered, Office
from onejob.stores.valkey.wire import blob

ROUNDS: Final = 20
"""How often a chain may move on while we act on it."""


class Last(msgspec.Struct, frozen=True):
    """The last job of a chain, and what a step needs to know of it."""

    id: bytes
    queue: str
    state: State
    root: bytes
    root_queue: str
    blockers: int
    runs_anyway: bool
    origin: bytes | None
    origin_queue: str | None
    options: bytes | None
    torn: bool = False
    """Its chain goes on with a job that is lost."""


async def amend(
    office: Office,
    ids: Sequence[JobId],
    amendment: Amendment,
    states: frozenset[State] | None,
    now: int | None,
) -> list[Amended]:
    """Revoke, retry or delete; see `Store.amend`."""
    amending = Amending(office, now)
    return [await amending.one(id, amendment, states) for id in ids]


class Amending:
    """One call's amendments, one by one."""

    def __init__(self, office: Office, now: int | None) -> None:
        self._office = office
        self._now = now

    async def one(self, id: JobId, amendment: Amendment, states: frozenset[State] | None) -> Amended:
        """Amend the chain of one job."""
        raw = raw_id(id)
        if raw is None:
            return Amended.NOT_FOUND
        for _ in range(ROUNDS):
            if states is not None:
                last = await self._last(raw)
                if last is None:
                    return Amended.NOT_FOUND
                if last.state not in states:
                    return Amended.MOVED
            match amendment:
                case Amendment.REVOKE:
                    answer = await self._revoke(raw)
                case Amendment.DELETE | Amendment.DELETE_WITH_WAITING:
                    answer = await self._delete(raw, cascade=amendment is Amendment.DELETE_WITH_WAITING)
                case Amendment.RETRY | Amendment.RETRY_WITHOUT_KEY:
                    answer = await self._retry(raw, force=amendment is Amendment.RETRY_WITHOUT_KEY)
            if answer is not None:
                return answer
        return Amended.RUNNING

    async def _revoke(self, raw: bytes) -> Amended | None:
        last = await self._last(raw, torn=True)
        if last is None:
            return Amended.NOT_FOUND
        if last.torn:
            return Amended.REVOKED if await self._give_up(last) else None
        answer = await self._step(last.queue, "revoke", blob(last.id), "revoked")
        return None if answer == b"moved" else Amended(answer.decode())

    async def _delete(self, raw: bytes, *, cascade: bool) -> Amended | None:
        last = await self._last(raw, torn=True)
        if last is None:
            letter = await self._first(copy_id(raw))
            if letter is None or letter.origin is None:
                return Amended.NOT_FOUND
            return await self._delete(letter.id, cascade=cascade)
        if last.state is State.RUNNING:
            return Amended.RUNNING
        if not cascade and await self._step(last.root_queue, "awaited", blob(last.root)):
            return Amended.AWAITED
        return None if await self._remove(last, "deleted") is None else Amended.DELETED

    async def _remove(self, last: Last, reason: str) -> bool | None:
        """End a chain, if it has not ended, and drop it whole; None if it has moved."""
        if last.torn:
            ended = await self._give_up(last)
        else:
            ended = await self._step(last.queue, "finish", blob(last.id), reason) == b"done"
        if not ended:
            return None
        dropped = await self._step(last.root_queue, "drop", blob(last.root))
        return True if dropped == b"done" else None

    async def _give_up(self, last: Last) -> bool:
        """End a chain that goes on with a job that is lost; False if it has moved."""
        return await self._step(last.queue, "give_up", blob(last.id)) == b"done"

    async def _retry(self, raw: bytes, *, force: bool) -> Amended | None:
        letter = await self._letter(raw)
        last = await self._last(raw if letter is None or letter.origin is None else letter.origin)
        if letter is None and last is not None and last.id != raw:
            letter = await self._letter(last.id)
        if letter is None or letter.origin is None:
            return Amended.NOT_FOUND if last is None else await self._revive(last, force=force)
        copy = await self._last(letter.id)
        if copy is None:
            return None
        if copy.state is State.RUNNING or (copy.id != letter.id and copy.state in QUEUED):
            return Amended.RUNNING
        if copy.state is State.COMPLETED and (last is None or raw == letter.id):
            return Amended.FINISHED
        if last is None:
            return await self._exhume(letter)
        return await self._revive(last, force=force, letter=letter)

    async def _letter(self, raw: bytes) -> Last | None:
        """The dead letter that has this id, or whose original has it; as it is by itself, whatever follows it."""
        for id in (raw, copy_id(raw)):
            found = await self._first(id)
            if found is not None and found.origin is not None:
                return found
        return None

    async def _revive(self, last: Last, *, force: bool, letter: Last | None = None) -> Amended | None:
        """Let a chain run again from its last job, with its key if it may have it; its dead letter goes."""
        if last.state is State.COMPLETED:
            return Amended.FINISHED
        if last.state not in (State.FAILED, State.REVOKED):
            return Amended.RUNNING
        known = await self._step(last.root_queue, "key", blob(last.root))
        rules = None if known is None or known[1] is None else decode_rules(known[1])
        chains = await self._waits(last)
        answer = await self._step(
            last.root_queue,
            "revive",
            blob(last.root),
            blob(last.id),
            last.queue,
            force,
            False if rules is None else rules_form(rules),
            False if chains is None else [(blob(chain), queue) for chain, queue in chains],
            letter is not None and (blob(letter.id), letter.queue),
        )
        return None if answer == b"moved" else Amended(answer.decode())

    async def _waits(self, last: Last) -> list[tuple[bytes, str]] | None:
        """The chains that a job would wait for again; None if it cannot run, because one of them did not complete."""
        if not last.blockers:
            return []
        chains = await inspect.blocker_places(self._office, last.id, last.queue)
        found = await inspect.standings(self._office, chains)
        waits: list[tuple[bytes, str]] = []
        for chain, queue in chains:
            state, _ = found.get(chain, (State.REVOKED, None))
            if state in ENDED:
                if state is not State.COMPLETED and not last.runs_anyway:
                    return None
            else:
                waits.append((chain, queue))
        return waits

    async def _exhume(self, letter: Last) -> Amended | None:
        """Make an original again that is gone."""
        job = await inspect.job(self._office, id_from_bytes(letter.id))
        origin = shown_id(letter.origin)
        if job is None or origin is None or letter.origin_queue is None:
            return None
        made = NewJob(
            origin,
            letter.origin_queue,
            job.task,
            job.payload,
            priority=job.priority,
            max_crashes=job.max_crashes,
            options=with_dead_letter(letter.options, letter.queue),
        )
        await self._office.register([made.queue])
        place = (blob(letter.id), letter.queue)
        await self._step(made.queue, "exhume", newcomer(made), job.error or False, job.items, place)
        return Amended.RETRIED

    async def _first(self, raw: bytes) -> Last | None:
        """One job by itself, as `Last`."""
        queue = await self._office.find_one(raw)
        row = None if queue is None else await self._step(queue, "look_at", blob(raw))
        return None if row is None or queue is None else _last(row, queue)

    async def _last(self, raw: bytes, *, torn: bool = False) -> Last | None:
        """The last job of the chain that a job belongs to; with `torn`, also one whose next is lost."""
        queue = await self._office.find_one(raw)
        id = raw
        while queue is not None:
            row = await self._step(queue, "look", blob(id))
            if row is None:
                return None
            if row[4] is None:
                return _last(row, queue)
            id, where = row[4], row[5].decode()
            if await self._step(where, "look_at", blob(id)) is None:  # it is on its way, or lost
                await self._office.deliver(queue, now=self._now)
                if await self._step(where, "look_at", blob(id)) is None:
                    return _last(row, queue, torn=True) if torn else None
            queue = where
        return None

    async def _step(self, queue: str, name: str, *arguments: object) -> Any:
        return await self._office.call(
            "amend", queue, (name, *arguments), now=self._now, delivered=Delivered()
        )


def _last(row: Sequence[Any], queue: str, *, torn: bool = False) -> Last:
    return Last(
        id=row[0],
        queue=queue,
        state=STATES[row[1]],
        root=row[2],
        root_queue=row[3].decode(),
        blockers=row[6],
        runs_anyway=bool(row[7]),
        origin=row[8],
        origin_queue=None if row[9] is None else row[9].decode(),
        options=row[10],
        torn=torn,
    )
