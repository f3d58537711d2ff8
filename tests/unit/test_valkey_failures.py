"""What Valkey and glide say of a failure, in glide's own wrapping, and what becomes of it: tried again, or told."""

from __future__ import annotations

import glide
import pytest

from onejob import OnejobError, StoreBusy, StoreFull, StoreUnavailable
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.failures import ScriptRefused, code, explained, may_have_counted, passes

ADDRESS = parse("valkey://:secret@h:1?namespace=shop")
SIGNALLED = "An error was signalled by the server: - "


@pytest.mark.parametrize(
    ("text", "first_word"),
    [
        (f"{SIGNALLED}BusyLoadingError: Valkey is loading the dataset in memory", "LOADING"),
        (f"{SIGNALLED}ClusterDown: Hash slot not served", "CLUSTERDOWN"),
        (f"{SIGNALLED}TryAgain: Multiple keys request during rehashing of slot", "TRYAGAIN"),
        (f"{SIGNALLED}Moved: 1234 127.0.0.1:7000", "MOVED"),
        (f"{SIGNALLED}Ask: 1234 127.0.0.1:7000", "ASK"),
        (f"{SIGNALLED}ReadOnly: You can't write against a read only replica.", "READONLY"),
        (f"{SIGNALLED}MasterDown: Link with MASTER is down", "MASTERDOWN"),
        ("BUSY: Valkey is busy running a script.", "BUSY"),
        ("NOREPLICAS: Not enough good replicas to write.", "NOREPLICAS"),
        (f"{SIGNALLED}ResponseError: max number of clients reached", "ERR"),
        ("Standalone connect failed - IoError: Received error for address `h:1`: timed out\n", ""),
        ("Received connection error `Requested connection not found - ConnectionNotFoundForRoute: 1`", ""),
    ],
)
def test_what_passes_by_itself_is_tried_again_and_then_told(text: str, first_word: str) -> None:
    error = glide.RequestError(text)
    assert code(error) == first_word
    assert passes(error)
    told = explained(error, ADDRESS)
    assert isinstance(told, (StoreBusy, ScriptRefused))
    assert "h:1/0" in str(told)
    assert "secret" not in str(told)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("OOM: command not allowed when used memory > 'maxmemory'.", StoreFull, "raise its maxmemory"),
        ("MISCONF: Valkey is configured to save RDB snapshots, but cannot.", StoreFull, "Free some space"),
        ("NOAUTH: Authentication required.", OnejobError, "correct user and password"),
        (
            "Standalone connect failed - IoError: Received error for address `h:1`: WRONGPASS: invalid.\n",
            OnejobError,
            "refused the login (invalid)",
        ),
        (
            f"Standalone connect failed - IoError: Received error for address `h:1`: {SIGNALLED}PermissionDenied: User bob "
            "has no permissions to run the 'info' command\n",
            OnejobError,
            "acl setuser NAME ~{shop:* &shop:*",
        ),
        (
            "WRONGTYPE: Operation against a key holding the wrong kind of value",
            ScriptRefused,
            "the script claim",
        ),
        (
            f"{SIGNALLED}ResponseError: user_script:1: x script: on @user_script:1.",
            ScriptRefused,
            "the script claim",
        ),
    ],
)
def test_what_lasts_is_told_at_once(text: str, kind: type[OnejobError], words: str) -> None:
    error = glide.RequestError(text)
    assert not passes(error)
    told = explained(error, ADDRESS, script="claim")
    assert type(told) is kind
    assert words in str(told)


def test_a_call_that_was_not_answered_may_have_counted_and_one_that_was_never_sent_may_not() -> None:
    unanswered = glide.TimeoutError("timed out")
    assert may_have_counted(unanswered)
    told = explained(unanswered, ADDRESS, unsure=True)
    assert isinstance(told, StoreUnavailable)
    assert "it is not known whether the call counted" in str(told)
    assert not may_have_counted(glide.RequestError("Standalone connect failed - IoError: timed out"))
    assert not may_have_counted(glide.RequestError("OOM: command not allowed"))


def test_what_is_no_failure_of_the_store_stays_as_it_is() -> None:
    mistake = TypeError("Unsupported argument type")
    assert explained(mistake, ADDRESS) is mistake
    assert not passes(mistake)
