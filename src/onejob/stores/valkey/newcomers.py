"""Jobs on their way into a queue, as `newcomers.lua` reads them: one behind the other, each with its card as it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

import msgspec

from onejob.core.dead_letter import copy_id, dead_letter_of, with_dead_letter
from onejob.core.dedup import Plan, Rules
from onejob.core.job import NewJob
from onejob.core.lane import LanePlan
from onejob.sql.ids import id_to_bytes, is_id
from onejob.stores.valkey.wire import blob, blob_or_false

Waited = tuple[bytes, str, str | bool]
"""A chain that a job waits for: its id, its queue, and the error of its last job, if that is known."""

CARD: Final = Struct(">IHIHBI")
"""Lost leases allowed, then the lengths of task, options, key (one more, or 0 for none), fingerprint and what few cards have."""
_HEADER: Final = Struct(">16siQIIH")
"""Id, priority, delay, the lengths of the card and of what few jobs have, and which rules apply: 0 for none."""
_SIZE: Final = Struct(">I")
_TWO: Final = Struct(">II")
_NOTHING: Final = _SIZE.pack(0)
_encode = msgspec.msgpack.Encoder().encode


def newcomers(jobs: Sequence[NewJob], waits: Mapping[str, Sequence[Waited]]) -> bytes:
    """These jobs, and the chains that they wait for."""
    rules: dict[Rules, int] = {}
    words = [b""]
    for job in jobs:
        plan, task, options = job.plan, job.task.encode(), job.options or b""
        if not (
            plan or options or waits or job.lane or job.caller or job.expires is not None or job.runs_anyway
        ):
            card = CARD.pack(job.max_crashes, len(task), 0, 0, 0, 0) + task + job.payload
            words += _HEADER.pack(id_to_bytes(job.id), job.priority, job.delay, len(card), 0, 0), card
            continue
        rule = 0 if plan is None else rules.setdefault(plan.rules, len(rules) + 1)
        card = _card(job, task, options)
        more = _more(job, waits.get(job.id, ()))
        words += _HEADER.pack(id_to_bytes(job.id), job.priority, job.delay, len(card), len(more), rule), b""
        if plan is not None:
            words[-1] = _planned(plan)
        words += card, more
    if rules:
        packed = _encode([rules_form(some) for some in rules])
        words[0] = _SIZE.pack(len(packed)) + packed
    else:
        words[0] = _NOTHING
    return b"".join(words)


def newcomer(job: NewJob, waits: Sequence[Waited] = ()) -> msgspec.Raw:
    """One job, inside an argument."""
    return blob(newcomers([job], {job.id: waits} if waits else {}))


def rules_form(rules: Rules) -> tuple[object, ...]:
    """Rules as `judge.lua` reads them."""
    return (
        rules.table,
        False if rules.window is None else rules.window,
        rules.wait,
        False if rules.max_wait is None else rules.max_wait,
        rules.max_items,
        rules.strict,
        rules.forced,
    )


def _lane(lane: LanePlan | None) -> tuple[object, ...] | bool:
    """A lane as `making.lua` reads it."""
    return False if lane is None else (lane.key, *_limits(lane))


def _planned(plan: Plan) -> bytes:
    digest, text, fingerprint = plan.digest, plan.text.encode(), plan.fingerprint
    return b"".join(
        (
            bytes((len(digest),)),
            digest,
            len(text).to_bytes(2, "big"),
            text,
            bytes((len(fingerprint),)),
            fingerprint,
            _TWO.pack(plan.items, plan.size),
        )
    )


def _card(job: NewJob, task: bytes, options: bytes) -> bytes:
    plan, lane, grave = job.plan, job.lane, _grave(job)
    key, fingerprint = (b"", b"") if plan is None else (plan.text.encode(), plan.fingerprint)
    if plan is None and lane is None and not job.runs_anyway and not grave:
        more = b""
    else:
        more = _encode(
            (
                False if plan is None else blob(plan.rules.encoded),
                0 if plan is None else plan.items,
                False if plan is None or plan.size == 0 else plan.size,
                False if lane is None else _limits(lane),
                job.runs_anyway,
                grave,
            )
        )
    key_size = 0 if plan is None else len(key) + 1
    sizes = CARD.pack(job.max_crashes, len(task), len(options), key_size, len(fingerprint), len(more))
    return b"".join((sizes, task, options, key, fingerprint, more, job.payload))


def _more(job: NewJob, waits: Sequence[Waited]) -> bytes:
    if job.expires is None and job.caller is None and job.lane is None and not waits:
        return b""
    caller = None if job.caller is None or not is_id(job.caller) else id_to_bytes(job.caller)
    return _encode(
        (
            False if job.expires is None else job.expires,
            blob_or_false(caller),
            _lane(job.lane),
            [(blob(chain), queue, error) for chain, queue, error in waits],
        )
    )


def _limits(lane: LanePlan) -> tuple[object, ...]:
    return (
        lane.concurrency,
        False if lane.rate is None else lane.rate.max,
        False if lane.rate is None else lane.rate.window,
        int(lane.hold),
    )


def _grave(job: NewJob) -> tuple[object, ...] | bool:
    """Where a copy goes should the job fail before it ever starts, with which options, and under which id."""
    queue = dead_letter_of(job.options, job.queue)
    if queue is None:
        return False
    bare = with_dead_letter(job.options, None)
    return (queue, blob_or_false(bare), blob(copy_id(id_to_bytes(job.id))))
