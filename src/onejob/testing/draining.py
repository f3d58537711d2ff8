"""Run everything that is due, here and now: the real store, codec and runner, but no worker and no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from onejob.app import App
from onejob.core.errors import InvalidOption, shown
from onejob.core.filter import JobFilter
from onejob.core.job import QUEUED, JobId, State, WorkerId
from onejob.core.lifecycle import Move
from onejob.hooks import lived
from onejob.operations import surroundings
from onejob.plans import milliseconds
from onejob.standing import READY, how_it_stands
from onejob.store import Ask, Beat, Settled
from onejob.testing.clock import FakeClock
from onejob.worker.attempt import Attempt
from onejob.worker.finishing import settle_one
from onejob.worker.observer import Observer
from onejob.worker.runner import Runner
from onejob.worker.setup import WorkerSetup, new_worker_id, queues_in_code

LEASE = 3_600_000
"""Long enough (ms) for any handler, even one that moves the clock itself."""

MOST_DEAD = 1_000
"""How many dead letters are looked at for the names of their queues."""

MOST_LEFT = 100


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


class Drained(list[Ran]):
    """What a drain has run, in order; `left` is what was due and could not start."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[JobId, str] = {}
        """Why each of them did not: its lane is full or its rate spent, its queue is paused, a blocker of it has not
        ended … At most 100 of them."""


def drain(
    app: App,
    *,
    clock: FakeClock | None = None,
    limit: int = 10_000,
    queues: Iterable[str] | None = None,
) -> Drained:
    """Run what is due, one job after the other in the order of a worker, until nothing is; returns what ran.

    With a `clock` (the app's own) it is advanced through delays, backoffs and windows, until nothing is left
    to become due. More than `limit` attempts raise: a job that enqueues itself would go on for ever. Dead letters
    are left alone, unless `queues` names theirs. What lanes and limits hold up is in `left` of what it returns.
    """
    return app.client.call(
        adrain(app, clock=clock, limit=limit, queues=queues), instead="await adrain(app, …)"
    )


async def adrain(
    app: App,
    *,
    clock: FakeClock | None = None,
    limit: int = 10_000,
    queues: Iterable[str] | None = None,
) -> Drained:
    """As `drain`, in async code."""
    _check_clock(app, clock)
    for task in app.tasks.values():
        task.planner.check_backoff()
    store, worker = app.store, new_worker_id()
    observer = Observer.of(app.hooks, limit)
    setup = WorkerSetup(
        store,
        app.tasks,
        app.backoffs,
        compresses=app.queues.compresses,
        client=app.client,
        clock=app.clock or milliseconds,
        schedules=app.declared_schedules,
        intakes=app.intakes,
    )
    runner = Runner(setup, threads=1, observer=observer, lease=LEASE / 1000)
    ran = Drained()
    try:
        async with lived(app.hooks):
            served = await _served(setup) if queues is None else tuple(queues)
            while True:
                await store.beat(Beat(worker, LEASE, queues=served, concurrency=1))
                claims = await store.claim(Ask(worker, served, 1))
                if claims.jobs:
                    _check_limit(ran, limit)
                    # In a task of its own, as in a worker, so that nothing of a run is left in our context.
                    ran.append(
                        await asyncio.create_task(_run(app, runner, observer, Attempt(claims.jobs[0])))
                    )
                elif queues is None and served != (found := await _served(setup)):
                    served = found
                elif clock is not None and claims.next_due is not None and await _somebody_waits(app, served):
                    clock.tick(max(claims.next_due, 1))
                else:
                    ran.left = await _held_up(app, served)
                    return ran
    finally:
        runner.close()
        await runner.close_processes()
        await store.leave(WorkerId(worker))


async def _run(app: App, runner: Runner, observer: Observer | None, attempt: Attempt) -> Ran:
    claimed = attempt.claimed
    settlement, reply = await settle_one(app.store, attempt, await runner.run(attempt))
    if observer is not None:
        observer.ended(attempt, settlement, reply.settled[0])
        await observer.finish()
    return Ran(claimed.id, claimed.task, claimed.attempt, settlement.move, reply.settled[0], settlement.error)


async def _served(setup: WorkerSetup) -> tuple[str, ...]:
    """Every queue that holds jobs, but for those of dead letters that the code names nowhere: no worker serves them."""
    graves = {letter.queue for letter in await setup.store.dead(None, 0, MOST_DEAD)}
    return tuple(sorted({*queues_in_code(setup)} | (await setup.store.counts()).keys() - graves))


async def _somebody_waits(app: App, queues: tuple[str, ...]) -> bool:
    """True if time may bring a job to start; a store also counts the time until it forgets an empty lane."""
    limits = await app.store.limits()
    served = frozenset(queue for queue in queues if queue not in limits or not limits[queue].paused)
    return bool(served and await app.store.count(JobFilter(states=QUEUED, queues=served)))


async def _held_up(app: App, queues: tuple[str, ...]) -> dict[JobId, str]:
    """What is due in these queues and yet cannot start, and why."""
    if not queues:
        return {}
    wanted = JobFilter(states=READY | {State.BLOCKED}, queues=frozenset(queues))
    page = await app.store.jobs(wanted, MOST_LEFT)
    return {
        job.id: "\n".join(how_it_stands(job, await surroundings(app.store, job)))
        for job in reversed(page.jobs)
        if job.state in READY or job.blockers
    }


def _check_limit(ran: list[Ran], limit: int) -> None:
    if len(ran) >= limit:
        raise AssertionError(
            f"drain has run {limit} attempts and there is still more due, the last of task {ran[-1].task!r}: "
            "does a handler enqueue itself? Raise drain(limit=…) if that many are meant."
        )


def _check_clock(app: App, clock: FakeClock | None) -> None:
    if clock is not None and clock is not app.clock:
        raise InvalidOption(
            f"drain(clock=…) must be the clock that the app's store goes by, which is {_whose(app)}: moving "
            f"{shown(clock)} would make nothing due. Make the app with App(…, clock=clock)."
        )


def _whose(app: App) -> str:
    return "the computer's" if app.clock is None else shown(app.clock)
