"""A batch judged in memory, in order: what each newcomer is answered, and what must be written for that to be true.

No I/O. Rows that are only to be written are judged like those that are there, so that the outcome is that of the same
calls one by one. What a judgement rests on and could still move is named, to be locked before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from onejob.core.dedup import CREATING, Plan, Rules, Standing, Verdict
from onejob.core.job import NewJob, State
from onejob.core.judge import Answer, Decision, Holder, Outcome, first_due, initial_state, judge
from onejob.stores.postgres.blocking import NOBODY, Waits
from onejob.stores.postgres.holding import Seen
from onejob.stores.postgres.newcomers import Changed, New, changed
from onejob.stores.postgres.work import Absorbed

LONG_DUE: Final = 5_000
"""Milliseconds: a job that has been due for so long counts as running to those who would hold up its start."""

_READY = frozenset({State.WAITING, State.PARKED})
_TOUCHING = frozenset({Verdict.KEEP, Verdict.UPDATE, Verdict.POSTPONE, Verdict.COLLECT, Verdict.CANCEL})


class Ending(msgspec.Struct, frozen=True, gc=False):
    """A holder that a lone newcomer ends, or asks to stop."""

    holder: Holder
    decision: Decision


class Judgement:
    """The newcomers of one call, as far as they can be judged together."""

    def __init__(self, seen: Seen, waits: Mapping[str, Waits], *, foreign: bool, alone: bool) -> None:
        self._seen = seen
        self._waits = waits
        self._foreign = foreign
        self._alone = alone
        self.answers: list[Answer] = []
        self.made: list[New] = []
        self.takers: dict[bytes, New] = {}
        """Keys, and the newcomers that hold them in the end."""
        self.changes: dict[str, Changed] = {}
        self.hurried: set[str] = set()
        self.absorbed: list[Absorbed] = []
        self.ending: Ending | None = None
        self.keys: set[bytes] = set()
        """Keys that are to be taken and are not ours yet."""
        self.rows: set[str] = set()
        """Holders that are to be changed and not locked yet."""
        self.pins: set[str] = set()
        """Holders that must not start before this transaction is over."""
        self._by_id: dict[str, New] = {}

    @property
    def is_certain(self) -> bool:
        """True if nothing that it rests on can move."""
        return not (self.keys or self.rows or self.pins)

    def judge(self, jobs: Sequence[NewJob]) -> int:
        """Judge newcomers up to the first that can only be judged alone; how many."""
        now, ours, known, answers = self._seen.now, self._seen.ours, self._seen.known, self.answers
        takers, by_id = self.takers, self._by_id
        for job in jobs:
            plan = job.plan
            if plan is None:
                if job.lane is None and not job.blockers:
                    self._add(job, now + job.delay, None, NOBODY)
                    answers.append(Answer(job.id, Outcome.CREATED))
                elif job.id in known or job.id in by_id:
                    answers.append(Answer(job.id, Outcome.CREATED))
                elif not self._unkeyed(job):
                    break
            elif plan.digest in ours and plan.digest not in takers and not job.blockers:
                if job.id in known or job.id in by_id:
                    answers.append(Answer(job.id, Outcome.CREATED))
                    continue
                takers[plan.digest] = self._add(job, first_due(job, now), plan, NOBODY)
                answers.append(Answer(job.id, Outcome.CREATED))
            elif not self._keyed(job, plan):
                break
        return len(answers)

    def _unkeyed(self, job: NewJob) -> bool:
        waits = self._whom(job)
        if waits is None or (waits.reason is not None and not self._alone):
            return False
        self._add(job, self._seen.now + job.delay, None, waits)
        self.answers.append(Answer(job.id, Outcome.CREATED))
        return True

    def _keyed(self, job: NewJob, plan: Plan) -> bool:
        """Judge a newcomer by its key's holder; False if it must be alone."""
        seen, digest = self._seen, plan.digest
        made = self.takers.get(digest)
        found, counted = self._found(plan.rules, digest, made)
        decision = judge(job, counted, seen.now)
        answer = decision.answer
        if answer.holder is None and not decision.creates:
            self.answers.append(answer)
            return True
        if job.id in seen.known or job.id in self._by_id:
            self.answers.append(Answer(job.id, Outcome.CREATED))
            return True
        waits = self._whom(job)
        ends = decision.end_holder or decision.flag_holder or decision.expire_holder
        if waits is None or ((ends or waits.reason is not None) and not self._alone):
            return False
        if found is not None and counted is not found and answer.state is State.RUNNING:
            answer = msgspec.structs.replace(answer, state=found.state)
        if found is not None:
            if ends:
                self.ending = Ending(found, decision)
            self._touch(job, plan, found, decision, made)
        if decision.creates:
            if digest not in seen.ours and digest not in seen.locked:
                self.keys.add(digest)
            self.takers[digest] = self._add(job, decision.due, plan, waits, decision)
        self.answers.append(answer)
        return True

    def _whom(self, job: NewJob) -> Waits | None:
        """Whom a newcomer waits for; None if that must be looked up, because one before it was not made."""
        if not job.blockers:
            return NOBODY
        waits = self._waits.get(job.id)
        if waits is None and all(id in self._by_id for id in job.blockers):
            return Waits(tuple(dict.fromkeys(job.blockers)), frozenset(job.blockers))
        assert waits is not None or not self._alone
        return waits

    def _found(self, rules: Rules, digest: bytes, made: New | None) -> tuple[Holder | None, Holder | None]:
        """The holder as it stands, and as it counts: as running, if it cannot be kept from starting in good time."""
        seen = self._seen
        if made is not None:
            holder = made.as_holder(seen.now)
            return holder, holder
        found = seen.held.get(digest)
        if found is None:
            return None, None
        if (former := self.changes.get(found.id)) is not None:
            return former.holder, former.holder
        if not (self._foreign or seen.stuck):
            return found, found
        age = seen.now - found.since
        if (
            found.state.queued
            and not found.overdue(seen.now)
            and rules.verdict(Standing.QUEUED, age) in _TOUCHING
            and self._is_out_of_reach(found, rules.verdict(Standing.RUNNING, age))
        ):
            return found, msgspec.structs.replace(found, state=State.RUNNING)
        return found, found

    def _is_out_of_reach(self, holder: Holder, while_running: Verdict) -> bool:
        if holder.id in self._seen.stuck:
            return while_running in CREATING
        long_due = holder.state in _READY and holder.due <= self._seen.now - LONG_DUE
        return self._foreign and long_due and while_running is Verdict.FOLLOW

    def _touch(self, job: NewJob, plan: Plan, found: Holder, decision: Decision, made: New | None) -> None:
        """Note what becomes of the holder."""
        seen = self._seen
        if decision.change is not None:
            if made is not None:
                made.change(job, plan, decision.change, seen.now)
            elif (former := self.changes.get(found.id)) is not None:
                former.change(job, plan, decision.change, seen.now)
            else:
                self._need(found)
                self.changes[found.id] = changed(found, job, plan, decision.change, seen.now)
        elif decision.hurry_holder:
            self._hurry(found, made)
        elif made is None and (decision.end_holder or decision.expire_holder):
            self._need(found)
        elif made is None and self._foreign and decision.answer.outcome is Outcome.KEPT:
            age = seen.now - found.since
            follows = plan.rules.verdict(Standing.RUNNING, age) is Verdict.FOLLOW
            if follows and found.state.queued and found.id not in seen.pinned | seen.rows:
                self.pins.add(found.id)
        if not decision.creates:
            self.absorbed.append((plan.digest, found.id, decision.answer.payload_differs))

    def _need(self, holder: Holder) -> None:
        if holder.id not in self._seen.rows:
            self.rows.add(holder.id)

    def _hurry(self, found: Holder, made: New | None) -> None:
        now = self._seen.now
        if made is not None:
            made.hurry(now)
        elif (former := self.changes.get(found.id)) is not None:
            former.holder = msgspec.structs.replace(former.holder, due=now)
        elif found.id not in self._seen.stuck:
            self._need(found)
            self.hurried.add(found.id)

    def _add(
        self, job: NewJob, due: int, plan: Plan | None, waits: Waits, decision: Decision | None = None
    ) -> New:
        """A newcomer is to be made a job."""
        now = self._seen.now
        if decision is None and due <= now and job.lane is None and not waits.chains:
            new = New(job, len(self.answers), State.WAITING, due, now, job.payload)
        else:
            follows = None if decision is None else decision.follows
            state = initial_state(due, follows, now, laned=job.lane is not None, blocked=waits.blocked)
            since = now if decision is None else decision.since
            new = New(job, len(self.answers), state, due, since, job.payload, follows=follows, waits=waits)
            if decision is not None:
                new.calls = decision.calls
        if plan is not None:
            new.items, new.size, new.fingerprint = plan.items, plan.size or None, plan.fingerprint
        self.made.append(new)
        self._by_id[job.id] = new
        return new

    def awaited(self) -> set[str]:
        """The chains that newcomers wait for and that are on record; of others among them it is noted at once."""
        chains: set[str] = set()
        for new in self.made:
            if new.state is not State.BLOCKED:
                continue
            for chain in (*new.waits.live, *(() if new.follows is None else (new.follows,))):
                if (one := self._by_id.get(chain)) is not None:
                    one.awaited = True
                else:
                    chains.add(chain)
        return chains
