"""Run everything that is due, here and now: the real store, codec and runner, but no worker and no waiting."""

from __future__ import annotations

from dataclasses import dataclass

from onejob.app import App
from onejob.core.job import JobId, WorkerId
from onejob.core.lifecycle import Move, after_attempt
from onejob.store import Ask, Beat, Settled
from onejob.testing.clock import FakeClock
from onejob.worker.attempt import Attempt
from onejob.worker.runner import Runner
from onejob.worker.setup import WorkerSetup, new_worker_id

LEASE = 3_600_000
"""Long enough (ms) for any handler, even one that moves the clock itself."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt that a drain has run."""

    id: JobId
    task: str
    attempt: int
    move: Move
    """How it ended: complete, retry, fail, snooze …"""
    settled: Settled
    error: str | None


async def drain(app: App, *, clock: FakeClock | None = None, limit: int = 10_000) -> list[Ran]:
    """Run what is due, one job after the other in the order of a worker, until nothing is; returns what ran.

    With a `clock` (the app's own) it is advanced through delays, backoffs and windows, until nothing is left
    to become due. More than `limit` attempts raise: a job that enqueues itself would go on for ever.
    """
    store, worker = app.store, new_worker_id()
    runner = Runner(WorkerSetup(store, app.tasks, app.backoffs), threads=1)
    ran: list[Ran] = []
    try:
        while True:
            queues = tuple(sorted(await store.counts()))
            await store.beat(Beat(worker, LEASE, queues=queues, concurrency=1))
            claims = await store.claim(Ask(worker, queues, 1))
            if claims.jobs:
                _check_limit(ran, limit)
                ran.append(await _run(app, runner, Attempt(claims.jobs[0])))
            elif clock is not None and claims.next_due is not None:
                clock.tick(max(claims.next_due, 1))
            else:
                return ran
    finally:
        runner.close()
        await store.leave(WorkerId(worker))


def drain_sync(app: App, *, clock: FakeClock | None = None, limit: int = 10_000) -> list[Ran]:
    """As `drain`, in a test that is not a coroutine."""
    return app.client.call(drain(app, clock=clock, limit=limit), instead="await drain(app)")


async def _run(app: App, runner: Runner, attempt: Attempt) -> Ran:
    claimed = attempt.claimed
    outcome = await runner.run(attempt)
    settlement = after_attempt(claimed, outcome)
    reply = await app.store.settle([settlement])
    return Ran(claimed.id, claimed.task, claimed.attempt, settlement.move, reply.settled[0], settlement.error)


def _check_limit(ran: list[Ran], limit: int) -> None:
    if len(ran) >= limit:
        raise AssertionError(
            f"drain has run {limit} attempts and there is still more due, the last of task {ran[-1].task!r}: "
            "does a handler enqueue itself? Raise drain(limit=…) if that many are meant."
        )
