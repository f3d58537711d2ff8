"""A server that is not there: it is said at once, and for how long it will be tried."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from commands import run


@pytest.fixture
def nobody() -> Iterator[str]:
    """A host and a port at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("command", "store"), [("jobs", "postgresql://me@{}/shop"), ("doctor", "valkey://{}")]
)
def test_it_is_said_that_a_server_does_not_answer_and_how_long_it_is_tried(
    command: str, store: str, nobody: str
) -> None:
    told = run(command, "--url", store.format(nobody) + "?patience=0.8")
    assert told.code == 1
    first, *rest = told.talk.splitlines()
    assert nobody in first
    assert "does not answer (" in first
    assert first.endswith("; it is tried for 0.8 s, ?patience= in the store's URL")
    assert "Is it running there?" in "".join(rest) + told.out
    assert told.talk.count("does not answer (") == 1
