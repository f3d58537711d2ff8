"""Every store behaves as the reference model, whatever happens to it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from machine import StoreBesideModel

from onejob.store import JobStore
from onejob.stores import open_store
from onejob.testing.clock import FakeClock


class MemoryBesideModel(StoreBesideModel):
    """The SQLite store in memory."""

    @staticmethod
    def open_store(clock: FakeClock) -> JobStore:
        return open_store("memory:", clock=clock)


class FileBesideModel(StoreBesideModel):
    """The SQLite store in a file, which survives a crash."""

    durable = True
    _folder: tempfile.TemporaryDirectory[str]

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        type(self).open_store = self._open
        super().__init__()

    def _open(self, clock: FakeClock) -> JobStore:
        return open_store(f"sqlite:///{Path(self._folder.name)}/jobs.db", clock=clock)

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


TestMemory = MemoryBesideModel.TestCase
TestMemory.settings = settings(max_examples=max(settings().max_examples // 8, 1))  # the file says the rest
TestFile = FileBesideModel.TestCase
TestFile.settings = settings(max_examples=max(settings().max_examples * 2 // 5, 1))

pytestmark = pytest.mark.timeout(600)
