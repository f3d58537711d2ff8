"""What is said of a server that has not answered yet, and of one whose name is not found."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from onejob import StoreUnavailable, first_answer
from onejob.first_answer import FirstAnswer
from onejob.stores.postgres import address as postgres
from onejob.stores.postgres import failures as postgres_failures
from onejob.stores.valkey import address as valkey
from onejob.stores.valkey import failures as valkey_failures

NOT_FOUND = socket.gaierror(-2, "Name or service not known")


def test_a_server_that_has_answered_is_not_said_to_be_silent(caplog: pytest.LogCaptureFixture) -> None:
    answer = FirstAnswer("PostgreSQL at shop", 10.0)
    answer.came()
    answer.failed(ConnectionRefusedError("Connection refused"))
    assert caplog.records == []


async def test_a_server_that_says_nothing_at_all_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_answer, "SOON", 0.0)
    answer = FirstAnswer("PostgreSQL at shop", 10.0)
    with caplog.at_level(logging.WARNING, logger="onejob"):
        answer.watch()
        answer.watch()
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, over.set)  # behind both of them
        await over.wait()
    assert [record.getMessage() for record in caplog.records] == [
        "PostgreSQL at shop does not answer (nothing was heard of it so far); it is tried for 10 s, ?patience= in the "
        "store's URL"
    ]
    assert answer.watch() is None


def test_a_name_that_is_not_found_is_told_as_such() -> None:
    lost = valkey_failures.LineLost("Name or service not known")
    lost.__cause__ = NOT_FOUND
    for error in (
        postgres_failures.explained(NOT_FOUND, postgres.parse("postgresql://me@nowhere/shop")),
        valkey_failures.explained(lost, valkey.parse("valkey://nowhere")),
    ):
        assert isinstance(error, StoreUnavailable)
        assert "could not be looked up for 10 s (Name or service not known)" in str(error)
        assert "Is it running there?" not in str(error)
