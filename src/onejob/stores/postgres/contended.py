"""A queued holder that many change at the same time: who finds it changed or locked waits for its row, and judges again under that.

Nothing else is locked, and until the row is written its lock is held for one look only, so that the next in line comes soon.
"""

from __future__ import annotations

from typing import Final

from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.stores.postgres.changing import write
from onejob.stores.postgres.driver import LOCK_TIMEOUT
from onejob.stores.postgres.failures import DEADLOCK, LOCK_NOT_AVAILABLE, sqlstate
from onejob.stores.postgres.holding import Seen, read
from onejob.stores.postgres.judging import Judgement
from onejob.stores.postgres.steps import Steps, ask, begin
from onejob.stores.postgres.work import Work

PATIENCE: Final = str(LOCK_TIMEOUT)
"""Milliseconds, as for any lock, whatever the transaction had: if others keep the row for longer, that is somebody's open transaction."""


def change_in_turn(work: Work, seen: Seen, job: NewJob, holder: str) -> Steps[list[Answer] | None]:
    """The answer, once the holder is changed, or needs no change any more; None: nothing is written, and it takes more."""
    plan = job.plan
    assert plan is not None
    yield from begin()
    yield from ask("enqueue.savepoint")
    yield from ask("enqueue.be_patient", PATIENCE)
    try:
        rows = yield from ask("enqueue.lock_jobs", [holder])
    except Exception as error:
        if sqlstate(error) not in (LOCK_NOT_AVAILABLE, DEADLOCK):
            raise
        rows = []
    for id, version in rows:
        now = Seen(rows={str(id)})
        read(now, (yield from ask("enqueue.look", work.now, [plan.digest], [job.id])))
        judged = Judgement(now, {}, foreign=False, alone=True)
        if judged.judge([job]) and judged.is_certain and not (judged.made or judged.ending):
            work.guesses.contended = seen.versions.get(holder) != version
            return (yield from write(work, now, judged, {}))
    yield from ask("enqueue.rollback_to")
    return None
