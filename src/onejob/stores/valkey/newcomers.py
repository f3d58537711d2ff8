"""Jobs on their way into a queue, as `newcomers.lua` reads them: one behind the other, each with its card as it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

import msgspec

from onejob.core.dead_letter import copy_id, dead_letter_of, with_dead_letter
from onejob.core.dedup import Rules
from onejob.core.job import NewJob
from onejob.core.lane import LanePlan
from onejob.sql.ids import id_to_bytes, is_id
from onejob.stores.valkey.wire import blob, blob_or_false

Waited = tuple[bytes, str, str | bool]
"""A chain that a job waits for: its id, its queue, and the error of its last job, if that is known."""

CARD: Final = Struct(">IHIHBI")
"""Lost leases allowed, then the lengths of task, options, key (one more, or 0 for none), fingerprint and what few cards have."""
_BEGINNING: Final = Struct(">IB")
"""The length of the rules, and whether all newcomers differ."""
_HEADER: Final = Struct(">16siQIIIH")
"""Id, priority, delay, the lengths of the plan, of the card and of what few jobs have, and which lane it is for: 0 for none."""
_RULE: Final = Struct(">HB")
"""Which rules apply, and the length of the digest, which follows."""
_NAMED: Final = Struct(">HH")
"""Of how a key's record begins, and of its text."""
_LENGTH: Final = Struct(">H")
_SIZES: Final = Struct(">II")
_NO_SIZES: Final = _SIZES.pack(0, 0)
_PLANNED: Final = _RULE.size + _LENGTH.size + 1 + _SIZES.size
"""The length of a plan without digest, fingerprint, and how a key's record begins."""
_BYTES: Final = [bytes((value,)) for value in range(256)]
_encode = msgspec.msgpack.Encoder().encode
_pack_card, _pack_header, _pack_rule, _pack_named = CARD.pack, _HEADER.pack, _RULE.pack, _NAMED.pack


def newcomers(jobs: Sequence[NewJob], waits: Mapping[str, Sequence[Waited]]) -> bytes:
    """These jobs, and the chains that they wait for."""
    shared = _Shared()
    words = [b""]
    # Every enqueue comes here: nothing is called that can be spared.
    for job in jobs:
        plan, payload, task = job.plan, job.payload, shared.task(job.task)
        rest = options = more = b""
        lane = 0
        if waits or job.caller or job.expires is not None or job.runs_anyway or job.options:
            options, rest, more = job.options or b"", _rest(job), _more(job, waits.get(job.id, ()))
        elif plan is not None or job.lane is not None:
            rest = shared.rest(job)
        if job.lane is not None:
            lane = shared.lane(job.lane)
        size = CARD.size + len(task) + len(options) + len(rest) + len(payload)
        id = id_to_bytes(job.id)
        if plan is None:
            words += (
                _pack_header(id, job.priority, job.delay, 0, size, len(more), lane),
                _pack_card(job.max_crashes, len(task), len(options), 0, 0, len(rest)),
                task,
                options,
                rest,
                payload,
                more,
            )
            continue
        digest, text, mark = plan.digest, plan.text.encode(), plan.fingerprint
        length, named, marked = len(digest), len(text) + len(task) + _NAMED.size, len(mark)
        planned = _PLANNED + length + named + marked
        words += (
            _pack_header(id, job.priority, job.delay, planned, size + len(text) + marked, len(more), lane),
            _pack_rule(shared.rule(plan.rules), length),
            digest,
            _pack_named(named, len(text)),
            text,
            shared.named(task),
            _BYTES[marked],
            mark,
            _SIZES.pack(plan.items, plan.size) if plan.items or plan.size else _NO_SIZES,
            _pack_card(job.max_crashes, len(task), len(options), len(text) + 1, marked, len(rest)),
            task,
            options,
            text,
            mark,
            rest,
            payload,
            more,
        )
    words[0] = shared.beginning(differ=_differ(jobs))
    return b"".join(words)


def _differ(jobs: Sequence[NewJob]) -> bool:
    """True if no two have the same id or the same key."""
    digests = [job.plan.digest for job in jobs if job.plan is not None]
    return len({job.id for job in jobs}) == len(jobs) and len(set(digests)) == len(digests)


class _Shared:
    """What many jobs of one call have in common."""

    __slots__ = ("_lanes", "_named", "_rests", "_rules", "_tasks")

    def __init__(self) -> None:
        self._tasks: dict[str, bytes] = {}
        self._named: dict[bytes, bytes] = {}
        self._rules: dict[int, tuple[int, Rules]] = {}
        """By identity: all jobs of a task have one object of rules."""
        self._lanes: dict[LanePlan, int] = {}
        self._rests: dict[tuple[object, ...], bytes] = {}

    def task(self, name: str) -> bytes:
        """The name of a task."""
        return self._tasks.get(name) or self._tasks.setdefault(name, name.encode())

    def named(self, task: bytes) -> bytes:
        """The name of a task behind its length."""
        return self._named.get(task) or self._named.setdefault(task, _LENGTH.pack(len(task)) + task)

    def rule(self, rules: Rules) -> int:
        """The place of rules among those that are sent along, from 1."""
        known = self._rules.get(id(rules)) or self._rules.setdefault(id(rules), (len(self._rules) + 1, rules))
        return known[0]

    def lane(self, lane: LanePlan) -> int:
        """The place of a lane among those that are sent along, from 1."""
        return self._lanes.get(lane) or self._lanes.setdefault(lane, len(self._lanes) + 1)

    def rest(self, job: NewJob) -> bytes:
        """What few cards have: of a job that brings nothing but a plan and a lane, the same for all with such ones."""
        plan, lane = job.plan, job.lane
        kind: tuple[object, ...] = (None if plan is None else (id(plan.rules), plan.items, plan.size),)
        if lane is not None:
            kind += (lane.concurrency, lane.rate, lane.hold)
        return self._rests.get(kind) or self._rests.setdefault(kind, _rest(job))

    def beginning(self, *, differ: bool) -> bytes:
        """What comes before all newcomers."""
        packed = b""
        if self._rules or self._lanes:
            rules = [rules_form(rules) for _, rules in self._rules.values()]
            packed = _encode((rules, [(lane.key, *_limits(lane)) for lane in self._lanes]))
        return _BEGINNING.pack(len(packed), differ) + packed


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


def _rest(job: NewJob) -> bytes:
    """What few cards have."""
    plan, lane, grave = job.plan, job.lane, _grave(job)
    if plan is None and lane is None and not job.runs_anyway and not grave:
        return b""
    return _encode(
        (
            False if plan is None else blob(plan.rules.encoded),
            0 if plan is None else plan.items,
            False if plan is None or plan.size == 0 else plan.size,
            False if lane is None else _limits(lane),
            job.runs_anyway,
            grave,
        )
    )


def _more(job: NewJob, waits: Sequence[Waited]) -> bytes:
    if job.expires is None and job.caller is None and not waits:
        return b""
    caller = None if job.caller is None or not is_id(job.caller) else id_to_bytes(job.caller)
    return _encode(
        (
            False if job.expires is None else job.expires,
            blob_or_false(caller),
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
