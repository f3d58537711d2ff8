"""Rows as records, for every SQL store: their statements return the same columns in the same order.

`id` says how a store's driver gives an id: as bytes, or as a UUID.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from onejob.core.errors import OnejobError, shown
from onejob.core.job import ChainId, Job, JobId, State, WorkerId
from onejob.core.judge import Call, Holder, Outcome
from onejob.core.schedule import Schedule
from onejob.store import WorkerView

Row: TypeAlias = tuple[Any, ...]
ReadId: TypeAlias = Callable[[Any], JobId]

_calls_decoder = msgspec.json.Decoder(tuple[Call, ...])
_calls_encoder = msgspec.json.Encoder()
_queues_decoder = msgspec.json.Decoder(tuple[str, ...])


_states = {state.value: state for state in State}


def state_of(word: str) -> State:
    """Read a state's word; anything else is a damaged row, or one that a newer onejob wrote."""
    try:
        return _states[word]
    except KeyError:
        raise unknown_state(word) from None


def unknown_state(word: str) -> OnejobError:
    """What to raise of a state that is none of ours."""
    return OnejobError(
        f"The store holds a job in state {shown(word)}, which this onejob does not know: upgrade onejob here, or look "
        "at the row."
    )


def stored_calls(calls: tuple[Call, ...]) -> bytes | None:
    """The last calls applied to a job, as they are kept with it."""
    return _calls_encoder.encode(calls) if calls else None


def chain_of(raw: Any, id: ReadId) -> ChainId | None:
    """An id column that may be null, as that of a chain."""
    return None if raw is None else ChainId(id(raw))


def holder_of(row: Row, id: ReadId) -> Holder:
    """Read a row of `enqueue.find_holders`."""
    # By position, and without a call that can be spared: every duplicate comes here.
    follows, calls = row[11], row[15]
    return Holder(
        ChainId(id(row[0])),
        _states.get(row[1]) or state_of(row[1]),
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        row[7],
        row[8],
        row[9],
        row[10],
        None if follows is None else ChainId(id(follows)),
        row[12] or b"",
        row[13],
        row[14],
        () if calls is None else _calls_decoder.decode(calls),
        bool(row[16]),
        row[18],
    )


def job_of(row: Row, id: ReadId) -> Job:
    """Read a row of `inspect.job`."""
    own = id(row[0])
    return Job(
        id=own,
        queue=row[1],
        task=row[2],
        state=state_of(row[3]),
        payload=row[4],
        priority=row[5],
        accepted=row[6],
        updated=row[7],
        due=row[8],
        expires=row[9],
        started=row[10],
        ended=row[11],
        attempt=row[12],
        failures=row[13],
        crashes=row[14],
        max_crashes=row[15],
        misses=row[16],
        items=row[17],
        worker=row[18],
        aborting=bool(row[19]),
        follows=chain_of(row[20], id),
        chain=chain_of(row[31], id) or ChainId(own),
        chain_index=row[32],
        blockers=row[33],
        key=row[21],
        digest=row[22],
        plan=row[23],
        options=row[24],
        progress=row[25],
        result=row[26],
        error=row[27],
        origin=None if row[28] is None else id(row[28]),
        origin_queue=row[29],
        lane=row[30],
    )


def schedule_of(row: Row, id: ReadId) -> Schedule:
    """Read a row of `schedules`."""
    name, definition, declared, paused, since, due, last, job, outcome, fired, updated, revision = row
    return Schedule(
        id=name,
        definition=definition,
        declared=bool(declared),
        paused=bool(paused),
        since=since,
        next=due,
        last=last,
        job=None if job is None else id(job),
        outcome=None if outcome is None else Outcome(outcome),
        fired=fired,
        updated=updated,
        revision=revision,
    )


def worker_of(row: Row) -> WorkerView:
    """Read a row of `inspect.workers`."""
    id, queues, host, pid, concurrency, started, seen, alive, running = row
    return WorkerView(
        id=WorkerId(id),
        queues=_queues_decoder.decode(queues),
        host=host,
        pid=pid,
        concurrency=concurrency,
        started=started,
        seen=seen,
        alive=bool(alive),
        running=running,
    )
