"""How a run that went well ends: with its continuation, or because its own `complete()` has ended it already."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from onejob.codec import encode_result
from onejob.core.compression import unpacked
from onejob.core.lifecycle import Outcome, Raised, Settlement, Succeeded, after_attempt
from onejob.store import Settled, SettleReply, Store
from onejob.worker.attempt import Attempt
from onejob.worker.charging import NOTHING, encoded
from onejob.worker.failure import describe, one_line
from onejob.worker.journal import say
from onejob.worker.setup import WorkerSetup


def returned(attempt: Attempt, value: object, setup: WorkerSetup) -> Outcome:
    """What a value that the handler returned leads to."""
    current, claimed = attempt.current, attempt.claimed
    current.over = True
    if value is None and current.continuation is None:
        return NOTHING
    outcome = encoded(claimed.task, value, compresses=setup.compresses(claimed.queue))
    if current.continuation is None or not isinstance(outcome, Succeeded):
        return outcome
    return msgspec.structs.replace(outcome, then=current.next_job(setup.clock))


def completed(attempt: Attempt, value: object = None, error: BaseException | None = None) -> Succeeded:
    """What a handler did after its own `complete()`: it is too late to count, and too odd not to be told."""
    claimed, done = attempt.claimed, attempt.current.completed
    assert done is not None
    subject = f"job {claimed.id} (task {claimed.task})"
    if value is not None and not _is_output(value, done[0]):
        text = f"{subject} returned another value than its complete() gave, which is ignored: give it as tx.output"
        say(logging.WARNING, "result.ignored", text, claimed)
    stopped = attempt.interrupted is not None and isinstance(error, asyncio.CancelledError)
    if error is not None and not stopped:
        text = f"{subject} raised after its complete(), which stands: {one_line(describe(error))}"
        say(logging.ERROR, "handler.raised_late", text, claimed)
    return Succeeded(done[0].result, done[0].then)


def _is_output(value: object, settlement: Settlement) -> bool:
    """True for `return tx.output`, with which a handler keeps its declared type."""
    try:
        data = encode_result(value)
        return data == (None if settlement.result is None else unpacked(settlement.result))
    except Exception:  # it could not be stored either
        return False


def refused(attempt: Attempt, reply: SettleReply) -> Settlement:
    """Instead of an end that the store refused: the job fails for good, and says why."""
    attempt.outcome = Raised(reply.reasons[attempt.claimed.id], attempts=1, retry_in=0, final=True)
    return after_attempt(attempt.claimed, attempt.outcome)


async def settle_one(store: Store, attempt: Attempt, outcome: Outcome) -> tuple[Settlement, SettleReply]:
    """Settle one attempt by itself; whoever has many does this in batches, as the pump does."""
    if attempt.current.completed is not None:
        return attempt.current.completed
    attempt.outcome = outcome
    settlement = after_attempt(attempt.claimed, outcome)
    reply = await store.settle([settlement])
    if reply.settled[0] is Settled.REFUSED:
        settlement = refused(attempt, reply)
        reply = await store.settle([settlement])
    return settlement, reply
