"""Apps for scenarios: on every store, on a clock that the test moves, closed afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onejob import App
from onejob.testing import FakeClock, adrain

STORES = {"memory": "memory:", "file": "sqlite:///{folder}/jobs.db"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the apps of a test keep their jobs; a later store adds a line to STORES."""
    return STORES[request.param].format(folder=tmp_path)


@pytest.fixture
def make_app(store_url: str, clock: FakeClock) -> Iterator[Callable[..., App]]:
    """Makes apps with options of the test's choice."""
    made: list[App] = []

    def make(**options: object) -> App:
        app = App(store_url, **{"clock": clock, **options})
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., App]) -> App:
    return make_app()


class Gate:
    """A handler waits at it, so that a test can act while a job runs."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.entered.set()
        await self.opened.wait()

    @asynccontextmanager
    async def held(self, app: App) -> AsyncIterator[None]:
        """Inside the block a job stands at the gate; afterwards everything due has run."""
        draining = asyncio.create_task(adrain(app))
        await asyncio.wait_for(self.entered.wait(), 10)
        try:
            yield
        finally:
            self.opened.set()
            await draining


@pytest.fixture
def gate() -> Gate:
    return Gate()
