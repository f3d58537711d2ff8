"""Apps for scenarios: on every store, on a clock that the test moves, closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from stage import Gate

from onejob import App
from onejob.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


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


@pytest.fixture
def gate() -> Gate:
    return Gate()
