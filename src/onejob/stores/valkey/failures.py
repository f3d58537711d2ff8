"""What Valkey and the way to it can do to a call: which failures pass by themselves, and the others in our words."""

from __future__ import annotations

import socket
from typing import Final

from onejob.core.errors import OnejobError, StoreBusy, StoreFull, StoreUnavailable
from onejob.stores.valkey.address import Address

_NO_SCRIPT: Final = "NOSCRIPT"
READ_ONLY: Final = "READONLY"
MOVED: Final = "MOVED"
ASK: Final = "ASK"
_PASSING: Final = frozenset(
    {
        *("LOADING", "MASTERDOWN", READ_ONLY, "NOREPLICAS", "BUSY", "UNBLOCKED", "REDIRECT"),
        *("CLUSTERDOWN", "TRYAGAIN", MOVED, ASK),
    }
)
"""The server starts, follows another, hands over its work, waits for replicas or a script; a cluster rearranges itself."""
_NO_FUNCTION: Final = "Function not found"
_DENIED: Final = "ACL failure in script"
_CROWDED: Final = "max number of clients"


class ServerError(Exception):
    """What the server answered instead. `code` is its first word."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.code, _, self.text = said.partition(" ")


class LineLost(Exception):
    """There was no connection, or it ended before the answer came. `sent`: the call may have arrived."""

    def __init__(self, said: str, *, sent: bool = False) -> None:
        super().__init__(said)
        self.sent = sent


class ScriptRefused(OnejobError):
    """A script ended in an error of its own, or of its command's. `code` is the error's first word."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoPrimary(StoreUnavailable):
    """Whoever was reached takes no writes."""


def code(error: BaseException) -> str:
    """The first word of the server's error; empty if it did not come from the server."""
    return error.code if isinstance(error, ServerError) else ""


def is_lost(error: BaseException) -> bool:
    """True if the connection, or the server, was gone: the next may be there."""
    return isinstance(error, LineLost)


def is_unknown_script(error: BaseException) -> bool:
    """True if the server does not have a script or the library, or has lost it."""
    return code(error) == _NO_SCRIPT or (code(error) == "ERR" and _NO_FUNCTION in str(error))


def passes(error: BaseException) -> bool:
    """True if the same call may work in a moment."""
    return is_lost(error) or code(error) in _PASSING or _CROWDED in str(error)


def may_have_counted(error: BaseException) -> bool:
    """True if the call may have run, though we have no answer."""
    return isinstance(error, LineLost) and error.sent


def explained(error: Exception, address: Address, *, unsure: bool = False, script: str = "") -> Exception:
    """The error in our words, with the remedy; ours and programming errors stay as they are.

    `unsure`: some try may have counted, though its reply was lost.
    """
    if isinstance(error, LineLost) and isinstance(error.__cause__, socket.gaierror):
        return StoreUnavailable(
            f"The name of Valkey's host at {address.place} could not be looked up for {address.patience:g} s ({text(error)}); "
            f"{outcome(unsure)}. Correct the host in the store's URL, or see why this machine does not find its name."
        )
    if isinstance(error, LineLost):
        return unreachable(address, text(error), unsure=unsure)
    if not isinstance(error, ServerError):
        return error
    place, said, came_of_it = address.place, text(error), outcome(unsure)
    match error.code:
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
                f"Valkey at {place} ran somebody's script for {address.patience:g} s ({said}); {came_of_it}. Try "
                "again, or end that one: SCRIPT KILL."
            )
        case "READONLY":
            return NoPrimary(
                f"Valkey at {place} takes no writes ({said}); {came_of_it}. It is a replica: name the primary in the store's "
                "URL, or all of them with commas between, and the one that leads is found."
            )
        case "CLUSTERDOWN" | "MOVED" | "ASK" | "TRYAGAIN":
            return StoreUnavailable(
                f"Valkey at {place} did not serve a slot for {address.patience:g} s ({said}); {came_of_it}. Is "
                "one of its nodes down, or a slot left half-moved? See CLUSTER INFO, and try again."
            )
        case passing if passing in _PASSING:
            return StoreUnavailable(
                f"Valkey at {place} took no calls for {address.patience:g} s ({said}); {came_of_it}. Try again."
            )
        case _ if _CROWDED in said:
            return StoreUnavailable(
                f"Valkey at {place} had no room for another connection for {address.patience:g} s ({said}); {came_of_it}. "
                "Raise its maxclients, or end programs that keep connections open: see CLIENT LIST."
            )
        case _:
            return _refused(error, address, script)


def admit(error: OnejobError, stored: int, of: int) -> None:
    """Let an error say that a part of its call had been stored before."""
    error.args = (str(error).replace(outcome(False), f"{stored:,} of {of:,} jobs were stored"),)


def unreachable(address: Address, said: str, *, unsure: bool) -> StoreUnavailable:
    """There was nobody to talk to, or no answer."""
    return StoreUnavailable(
        f"Valkey at {address.place} could not be reached for {address.patience:g} s ({said}); {outcome(unsure)}. Is it "
        "running there? Check hosts and ports in the store's URL; if it only takes longer, raise ?patience=SECONDS."
    )


def misdirected(address: Address, said: str) -> OnejobError:
    """The server, or the way there, is not what the URL says; the next try will hear the same."""
    return OnejobError(
        f"Valkey at {address.place} cannot be connected to ({said.rstrip('.')}): correct the store's URL."
    )


def outcome(unsure: bool) -> str:
    """What a caller may believe of a call that failed."""
    return "it is not known whether the call counted" if unsure else "nothing was stored"


def text(error: BaseException) -> str:
    """What the server said after its first word, or what else is known."""
    said = error.text if isinstance(error, ServerError) else str(error)
    return " ".join(said.split()).rstrip(".")


def _refused(error: ServerError, address: Address, script: str) -> OnejobError:
    """What the server will refuse next time, too."""
    place, said = address.place, text(error)
    match error.code:
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
