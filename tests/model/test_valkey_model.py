"""The Valkey store behaves as the reference model, whatever happens to it; schedules and their clocks included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import settings
from machine import StoreBesideModel
from policies import SERVED
from schedule_machine import SchedulesBesideModel
from servers.namespaces import Namespaces
from sights import EVERYTHING

from onejob.core.lifecycle import Settlement
from onejob.store import Ask, Claims, JobFilter, JobStore, SettleReply
from onejob.stores import open_store
from onejob.testing.clock import FakeClock


class Expiring:
    """A store that ends what was not started in time in all queues before it claims from some.

    On SQLite and PostgreSQL any claim does that. Here a claim looks at the queues it asks, one after the other; and what an
    end brings about in another queue comes after the claim that was made with it. Where neither can be seen, they stay one call.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, ask: Ask, *, now: int | None = None) -> Claims:
        await self._expire(ask)
        return await self._store.claim(ask, now=now)

    async def settle(
        self, done: Sequence[Settlement], ask: Ask | None = None, *, now: int | None = None
    ) -> SettleReply:
        if ask is None or not await self._shows(done):
            return await self._store.settle(done, ask, now=now)
        reply = await self._store.settle(done, now=now)
        return msgspec.structs.replace(reply, claims=await self.claim(ask, now=now))

    async def _shows(self, done: Sequence[Settlement]) -> bool:
        """Whether one can see that other queues learn of something later."""
        now = await self._store.time()
        jobs = (await self._store.jobs(JobFilter(), EVERYTHING)).jobs
        late = any(job.expires is not None and job.expires <= now and job.state.queued for job in jobs)
        return late or len({job.queue for job in jobs} | {one.then.queue for one in done if one.then}) > 1

    async def _expire(self, ask: Ask) -> None:
        for _ in SERVED:  # what ends in one may end others in another
            await self._store.claim(Ask(ask.worker, SERVED, 0))


class ValkeyBesideModel(StoreBesideModel):
    """A namespace of its own for each life, which survives a crash of ours."""

    durable = True
    namespaces: Namespaces

    def __init__(self) -> None:
        self._url = self.namespaces.take()
        type(self).open_store = self._open
        super().__init__()

    def _open(self, clock: FakeClock) -> JobStore:
        return cast("JobStore", Expiring(open_store(self._url, clock=clock)))

    def teardown(self) -> None:
        super().teardown()
        self.namespaces.give_back(self._url)


class ValkeyWithSchedules(SchedulesBesideModel, ValkeyBesideModel):
    """The same with schedules."""


class ClusterBesideModel(ValkeyBesideModel):
    """The same with queues on several nodes."""


@pytest.fixture(autouse=True)
def namespaces(valkey_namespaces: Namespaces, cluster_namespaces: Namespaces) -> None:
    """Hypothesis makes the machines by itself."""
    ValkeyBesideModel.namespaces = valkey_namespaces
    ClusterBesideModel.namespaces = cluster_namespaces


def part(of: int) -> settings:
    return settings(max_examples=max(settings().max_examples // of, 1))


TestValkey = ValkeyBesideModel.TestCase
TestValkey.settings = part(8)
TestValkeyWithSchedules = ValkeyWithSchedules.TestCase
TestValkeyWithSchedules.settings = part(15)
TestCluster = ClusterBesideModel.TestCase
TestCluster.settings = part(15)

pytestmark = pytest.mark.timeout(600)
