"""checkup: what is wrong with the file, in words, without changing it. Facts are gathered, then judged."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import apsw

from onejob.sql.findings import on_stranded
from onejob.store import Finding, Level, Migration
from onejob.stores.sqlite.connect import (
    NETWORK_FILE_SYSTEMS,
    Connection,
    explained,
    file_system,
    schema_of,
    too_new,
    without_folder,
)
from onejob.stores.sqlite.statements import migration_names, migrations, statements

LEAST_FREE: Final = 64 * 1024 * 1024
"""Bytes of free disk below which writes are about to fail."""
LITTLE_FREE: Final = 1024 * 1024 * 1024
LITTLE_SHARE: Final = 0.05
LARGE_WAL: Final = 256 * 1024 * 1024
"""Four times what the log is cut back to when nobody reads old pages."""


def checkup(path: str, patience: float) -> list[Finding]:
    """Look at the file, its surroundings and its contents; see `Inspector.checkup`."""
    file = Path(path)
    if not file.is_file():
        return [
            Finding(
                Level.ERROR,
                "no_file",
                f"There is no file {path}.",
                "Check the URL; the first enqueue or worker makes the file, but not its folder.",
                blocking=True,
            )
        ]
    findings = [
        *_rights(file),
        *on_file_system(path, file_system(file)),
        *_disk(file),
        *_log(file),
        *_other_library(),
    ]
    try:
        findings += _contents(path, patience)
    except apsw.Error as error:
        findings.append(
            Finding(
                Level.ERROR,
                "unreadable",
                f"The file cannot be read as a store: {explained(error, path)}",
                "Stop everything that uses it and restore it from a copy, or point the app at another file.",
                blocking=True,
            )
        )
    return sorted(findings, key=lambda finding: finding.level is not Level.ERROR)


def has_tables(path: str) -> bool:
    """False if there is no file, or one without tables of ours; never makes or changes one. Raises if there is not even its folder."""
    if not Path(path).is_file():
        if (missing := without_folder(path)) is not None:
            raise missing
        return False
    try:
        connection = cast("Connection", apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY))
        try:
            return schema_of(connection) != 0
        finally:
            connection.close()
    except apsw.Error:
        return True


def migrations_of(path: str) -> list[Migration]:
    """The steps that build the schema, and which of them the file has; never makes or changes one."""
    version: Any = 0
    if Path(path).is_file():
        try:
            connection = cast("Connection", apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY))
            try:
                version = schema_of(connection)
            finally:
                connection.close()
        except apsw.Error as error:
            raise explained(error, path) from error
    names = migration_names()
    if not isinstance(version, int) or version > len(names):
        raise too_new(path, version)
    return [Migration(name, number <= version) for number, name in enumerate(names, 1)]


def on_file_system(path: str, kind: str | None) -> Iterator[Finding]:
    """A file system on which SQLite's locks and shared memory do not work."""
    if kind in NETWORK_FILE_SYSTEMS:
        yield Finding(
            Level.ERROR,
            "network",
            f"{path} is on a network file system ({kind}), where SQLite can be corrupted by a second machine.",
            "Move it to a local disk; for several machines use a server.",
        )


def on_disk(free: int, total: int) -> Iterator[Finding]:
    """A disk without room."""
    left = f"{free / 1024**2:,.0f} MiB of {total / 1024**3:,.1f} GiB"
    remedy = "Free some space, or shorten retention and run `onejob prune`."
    if free < LEAST_FREE:
        yield Finding(Level.ERROR, "disk_full", f"The disk is full: {left} are left.", remedy)
    elif free < LITTLE_FREE and free < total * LITTLE_SHARE:
        yield Finding(Level.WARNING, "disk_low", f"The disk is nearly full: {left} are left.", remedy)


def on_log(size: int) -> Iterator[Finding]:
    """A write-ahead log that cannot be cut back."""
    if size > LARGE_WAL:
        yield Finding(
            Level.WARNING,
            "long_reader",
            f"The write-ahead log has grown to {size / 1024**2:,.0f} MiB: somebody has been reading for long.",
            "End long transactions and forgotten shells on this file; the log is cut back by itself then.",
        )


def on_schema(version: object, known: int) -> Iterator[Finding]:
    """Tables of another version than this one's."""
    if version == known:
        return
    if not isinstance(version, int) or version > known:
        yield Finding(
            Level.ERROR,
            "schema_newer",
            f"The store has schema {version}, and this onejob knows up to {known}.",
            "Upgrade onejob here, or point this program at another store.",
            blocking=True,
        )
    elif version == 0:
        yield Finding(
            Level.ERROR,
            "no_schema",
            "The file has no tables of onejob yet.",
            "Check the URL; the first enqueue or worker makes them.",
            blocking=True,
        )
    else:
        yield Finding(
            Level.WARNING,
            "schema_older",
            f"The store has schema {version}, and this onejob would make it {known}.",
            "Nothing to do: the first use by this version brings it up to date.",
        )


def _rights(file: Path) -> Iterator[Finding]:
    missing = [
        what
        for what, there, rights in (
            ("read the file", file, os.R_OK),
            ("write to the file", file, os.W_OK),
            ("make files beside it", file.parent, os.W_OK | os.X_OK),
        )
        if not os.access(there, rights, effective_ids=os.access in os.supports_effective_ids)
    ]
    if missing:
        yield Finding(
            Level.ERROR,
            "no_rights",
            f"This user (id {os.geteuid()}) may not {' or '.join(missing)}: {file}.",
            "Give it the rights, or run as the user who owns the store.",
            blocking=True,
        )


def _other_library() -> Iterator[Finding]:
    if "_sqlite3" in sys.modules:
        yield Finding(
            Level.WARNING,
            "second_library",
            "This process has also loaded Python's own sqlite3, a second SQLite library.",
            "Never open the store's file with it from a process that uses onejob: closing it drops onejob's "
            "locks. Use app.transaction() for your own rows.",
        )


def _disk(file: Path) -> Iterator[Finding]:
    usage = shutil.disk_usage(file)
    return on_disk(usage.free, usage.total)


def _log(file: Path) -> Iterator[Finding]:
    log = file.with_name(file.name + "-wal")
    return on_log(log.stat().st_size if log.exists() else 0)


def _contents(path: str, patience: float) -> list[Finding]:
    connection = cast("Connection", apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY))
    try:
        connection.set_busy_timeout(round(patience * 1000))
        findings = [*_journal(connection), *_damage(connection)]
        version: Any = schema_of(connection)
        findings += on_schema(version, len(migrations()))
        if version == len(migrations()):
            findings += _stranded(connection)
    finally:
        connection.close()
    return findings


def _journal(connection: Connection) -> Iterator[Finding]:
    mode = str(connection.pragma("journal_mode"))
    if mode != "wal":
        yield Finding(
            Level.ERROR,
            "not_wal",
            f"The file's journal mode is {mode}, not wal: readers and writers block each other.",
            "Close what else has the file open, then use it once with onejob, which sets the mode.",
        )


def _damage(connection: Connection) -> Iterator[Finding]:
    said = [str(row[0]) for row in connection.execute("pragma quick_check(3)")]
    if said != ["ok"]:
        yield Finding(
            Level.ERROR,
            "damaged",
            f"The database is damaged: {'; '.join(' '.join(line.split()) for line in said)}.",
            "Stop everything that uses it and restore it from a copy, or save what is left with sqlite3's .recover.",
            blocking=True,
        )


def _stranded(connection: Connection) -> Iterator[Finding]:
    [(count,)] = connection.execute(statements("checkup")["stranded"])
    yield from on_stranded(count)
