"""What an operator may ask of the reference model: to revoke, to retry, to delete. It is asked of the whole chain."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onejob.testing.ledger import Ledger
from onejob.testing.records import LIVE, ModelJob


@dataclass
class Amending(Ledger):
    """What is on record, and what operators change about it."""

    def revoke(self, id: str, now: int) -> str:
        """End the queued last job of a chain, flag a running one."""
        last = self.last(id)
        if last is None:
            return "not_found"
        if last.state == "running":
            last.aborting, last.updated = True, now
            return "flagged"
        if last.state not in LIVE:
            return "finished"
        self.end(last.call.id, "revoked", now)
        return "revoked"

    def retry(self, id: str, now: int, *, without_key: bool) -> str:
        """Revive an ended chain; of a dead letter, that of its original. Either way the dead letter goes."""
        letter = self.letter_of(id)
        if letter is None or letter.origin is None:
            return self._revive(id, now, without_key=without_key)
        state = self.standing(letter.call.id)
        if state == "running":
            return "running"
        if state == "completed" and (letter.call.id == id or letter.origin not in self.jobs):
            return "finished"
        if letter.origin not in self.jobs:
            self.exhume(letter, now)
        elif (answer := self._revive(letter.origin, now, without_key=without_key)) != "retried":
            return answer
        self._discard(letter.call.id, now)
        return "retried"

    def delete(self, id: str, now: int, *, with_waiting: bool = False) -> str:
        """Remove a chain that is not running; a live one counts as revoked. An id that is gone means its dead letter."""
        letter = self.letter_of(id)
        if id not in self.jobs and letter is not None:
            id = letter.call.id
        last = self.last(id)
        if last is None:
            return "not_found"
        if last.state == "running":
            return "running"
        if not with_waiting and self.is_awaited(last.chain):
            return "awaited"
        self._discard(id, now)
        return "deleted"

    def letter_of(self, id: str) -> ModelJob | None:
        """The dead letter that has this id, or whose original is the job of that id or the last of its chain."""
        job, last = self.jobs.get(id), self.last(id)
        if job is not None and job.origin is not None:
            return job
        origins = (id,) if last is None else (id, last.call.id)
        return next((job for origin in origins for job in self.jobs.values() if job.origin == origin), None)

    def _discard(self, id: str, now: int) -> None:
        """A chain goes; if it lives, as one that was revoked."""
        last = self.last(id)
        assert last is not None
        if last.state in LIVE:
            self.end(last.call.id, "revoked", now)
        self.remove(id)

    def _revive(self, id: str, now: int, *, without_key: bool) -> str:
        chain = self.chain(id)
        if not chain:
            return "not_found"
        first, last = chain[0], chain[-1]
        if last.state in LIVE:
            return "running"
        if last.state == "completed":
            return "finished"
        may_have_key = self._may_have_key(first, now)
        if not without_key and not may_have_key:
            return "kept"
        if self.is_stranded(last):
            return "stranded"
        if may_have_key:
            self._take_back(first, last)
        else:
            first.call = replace(first.call, key=None, policy=None)
        last.failures = last.crashes = last.misses = 0
        last.aborting, last.ended, last.expires, last.updated = False, None, None, now
        last.awaits = self.living(last.blockers)
        self.set_due(last, now, now)
        return "retried"

    def _take_back(self, first: ModelJob, last: ModelJob) -> None:
        if first.call.key is None or first.call.policy is None:
            return
        record = self.keys.get(first.call.key)
        last.follows = None if record is None else record.follows
        if record is None or record.holder != first.call.id:
            self.take(first.call.key, first, last.follows)

    def _may_have_key(self, job: ModelJob, now: int) -> bool:
        record = None if job.call.key is None else self.keys.get(job.call.key)
        if record is None or job.call.policy is None or record.holder == job.call.id:
            return True
        if not self.holds(record, now):
            return True
        policy = replace(job.call.policy, force=False)
        return policy.verdict(self.column(record, now), now - record.since, own=False) == "run"
