"""The policies, lanes and limits that the state machine plays with, as the model and as the product write them."""

from __future__ import annotations

from itertools import product
from uuid import UUID

from onejob.core.dead_letter import copy_id
from onejob.core.dedup import Plan, Unique, compile_rules, forced
from onejob.core.identity import Realm, fingerprint
from onejob.core.job import ChainId, JobId, NewJob
from onejob.core.lane import LanePlan, QueueLimits, Rate
from onejob.core.options import JobOptions, encode_options
from onejob.testing.records import Call, Grave, LaneLimits, Pace, QueueSettings
from onejob.testing.verdicts import Policy

WINDOW, WAIT, MAX_WAIT, LEASE, DELAY, EXPIRES, BACKOFF = 5_000, 2_000, 4_500, 3_000, 1_000, 4_000, 2_500
PER, QUEUE_PER = 3_500, 2_200

QUEUES, TASKS, KEYS = ("q", "r"), ("t", "u"), ("a", "b")
DEAD = "dead"
SERVED = (*QUEUES, DEAD)
CHANGING = {"update", "postpone", "collect"}


def digest(queue: str, task: str | None, key: str) -> bytes:
    """The identity of a key; `task=None` is shared by all tasks of the queue."""
    return Realm(queue, task).digest((key,))


DIGESTS = {
    (queue, task, key): digest(queue, task, key) for queue, task, key in product(QUEUES, (*TASKS, None), KEYS)
}
SHARED = {found for (_, task, _), found in DIGESTS.items() if task is None}

PRESETS = [
    Policy(preset="in_flight"),
    Policy(preset="in_flight", within=WINDOW),
    Policy(preset="in_flight", within=WINDOW, hold=True),
    Policy(preset="in_flight", overrides={"running": "raise"}),
    Policy(preset="in_flight", overrides={"queued": "follow", "running": "follow"}),
    Policy(preset="once"),
    Policy(preset="once", within=WINDOW),
    Policy(preset="once", overrides={"failed": "keep"}),
    Policy(preset="once", within=WINDOW, overrides={"failed": "raise"}),
    Policy(preset="once", strict=True),
    Policy(preset="throttle", within=WINDOW),
    Policy(preset="trailing", within=WINDOW),
    Policy(preset="coalesce"),
    Policy(preset="coalesce", within=WINDOW),
    Policy(preset="coalesce", overlap=True),
    Policy(preset="latest"),
    Policy(preset="latest", within=WINDOW),
    Policy(preset="latest", within=WINDOW, overlap=True),
    Policy(preset="latest", within=WINDOW, hold=True),
    Policy(preset="latest", within=WINDOW, overrides={"queued": "later", "running": "later"}),
    Policy(preset="debounce", wait=WAIT),
    Policy(preset="debounce", wait=WAIT, max_wait=MAX_WAIT),
    Policy(preset="collect", wait=WAIT, max_items=3),
    Policy(preset="collect", max_items=2),
    Policy(preset="restart"),
    Policy(preset="restart", overrides={"queued": "keep"}),
]

# One length of window for all lanes: what a store has forgotten of a shorter one, it need not count for a longer.
LANES = [
    LaneLimits("x"),
    LaneLimits("x", hold=True),
    LaneLimits("x", pace=Pace(1, PER)),
    LaneLimits("x", 2),
    LaneLimits("x", 2, Pace(2, PER)),
    LaneLimits("x", 2, Pace(1, PER), hold=True),
    LaneLimits("x", 3, hold=True),
    LaneLimits("y"),
    LaneLimits("y", 2, Pace(3, PER)),
    LaneLimits("y", pace=Pace(2, PER), hold=True),
]
PACES = [Pace(1, QUEUE_PER), Pace(2, QUEUE_PER), Pace(3, QUEUE_PER)]


def for_shared_keys(policy: Policy) -> bool:
    """True if a key of the whole queue may have this policy."""
    return not CHANGING & {policy.verdict(column, 0, own=False) for column in ("queued", "running")}


def unique(policy: Policy, *, scope: str) -> Unique:
    """The policy as a user would write it."""
    settings = {"scope": scope, "hold": policy.hold, "overlap": policy.overlap, **policy.overrides}
    if policy.strict:
        settings["mismatch"] = "raise"
    within = None if policy.within is None else policy.within / 1000
    match policy.preset:
        case "throttle":
            return Unique.throttle(within, **settings)
        case "trailing":
            return Unique.throttle(within, trailing=True, **settings)
        case "debounce":
            longest = None if policy.max_wait is None else policy.max_wait / 1000
            return Unique.debounce(policy.wait / 1000, longest, **settings)
        case "collect":
            return Unique.collect(wait=policy.wait / 1000, max_items=policy.max_items, **settings)
        case "restart":
            return Unique.restart(**settings)
        case name:
            return getattr(Unique, name)(within=within, **settings)


def new_job(call: Call) -> NewJob:
    """The call as a client sends it to a store."""
    plan = None
    if call.policy is not None and call.key is not None:
        rules = compile_rules(
            unique(call.policy, scope="queue" if call.key in SHARED else "task"), app_window=None
        )
        assert rules is not None
        plan = Plan(
            digest=call.key,
            text=call.key.hex(),
            rules=forced(rules) if call.policy.force else rules,
            fingerprint=fingerprint(call.payload),
            items=call.items,
        )
    return NewJob(
        id=JobId(call.id),
        queue=call.queue,
        task=call.task,
        payload=call.payload,
        plan=plan,
        priority=call.priority,
        delay=call.delay,
        expires=call.expires,
        max_crashes=call.max_crashes,
        options=encode_options(JobOptions(dead_letter=call.dead_letter)),
        caller=None if call.caller is None else ChainId(call.caller),
        lane=None if call.lane is None else plan_of(call.lane),
        blockers=tuple(JobId(id) for id in call.blockers),
        runs_anyway=call.runs_anyway,
    )


def plan_of(limits: LaneLimits) -> LanePlan:
    """A lane's limits as a client sends them."""
    return LanePlan(limits.key, limits.concurrency, rate_of(limits.pace), limits.hold)


def limits_of(plan: LanePlan) -> LaneLimits:
    """The same the other way."""
    return LaneLimits(plan.key, plan.concurrency, pace_of(plan.rate), plan.hold)


def rate_of(pace: Pace | None) -> Rate | None:
    """A rate as a client sends it."""
    return None if pace is None else Rate(pace.max, pace.per / 1000)


def pace_of(rate: Rate | None) -> Pace | None:
    """The same the other way."""
    return None if rate is None else Pace(rate.max, rate.window)


def settings_of(limits: QueueLimits) -> QueueSettings:
    """A queue's limits as the model writes them."""
    return QueueSettings(limits.concurrency, pace_of(limits.rate), limits.paused)


def grave_of(id: str, queue: str | None) -> Grave | None:
    """Where a job is buried if it fails."""
    return None if queue is None else Grave(queue, letter_id(id))


def letter_id(id: str) -> str:
    """The id of a job's dead letter."""
    return str(UUID(bytes=copy_id(UUID(id).bytes)))
