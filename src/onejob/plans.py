"""From a call to a new job: the options of a task or of one call, checked once, then applied to every call.

`TaskSettings` and `CallSettings` are what users write, `CallOptions` what is left once it has been checked, and a `Planner` turns
arguments into a `Call`: payload and plan, ready to be given an id.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypedDict, TypeVar, cast

import msgspec

from onejob.codec import Arguments, CallCodec, decode_result
from onejob.core.chain import MAX_BLOCKERS, OnBlockerFailure
from onejob.core.compression import compressed
from onejob.core.dedup import UNSET, Plan, Rules, Unique, Unset, compile_rules, forced
from onejob.core.errors import InvalidOption, shown
from onejob.core.identity import Realm, fingerprint
from onejob.core.job import ChainId, JobId, NewJob
from onejob.core.lane import Lane, LanePlan
from onejob.core.options import (
    MAX_SECONDS,
    JobOptions,
    Seconds,
    check_name,
    encode_options,
    millis,
    whole_number,
)
from onejob.core.retry import Exponential, Fixed, Retry
from onejob.keys import Key, KeyRule, check_parameter, key_rule, near
from onejob.queues import Queues, checked_dead_letter, refuse_own_grave

if TYPE_CHECKING:
    from onejob.lanes import LaneRule

R = TypeVar("R")

INT32: Final = 2**31


class TaskSettings(TypedDict, total=False):
    """What `@app.task(…)` takes, and `.using(…)` too.

    Times are seconds or timedeltas. `delay` says when a job is due, `expires` how long after its acceptance it
    is no longer worth starting. `retry` is a `Retry` or a number of attempts. Higher `priority` starts first.
    `dead_letter` names the queue where a copy waits if the job fails; None is for none, whatever its queue says.
    `lane` is a `Lane`, whose jobs start in order, or so many at a time, or so many in a minute.
    """

    queue: str
    unique: Unique | None
    lane: Lane | None
    priority: int
    delay: Seconds
    expires: Seconds | None
    retry: Retry | int | None
    timeout: Seconds | None
    max_crashes: int
    dead_letter: str | None


class Identified(Protocol):
    """What names a job: a receipt, or a job as it was read."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...


class CallSettings(TaskSettings, total=False):
    """What only `.using(…)` takes: `at` (an aware datetime) instead of `delay`; `force` to run in any case; `connection`, one of
    your own, to enqueue in its transaction.

    `blockers` are receipts or ids of jobs whose chains must have ended before this one may start. If one of them does
    not complete, this one fails, unless `on_blocker_failure="run"`.
    """

    at: dt.datetime
    force: bool
    blockers: Iterable[Identified | str]
    on_blocker_failure: OnBlockerFailure
    connection: object


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Checked settings; times in milliseconds."""

    queue: str = "default"
    unique: Unique | None = None
    lane: Lane | None = None
    priority: int = 0
    delay: int = 0
    at: int | None = None
    expires: int | None = None
    retry: Retry | None = None
    timeout: int | None = None
    max_crashes: int = 3
    dead_letter: str | Unset | None = UNSET
    force: bool = False
    blockers: tuple[JobId, ...] = ()
    on_blocker_failure: OnBlockerFailure = "fail"
    policy_of_call: bool = False
    """`unique` was given with the call, not with its task."""


def changed(
    options: CallOptions, settings: CallSettings | TaskSettings, *, of_task: bool = False
) -> CallOptions:
    """The options with these settings in place of theirs; a task takes only what every call can share."""
    known = tuple(name for name in _CHECKS if not of_task or name in TaskSettings.__annotations__)
    if "delay" in settings and "at" in settings:
        raise InvalidOption("delay=… and at=… exclude each other: give one of them.")
    new: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in known:
            hint = near(name, known if of_task else (*known, "connection"))
            raise InvalidOption(f"There is no option {shown(name)}: {hint}")
        new[name] = _CHECKS[name](value)
    if "delay" in new:
        new["at"] = None
    elif "at" in new:
        new["delay"] = 0
    if "unique" in new and not of_task:
        new["policy_of_call"] = new["unique"] is not None
    return msgspec.structs.replace(options, **new)


def checked_policy(value: object) -> Unique | None:
    """Return a `unique=` that is a policy, or None for none."""
    if value is None or isinstance(value, Unique):
        return value
    raise InvalidOption(f"unique=… must be a policy such as Unique.once(), or None, not {shown(value)}.")


class Call(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """One call of a task, bound, checked and encoded: a job in all but its id."""

    planner: Planner[R]
    payload: bytes
    plan: Plan | None
    lane: LanePlan | None = None
    """The lane it is for, with the limits that it brings."""

    @property
    def task(self) -> str:
        """The task's name."""
        return self.planner.task

    @property
    def queue(self) -> str:
        """The queue it is for."""
        return self.planner.options.queue

    @property
    def key(self) -> str | None:
        """Its key as people read it; None if it is not unique."""
        return None if self.plan is None else self.plan.text

    @property
    def arguments(self) -> dict[str, object]:
        """A copy of the arguments by name, defaults included, as a handler would get them."""
        codec = self.planner.codec
        return codec.mapping(codec.decode(self.payload))


