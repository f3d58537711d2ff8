"""The pytest plugin: a fake clock, apps that live in memory, and what the conformance suite needs to run.

Installed with onejob and loaded by pytest in every project that has it, so nothing heavy is imported here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from onejob.app import App
    from onejob.testing.clock import FakeClock

SUITE = "onejob.testing.conformance"

pytest.register_assert_rewrite(SUITE)


class MakeApp(Protocol):
    """What the fixture `onejob_app` gives: makes apps that are closed after the test."""

    def __call__(self, url: str = "memory:", **options: Any) -> App:
        """An app on the test's clock."""
        ...


@pytest.fixture
def onejob_clock() -> FakeClock:
    """A clock in milliseconds that moves only when told: `onejob_clock.advance(5)`."""
    from onejob.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def onejob_app(onejob_clock: FakeClock) -> Iterator[MakeApp]:
    """Makes apps on a store in memory and the fake clock: `app = onejob_app(window=5)`."""
    from onejob.app import App

    made: list[App] = []

    def make(url: str = "memory:", **options: Any) -> App:
        options.setdefault("clock", onejob_clock)
        app = App(url, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the coroutine tests of the conformance suite, and no others."""
    owner = pyfuncitem.cls
    if (
        owner is None
        or not owner.__module__.startswith(SUITE)
        or not inspect.iscoroutinefunction(pyfuncitem.obj)
    ):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
