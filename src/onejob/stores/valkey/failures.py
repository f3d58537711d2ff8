"""What Valkey and the way to it can do to a call: which failures pass by themselves, and the others in our words."""

from __future__ import annotations

import re
from typing import Final

from onejob.core.errors import OnejobError, StoreBusy, StoreFull, StoreUnavailable
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.driver import driver

NO_SCRIPT: Final = "NOSCRIPT"
READ_ONLY: Final = "READONLY"
_PASSING: Final = frozenset(
    {
        *("LOADING", "MASTERDOWN", READ_ONLY, "NOREPLICAS", "BUSY", "UNBLOCKED", "REDIRECT"),
        *("CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"),
    }
)
"""The server starts, follows another, hands over its work, waits for replicas or a script; a cluster rearranges itself."""
_OF_GLIDE: Final = {
    "BusyLoadingError": "LOADING",
    "ClusterDown": "CLUSTERDOWN",
    "TryAgain": "TRYAGAIN",
    "Moved": "MOVED",
    "Ask": "ASK",
    "ReadOnly": READ_ONLY,
    "MasterDown": "MASTERDOWN",
    "NoScriptError": NO_SCRIPT,
    "PermissionDenied": "NOPERM",
    "ResponseError": "ERR",
}
"""The names that glide has for the first words of some of the server's errors."""
_SIGNALLED: Final = re.compile(r"An error was signalled by the server: - (\w+): (.*)", re.DOTALL)
_CODED: Final = re.compile(r"(?:^|[:`] ?)([A-Z]{3,}): (.*)", re.DOTALL)
_CONNECTING: Final = re.compile(r"connect failed|initial connections|topology views|not found|inflight")
"""In what glide says of a call that it had nobody to send to."""
_NO_PRIMARY: Final = "No primary node found"
_NO_FUNCTION: Final = "Function not found"
_DENIED: Final = "ACL failure in script"
_CROWDED: Final = "max number of clients"


class ScriptRefused(OnejobError):
    """A script ended in an error of its own, or of its command's. `code` is the error's first word."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoPrimary(StoreUnavailable):
    """Whoever was reached takes no writes."""


def code(error: BaseException) -> str:
    """The first word of the server's error; empty if it did not come from the server."""
    return _parts(error)[0]


def is_lost(error: BaseException) -> bool:
    """True if the connection, or the server, was gone: the next may be there, and the last call may have counted."""
    return isinstance(error, driver().GlideError) and not code(error)


def is_unanswered(error: BaseException) -> bool:
    """True if the call was sent, or waited to be sent, and nothing came."""
    return isinstance(error, driver().TimeoutError)


def is_unknown_function(error: BaseException) -> bool:
    """True if the server does not have the library, or has lost it."""
    return _NO_FUNCTION in str(error) and code(error) == "ERR"


def passes(error: BaseException) -> bool:
    """True if the same call may work in a moment."""
    return is_lost(error) or code(error) in _PASSING or _CROWDED in str(error)


def may_have_counted(error: BaseException) -> bool:
    """True if the call may have run, though we have no answer."""
    return is_lost(error) and not _CONNECTING.search(str(error))


def explained(
    error: Exception, address: Address, *, unsure: bool = False, script: str = "", reason: str = ""
) -> Exception:
    """The error in our words, with the remedy; ours and programming errors stay as they are.

    `unsure`: some try may have counted, though its reply was lost. `reason`: what is known better than glide knows it.
    """
    if not isinstance(error, driver().GlideError):
        return error
    place, said, came_of_it = address.place, text(error), outcome(unsure)
    match code(error):
        case "":
            return unreachable(address, reason or said, unsure=unsure)
        case "FORMAT":
            return OnejobError(
                f"Valkey at {place} holds jobs of another version of onejob (format {said.partition(' script:')[0]}); {came_of_it}. Let the version that "
                "wrote them work them off, or start this one in a namespace of its own: ?namespace=… in the store's URL."
            )
        case "OOM":
            return StoreFull(
                f"Valkey at {place} has no memory left ({said}); {came_of_it}. Jobs that are there can still be "
                "worked off; to take in more, raise its maxmemory, or keep ended jobs for a shorter time."
            )
        case "MISCONF":
            return StoreFull(
                f"Valkey at {place} cannot write to its disk ({said}); {came_of_it}. Free some space there, and see its "
                "log."
            )
        case "BUSY":
            return StoreBusy(
                f"Valkey at {place} ran somebody's script for {address.patience:g} seconds ({said}); {came_of_it}. Try "
                "again, or end that one: SCRIPT KILL."
            )
        case "READONLY":
            return NoPrimary(
                f"Valkey at {place} takes no writes ({said}); {came_of_it}. It is a replica: name the primary in the store's "
                "URL, or all of them with commas between, and the one that leads is found."
            )
        case "CLUSTERDOWN" | "MOVED" | "ASK" | "TRYAGAIN":
            return StoreUnavailable(
                f"The cluster at {place} did not serve a slot for {address.patience:g} seconds ({said}); {came_of_it}. Is "
                "one of its nodes down, or a slot left half-moved? See CLUSTER INFO, and try again."
            )
        case passing if passing in _PASSING:
            return StoreUnavailable(
                f"Valkey at {place} took no calls for {address.patience:g} seconds ({said}); {came_of_it}. Try again."
            )
        case _:
            return _refused(error, address, script)


def unreachable(address: Address, said: str, *, unsure: bool) -> StoreUnavailable:
    """There was nobody to talk to, or no answer."""
    return StoreUnavailable(
        f"Valkey at {address.place} could not be reached for {address.patience:g} seconds ({said}); {outcome(unsure)}. Is it "
        "running there? Check hosts and ports in the store's URL; if it only takes longer, raise ?patience=SECONDS."
    )


def outcome(unsure: bool) -> str:
    """What a caller may believe of a call that failed."""
    return "it is not known whether the call counted" if unsure else "nothing was stored"


def text(error: BaseException) -> str:
    """What the server or glide said, without the wrapping."""
    return " ".join(_parts(error)[1].split()).rstrip(".")


def _refused(error: Exception, address: Address, script: str) -> OnejobError:
    """What the server will refuse next time, too."""
    place, said = address.place, text(error)
    match code(error):
        case "NOAUTH" | "WRONGPASS":
            return OnejobError(
                f"Valkey at {place} refused the login ({said}): correct user and password in the store's URL."
            )
        case refused if refused == "NOPERM" or _DENIED in said:
            return OnejobError(
                f"This user of Valkey at {place} lacks a right ({said}): as an administrator, acl setuser NAME "
                f"~{{{address.namespace}:* &{address.namespace}:* +@read +@write +@scripting +@connection +@pubsub +info "
                "+time +cluster +config|get."
            )
        case found:
            what = f"the script {script}" if script else "a command"
            return ScriptRefused(
                f"Valkey at {place} refused {what} ({found} {said}): another version of onejob, or somebody else, may use "
                "the same namespace; if not, this is a bug of onejob.",
                found,
            )


def _parts(error: BaseException) -> tuple[str, str]:
    """The error's first word, if it is the server's, and the rest."""
    whole = str(error)
    if not isinstance(error, driver().GlideError):
        return "", whole
    if _NO_PRIMARY in whole:
        return READ_ONLY, _NO_PRIMARY
    if found := _SIGNALLED.search(whole):
        return _OF_GLIDE.get(found[1], found[1].upper()), found[2]
    if found := _CODED.search(whole):
        return found[1], found[2]
    return "", whole
