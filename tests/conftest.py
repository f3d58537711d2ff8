"""What all tests share: stores to run on, a loop of their own for coroutine tests, and two lengths of Hypothesis' runs."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage_page
import pytest
from hypothesis import HealthCheck, settings
from servers.folders import place
from stored import CLUSTER, is_sense, stores_for

if TYPE_CHECKING:
    from servers.cluster import ValkeyCluster
    from servers.namespaces import Namespaces
    from servers.postgres import PostgresServer
    from servers.schemas import Schemas
    from servers.shared import SharedServer
    from servers.valkey import ValkeyServer

# Files of tests are on a disk that is memory, as the servers are: nothing here could see whether a disk keeps its word.
tempfile.tempdir = os.environ["TMPDIR"] = str(place())

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on its stores, unless it names them itself."""
    named = any("store_url" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "store_url" in metafunc.fixturenames and not named:
        metafunc.parametrize("store_url", stores_for(metafunc), indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: to look for garbage among it takes a third of the time, and as much again later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = filter(is_sense, items)
    coverage_page.mark(config, items)
    leave_for_torture(items)
    leave_cases_for_torture(items)


def leave_for_torture(items: list[pytest.Item]) -> None:
    """One look at each accepted behaviour on a cluster, which is much like one server; `make torture` has the others."""
    seen: set[str] = set()
    for item in items:
        ids = set(coverage_page.accepted(item))
        if not ids or coverage_page.store_of(item) != CLUSTER or item.get_closest_marker("torture"):
            continue
        if ids <= seen:
            item.add_marker(pytest.mark.torture)
        seen |= ids


def leave_cases_for_torture(items: list[pytest.Item]) -> None:
    """Who asks a store once more, by another way, asks every third of a test's many cases; `make torture` has the others."""
    cases: Counter[tuple[str, Any]] = Counter()
    for item in items:
        if not getattr(getattr(item, "module", None), "EVERY_THIRD_CASE", False):
            continue
        callspec = getattr(item, "callspec", None)
        test = item.nodeid.partition("[")[0], callspec and callspec.params.get("driver")
        if cases[test] % 3:
            item.add_marker(pytest.mark.torture)
        cases[test] += 1


@pytest.fixture(autouse=True)
def logger_as_found() -> Iterator[None]:
    """A command that is run in this process sets the logger's level and filters, which are not for the tests behind it."""
    logger = logging.getLogger("onejob")
    level, filters = logger.level, logger.filters[:]
    yield
    logger.setLevel(level)
    logger.filters[:] = filters


@pytest.fixture
def own_modules(tmp_path: Path) -> Iterator[None]:
    """Modules in a test's folder go with it. All others stay: many can be imported only once."""
    yield
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and (tmp_path / file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """Where the apps of a test keep their jobs: an empty store of each kind in turn."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def database_url(store_url: str) -> str:
    """The same; but who asks for it, or for what is made of it, runs only where rows and jobs can be one commit."""
    return store_url


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


@pytest.fixture
def valkey_url(valkey_namespaces: Namespaces) -> Iterator[str]:
    """A namespace of the test's own on a Valkey server."""
    url = valkey_namespaces.take()
    yield url
    valkey_namespaces.give_back(url)


@pytest.fixture
def cluster_url(cluster_namespaces: Namespaces) -> Iterator[str]:
    """A namespace of the test's own on a Valkey Cluster."""
    url = cluster_namespaces.take()
    yield url
    cluster_namespaces.give_back(url)


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A Valkey server that the test may stop, restart and kill, and that keeps what it acknowledged."""
    from servers.valkey import KEEPING, ValkeyServer

    with ValkeyServer(**KEEPING) as server:
        yield server


@pytest.fixture
def own_cluster() -> Iterator[ValkeyCluster]:
    """A Valkey Cluster whose slots the test may move, and whose nodes it may kill: they keep what they acknowledged."""
    from servers.cluster import ValkeyCluster
    from servers.valkey import KEEPING

    with ValkeyCluster(**KEEPING) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of a run find what they share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def postgres(meeting: Path) -> Iterator[SharedServer]:
    """The PostgreSQL server that all tests share, in however many processes they run."""
    yield from shared(meeting, "postgres")


@pytest.fixture(scope="session")
def valkey(meeting: Path) -> Iterator[SharedServer]:
    """The same with a Valkey server."""
    yield from shared(meeting, "valkey")


@pytest.fixture(scope="session")
def valkey_cluster(meeting: Path) -> Iterator[SharedServer]:
    """The same with a Valkey Cluster."""
    yield from shared(meeting, "cluster")


@pytest.fixture(scope="session")
def postgres_schemas(postgres: SharedServer) -> Iterator[Schemas]:
    """Schemas of the shared server, made ready by this process."""
    from servers.schemas import Schemas

    schemas = Schemas(postgres.url, f"{this_process()}_")
    yield schemas
    schemas.close()


@pytest.fixture(scope="session")
def valkey_namespaces(valkey: SharedServer) -> Iterator[Namespaces]:
    """Namespaces of the shared server."""
    yield from namespaces(valkey)


@pytest.fixture(scope="session")
def cluster_namespaces(valkey_cluster: SharedServer) -> Iterator[Namespaces]:
    """Namespaces of the shared cluster."""
    yield from namespaces(valkey_cluster)


def shared(meeting: Path, kind: str) -> Iterator[SharedServer]:
    from servers.shared import SharedServer

    server = SharedServer(meeting, kind)
    yield server
    server.close()


def namespaces(server: SharedServer) -> Iterator[Namespaces]:
    from servers.namespaces import Namespaces

    namespaces = Namespaces(server.url, f"{this_process()}-")
    yield namespaces
    namespaces.close()


def this_process() -> str:
    """The name of this process among those of the run."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end in a fresh event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
