"""The PostgreSQL store behaves as the reference model, whatever happens to it; schedules and their clocks included."""

from __future__ import annotations

import pytest
from hypothesis import settings
from machine import StoreBesideModel
from schedule_machine import SchedulesBesideModel
from servers.schemas import Schemas

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock


class PostgresBesideModel(StoreBesideModel):
    """A schema of its own for each life, which survives a crash."""

    durable = True
    schemas: Schemas

    def __init__(self) -> None:
        self._schema = PostgresBesideModel.schemas.take()
        type(self).open_store = self._open
        super().__init__()

    def _open(self, clock: FakeClock) -> JobStore:
        return open_store(self._schema.url, clock=clock)

    def teardown(self) -> None:
        super().teardown()
        PostgresBesideModel.schemas.give_back(self._schema)


class PostgresWithSchedules(SchedulesBesideModel, PostgresBesideModel):
    """The same with schedules."""


@pytest.fixture(autouse=True)
def schemas(postgres_schemas: Schemas) -> None:
    """Hypothesis makes the machines by itself."""
    PostgresBesideModel.schemas = postgres_schemas


TestPostgres = PostgresBesideModel.TestCase
TestPostgres.settings = settings(max_examples=max(settings().max_examples // 8, 1))
TestPostgresWithSchedules = PostgresWithSchedules.TestCase
TestPostgresWithSchedules.settings = settings(max_examples=max(settings().max_examples // 15, 1))

pytestmark = pytest.mark.timeout(600)
