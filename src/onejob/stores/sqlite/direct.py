"""Enqueues that a thread makes by itself, in one step of the engine's.

To hand a call to the writer's thread and back takes as long as to write it. So a thread without an event loop looks, judges and
writes by itself, on a connection of its own, where nobody writes just now and one step does it: a job without a key, one
whose key is vacant, one that is kept. All else goes the long way, and so does all that fails, to be met and told there.

Each step is one call of `apsw`, from the beginning of its transaction to the end: a signal handler may come between two steps,
enqueue, and wait for the writer. So the turn between writers of a process is politeness, for which nobody waits long; what
guards the file is SQLite's own lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import apsw

from onejob.core.job import NewJob
from onejob.core.judge import Answer, Outcome, judge
from onejob.stores.sqlite.connect import Connection, rollback
from onejob.stores.sqlite.enqueue import find_holder
from onejob.stores.sqlite.executor import Executor
from onejob.stores.sqlite.forking import forks
from onejob.stores.sqlite.newcomers import keyed_at_once, plain_at_once
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.statements import statements

_CREATED: Final = Outcome.CREATED
_LONGEST: Final = 5.0
"""Seconds that a step may take, on the slowest of disks."""


class Direct:
    """A connection that never waits for others, for one thread at a time."""

    def __init__(
        self,
        writer: Executor,
        connect: Callable[[], Connection],
        clock: Callable[[], int],
        tell: Callable[[set[str]], None],
    ) -> None:
        self.path = writer.path
        self._writer = writer
        self._connect = connect
        self._clock = clock
        self._tell = tell
        self._session: Session | None = None
        self._in_use = self._closed = False
        self.lock = threading.RLock()
        """Whoever has it has the connection. A signal handler, or a fork in one, may come while its own thread has it."""
        forks.watch(self)

    def enqueue(self, job: NewJob) -> Answer | None:
        """The answer to a newcomer whose id is new; None: nothing was done."""
        turn, has_lock, has_turn = self._writer.turn, False, False
        if job.lane is not None or job.blockers or not self._writer.is_idle:
            return None
        try:
            has_lock = self.lock.acquire(blocking=False)
            if not has_lock or self._in_use or self._closed:
                return None
            has_turn = turn.acquire(blocking=False)
            return self._enqueue(job) if has_turn else None
        finally:
            if has_turn:
                turn.release()
            if has_lock:
                self.lock.release()

    def _enqueue(self, job: NewJob) -> Answer | None:
        self._in_use = True
        try:
            session = self._current_session()
            return None if session is None else self._accept(session, job)
        except Exception:  # whatever it is, the writer meets it again, and has the words for it
            self._undo()
            return None
        finally:
            self._in_use = False

    def close(self) -> None:
        """Close the connection for good; one that is still in use is left to whoever uses it."""
        self._closed = True
        if self.lock.acquire(timeout=_LONGEST):
            try:
                self.drop()
            finally:
                self.lock.release()

    def drop(self) -> None:
        """Close the connection; the next call opens another."""
        session, self._session = self._session, None
        if session is not None:
            session.connection.close()

    def _current_session(self) -> Session | None:
        session = self._session
        if session is None:
            session = self._session = Session(self._connect(), self._clock, self.path)
        elif session.is_stale():
            self.drop()  # the writer notices as well
            return None
        return session

    def _accept(self, session: Session, job: NewJob) -> Answer | None:
        now, plan = session.now(), job.plan
        if plan is None:
            session.execute(statements("enqueue")["insert_plain_at_once"], plain_at_once(job, now))
        else:
            holder = find_holder(session, plan.digest)
            decision = judge(job, holder, now)
            if holder is not None:
                answer = decision.answer
                if not decision.is_an_answer or answer.holder is None:
                    return None
                self._writer.count_absorbed((plan.digest, holder.id, answer.payload_differs))
                return answer
            session.execute(
                statements("enqueue")["insert_keyed_at_once"], keyed_at_once(job, plan, decision, now)
            )
            if not session.connection.changes():
                return None  # somebody was faster
        self._tell({f"work:{job.queue}"})
        return Answer(job.id, _CREATED)

    def _undo(self) -> None:
        try:
            if self._session is not None:
                rollback(self._session.connection)
        except apsw.Error:
            self.drop()