class Planner(Generic[R]):
    """All calls of one task with the same options: everything that can be known before the arguments are."""

    __slots__ = (
        "_compresses",
        "_into",
        "_keys",
        "_lane_of",
        "_unproven",
        "backoffs",
        "codec",
        "options",
        "queues",
        "rules",
        "stored_options",
        "task",
    )

    def __init__(
        self,
        task: str,
        codec: CallCodec,
        options: CallOptions,
        app_window: int | None,
        queues: Queues,
        *,
        backoffs: Collection[str] = (),
    ) -> None:
        """`backoffs` are the names of the retry curves registered so far: a live view."""
        self.task = task
        self.codec = codec
        self.options = options
        self.queues = queues
        self.backoffs = backoffs
        self._unproven = _named_backoff(options.retry)
        self._compresses = queues.compresses(options.queue)
        self.rules: Rules | None = None
        self._keys: KeyRule | None = None
        self._into: str | None = None
        if options.unique is not None:
            self._read_policy(options.unique, app_window)
        self._lane_of = None if options.lane is None else _lane_rule(task, codec, options.lane)
        self.stored_options = encode_options(_job_options(options, self._into, _dead_letter(options, queues)))

    @property
    def realm(self) -> Realm:
        """Whose keys these calls share."""
        policy = self.options.unique
        shared = policy is not None and policy.scope == "queue"
        return Realm(self.options.queue, None if shared else self.task)

    def continuation(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[R]:
        """As `call`, for the next job of a chain: it has no key, whatever the policy of its task."""
        if self.options.policy_of_call:
            raise InvalidOption(
                f"A continuation has no key, so unique=… is not for it: the key belongs to the chain, whose first job "
                f"took it. Leave unique=… out of using(…), or start a chain of its own with {self.task!r} enqueued."
            )
        return self.call(args, kwargs, keyed=False)

    def call(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        keyed: bool = True,
        under: tuple[Key, Rules] | None = None,
    ) -> Call[R]:
        """Bind, check and encode one call; raises `ArgumentsInvalid` or `PayloadTooLarge`.

        `under` is a key and the rules for it, in place of the policy's.
        """
        if self._unproven is not None:
            self.check_backoff()
        codec = self.codec
        arguments = codec.bind(args, kwargs)
        payload = codec.encode(arguments)
        plan = None
        if under is not None:
            (digest, text), rules = under
            plan = Plan(digest, text, rules, fingerprint(payload))
        elif keyed and self.rules is not None and self._keys is not None:
            plan = self._plan(self.rules, self._keys, arguments, payload)
        if self._compresses and (packed := compressed(payload)) is not payload:
            if plan is not None:
                plan = msgspec.structs.replace(plan, size=len(payload))
            payload = packed
        lane = None if self._lane_of is None else self._lane_of(arguments)
        return Call(self, payload, plan, lane)

    def new_job(self, call: Call[R], id: JobId, caller: ChainId | None, clock: Callable[[], int]) -> NewJob:
        """The job that a store is asked to accept."""
        options = self.options
        delay = options.delay if options.at is None else max(0, options.at - clock())
        return NewJob(
            id,
            options.queue,
            self.task,
            call.payload,
            call.plan,
            options.priority,
            delay,
            options.expires,
            options.max_crashes,
            self.stored_options,
            caller,
            call.lane,
            options.blockers,
            options.on_blocker_failure == "run",
        )

    def check_backoff(self) -> None:
        """Refuse a retry curve's name that has not been registered by now."""
        name = self._unproven
        if name is not None and name not in self.backoffs:
            hint = near(name, tuple(self.backoffs))
            raise InvalidOption(
                f"Task {self.task!r} has Retry(backoff={name!r}), but no backoff of that name is registered: "
                f"{hint} Register it with @app.backoff({name!r})."
            )
        self._unproven = None

    def result(self, data: bytes | None) -> R:
        """A stored result as the type that the task's function declares."""
        return decode_result(data, self.codec.result_type)

    def why_not_unique(self) -> str:
        """Say why a call of this planner that got no plan is not deduplicated."""
        policy = self.options.unique
        if policy is None:
            return "the task has no unique=… policy"
        if policy.key is None:
            return "its policy says key=None, not unique"
        if self.rules is None:
            return "its window is zero or negative, which turns deduplication off"
        return "its key function returned None, not unique"

    def _read_policy(self, policy: Unique, app_window: int | None) -> None:
        options = self.options
        if policy.delays and (options.delay or options.at is not None):
            raise InvalidOption(
                f"delay=… and at=… do not go with the policy of task {self.task!r}: debounce and collect "
                "decide themselves when a job is due. Set the policy's wait=… instead."
            )
        self._keys = key_rule(self.task, self.codec.parameters, policy, self.realm)
        self._into = _checked_into(self.task, self.codec, policy)
        rules = compile_rules(policy, app_window)
        self.rules = forced(rules) if rules is not None and options.force else rules

    def _plan(self, rules: Rules, keys: KeyRule, arguments: Arguments, payload: bytes) -> Plan | None:
        try:
            key = keys.key(arguments)
        except UnicodeEncodeError:
            raise InvalidOption(
                f"A key of task {self.task!r} holds a lone surrogate, which no store can hold: "
                f"{shown(self.codec.mapping(arguments))}"
            ) from None
        if key is None:
            return None
        items = 0 if self._into is None else len(getattr(arguments, self._into) or ())
        return Plan(key[0], key[1], rules, fingerprint(payload), items)


def _lane_rule(task: str, codec: CallCodec, lane: Lane) -> LaneRule:
    from onejob.lanes import lane_rule  # most tasks have none

    return lane_rule(task, codec.parameters, lane)


def milliseconds() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def _checked_into(task: str, codec: CallCodec, policy: Unique) -> str | None:
    into = policy.into
    if into is None:
        return None
    check_parameter(task, "Unique.collect(into=…)", into, codec.parameters)
    if not codec.is_list(into):
        raise InvalidOption(
            f"Unique.collect(into={into!r}) needs a list parameter: annotate {into!r} of task {task!r} as list[…]."
        )
    return into


def _dead_letter(options: CallOptions, queues: Queues) -> str | None:
    own = options.dead_letter
    if isinstance(own, Unset):
        return queues.dead_letter(options.queue)
    refuse_own_grave(options.queue, own)
    return own


def _job_options(options: CallOptions, into: str | None, dead_letter: str | None) -> JobOptions:
    retry = options.retry
    if retry is None:
        return JobOptions(timeout=options.timeout, into=into, dead_letter=dead_letter)
    return JobOptions(
        attempts=retry.attempts,
        backoff=cast("Exponential | Fixed | str", retry.backoff),
        never=cast("tuple[str, ...]", retry.never),
        timeout=options.timeout,
        into=into,
        dead_letter=dead_letter,
    )


def _named_backoff(retry: Retry | None) -> str | None:
    return retry.backoff if retry is not None and isinstance(retry.backoff, str) else None


def _lane(value: object) -> Lane | None:
    if value is None or isinstance(value, Lane):
        return value
    raise InvalidOption(f'lane=… must be a lane such as Lane("imports"), or None, not {shown(value)}.')


def _retry(value: object) -> Retry | None:
    if value is None or isinstance(value, Retry):
        name = _named_backoff(value)
        if name is not None:
            check_name("Backoff", name)
        return value
    if isinstance(value, int):
        return Retry(attempts=value)
    raise InvalidOption(f"retry=… must be Retry(…), a number of attempts or None, not {shown(value)}.")


def _instant(value: object) -> int:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise InvalidOption(f"at=… must be a datetime with a time zone (tzinfo), not {shown(value)}.")
    instant = round(value.timestamp() * 1000)
    if instant > milliseconds() + MAX_SECONDS * 1000:
        raise InvalidOption(f"at=… must be at most ten years ahead, not {shown(value)}.")
    return instant


def _blockers(value: object) -> tuple[JobId, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOption(f"blockers=… must be a list of receipts or ids of jobs, not {shown(value)}.")
    ids: dict[JobId, None] = {}
    for item in cast("Iterable[object]", value):
        id = item if isinstance(item, str) else getattr(item, "id", None)
        if not isinstance(id, str):
            raise InvalidOption(f"blockers=… must be receipts or ids of jobs, but one is {shown(item)}.")
        ids[JobId(id)] = None
    if len(ids) > MAX_BLOCKERS:
        raise InvalidOption(
            f"blockers=… may be at most {MAX_BLOCKERS:,}, not {len(ids):,}: let some jobs wait for parts of them, "
            "and this one for those."
        )
    return tuple(ids)


def _on_blocker_failure(value: object) -> OnBlockerFailure:
    if value in ("fail", "run"):
        return value
    raise InvalidOption(
        f'on_blocker_failure=… must be "fail" (this job then fails, too) or "run", not {shown(value)}.'
    )


def _force(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"force=… must be True or False, not {shown(value)}.")
    return value


_CHECKS: Final[dict[str, Callable[[object], object]]] = {
    "queue": lambda value: check_name("Queue", value),
    "unique": checked_policy,
    "lane": _lane,
    "priority": lambda value: whole_number("priority", value, -INT32, INT32 - 1),
    "delay": lambda value: max(0, millis("delay", value)),
    "at": _instant,
    "expires": lambda value: None if value is None else millis("expires", value, minimum=1),
    "retry": _retry,
    "timeout": lambda value: None if value is None else millis("timeout", value, minimum=1),
    "max_crashes": lambda value: whole_number("max_crashes", value, 0, 1000),
    "dead_letter": checked_dead_letter,
    "force": _force,
    "blockers": _blockers,
    "on_blocker_failure": _on_blocker_failure,
}
