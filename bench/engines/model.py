"""The model of what a store is filled with: one row made by the store's own operations, to be copied by SQL."""

from __future__ import annotations

from bench.engines import Filling
from bench.jobs import Jobs, arguments, define
from onejob import Lane, Unique
from onejob.core.job import WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.store import Ask, Beat, Retention

DAY = 24 * 3_600_000


async def make(url: str, filling: Filling) -> None:
    """Make the row; it is the newest of its table."""
    jobs = define(url)
    once = jobs.nothing.using(unique=Unique.once(by="number"))
    async with jobs.app as app:
        if filling is Filling.PARKED:
            await _park_one(jobs)
            return
        sender = once if filling is Filling.KEYS else jobs.nothing
        await sender.aenqueue(**arguments(-1))
        if filling is Filling.WAITING:
            return
        if filling is Filling.LANES:
            # It is a claim that gives a job its turn in a lane; this one takes the job before.
            await jobs.nothing.using(lane=Lane("model")).aenqueue(**arguments(-1))
        claims = await app.store.claim(Ask(WorkerId("model"), ("default",), 1))
        await app.store.settle([Settlement(job.lease, Move.COMPLETE) for job in claims.jobs])
        await app.store.leave(WorkerId("model"))
        if filling is not Filling.FINISHED:
            await app.store.prune(Retention(completed=-1), 10)  # that job goes; a key remembers it


async def _park_one(jobs: Jobs) -> None:
    """A job that runs and is never done, and behind it in its lane the model of a parked one."""
    store = jobs.app.store
    runs = WorkerId("crowd")
    await store.beat(Beat(runs, lease=DAY))
    for _ in range(2):
        await jobs.stamp.using(lane=Lane("crowd")).aenqueue(sent=0.0)
    await store.claim(Ask(runs, ("default",), 1))
