"""claim, settle, beat, leave and expired: what workers do, queue by queue."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from onejob.core.chain import diverged
from onejob.core.job import Claimed, Job, JobId, NewJob, WorkerId
from onejob.core.lifecycle import Move, Settlement, in_turn
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.store import Ask, Beat, Claims, Expired, Pulse, Settled, SettleReply
from onejob.stores.valkey import blocking, inspect
from onejob.stores.valkey.bounds import GRACE, PORTION
from onejob.stores.valkey.forms import LEASE_BYTES, brings, claimed, settlement
from onejob.stores.valkey.office import DESK, Office, portions
from onejob.stores.valkey.wire import blob, id_blob

_BEHIND_ALL: Final = b"\xff" * 17
"""No id comes after it."""

_DONE: Final = 1
_GONE: Final = b"gone"
"""What `settling.lua` says of an attempt that ended as asked, and of a job that is not there."""


class Working:
    """The workers of this process, as far as the store must remember them: where they claim, and how long they live."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._claimed_from: dict[WorkerId, set[str]] = {}
        self._alive_until: dict[WorkerId, int] = {}

    async def claim(self, ask: Ask, now: int | None) -> Claims:
        """Start waiting jobs; see `Store.claim`."""
        if not self._is_registered(ask):
            await self._register(ask, now)
        return await self._claim(Claiming(ask), now)

    async def settle(self, done: Sequence[Settlement], ask: Ask | None, now: int | None) -> SettleReply:
        """End attempts and claim the next; see `Store.settle`."""
        if ask is not None and not self._is_registered(ask):
            await self._register(ask, now)
        settled: list[Settled] = []
        reasons: dict[JobId, str] = {}
        claiming = Claiming(ask)
        parts = list(in_turn(done))
        for number, part in enumerate(parts, 1):
            settled += await self._settle(part, claiming if number == len(parts) else None, reasons, now)
        return SettleReply(settled, await self._claim(claiming, now), reasons)

    async def _settle(
        self,
        done: Sequence[Settlement],
        claiming: Claiming | None,
        reasons: dict[JobId, str],
        now: int | None,
    ) -> list[Settled]:
        """End attempts; the first queue that is claimed from is claimed from in the same step."""
        office, settling = self._office, Settling(done, reasons)
        places = {id: queue for id in settling.ids if (queue := office.remembered(id)) is not None}
        if len(places) < len(done):
            places |= await office.find([id for id in settling.ids if id not in places])
        gone = await self._settle_at(settling, places, claiming, now)
        if gone:  # from where they were last seen
            await self._settle_at(settling, await office.find(gone), None, now)
        return settling.settled

    async def _settle_at(
        self, settling: Settling, places: Mapping[bytes, str], claiming: Claiming | None, now: int | None
    ) -> list[bytes]:
        """End the attempts whose jobs are in these queues; the ids of those that are not there after all."""
        by_queue: dict[str, list[int]] = {}
        forms: dict[int, object] = {}
        gone: list[bytes] = []
        for place, (one, raw) in enumerate(zip(settling.done, settling.ids, strict=True)):
            queue = places.get(raw)
            if queue is None:
                continue
            then = one.then
            form = settlement(one) if then is None else await self._form(one, then, queue, settling.reasons)
            if form is None:
                settling.settled[place] = Settled.REFUSED
            else:
                forms[place] = form
                by_queue.setdefault(queue, []).append(place)
        first = None if claiming is None else claiming.next_queue
        calls = deque(
            (queue, some)
            for queue, places in sorted(
                by_queue.items(), key=lambda one: one[0] == first
            )  # what is claimed comes last
            for some in portions(places, lambda place: brings(settling.done[place]))
        )
        while calls:
            queue, some = calls.popleft()
            wish = None
            if claiming is not None and queue == first and not calls:
                wish = self._wish(claiming)
            rows, claims = await self._office.call(
                "settle",
                queue,
                ([forms[place] for place in some], False if wish is None else wish.form()),
                now=now,
            )
            gone += [
                settling.ids[place]
                for place, row in zip(some[: len(rows)], rows, strict=True)
                if not settling.note(place, row)
            ]
            if len(rows) < len(some):
                calls.appendleft((queue, some[len(rows) :]))
            elif claiming is not None and wish is not None:
                self._take(claiming, queue, claims, wish.token)
        return gone

    async def beat(self, beat: Beat, now: int | None) -> Pulse:
        """Prolong a worker's leases; see `Store.beat`."""
        office, worker = self._office, beat.worker
        progress = [(id_blob(id), blob(what)) for id, what in beat.progress.items()]
        record = (worker, beat.queues, beat.host, beat.pid, beat.concurrency, beat.lease, False)
        queues = await self._places(worker) | set(beat.queues)
        found, (alive_until, born) = await asyncio.gather(
            asyncio.gather(
                *(self._beat_in(queue, worker, beat.lease, progress, now) for queue in sorted(queues))
            ),
            office.call("register", DESK, (sorted(queues), record), now=now, beat=True),
        )
        await office.compare_birth(DESK, born)
        self._alive_until[worker] = alive_until
        held: dict[JobId, bytes] = {}
        aborting: set[JobId] = set()
        for rows in found:
            for raw, token, flagged in rows:
                id = id_from_bytes(raw)
                held[id] = token
                if flagged:
                    aborting.add(id)
        return Pulse(held, frozenset(aborting))

    async def _beat_in(
        self, queue: str, worker: WorkerId, lease: int, progress: Sequence[object], now: int | None
    ) -> list[Any]:
        """Beat in one queue; what is held there."""
        held: list[Any] = []
        behind: object = False
        while True:
            words = worker, lease, progress[:PORTION], behind
            rows, last, born = await self._office.call("beat", queue, words, now=now, beat=True)
            await self._office.compare_birth(queue, born)
            held += rows
            progress = progress[PORTION:]
            if last is None and not progress:
                return held
            behind = blob(last or _BEHIND_ALL)

    async def leave(self, worker: WorkerId) -> None:
        """Forget a worker that stopped in good order; see `Store.leave`."""
        office = self._office
        queues = set(await office.queues()) | self._claimed_from.get(worker, set())
        self._alive_until.pop(worker, None)
        await asyncio.gather(
            *(office.call("leave", queue, (worker,)) for queue in queues),
            office.call("unregister", DESK, ((worker,),)),
        )

    async def expired(self, limit: int, now: int | None) -> list[Expired]:
        """Running jobs whose workers are gone; see `Store.expired`. Messages of who died before delivering them go on."""
        queues = await self._office.queues()
        found = await asyncio.gather(
            *(self._office.look("expired", queue, (limit,), now=now, delivers=True) for queue in queues)
        )
        rows = [(row, queue) for queue, some in zip(queues, found, strict=True) for row in some]
        rows.sort(key=lambda one: one[0][7])
        for row, queue in rows[:limit]:
            self._office.remember([row[0]], queue)
        return [
            Expired(claimed(row, queue, row[5]), WorkerId(row[6].decode())) for row, queue in rows[:limit]
        ]

    async def _claim(self, claiming: Claiming, now: int | None) -> Claims:
        """Visit the queues that are yet to be visited, in order."""
        while (queue := claiming.next_queue) is not None:
            wish = self._wish(claiming)
            claims = await self._office.call("claim", queue, wish.form(), now=now)
            self._take(claiming, queue, claims, wish.token)
        return Claims(claiming.jobs, min(claiming.soonest, default=None))

    def _wish(self, claiming: Claiming) -> _Wish:
        worker, left = claiming.worker, claiming.limit - len(claiming.jobs)
        limit = min(max(left, 0), PORTION)
        return _Wish(
            worker,
            limit,
            os.urandom(LEASE_BYTES),
            self._alive_until.get(worker, False),
            min(claiming.stock + min(left, 0), PORTION - limit),
        )

    def _take(self, claiming: Claiming, queue: str, claims: Any, token: bytes) -> None:
        rows, due_in, again = claims
        self._office.remember([row[0] for row in rows], queue)
        claiming.jobs += [claimed(row, queue, token) for row in rows]
        # Again if so much had become due in its lanes that one call could not see to it, or if a call brought all that one may, and
        # more is wanted.
        wanted = claiming.limit + claiming.stock - len(claiming.jobs)
        if not again and (len(rows) < PORTION or wanted <= 0):
            claiming.queues.popleft()
            if due_in is not None:
                claiming.soonest.append(due_in)

    def _is_registered(self, ask: Ask) -> bool:
        """True if it is noted that the worker claims from there."""
        known = self._claimed_from.get(ask.worker)
        return known is not None and known.issuperset(ask.queues)

    async def _register(self, ask: Ask, now: int | None) -> None:
        """Note once from where a worker claims; who has not beaten yet is made known by that."""
        record = (ask.worker, (), "", 0, 0, GRACE, True)
        self._alive_until[ask.worker], born = await self._office.call(
            "register", DESK, (ask.queues, record), now=now
        )
        await self._office.compare_birth(DESK, born)
        (await self._places(ask.worker)).update(ask.queues)

    async def _places(self, worker: WorkerId) -> set[str]:
        """The queues where a worker has jobs, or may have: an earlier process of the same name may have claimed some."""
        known = self._claimed_from.get(worker)
        if known is None:
            queues = await self._office.queues()
            held = await asyncio.gather(*(self._office.look("held", queue, (worker,)) for queue in queues))
            found = {queue for queue, [count] in zip(queues, held, strict=True) if count}
            known = self._claimed_from.setdefault(worker, found)
        return known

    async def _form(
        self, one: Settlement, then: NewJob, queue: str, reasons: dict[JobId, str]
    ) -> object | None:
        """A settlement that goes on; None if its continuation cannot be made, which `reasons` then says."""
        if one.move is not Move.COMPLETE:
            return settlement(one)
        raw, instead = id_to_bytes(one.lease.id), await self._stranger(then)
        if not then.blockers:
            return settlement(one, instead=instead)
        [known] = await self._office.look("roots", queue, [blob(raw)])
        root = raw if known is None else known[0]
        reason, waits = await blocking.refusal(self._office, then, root)
        if reason is not None and await self._office.look(
            "completes", queue, (blob(raw), blob(one.lease.token))
        ):
            reasons[one.lease.id] = reason
            return None
        return settlement(one, waits, instead)

    async def _stranger(self, job: NewJob) -> Job | None:
        """A job in another queue that has the id of this one, as far as this process knows: ids are a queue's own."""
        raw = id_to_bytes(job.id)
        if self._office.remembered(raw) in (None, job.queue):
            return None
        return await inspect.job(self._office, job.id)


