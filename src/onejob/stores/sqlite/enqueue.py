"""enqueue: find each newcomer's holder, let `core.judge` decide, and write what it decided.

Where newcomers have to do with others, their rows gather and go in by `executemany`; whatever changes an existing row
flushes them first, so that the outcome is that of the same calls one by one. All others are for `newcomers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onejob.core.dedup import Plan
from onejob.core.job import ChainId, NewJob
from onejob.core.judge import Answer, Change, Decision, Holder, Outcome, initial_state, judge, keep
from onejob.core.lifecycle import EXPIRED
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.lanes import stored_plan
from onejob.sql.rows import holder_of, stored_calls
from onejob.stores.sqlite import blocking
from onejob.stores.sqlite.blocking import Waits
from onejob.stores.sqlite.connect import array
from onejob.stores.sqlite.ending import after_end, end_queued, revoke_last, strand
from onejob.stores.sqlite.lanes import lanes_of, put, refresh
from onejob.stores.sqlite.newcomers import (
    Made,
    fit,
    insert_keyed,
    insert_plain,
    job_rows,
    key_rows,
    memory,
)
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements

MAX_NEIGHBOURS = 2_000
"""More ids than this between a batch's lowest and highest are not read ahead."""


def enqueue(session: Session, jobs: Sequence[NewJob], now: int | None) -> list[Answer]:
    """Accept newcomers in order; see `Store.enqueue`."""
    instant = session.now(now)
    if all(map(_is_plain, jobs)):
        return _enqueue_plain(session, jobs, instant)
    ids = [id_to_bytes(job.id) for job in jobs]
    batch = _Batch(session, jobs, ids, instant)
    if batch.is_all_new and fit(jobs):
        insert_keyed(session, jobs, ids, instant)
        return _all_created(session, jobs)
    answers = [batch.accept(job, id) for job, id in zip(jobs, ids, strict=True)]
    batch.finish()
    return answers


def find_holder(session: Session, digest: bytes) -> Holder | None:
    """A key's record joined with its job, or None if there is no record."""
    return _find_holders(session, (digest,)).get(digest)


def _find_holders(session: Session, digests: tuple[bytes, ...]) -> dict[bytes, Holder]:
    found = session.execute(statements("enqueue")["find_holders"], {"digests": array(digests)})
    return {row[17]: holder_of(row, id_from_bytes) for row in found}


def _is_plain(job: NewJob) -> bool:
    """True if nothing but its own row is to be written or looked at."""
    return job.plan is None and job.lane is None and not job.blockers


def _enqueue_plain(session: Session, jobs: Sequence[NewJob], now: int) -> list[Answer]:
    """Plain jobs have nothing to do with each other: their rows go in as they are."""
    insert_plain(session, jobs, now)
    return _all_created(session, jobs)


def _all_created(session: Session, jobs: Sequence[NewJob]) -> list[Answer]:
    session.tell("work", {job.queue for job in jobs})
    return [Answer(job.id, Outcome.CREATED) for job in jobs]


