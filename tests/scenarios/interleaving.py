"""What tests of interleavings have in common: policies, ends of transactions, and what they say of a store."""

from __future__ import annotations

import pytest
from servers.stepping import Play, Session

from onejob.core.dedup import Unique
from onejob.core.job import Claimed, JobId, NewJob
from onejob.core.lane import LanePlan
from onejob.testing.conformance.steps import (
    digest_of,
    job,
    start,
)

COALESCE, LATEST, ONCE, RESTART = Unique.coalesce(), Unique.latest(), Unique.once(), Unique.restart()
LANE = LanePlan("x")
ENDS = pytest.mark.parametrize("end", ["commit", "rollback"])
AT_ONCE_OR_NEVER = "1ms"
"""The patience of a session that must not wait for anybody."""


def batch(newcomer: NewJob, *, alone: bool) -> tuple[NewJob, ...]:
    """A newcomer by itself, or with one that has nothing to do with it: they go different ways."""
    return (newcomer,) if alone else (newcomer, job(unique=ONCE, key="another", queue="elsewhere"))


async def holder_of(play: Play, key: str = "k") -> JobId | None:
    """The job that a key names."""
    found = await play.store.key(digest_of(key))
    return None if found is None else JobId(found.holder.id)


async def start_that(play: Play, id: str) -> Claimed:
    """Everything that is due is started, and it is this job alone."""
    [claimed] = await start(play.store)
    assert claimed.id == id
    return claimed


async def run_of(session: Session) -> list[JobId]:
    """What a claim that must not wait starts."""
    return [one.id for one in (await session.claim().done()).jobs]


async def drain(session: Session) -> list[JobId]:
    """Run everything there is to run, one round of claims after the other: in which order it started."""
    ran: list[JobId] = []
    while started := (await session.claim().done()).jobs:
        laned = [claimed.lane for claimed in started if claimed.lane is not None]
        assert len(laned) == len(set(laned)), "never two at once"
        for claimed in started:
            await session.settle(claimed).done()
        ran += [claimed.id for claimed in started]
    return ran
