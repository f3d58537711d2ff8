"""How jobs, plans and settlements go to the scripts, and how what they say is read. None is False there."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from onejob.core.dead_letter import copy_id
from onejob.core.dedup import Verdict
from onejob.core.job import ChainId, Claimed, Job, JobId, Lease, Millis, NewJob, State
from onejob.core.judge import Answer, Call, Outcome
from onejob.core.lane import LanePlan
from onejob.core.lifecycle import ENDING, MOVES, Move, Settlement
from onejob.sql.attempts import IN_PLACE
from onejob.sql.ids import id_from_bytes, id_to_bytes, is_id
from onejob.sql.lanes import rate_of
from onejob.stores.valkey.newcomers import CARD, Waited, newcomer
from onejob.stores.valkey.wire import blob, blob_or_false

STATES: Final[dict[bytes, State]] = {
    b"b": State.BLOCKED,
    b"d": State.DELAYED,
    b"p": State.PARKED,
    b"w": State.WAITING,
    b"r": State.RUNNING,
    b"c": State.COMPLETED,
    b"f": State.FAILED,
    b"v": State.REVOKED,
}
LETTERS: Final = {state: letter.decode() for letter, state in STATES.items()}
LEASE_BYTES: Final = 8
_CHANGES: Final = {
    None: (Outcome.KEPT, Verdict.KEEP),
    b"u": (Outcome.UPDATED, Verdict.UPDATE),
    b"p": (Outcome.POSTPONED, Verdict.POSTPONE),
    b"c": (Outcome.COLLECTED, Verdict.COLLECT),
}
"""What was done about a duplicate that made no job."""
_OF_DUPLICATES: Final = 5
"""As much is said of those, at most."""
_CALL_SIZE: Final = 33
_HEAD: Final = Struct(">6s4I6x6s16xII")
_HEAD_AT: Final = 11
"""What a claim reads of a head, and behind what: its state, number and priority. See `HEAD` in `records.lua`."""


def raw_id(id: str) -> bytes | None:
    """An id as it is stored; None for what is none."""
    return id_to_bytes(id) if is_id(id) else None


def shown_id(raw: bytes | None) -> JobId | None:
    """An id that may be missing, as people and programs see it."""
    return None if raw is None else id_from_bytes(raw)


def text_of(raw: bytes | None) -> str | None:
    """Text that may be missing; a damaged one must not stop a queue."""
    return None if raw is None else raw.decode("utf-8", "replace")


def lane_of(key: str, row: Sequence[Any]) -> LanePlan:
    """The limits of a lane."""
    concurrency, most, per, hold = row[:4]
    return LanePlan(key, concurrency, rate_of(most, per), bool(hold))


def answer_of(row: Any, job: NewJob) -> Answer:
    """What a newcomer was answered; 1 says that it was created, and nothing else is to be said."""
    if row == 1:
        return Answer(job.id, Outcome.CREATED)
    if len(row) <= _OF_DUPLICATES:
        raw, state, age, differs, *change = row
        holder = id_from_bytes(raw)
        outcome, verdict = _CHANGES[change[0] if change else None]
        return Answer(
            holder,
            outcome,
            verdict,
            holder,
            STATES[state],
            age,
            differs > 1,
            differs % 2 == 1,
        )
    id, outcome, verdict, holder, state, age, payload_differs, options_differ, former = row
    return Answer(
        id_from_bytes(id),
        Outcome(outcome.decode()),
        Verdict(verdict.decode()),
        shown_id(holder),
        None if state is None else STATES[state],
        age,
        bool(payload_differs),
        bool(options_differ),
        None if former is None or job.lane is None else lane_of(job.lane.key, former),
    )


def calls_of(text: bytes) -> tuple[Call, ...]:
    """The calls that changed a queued job and are remembered."""
    calls = (text[at : at + _CALL_SIZE] for at in range(0, len(text), _CALL_SIZE))
    return tuple(
        Call(id_from_bytes(call[:16]), _CHANGES[call[16:17]][0], id_from_bytes(call[17:])) for call in calls
    )


def settlement(one: Settlement, waits: Sequence[Waited] = (), instead: Job | None = None) -> object:
    """A settlement as `settling.lua` reads it; `waits` are the chains that its continuation waits for.

    `instead` is a stranger in another queue that has the continuation's id.
    """
    raw, token, result = id_to_bytes(one.lease.id), one.lease.token, one.result
    if one.move is Move.COMPLETE and one.then is None and len(token) == LEASE_BYTES and result != b"":
        return blob(raw + token if result is None else raw + token + result)
    rule = MOVES[one.move]
    ends = ENDING.get(one.move)
    return (
        blob(raw),
        blob(one.lease.token),
        False if ends is None else LETTERS[ends],
        one.delay,
        blob_or_false(one.result),
        False if one.error is None else one.error,
        one.dead_letter or False,
        blob(copy_id(raw)) if one.dead_letter else False,
        False if one.then is None else (newcomer(one.then, waits), one.then.queue),
        rule.attempt,
        rule.failures,
        rule.crashes,
        rule.misses,
        one.move in IN_PLACE,
        rule.orphaned,
        instead is not None and (_other_task(instead, one.then),),
    )


def brings(one: Settlement) -> int:
    """How many bytes a settlement brings, but for a few."""
    then = 0 if one.then is None else len(one.then.payload)
    return then + len(one.result or b"") + len(one.error or "")


def _other_task(found: Job, asked: NewJob | None) -> str | bool:
    """The task of a job that is there instead of another; False if it is the same in all that counts."""
    same = asked is not None and (found.task, found.payload) == (asked.task, asked.payload)
    return False if same else found.task


def claimed(row: Sequence[Any], queue: str, token: bytes) -> Claimed:
    """A job that was started. Text is read leniently: one damaged job must not stop a queue."""
    raw, head, card, *more = row
    chain, lane = more[:2] if more else (None, None)
    due, attempt, failures, crashes, misses, accepted, place, blockers = _HEAD.unpack_from(head, _HEAD_AT)
    max_crashes, task, options, key, fingerprint, rest = CARD.unpack_from(card)
    options_at = CARD.size + task
    key_at = options_at + options
    rest_at = key_at + key - (key > 0)
    id = id_from_bytes(raw)
    return Claimed(
        Lease(id, token),
        queue,
        card[CARD.size : options_at].decode("utf-8", "replace"),
        card[rest_at + fingerprint + rest :],
        card[options_at:key_at] if options else None,
        attempt,
        failures,
        crashes,
        max_crashes,
        misses,
        Millis(int.from_bytes(accepted, "big")),
        Millis(int.from_bytes(due, "big")),
        ChainId(id if chain is None else id_from_bytes(chain)),
        place,
        card[key_at:rest_at].decode("utf-8", "replace") if key else None,
        text_of(lane),
        blockers,
    )
