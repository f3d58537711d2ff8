"""enqueue: find each newcomer's holder, let `core.judge` decide, and write what it decided.

Rows of new jobs gather and go in by `executemany`; whatever changes an existing row flushes them first, so
that the outcome is that of the same calls one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from onejob.core.dedup import Standing
from onejob.core.job import ChainId, NewJob, State
from onejob.core.judge import Answer, Decision, Holder, Outcome, initial_state, judge
from onejob.core.lifecycle import EXPIRED
from onejob.sql.ids import id_from_bytes, id_to_bytes
from onejob.sql.lanes import stored_plan
from onejob.sql.rows import holder_of, stored_calls
from onejob.stores.sqlite import blocking
from onejob.stores.sqlite.blocking import Waits
from onejob.stores.sqlite.connect import Row, array
from onejob.stores.sqlite.ending import after_end, end_queued, revoke_last, strand
from onejob.stores.sqlite.lanes import lanes_of, put, refresh
from onejob.stores.sqlite.session import Session, Touch
from onejob.stores.sqlite.statements import statements

MAX_NEIGHBOURS = 2_000
"""More ids than this between a batch's lowest and highest are not read ahead."""


def enqueue(session: Session, jobs: Sequence[NewJob], now: int | None) -> list[Answer]:
    """Accept newcomers in order; see `Store.enqueue`."""
    batch = _Batch(session, jobs, session.now(now))
    answers = [batch.accept(job) for job in jobs]
    batch.flush()
    refresh(session, batch.now)
    return answers


def find_holder(session: Session, digest: bytes) -> Holder | None:
    """A key's record joined with its job, or None if there is no record."""
    row = _find_holders(session, (digest,)).get(digest)
    return None if row is None else holder_of(row, id_from_bytes)


def _find_holders(session: Session, digests: tuple[bytes, ...]) -> dict[bytes, Row]:
    found = session.execute(statements("enqueue")["find_holders"], {"digests": array(digests)})
    return {row[17]: row for row in found}


class _Made(msgspec.Struct, frozen=True, gc=False):
    """A holder among the rows not yet written."""

    job: NewJob
    decision: Decision
    state: State
    completed_until: int | None
    failed_until: int | None


