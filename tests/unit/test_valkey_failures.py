"""What Valkey says of a failure, and what becomes of it: tried again, or told."""

from __future__ import annotations

import pytest

from onejob import OnejobError, StoreBusy, StoreFull, StoreUnavailable
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.failures import (
    LineLost,
    ScriptRefused,
    ServerError,
    explained,
    may_have_counted,
    passes,
)

ADDRESS = parse("valkey://:secret@h:1?namespace=shop")


@pytest.mark.parametrize(
    "error",
    [
        ServerError("LOADING Valkey is loading the dataset in memory"),
        ServerError("CLUSTERDOWN Hash slot not served"),
        ServerError("TRYAGAIN Multiple keys request during rehashing of slot"),
        ServerError("MOVED 1234 127.0.0.1:7000"),
        ServerError("ASK 1234 127.0.0.1:7000"),
        ServerError("READONLY You can't write against a read only replica."),
        ServerError("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        ServerError("BUSY Valkey is busy running a script."),
        ServerError("NOREPLICAS Not enough good replicas to write."),
        ServerError("ERR max number of clients reached"),
        LineLost("Connection refused"),
        LineLost("it did not answer", sent=True),
    ],
)
def test_what_passes_by_itself_is_tried_again_and_then_told(error: Exception) -> None:
    assert passes(error)
    told = explained(error, ADDRESS)
    assert isinstance(told, StoreBusy)  # which all that pass by themselves are
    assert "h:1/0" in str(told)
    assert "secret" not in str(told)


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull, "raise its maxmemory"),
        ("MISCONF Valkey is configured to save RDB snapshots, but cannot.", StoreFull, "Free some space"),
        ("NOAUTH Authentication required.", OnejobError, "correct user and password"),
        ("WRONGPASS invalid username-password pair.", OnejobError, "refused the login (invalid"),
        (
            "NOPERM User bob has no permissions to run the 'info' command",
            OnejobError,
            "acl setuser NAME ~{shop:* &shop:*",
        ),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            ScriptRefused,
            "the script claim",
        ),
        ("ERR user_script:1: x script: on @user_script:1.", ScriptRefused, "the script claim"),
    ],
)
def test_what_lasts_is_told_at_once(said: str, kind: type[OnejobError], words: str) -> None:
    error = ServerError(said)
    assert not passes(error)
    told = explained(error, ADDRESS, script="claim")
    assert type(told) is kind
    assert words in str(told)


def test_a_call_that_was_not_answered_may_have_counted_and_one_that_was_never_sent_may_not() -> None:
    unanswered = LineLost("it did not answer", sent=True)
    assert may_have_counted(unanswered)
    told = explained(unanswered, ADDRESS, unsure=True)
    assert isinstance(told, StoreUnavailable)
    assert "it is not known whether the call counted" in str(told)
    assert not may_have_counted(LineLost("Connection refused"))
    assert not may_have_counted(ServerError("OOM command not allowed"))


def test_what_is_no_failure_of_the_store_stays_as_it_is() -> None:
    mistake = TypeError("Unsupported argument type")
    assert explained(mistake, ADDRESS) is mistake
    assert not passes(mistake)
