"""Opening a SQLite file the way onejob needs it, and saying in our words what goes wrong with it.

Always through `apsw`: a second SQLite library on the same file in the same process drops its POSIX locks.
"""

from __future__ import annotations

import logging
import os
import tempfile
from array import array as numeric_array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol, cast

import apsw
import msgspec

from onejob.core.errors import OnejobError, SchemaMismatch, StoreBusy, StoreFull
from onejob.stores.sqlite.statements import migrations

logger = logging.getLogger("onejob")
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph"}
)
_CACHE_KIB = 64_000
_STATEMENTS = 128
"""Of statements, `apsw` keeps those of the last so many executions, and each row of an `executemany` is one."""
WAL_PAGES = 4_000
"""When the log is written back into the file, and begun anew."""
_WAL_LIMIT = 64 * 1024 * 1024
_PAUSE = 0.002


Bindings = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]


class Cursor(Protocol):
    """What we use of an `apsw.Cursor`."""

    def execute(self, statement: str, bindings: Bindings = ..., /) -> Iterator[Row]: ...
    def executemany(self, statement: str, bindings: Iterable[Bindings], /) -> Iterator[Row]: ...


class Connection(Protocol):
    """What we use of an `apsw.Connection`, typed for Python 3.11 (its own stubs need 3.12)."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, statement: str, bindings: Bindings = ..., /) -> Iterator[Row]: ...
    def cursor(self) -> Cursor: ...
    def config(self, option: int, value: int, /) -> int: ...
    def changes(self) -> int: ...
    def pragma(self, name: str, value: int | str | None = None, /) -> Any: ...
    def create_scalar_function(
        self, name: str, function: Callable[..., Any], arguments: int, /, *, deterministic: bool
    ) -> None: ...
    def set_busy_timeout(self, milliseconds: int, /) -> None: ...
    def setlk_timeout(self, milliseconds: int, flags: int, /) -> None: ...
    def close(self) -> None: ...


LARGE = 32_768
"""Bytes beyond this many are bound as they are, not copied into a value that has all of a row."""

_carray = cast("Callable[[tuple[bytes | str, ...] | numeric_array[int]], object]", apsw.carray)  # pyright: ignore[reportUnknownMemberType]


def array(values: Iterable[bytes] | Iterable[str]) -> object:
    """Many values, at least one, as one parameter: `x in carray(:name)`."""
    return _carray(tuple(values))


def numbers(values: Iterable[int]) -> object:
    """The same of whole numbers."""
    return _carray(numeric_array("q", values))


def connect(path: str, patience: float, *, durable: bool = True) -> Connection:
    """Open a file with our settings; waits are bounded."""
    try:
        connection = cast("Connection", apsw.Connection(path, statementcachesize=_STATEMENTS))
        milliseconds = round(patience * 1000)
        connection.set_busy_timeout(milliseconds)
        connection.setlk_timeout(milliseconds, 0)
        # Without this, a statement is prepared anew for each set of bindings that might suit another plan.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        _write_ahead(connection, patience)
        connection.pragma("synchronous", "full" if durable else "off")
        connection.pragma("cache_size", -_CACHE_KIB)
        connection.pragma("temp_store", "memory")  # what a statement needs to be undone is no file of its own
        connection.pragma("wal_autocheckpoint", WAL_PAGES)
        connection.pragma("journal_size_limit", _WAL_LIMIT)
    except apsw.Error as error:
        raise explained(error, path) from error
    return connection


def _write_ahead(connection: Connection, patience: float) -> None:
    """Keep a log. Of those who find a new file at once, SQLite lets one say so, and refuses the others without any wait."""
    deadline = monotonic() + patience
    while True:
        try:
            connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if monotonic() >= deadline:
                raise
            sleep(_PAUSE)
        else:
            return


def memory_folder() -> Path:
    """A private folder in memory where there is such a place, for a store that lives as long as its object.

    SQLite's own memory databases cannot be read while another connection writes; a file in memory can.
    """
    shared_memory = Path("/dev/shm")
    usable = shared_memory.is_dir() and os.access(shared_memory, os.W_OK)
    return Path(tempfile.mkdtemp(prefix="onejob-", dir=shared_memory if usable else None))


def migrate(connection: Connection, path: str) -> None:
    """Bring the schema up to date under the write lock; refuse one that a newer onejob wrote."""
    scripts = migrations()
    if schema_of(connection) == len(scripts):
        return
    connection.execute("begin immediate")
    try:
        connection.execute(
            "create table if not exists onejob_meta (name text primary key, value any) strict, without rowid"
        )
        version = schema_of(connection)
        if not isinstance(version, int) or version > len(scripts):
            raise too_new(path, version)
        for script in scripts[version:]:
            connection.execute(script)
        if version < len(scripts):
            connection.execute(
                "insert into onejob_meta values ('schema', ?) on conflict do update set value = excluded.value",
                (len(scripts),),
            )
        connection.execute("commit")
    except BaseException:
        rollback(connection)
        raise


def too_new(path: str, version: object) -> SchemaMismatch:
    """What to raise for a file that a newer onejob wrote."""
    return SchemaMismatch(
        f"Store {path} has schema {version}, this onejob knows up to {len(migrations())}: "
        "upgrade onejob here, or point this program at another store."
    )


def schema_of(connection: Connection) -> Any:
    """Which version of the schema is there; 0 if none."""
    if not list(connection.execute("select 1 from sqlite_schema where name = 'onejob_meta'")):
        return 0
    found = list(connection.execute("select value from onejob_meta where name = 'schema'"))
    return found[0][0] if found else 0


def rollback(connection: Connection) -> None:
    """Undo whatever is open; SQLite may already have done so by itself."""
    if connection.in_transaction:
        connection.execute("rollback")


def without_folder(path: str) -> OnejobError | None:
    """The error for a file that cannot be made, because its folder is not there."""
    folder = Path(path).absolute().parent
    if folder.is_dir():
        return None
    return OnejobError(
        f"Store {path} cannot be made, because there is no folder {folder}: correct the store's URL, or make the folder."
    )


def explained(error: Exception, path: str) -> Exception:
    """The error in our words, with the remedy; ours and programming errors stay as they are."""
    match error:
        case OnejobError():
            return error
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(
                f"Store {path} stayed locked by another writer; nothing was stored. Try again, keep "
                "transactions on it short, or raise ?patience=SECONDS in the URL."
            )
        case apsw.FullError() | apsw.IOError():
            return StoreFull(f"Store {path} could not write ({error}); nothing was stored. Free some space.")
        case apsw.CantOpenError() if (missing := without_folder(path)) is not None:
            return missing
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return OnejobError(
                f"Store {path} cannot be opened for writing ({error}): check that its folder exists and "
                "that this user may write to the folder and the file."
            )
        case apsw.NotADBError() | apsw.CorruptError():
            return OnejobError(
                f"Store {path} is not a sound SQLite database ({error}): restore it, or use another."
            )
        case UnicodeDecodeError() | msgspec.MsgspecError():
            return OnejobError(f"Store {path} holds a damaged row ({error}): find and delete or mend it.")
        case _:
            return error


def warn_if_on_network(path: str) -> None:
    """WAL needs shared memory between processes, which network file systems do not give."""
    kind = file_system(Path(path))
    if kind in NETWORK_FILE_SYSTEMS:
        logger.warning(
            "store %s is on a network file system (%s): SQLite can be corrupted there by a second machine. "
            "Use a local disk, or PostgreSQL.",
            path,
            kind,
        )


def file_system(path: Path) -> str | None:
    """The kind of file system that a path is on; None where that cannot be told."""
    path = path.absolute()
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return None
    best, kind = "", None
    for line in mounts.read_text("utf-8", "replace").splitlines():
        _, where, this, *_ = line.split(" ")
        inside = str(path) == where or str(path).startswith(where.rstrip(os.sep) + os.sep)
        if inside and len(where) >= len(best):
            best, kind = where, this
    return kind