class Settling:
    """Attempts that are being ended, and how far that has come."""

    def __init__(self, done: Sequence[Settlement], reasons: dict[JobId, str]) -> None:
        self.done = done
        self.ids = [id_to_bytes(one.lease.id) for one in done]
        self.settled = [Settled.LOST] * len(done)
        self.reasons = reasons

    def note(self, place: int, row: Any) -> bool:
        """Note what a script says of one; False if its job is not there."""
        if row == _DONE:
            self.settled[place] = Settled.DONE
        elif row != _GONE:
            one, outcome = self.done[place], Settled(row[0].decode())
            self.settled[place] = outcome
            if outcome is Settled.DIVERGED and one.then is not None:
                self.reasons[one.lease.id] = diverged(row[1].decode(), one.then.task)
        return row != _GONE


class Claiming:
    """How far a claim has come: the queues that are yet to be visited, and what the others brought."""

    def __init__(self, ask: Ask | None) -> None:
        self.worker = WorkerId("") if ask is None else ask.worker
        self.limit = 0 if ask is None else ask.limit
        self.stock = 0 if ask is None else ask.stock
        self.queues: deque[str] = deque() if ask is None else deque(ask.queues)
        self.jobs: list[Claimed] = []
        self.soonest: list[int] = []

    @property
    def next_queue(self) -> str | None:
        """The one to be visited next."""
        return self.queues[0] if self.queues else None


class _Wish(NamedTuple):
    worker: str
    limit: int
    token: bytes
    alive_until: int | bool
    stock: int

    def form(self) -> tuple[object, ...]:
        return (self.worker, self.limit, blob(self.token), self.alive_until, self.stock)
