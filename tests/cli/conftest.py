"""What tests of the command line share: a folder of their own, and a store with jobs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import URL, Cli
from shop import Shop


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory and an environment that says nothing about onejob."""
    monkeypatch.chdir(tmp_path)
    for name in ("ONEJOB_APP", "ONEJOB_URL", "ONEJOB_WINDOW"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The store of the shop: a file of SQLite in the folder, or, for `on_every_store`, each in turn."""
    given = request.getfixturevalue("store_url") if "store_url" in request.fixturenames else URL
    return URL if given.startswith("sqlite:") else given


@pytest.fixture
def cli(url: str) -> Cli:
    return Cli(url)


@pytest.fixture
def make_shop(url: str) -> Iterator[Callable[..., Shop]]:
    """Makes shops on the test's store, at a time of the test's choice."""
    made: list[Shop] = []

    def make(**options: Any) -> Shop:
        made.append(Shop(url, **options))
        return made[-1]

    yield make
    for shop in made:
        shop.app.close()


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop()
