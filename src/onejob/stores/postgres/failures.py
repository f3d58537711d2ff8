"""What PostgreSQL and the way to it can do to a call: which failures pass by themselves, and the others in our words."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import msgspec

from onejob.core.errors import OnejobError, SchemaMismatch, StoreBusy, StoreFull, StoreUnavailable
from onejob.stores.postgres.address import Address
from onejob.stores.postgres.driver import NO_TLS, driver

LOCK_NOT_AVAILABLE: Final = "55P03"
UNIQUE_VIOLATION: Final = "23505"
DEADLOCK: Final = "40P01"
READ_ONLY: Final = "25006"
NO_RIGHT: Final = "42501"
TOO_MANY_CONNECTIONS: Final = "53300"
_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""The server shuts down, starts up, or ended this session."""
CONTENTION: Final = frozenset({"40001", DEADLOCK})
_FULL: Final = {
    "53100": "Free some space there",
    "53200": "It is out of memory: give it more, or let it take less (max_connections, work_mem)",
    "58030": "A file could not be read or written: see the server's log and its disk",
}
_NO_TABLES: Final = frozenset({"42P01", "3F000", "42703"})
_LOGIN: Final = frozenset({"28000", "28P01"})
_NO_DATABASE: Final = "3D000"
NO_STATEMENT: Final = frozenset({"26000", "42P05"})


def sqlstate(error: BaseException) -> str:
    """The server's five letters for an error, of whichever driver; empty if it came from elsewhere."""
    original = getattr(error, "orig", None) or error  # SQLAlchemy has errors of its own around the driver's
    return getattr(original, "sqlstate", None) or ""


def is_lost(error: BaseException) -> bool:
    """True if the connection, or the server, was gone: the next may be there, and the last call may have counted."""
    state = sqlstate(error)
    if state:
        return state in _LOST or (state.startswith("08") and state != "08P01")
    if isinstance(error, ssl.SSLCertVerificationError) or NO_TLS in str(error):
        return False  # the next try changes nothing about that
    asyncpg = driver()  # whose state is confused, now and then, by a server that ends a session in mid-query
    return isinstance(error, (OSError, EOFError, asyncpg.InternalClientError)) or (
        type(error) is asyncpg.InterfaceError and "closed" in str(error)
    )


def passes(error: BaseException) -> bool:
    """True if the same call may work in a moment."""
    if isinstance(error, OnejobError):
        return False
    state = sqlstate(error)
    return (
        is_lost(error)
        or state in CONTENTION
        or state in (TOO_MANY_CONNECTIONS, LOCK_NOT_AVAILABLE)
        or isinstance(error, driver().InvalidCachedStatementError)  # tables were altered beside us
    )


def explained(error: Exception, address: Address, *, may_count: bool = False) -> Exception:
    """The error in our words, with the remedy; ours and programming errors stay as they are.

    `may_count`: part of the call, or an earlier try of it whose reply was lost, may have been committed.
    """
    if isinstance(error, OnejobError):
        return error
    place, state = address.place, sqlstate(error)
    if state == TOO_MANY_CONNECTIONS:
        return StoreUnavailable(
            f"PostgreSQL at {place} takes no more connections ({error}): raise its max_connections, lower ?pool= in the "
            "store's URL, or put a pooler before it."
        )
    if isinstance(error, socket.gaierror):
        return StoreUnavailable(
            f"The name of PostgreSQL's host at {place} could not be looked up for {address.patience:g} s ({error.strerror or error}); "
            f"{outcome(may_count)}. Correct the host in the store's URL, or see why this machine does not find its name."
        )
    if is_lost(error):
        return StoreUnavailable(
            f"PostgreSQL at {place} could not be reached for {address.patience:g} s ({_text(error)}); {outcome(may_count)}. "
            "Is it running there? Check host and port in the store's URL; if it only takes longer, raise ?patience=SECONDS."
        )
    if state == LOCK_NOT_AVAILABLE or state in CONTENTION:
        return StoreBusy(
            f"Rows of the store at {place} stayed locked by others ({error}); {outcome(may_count)}. Try again, and keep "
            "transactions on it short."
        )
    if state == "57014":
        return StoreBusy(
            f"A statement on PostgreSQL at {place} was cancelled ({error}); {outcome(may_count)}. Try again, or raise "
            "?statement_timeout=SECONDS in the store's URL."
        )
    if state in _FULL:
        return StoreFull(
            f"PostgreSQL at {place} could not do it ({error}); {outcome(may_count)}. {_FULL[state]}."
        )
    return _refused(error, state, address) or _damaged(error, place) or error


def outcome(may_count: bool) -> str:
    """What a caller may believe of a call that failed."""
    return "it is not known whether the call counted" if may_count else "nothing was stored"


def _refused(error: Exception, state: str, address: Address) -> OnejobError | None:
    """What the server will refuse next time, too."""
    place, schema = address.place, address.schema
    if state == READ_ONLY:
        return OnejobError(
            f"PostgreSQL at {place} is read-only ({error}): it is a replica, or set so. Connect to the primary; with "
            "several hosts in the URL, ?target_session_attrs=read-write finds it."
        )
    if state == NO_RIGHT:
        return OnejobError(
            f"This user of PostgreSQL at {place} lacks a right ({error}): grant usage on schema {schema}, and select, insert, "
            "update, delete on all tables in it; to make them, also create on the database."
        )
    if state in _NO_TABLES:
        return SchemaMismatch(
            f"Tables of onejob are missing or other than expected in schema {schema} at {place} ({error}): run `onejob "
            "migrate`, or correct ?schema= in the store's URL."
        )
    if state == _NO_DATABASE:
        return OnejobError(
            f"PostgreSQL at {place} has no such database ({error}): make it with `createdb`, or correct the store's URL."
        )
    if state in _LOGIN:
        return OnejobError(
            f"PostgreSQL at {place} refused the login ({error}): correct user and password in the store's URL."
        )
    if state in NO_STATEMENT:
        return OnejobError(
            f"PostgreSQL at {place} forgets prepared statements ({error}): there seems to be a transaction pooler before "
            "it. Add ?pooler=transaction to the store's URL, or connect directly."
        )
    if NO_TLS in str(error):
        return OnejobError(
            f"PostgreSQL at {place} speaks no TLS ({error}): set it up there, or say another ?sslmode= in the store's URL."
        )
    if isinstance(error, (driver().ClientConfigurationError, ssl.SSLCertVerificationError)):
        return OnejobError(
            f"PostgreSQL at {place} cannot be connected to ({error}): correct the store's URL."
        )
    return None


def _damaged(error: Exception, place: str) -> OnejobError | None:
    if isinstance(error, msgspec.MsgspecError):
        return OnejobError(f"The store at {place} holds a damaged row ({error}): find and delete or mend it.")
    return None


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
