"""What PostgreSQL's errors mean for a call, and what people are told to do about them."""

from __future__ import annotations

import pytest

from onejob.core.errors import StoreFull
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.failures import explained, is_lost, passes

ADDRESS = parse("postgresql://me@shop/jobs")


class ServerError(Exception):
    """An error as drivers raise it."""

    def __init__(self, state: str) -> None:
        super().__init__("so it said")
        self.sqlstate = state


@pytest.mark.parametrize(
    ("state", "remedy"),
    [("53100", "Free some space"), ("53200", "out of memory"), ("58030", "the server's log and its disk")],
)
def test_who_is_told_to_free_some_space_has_none(state: str, remedy: str) -> None:
    found = explained(ServerError(state), ADDRESS)
    assert isinstance(found, StoreFull)
    assert remedy in str(found)
    assert ("Free some space" in str(found)) is (state == "53100")


@pytest.mark.parametrize("state", ["57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "08006"])
def test_a_session_that_the_server_ended_is_lost(state: str) -> None:
    assert is_lost(ServerError(state))
    assert passes(ServerError(state))
