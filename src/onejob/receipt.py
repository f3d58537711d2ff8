"""What every enqueue returns: always a real id, what happened, and why, in words.

A receipt is a statement about one moment. It can wait for the job's result, but it does not change with it.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, assert_never

import msgspec

from onejob.core.dedup import Verdict
from onejob.core.errors import DuplicateJob, PayloadMismatch
from onejob.core.job import JobId, State
from onejob.core.judge import Answer, Outcome
from onejob.core.lane import LanePlan
from onejob.core.span import span
from onejob.plans import Call

R = TypeVar("R")


class Results(Protocol):
    """Where a receipt asks for its job's result."""

    def result(self, receipt: Receipt[Any], timeout: float | None) -> Any:
        """Wait in a thread."""
        ...

    async def aresult(self, receipt: Receipt[Any], timeout: float | None) -> Any:
        """Wait in a coroutine."""
        ...


class Receipt(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """What became of one enqueue. `print(receipt)` explains it."""

    _answer: Answer
    call: Call[R]
    """The call this is the receipt of."""
    _results: Results

    @property
    def id(self) -> JobId:
        """The job that stands for this call: the new one, or the holder of its key."""
        return self._answer.id

    @property
    def outcome(self) -> Outcome:
        """What was done: created, kept, updated, postponed, collected; in bulk also rejected."""
        return self._answer.outcome

    @property
    def deduplicated(self) -> bool:
        """True if no new job was made."""
        return self._answer.outcome is not Outcome.CREATED

    @property
    def queue(self) -> str:
        """The queue the job waits in."""
        return self.call.planner.options.queue

    @property
    def task(self) -> str:
        """The task's name."""
        return self.call.planner.task

    @property
    def key(self) -> str | None:
        """The key as people read it; None if the call is not unique."""
        plan = self.call.plan
        return None if plan is None else plan.text

    @property
    def digest(self) -> bytes | None:
        """The 16 bytes by which a store knows the key; None if the call is not unique."""
        plan = self.call.plan
        return None if plan is None else plan.digest

    @property
    def verdict(self) -> Verdict:
        """What the policy said, given what the holder was doing."""
        return self._answer.verdict

    @property
    def holder(self) -> JobId | None:
        """Who held the key when this call came; None if nobody did."""
        return self._answer.holder

    @property
    def holder_state(self) -> State | None:
        """How the holder stood at that moment."""
        return self._answer.state

    @property
    def age(self) -> float | None:
        """How old the holder was, in seconds; None if there was none."""
        return None if self._answer.holder is None else self._answer.age / 1000

    @property
    def payload_differs(self) -> bool:
        """True if the holder had been asked with other arguments."""
        return self._answer.payload_differs

    @property
    def options_differ(self) -> bool:
        """True if the holder has another priority, lane, retry or timeout than this call asked for; its own stand."""
        return self._answer.options_differ

    @property
    def lane(self) -> str | None:
        """The key of the lane that this call asked for; None if it asked for none."""
        return None if self.call.lane is None else self.call.lane.key

    @property
    def former_lane(self) -> LanePlan | None:
        """The limits that its lane had until this call changed them; None if it did not."""
        return self._answer.former_lane

    def new_or_none(self) -> Receipt[R] | None:
        """This receipt if the call made a new job, else None."""
        return None if self.deduplicated else self

    def result(self, timeout: float | None = None) -> R:
        """Wait until the job's chain has ended and return what its last function returned.

        Raises `JobFailed` or `JobRevoked`, which name the job of the chain that did not complete, `ResultTimeout`
        after `timeout` seconds, or `ResultGone` if the job ended so long ago that it has been pruned.
        """
        return self._results.result(self, timeout)

    async def aresult(self, timeout: float | None = None) -> R:
        """As `result`, in async code."""
        return await self._results.aresult(self, timeout)

    def __str__(self) -> str:
        return in_words(self)

    def __repr__(self) -> str:
        return f"<Receipt {in_words(self)}>"


def in_words(receipt: Receipt[Any]) -> str:
    """Say what became of a call, and why."""
    changed = lane_in_words(receipt)
    return f"{_what_became(receipt)}; {changed}" if changed else _what_became(receipt)


def lane_in_words(receipt: Receipt[Any]) -> str:
    """Say how a call changed the limits of its lane; nothing if it did not."""
    former, lane = receipt.former_lane, receipt.call.lane
    if former is None or lane is None:
        return ""
    return f'lane "{lane.key}" now takes {lane}, where it took {former}'


def _what_became(receipt: Receipt[Any]) -> str:
    id, outcome, key, verdict = receipt.id, receipt.outcome, receipt.key, receipt.verdict
    if outcome is not Outcome.CREATED:
        if receipt.holder is None:
            return f"{outcome}: this call had been {outcome} before, into {id}"
        return f'{outcome}: key "{key}" is held by {holder_in_words(receipt)}'
    if key is None:
        return f"created: {id}, not unique"
    if receipt.holder is None:
        return f'created: {id} holds key "{key}"'
    holder = holder_in_words(receipt)
    match verdict:
        case Verdict.RUN:
            return f'created: {id} takes key "{key}" from {holder}'
        case Verdict.FOLLOW | Verdict.COLLECT:
            return f'created: {id} takes key "{key}" and follows {holder}'
        case Verdict.LATER:
            return f'created: {id} takes key "{key}" and waits for the window of {holder} to end'
        case Verdict.CANCEL:
            return f'created: {id} takes key "{key}" and revokes {holder}'
        case Verdict.KEEP | Verdict.UPDATE | Verdict.POSTPONE | Verdict.RAISE:
            return f'created: {id} holds key "{key}"'
        case _:
            assert_never(verdict)


def holder_in_words(receipt: Receipt[Any]) -> str:
    """Name the holder, how it stood and how its arguments compare."""
    arguments = ", other arguments" if receipt.payload_differs else ", same arguments"
    if receipt.outcome is Outcome.COLLECTED:
        arguments = ""  # its items are new, and the rest is not compared
    options = ", other options" if receipt.options_differ else ""
    age = span(round((receipt.age or 0) * 1000))
    return f"{receipt.holder} ({receipt.holder_state}, {age} old{arguments}{options})"


def refusal(receipt: Receipt[Any]) -> DuplicateJob:
    """The error for a call that its policy refused."""
    plan = receipt.call.plan
    mismatch = plan is not None and plan.rules.strict and receipt.payload_differs
    kind = PayloadMismatch if mismatch else DuplicateJob
    rule = 'mismatch="raise" refuses other arguments' if mismatch else "the policy says raise"
    return kind(
        f'Key "{receipt.key}" of task {receipt.task!r} in queue {receipt.queue!r} is held by '
        f"{holder_in_words(receipt)}, and {rule}. Wait for it to end, release the key with release(…), "
        "or enqueue with .using(force=True).",
        holder=receipt.holder or receipt.id,
    )
