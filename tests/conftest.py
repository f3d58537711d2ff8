"""What all tests share: stores to run on, a loop of their own for coroutine tests, and two lengths of Hypothesis' runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import coverage_page
import pytest
from hypothesis import HealthCheck, settings
from stored import STORES

if TYPE_CHECKING:
    from servers.postgres import PostgresServer
    from servers.shared import Schemas, SharedServer

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}

settings.register_profile(
    "short", max_examples=120, stateful_step_count=10, derandomize=True, database=None, **COMMON
)
settings.register_profile("thorough", max_examples=5_000, stateful_step_count=20, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("ONEJOB_HYPOTHESIS", "short"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--coverage-page", type=Path, help="write to this file which behaviour was seen on which store"
    )


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--coverage-page"):
        config.pluginmanager.register(coverage_page.CoveragePage(file))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    coverage_page.mark(config, items)


@pytest.fixture(autouse=True)
def level_as_found() -> Iterator[None]:
    """A command that is run in this process sets the logger's level, which is not for the tests behind it."""
    logger = logging.getLogger("onejob")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest) -> str:
    """Where the apps of a test keep their jobs: an empty store of each kind in turn."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file of the test's own."""
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def postgres_url(postgres_schemas: Schemas) -> Iterator[str]:
    """A PostgreSQL schema of the test's own, empty and with all tables."""
    schema = postgres_schemas.take()
    yield schema.url
    postgres_schemas.give_back(schema)


@pytest.fixture
def new_postgres_url(postgres_schemas: Schemas) -> Iterator[str]:
    """A PostgreSQL schema that does not exist yet, for a user who may make it."""
    schema = postgres_schemas.take(ready=False)
    yield schema.url
    postgres_schemas.give_back(schema)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that the test may stop, restart and kill."""
    from servers.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """The PostgreSQL server that all tests share, in however many processes they run."""
    from servers.shared import SharedServer

    folder = tmp_path_factory.getbasetemp()
    server = SharedServer(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_schemas(postgres: SharedServer) -> Iterator[Schemas]:
    """Schemas of the shared server, made ready by this process."""
    from servers.shared import Schemas

    schemas = Schemas(postgres.url, os.environ.get("PYTEST_XDIST_WORKER", "main") + "_")
    yield schemas
    schemas.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end in a fresh event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
