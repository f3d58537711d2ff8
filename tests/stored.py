"""What tests must know of a store to look into its tables, or to give it more patience: its URL says which it is."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

STORES = ("sqlite", "postgres", "valkey")
"""Every store; what is asked of all of them takes the fixture `store_url`."""
DATABASES = ("sqlite", "postgres")
"""Those whose jobs lie in a database, beside rows of the user's own; what needs that takes the fixture `database_url`."""
CLUSTER = "cluster"
"""Where what is accepted is seen once more."""
OWN = "own"
"""Of tables that a test is run with: those in the store's own database."""


def stores_for(test: pytest.Metafunc) -> tuple[object, ...]:
    """The stores that a test is run on; what is not asked of the cluster on every run is left for `make torture`."""
    if "database_url" in test.fixturenames:
        return DATABASES
    accepted = next(test.definition.iter_markers("accepts"), None) is not None
    return (*STORES, CLUSTER if accepted else pytest.param(CLUSTER, marks=pytest.mark.torture))


def is_sense(item: pytest.Item) -> bool:
    """False of tables in the database of a store that has none."""
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    return OWN not in params.values() or params.get("store_url") in DATABASES


def with_patience(url: str, seconds: int = 20) -> str:
    """The URL of a store that waits longer for others; a busy machine is no fault."""
    return f"{url}{'&' if '?' in url else '?'}patience={seconds}"


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql:")


def is_valkey(url: str) -> bool:
    """On one server or on a cluster."""
    return url.startswith(("valkey:", "valkey+cluster:"))


def table(url: str, name: str) -> str:
    """A table of the store's own, as a statement names it: `table(url, "job")`."""
    if is_postgres(url):
        return f"{parse_qs(urlsplit(url).query)['schema'][0]}.{name}"
    return f"onejob_{name}"


def stored_id(url: str, id: str) -> Any:
    """An id as a parameter of a statement."""
    return uuid.UUID(id) if is_postgres(url) else uuid.UUID(id).bytes


def shown_id(url: str, id: Any) -> str:
    """An id out of a row, as it is shown everywhere else."""
    return str(id) if is_postgres(url) else str(uuid.UUID(bytes=id))
