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
from onejob.core.judge import Answer, Call, Decision, Holder, Outcome, initial_state, judge
from onejob.stores.sqlite.connect import Row
from onejob.stores.sqlite.ending import end_queued
from onejob.stores.sqlite.session import Session, id_from_bytes, id_to_bytes
from onejob.stores.sqlite.statements import statements

_calls_decoder = msgspec.json.Decoder(tuple[Call, ...])
_calls_encoder = msgspec.json.Encoder()


def enqueue(session: Session, jobs: Sequence[NewJob], now: int | None) -> list[Answer]:
    """Accept newcomers in order; see `Store.enqueue`."""
    batch = _Batch(session, session.now(now))
    answers = [batch.accept(job) for job in jobs]
    batch.flush()
    return answers


def find_holder(session: Session, digest: bytes) -> Holder | None:
    """A key's record joined with its job, or None if there is no record."""
    row = session.first(statements("enqueue")["find_holder"], {"digest": digest})
    return None if row is None else holder_of(row)


def holder_of(row: Row) -> Holder:
    """Read a row of `find_holder`."""
    return Holder(
        id=ChainId(id_from_bytes(row[0])),
        state=State(row[1]),
        since=row[2],
        completed_until=row[3],
        failed_until=row[4],
        accepted=row[5],
        due=row[6],
        attempt=row[7],
        priority=row[8],
        options=row[9],
        expires=row[10],
        follows=None if row[11] is None else ChainId(id_from_bytes(row[11])),
        fingerprint=row[12] or b"",
        items=row[13],
        size=row[14],
        calls=() if row[15] is None else _calls_decoder.decode(row[15]),
        gone=bool(row[16]),
    )


class _Batch:
    """The newcomers of one call: rows not yet written, and the holders known from this call."""

    def __init__(self, session: Session, now: int) -> None:
        self._session = session
        self._now = now
        self._sql = statements("enqueue")
        self._jobs: list[tuple[Any, ...]] = []
        self._keys: list[tuple[Any, ...]] = []
        self._made: dict[bytes, Holder] = {}
        """Holders among the rows not yet written, by digest."""
        self._seen: set[str] = set()

    def accept(self, job: NewJob) -> Answer:
        if job.plan is None:
            due = self._now + job.delay
            self._insert(job, State.DELAYED if due > self._now else State.WAITING, due, self._now)
            return Answer(job.id, Outcome.CREATED)
        digest = job.plan.digest
        found = self._made.get(digest) or find_holder(self._session, digest)
        decision = judge(job, found, self._now)
        if found is None and not self._known(job):
            self._create(job, decision)
            return decision.answer
        return self._apply(job, found, decision)

    def flush(self) -> None:
        """Write the rows that have gathered."""
        if self._jobs:
            self._session.executemany(self._sql["insert_job"], self._jobs)
            self._jobs.clear()
        if self._keys:
            self._session.executemany(self._sql["take_key"], self._keys)
            self._keys.clear()
        self._made.clear()
        self._seen.clear()

    def _known(self, job: NewJob) -> bool:
        """True if this id was accepted before: the call is repeated after a lost reply."""
        if job.id in self._seen:
            return True
        return self._session.first(self._sql["find_job"], {"id": id_to_bytes(job.id)}) is not None

    def _apply(self, job: NewJob, found: Holder | None, decision: Decision) -> Answer:
        answer = decision.answer
        replayed = answer.holder is None and not decision.creates
        if not replayed and self._known(job):
            return Answer(job.id, Outcome.CREATED)
        assert found is not None
        holder = id_to_bytes(found.id)
        if decision.end_holder or decision.flag_holder or decision.hurry_holder or decision.change:
            self.flush()
        if decision.end_holder:
            end_queued(self._session, holder, f"superseded by job {job.id}", self._now)
        if decision.flag_holder:
            self._session.rows(statements("amend")["flag"], {"id": holder, "now": self._now})
        if decision.hurry_holder:
            self._session.run(self._sql["hurry_holder"], {"id": holder, "now": self._now})
            self._session.tell("work", [job.queue])
        if decision.change is not None:
            self._change(job, holder, decision)
        if decision.creates:
            self._create(job, decision)
        elif not replayed and job.plan is not None:
            self._session.absorb(job.plan.digest, holder, answer.payload_differs)
        return answer

    def _change(self, job: NewJob, holder: bytes, decision: Decision) -> None:
        change, plan = decision.change, job.plan
        assert change is not None
        assert plan is not None
        self._session.rows(
            self._sql["change_holder"],
            {
                "id": holder,
                "append": change.append,
                "payload": job.payload,
                "fingerprint": plan.fingerprint,
                "items": plan.items,
                "due": change.due,
                "now": self._now,
                "calls": _calls_encoder.encode(change.calls),
            },
        )
        self._session.tell("work", [job.queue])

    def _create(self, job: NewJob, decision: Decision) -> None:
        plan = job.plan
        assert plan is not None
        state = initial_state(decision.due, decision.follows, self._now)
        follows = None if decision.follows is None else id_to_bytes(decision.follows)
        calls = _calls_encoder.encode(decision.calls) if decision.calls else None
        self._insert(job, state, decision.due, decision.since, follows=follows, calls=calls)
        completed_until = plan.rules.forget_at(Standing.COMPLETED, decision.since)
        failed_until = plan.rules.forget_at(Standing.FAILED, decision.since)
        self._keys.append(
            (
                plan.digest,
                plan.text,
                job.queue,
                job.task,
                self._jobs[-1][0],
                decision.since,
                completed_until,
                failed_until,
                follows,
            )
        )
        self._seen.add(job.id)
        self._made[plan.digest] = Holder(
            id=ChainId(job.id),
            state=state,
            since=decision.since,
            completed_until=completed_until,
            failed_until=failed_until,
            accepted=self._now,
            due=decision.due,
            attempt=0,
            priority=job.priority,
            options=job.options,
            expires=None if job.expires is None else self._now + job.expires,
            follows=decision.follows,
            fingerprint=plan.fingerprint,
            items=plan.items,
            size=len(job.payload),
            calls=decision.calls,
        )

    def _insert(
        self,
        job: NewJob,
        state: State,
        due: int,
        since: int,
        *,
        follows: bytes | None = None,
        calls: bytes | None = None,
    ) -> None:
        now, plan = self._now, job.plan
        digest = key = rules = fingerprint = None
        items = 0
        if plan is not None:
            digest, key, rules, fingerprint, items = (
                plan.digest,
                plan.text,
                plan.rules.encoded,
                plan.fingerprint,
                plan.items,
            )
        self._jobs.append(
            (
                id_to_bytes(job.id),
                job.queue,
                job.task,
                state,
                job.priority,
                due,
                now,
                now,
                since,
                None if job.expires is None else now + job.expires,
                job.payload,
                job.options,
                job.max_crashes,
                items,
                follows,
                digest,
                key,
                rules,
                fingerprint,
                calls,
            )
        )
        self._session.topics.add("work:" + job.queue)