class _Batch:
    """The newcomers of one call: rows not yet written, and what was found out about their keys at once."""

    def __init__(self, session: Session, jobs: Sequence[NewJob], now: int) -> None:
        self._session = session
        self.now = now
        self._sql = statements("enqueue")
        self._jobs: list[tuple[Any, ...]] = []
        self._keyed_jobs: list[tuple[Any, ...]] = []
        self._keys: list[tuple[Any, ...]] = []
        self._made: dict[bytes, _Made] = {}
        self._seen: set[bytes] = set()
        self._found: dict[bytes, Row] = {}
        self._stale: set[bytes] = set()
        """Keys that this call has changed since `_found` was read."""
        self._strandings = session.strandings
        self._known: frozenset[bytes] | None = frozenset()
        self._lanes = lanes_of(session, jobs)
        recognised = [job for job in jobs if job.plan is not None or job.lane is not None or job.blockers]
        if recognised:
            self._look_up(recognised)

    def accept(self, job: NewJob) -> Answer:
        plan = job.plan
        if plan is None:
            if (job.lane is not None or job.blockers) and self._is_known(id_to_bytes(job.id)):
                return Answer(job.id, Outcome.CREATED)
            self._insert(job)
            return self._in_lane(job, Answer(job.id, Outcome.CREATED))
        found = self._holder(plan.digest)
        decision = judge(job, found, self.now)
        id = id_to_bytes(job.id)
        replayed = decision.answer.holder is None and not decision.creates
        if not replayed and self._is_known(id):
            return Answer(job.id, Outcome.CREATED)
        if not replayed:
            self._waits(job)  # before anything is written: one that is unknown refuses the call
        if found is not None and not replayed:
            self._touch_holder(job, id_to_bytes(found.id), decision)
        if decision.creates:
            self._create(job, id, decision)
            if found is not None and decision.flag_holder:
                self._cancel(job, id_to_bytes(found.id))
            return self._in_lane(job, decision.answer)
        return decision.answer

    def flush(self) -> None:
        """Write the rows that have gathered."""
        for statement, rows in (
            ("insert_job", self._jobs),
            ("insert_keyed_job", self._keyed_jobs),
            ("take_key", self._keys),
        ):
            if rows:
                self._session.executemany(self._sql[statement], rows)
                rows.clear()
        self._stale.update(self._made)
        self._made.clear()

    def _look_up(self, jobs: list[NewJob]) -> None:
        """Read the holders of all keys, and which ids were accepted before, in one statement each."""
        digests = {job.plan.digest for job in jobs if job.plan is not None}
        if digests:
            self._found = _find_holders(self._session, tuple(digests))
        ids = [id_to_bytes(job.id) for job in jobs]
        span = {"lowest": min(ids), "highest": max(ids), "most": MAX_NEIGHBOURS}
        known = frozenset(row[0] for row in self._session.execute(self._sql["known_jobs"], span))
        self._known = known if len(known) < MAX_NEIGHBOURS else None

    def _holder(self, digest: bytes) -> Holder | None:
        made = self._made.get(digest)
        if made is not None:
            return self._holder_made(made)
        stranded = self._session.strandings > self._strandings
        if stranded or digest in self._stale:  # whoever holds this key may have failed by another's end
            return find_holder(self._session, digest)
        row = self._found.get(digest)
        return None if row is None else holder_of(row, id_from_bytes)

    def _holder_made(self, made: _Made) -> Holder:
        job, decision, plan = made.job, made.decision, made.job.plan
        assert plan is not None
        return Holder(
            id=ChainId(job.id),
            state=made.state,
            since=decision.since,
            completed_until=made.completed_until,
            failed_until=made.failed_until,
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

    def _touch_holder(self, job: NewJob, holder: bytes, decision: Decision) -> None:
        """Do to the holder what was decided, and count what it absorbed."""
        session, now, plan = self._session, self.now, job.plan
        assert plan is not None
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
            self._change(job, holder, decision)
        if decision.follows is not None and id_to_bytes(decision.follows) == holder:
            session.run(self._sql["follow_holder"], {"id": holder, "digest": plan.digest})
        if not decision.creates:
            session.absorb(plan.digest, holder, decision.answer.payload_differs)

    def _cancel(self, job: NewJob, holder: bytes) -> None:
        """Revoke a chain that has started. Its successor is there already, and so is let go if that ends at once."""
        self.flush()
        last = self._session.first(statements("amend")["chain"], {"id": holder})
        if last is not None:
            revoke_last(self._session, last[0], f"superseded by job {job.id}", self.now)

    def _change(self, job: NewJob, holder: bytes, decision: Decision) -> None:
        change, plan = decision.change, job.plan
        assert change is not None
        assert plan is not None
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
        if not job.blockers:
            return blocking.NOBODY
        self.flush()
        return blocking.look(self._session, job)

    def _block(self, job: NewJob, id: bytes, waits: Waits) -> None:
        """Let a new job wait for its blockers, or end it now if one of them will never complete."""
        if not waits.chains:
            return
        self.flush()
        blocking.put(self._session, id, waits, runs_anyway=job.runs_anyway)
        if waits.reason is not None:
            after_end(self._session, strand(self._session, id, waits.reason, self.now), self.now)

    def _create(self, job: NewJob, id: bytes, decision: Decision) -> None:
        waits = self._waits(job)
        if self._jobs:
            self.flush()  # rows are numbered as they are written, and so must be written in order
        now, plan = self.now, job.plan
        assert plan is not None
        rules, since = plan.rules, decision.since
        lane = job.lane
        state = initial_state(
            decision.due, decision.follows, now, laned=lane is not None, blocked=waits.blocked
        )
        follows = None if decision.follows is None else id_to_bytes(decision.follows)
        completed_until = rules.forget_at(Standing.COMPLETED, since)
        failed_until = rules.forget_at(Standing.FAILED, since)
        self._keyed_jobs.append(
            (
                id,
                job.queue,
                job.task,
                state,
                job.priority,
                decision.due,
                now,
                since,
                None if job.expires is None else now + job.expires,
                job.payload,
                job.options,
                job.max_crashes,
                plan.items,
                follows,
                plan.digest,
                plan.text,
                rules.encoded,
                plan.fingerprint,
                stored_calls(decision.calls),
                plan.size or None,
                None if lane is None else lane.key,
                stored_plan(lane),
                len(waits.chains),
            )
        )
        self._keys.append(
            (plan.digest, plan.text, job.queue, job.task, id, since, completed_until, failed_until, follows)
        )
        self._seen.add(id)
        self._made[plan.digest] = _Made(job, decision, state, completed_until, failed_until)
        self._session.topics.add("work:" + job.queue)
        self._block(job, id, waits)

    def _insert(self, job: NewJob) -> None:
        waits = self._waits(job)
        if self._keyed_jobs:
            self.flush()
        now, lane, id = self.now, job.lane, id_to_bytes(job.id)
        if lane is not None or job.blockers:
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
        self._session.topics.add("work:" + job.queue)
        self._block(job, id, waits)
