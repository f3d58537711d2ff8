"""Run everything that is due, here and now: the real store, codec and runner, but no worker and no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from onejob.app import App
from onejob.core.job import JobId, WorkerId
from onejob.core.lifecycle import Move, after_attempt
from onejob.hooks import lived
from onejob.store import Ask, Beat, Settled
from onejob.testing.clock import FakeClock
from onejob.worker.attempt import Attempt
from onejob.worker.observer import Observer
from onejob.worker.runner import Runner
from onejob.worker.setup import WorkerSetup, new_worker_id

LEASE = 3_600_000
"""Long enough (ms) for any handler, even one that moves the clock itself."""

MOST_DEAD = 1_000
"""How many dead letters are looked at for the names of their queues."""


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


async def drain(
    app: App,
    *,
    clock: FakeClock | None = None,
    limit: int = 10_000,
    queues: Iterable[str] | None = None,
) -> list[Ran]:
    """Run what is due, one job after the other in the order of a worker, until nothing is; returns what ran.

    With a `clock` (the app's own) it is advanced through delays, backoffs and windows, until nothing is left
    to become due. More than `limit` attempts raise: a job that enqueues itself would go on for ever. Dead letters
    are left alone, unless `queues` names theirs.
    """
    store, worker = app.store, new_worker_id()
    observer = Observer.of(app.hooks, limit)
    setup = WorkerSetup(store, app.tasks, app.backoffs, compresses=app.queues.compresses)
    runner = Runner(setup, threads=1, observer=observer)
    ran: list[Ran] = []
    try:
        async with lived(app.hooks):
            while True:
                served = await _served(app) if queues is None else tuple(queues)
                await store.beat(Beat(worker, LEASE, queues=served, concurrency=1))
                claims = await store.claim(Ask(worker, served, 1))
                if claims.jobs:
                    _check_limit(ran, limit)
                    # In a task of its own, as in a worker, so that nothing of a run is left in our context.
                    ran.append(
                        await asyncio.create_task(_run(app, runner, observer, Attempt(claims.jobs[0])))
                    )
                elif clock is not None and claims.next_due is not None:
                    clock.tick(max(claims.next_due, 1))
                else:
                    return ran
    finally:
        runner.close()
        await runner.close_processes()
        await store.leave(WorkerId(worker))


def drain_sync(
    app: App,
    *,
    clock: FakeClock | None = None,
    limit: int = 10_000,
    queues: Iterable[str] | None = None,
) -> list[Ran]:
    """As `drain`, in a test that is not a coroutine."""
    return app.client.call(drain(app, clock=clock, limit=limit, queues=queues), instead="await drain(app)")


async def _run(app: App, runner: Runner, observer: Observer | None, attempt: Attempt) -> Ran:
    claimed = attempt.claimed
    outcome = await runner.run(attempt)
    settlement = after_attempt(claimed, outcome)
    reply = await app.store.settle([settlement])
    if observer is not None:
        observer.ended(attempt, settlement, reply.settled[0])
        await observer.finish()
    return Ran(claimed.id, claimed.task, claimed.attempt, settlement.move, reply.settled[0], settlement.error)


async def _served(app: App) -> tuple[str, ...]:
    """Every queue that holds jobs, but for those of dead letters that no task names: no worker serves them."""
    named = {task.queue for task in app.tasks.values()}
    graves = {letter.queue for letter in await app.store.dead(None, 0, MOST_DEAD)}
    return tuple(sorted((await app.store.counts()).keys() - (graves - named)))


def _check_limit(ran: list[Ran], limit: int) -> None:
    if len(ran) >= limit:
        raise AssertionError(
            f"drain has run {limit} attempts and there is still more due, the last of task {ran[-1].task!r}: "
            "does a handler enqueue itself? Raise drain(limit=…) if that many are meant."
        )
