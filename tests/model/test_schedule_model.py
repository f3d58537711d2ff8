"""Every store with schedules behaves as the reference model, whoever ticks, and however the clock is set."""

from __future__ import annotations

import pytest
from hypothesis import settings
from schedule_machine import SchedulesBesideModel
from test_model import FileBesideModel, MemoryBesideModel


class MemoryWithSchedules(SchedulesBesideModel, MemoryBesideModel):
    """The SQLite store in memory."""


class FileWithSchedules(SchedulesBesideModel, FileBesideModel):
    """The SQLite store in a file, which survives a crash."""


TestMemoryWithSchedules = MemoryWithSchedules.TestCase
TestMemoryWithSchedules.settings = settings(max_examples=max(settings().max_examples // 2, 1))
TestFileWithSchedules = FileWithSchedules.TestCase
TestFileWithSchedules.settings = settings(max_examples=max(settings().max_examples // 8, 1))

pytestmark = pytest.mark.timeout(600)