class _Batch:
    """The newcomers of one call: rows not yet written, and what was found out about their keys at once."""

    def __init__(self, session: Session, jobs: Sequence[NewJob], ids: Sequence[bytes], now: int) -> None:
        self._session = session
        self.now = now
        self._sql = statements("enqueue")
        self._jobs: list[tuple[Any, ...]] = []
        self._keyed: list[Made] = []
        self._made: dict[bytes, Made] = {}
        self._seen: set[bytes] = set()
        self._queues: set[str] = set()
        """Where new jobs wait."""
        self._found: dict[bytes, Holder] = {}
        self._stale: set[bytes] = set()
        """Keys that this call has changed since `_found` was read."""
        self._strandings = session.strandings
        self._lanes = lanes_of(session, jobs)
        digests = {job.plan.digest for job in jobs if job.plan is not None}
        if digests:
            self._found = _find_holders(session, tuple(digests))
        self._known = self._look_for(ids)
        self.is_all_new = (
            self._known is not None
            and not self._found
            and not self._known.intersection(ids)
            and len(digests) == len(ids) == len(set(ids))
        )
        """Every job has a key of its own that nobody holds, and was not accepted before."""

    def accept(self, job: NewJob, id: bytes) -> Answer:
        plan = job.plan
        if plan is None:
            if not self._is_known(id):
                self._insert(job, id)
                return self._in_lane(job, Answer(job.id, Outcome.CREATED))
            return Answer(job.id, Outcome.CREATED)
        found = self._holder(plan.digest)
        if found is not None and not job.blockers and not self._is_known(id):
            answer = keep(job, plan, found, self.now)
            if answer is not None:
                self._session.absorb((plan.digest, found.id, answer.payload_differs))
                return answer
        decision = judge(job, found, self.now)
        if decision.answer.holder is None and not decision.creates:
            return decision.answer  # a call that was applied before
        if self._is_known(id):
            return Answer(job.id, Outcome.CREATED)
        if job.blockers:
            self._waits(job)  # before anything is written: one that is unknown refuses the call
        if found is not None:
            self._touch_holder(job, plan, found, decision)
        if decision.creates:
            self._create(job, plan, id, decision)
            if found is not None and decision.flag_holder:
                self._cancel(job, id_to_bytes(found.id))
            return decision.answer if job.lane is None else self._in_lane(job, decision.answer)
        return decision.answer

    def finish(self) -> None:
        """Write the rest, and say where there is work."""
        self.flush()
        self._session.tell("work", self._queues)
        refresh(self._session, self.now)

    def flush(self) -> None:
        """Write the rows that have gathered."""
        session, sql, now = self._session, self._sql, self.now
        if self._jobs:
            session.executemany(sql["insert_job"], self._jobs)
            self._jobs.clear()
        if self._keyed:
            session.executemany(sql["insert_keyed_job"], job_rows(self._keyed, now))
            session.executemany(sql["take_key"], key_rows(self._keyed))
            self._keyed.clear()
            self._stale.update(self._made)
            self._made.clear()

    def _look_for(self, ids: Sequence[bytes]) -> frozenset[bytes] | None:
        """Which ids were accepted before; None if they are no neighbours, to be looked for one by one."""
        span = {"lowest": min(ids), "highest": max(ids), "most": MAX_NEIGHBOURS}
        known = frozenset(row[0] for row in self._session.execute(self._sql["known_jobs"], span))
        return known if len(known) < MAX_NEIGHBOURS else None

    def _holder(self, digest: bytes) -> Holder | None:
        made = self._made.get(digest)
        if made is not None:
            return self._holder_made(made)
        stranded = self._session.strandings > self._strandings
        if stranded or digest in self._stale:  # whoever holds this key may have failed by another's end
            return find_holder(self._session, digest)
        return self._found.get(digest)

    def _holder_made(self, made: Made) -> Holder:
        job, decision, plan = made.job, made.decision, made.plan
        completed_until, failed_until = memory(plan.rules, decision.since)
        return Holder(
            id=ChainId(job.id),
            state=made.state,
            since=decision.since,
            completed_until=completed_until,
            failed_until=failed_until,
            accepted=self.now,
            due=decision.due,
            attempt=0,
            priority=job.priority,
            options=job.options,
            expires=None if job.expires is None else self.now + job.expires,
            follows=decision.follows,
            fingerprint=plan.fingerprint,
            items=plan.items,
            size=plan.size or len(job.payload),
            calls=decision.calls,
            lane=None if job.lane is None else job.lane.key,
        )

    def _is_known(self, id: bytes) -> bool:
        """True if this id was accepted before: the call is repeated after a lost reply."""
        if id in self._seen:
            return True
        if self._known is not None:
            return id in self._known
        return self._session.first(self._sql["find_job"], {"id": id}) is not None

    def _touch_holder(self, job: NewJob, plan: Plan, found: Holder, decision: Decision) -> None:
        """Do to the holder what was decided, and count what it absorbed."""
        session, now, holder = self._session, self.now, id_to_bytes(found.id)
        if not decision.creates:
            session.absorb((plan.digest, found.id, decision.answer.payload_differs))
        if decision.end_holder or decision.hurry_holder or decision.expire_holder or decision.change:
            self.flush()
            self._stale.add(plan.digest)
        if decision.expire_holder:
            end_queued(session, holder, EXPIRED, now)
        if decision.end_holder:
            end_queued(session, holder, f"superseded by job {job.id}", now)
        if decision.hurry_holder:
            for queue, lane in session.rows(self._sql["hurry_holder"], {"id": holder, "now": now}):
                session.tell("work", [queue])
                session.touch(queue, lane, Touch.RETURNED)
        if decision.change is not None:
            self._change(job, plan, holder, decision.change)
        if decision.follows == found.id:
            session.run(self._sql["follow_holder"], {"id": holder, "digest": plan.digest})

    def _cancel(self, job: NewJob, holder: bytes) -> None:
        """Revoke a chain that has started. Its successor is there already, and so is let go if that ends at once."""
        self.flush()
        last = self._session.first(statements("amend")["chain"], {"id": holder})
        if last is not None:
            revoke_last(self._session, last[0], f"superseded by job {job.id}", self.now)

    def _change(self, job: NewJob, plan: Plan, holder: bytes, change: Change) -> None:
        changed = self._session.rows(
            self._sql["change_holder"],
            {
                "id": holder,
                "append": change.append,
                "payload": job.payload,
                "fingerprint": plan.fingerprint,
                "items": plan.items,
                "size": plan.size or len(job.payload),
                "due": change.due,
                "now": self.now,
                "calls": stored_calls(change.calls),
            },
        )
        for queue, lane in changed:
            self._session.tell("work", [queue])
            self._session.touch(queue, lane, Touch.RETURNED | Touch.LEFT)

    def _in_lane(self, job: NewJob, answer: Answer) -> Answer:
        """The answer to a job that was created, once its lane has the limits that it brings."""
        plan = job.lane
        if plan is None:
            return answer
        place = (job.queue, plan.key)
        former = self._lanes.get(place)
        if former != plan:
            put(self._session, job.queue, plan, former)
            self._lanes[place] = plan
        self._session.touch(*place, Touch.CAME if former == plan else Touch.RETURNED)
        return answer if former in (None, plan) else msgspec.structs.replace(answer, former_lane=former)

    def _waits(self, job: NewJob) -> Waits:
        """Whom a newcomer is to wait for; they may be among those that have gathered."""
        self.flush()
        return blocking.look(self._session, job)

    def _block(self, job: NewJob, id: bytes, waits: Waits) -> None:
        """Let a new job wait for its blockers, or end it now if one of them will never complete."""
        self.flush()
        blocking.put(self._session, id, waits, runs_anyway=job.runs_anyway)
        if waits.reason is not None:
            after_end(self._session, strand(self._session, id, waits.reason, self.now), self.now)

    def _create(self, job: NewJob, plan: Plan, id: bytes, decision: Decision) -> None:
        waits = self._waits(job) if job.blockers else blocking.NOBODY
        if self._jobs:
            self.flush()  # rows are numbered as they are written, and so must be written in order
        follows = decision.follows
        state = initial_state(
            decision.due, follows, self.now, laned=job.lane is not None, blocked=waits.blocked
        )
        followed = None if follows is None else id_to_bytes(follows)
        made = Made(id, job, plan, decision, state, followed, len(waits.chains))
        self._keyed.append(made)
        self._made[plan.digest] = made
        self._seen.add(id)
        self._queues.add(job.queue)
        if waits.chains:
            self._block(job, id, waits)

    def _insert(self, job: NewJob, id: bytes) -> None:
        waits = self._waits(job) if job.blockers else blocking.NOBODY
        if self._keyed:
            self.flush()
        now, lane = self.now, job.lane
        self._seen.add(id)
        self._jobs.append(
            (
                id,
                job.queue,
                job.task,
                initial_state(now + job.delay, None, now, laned=lane is not None, blocked=waits.blocked),
                job.priority,
                now + job.delay,
                now,
                None if job.expires is None else now + job.expires,
                job.payload,
                job.options,
                job.max_crashes,
                None if lane is None else lane.key,
                stored_plan(lane),
                len(waits.chains),
            )
        )
        self._queues.add(job.queue)
        if waits.chains:
            self._block(job, id, waits)
