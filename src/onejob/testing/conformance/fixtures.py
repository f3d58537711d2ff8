"""The one fixture the suite brings along; `store` is the implementer's."""

from __future__ import annotations

import pytest

from onejob.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """The clock that the store under test runs on."""
    return FakeClock()
