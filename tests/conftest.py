"""What all tests share: coroutine tests run in a loop of their own, and Hypothesis knows two lengths of run."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}

settings.register_profile(
    "short", max_examples=120, stateful_step_count=10, derandomize=True, database=None, **COMMON
)
settings.register_profile("thorough", max_examples=5_000, stateful_step_count=20, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("ONEJOB_HYPOTHESIS", "short"))


@pytest.fixture(autouse=True)
def level_as_found() -> Iterator[None]:
    """A command that is run in this process sets the logger's level, which is not for the tests behind it."""
    logger = logging.getLogger("onejob")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end in a fresh event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
