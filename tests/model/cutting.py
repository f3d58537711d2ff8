"""How an operation of the SQLite store is cut off: a store with an eye on each of its statements, and what a process
that dies leaves on disk.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from onejob.stores.sqlite.store import SqliteStore


class Watched(SqliteStore):
    """The real store, with an eye on each statement of its writer."""

    before_statement: Callable[[str], None] | None = None

    def __init__(self, path: str, *, clock: Callable[[], int]) -> None:
        Path(path).parent.mkdir(exist_ok=True)
        super().__init__(path, clock=clock)

    def _connect(self) -> apsw.Connection:
        connection = super()._connect()
        connection.exec_trace = self._seen
        return connection

    def _seen(self, _: apsw.Cursor, statement: str, __: object) -> bool:
        watching = type(self).before_statement
        if watching is not None and threading.current_thread().name == "onejob-writer":
            watching(statement)
        return True


def copy_store(source: Path, target: Path) -> None:
    """The files as a dying process leaves them; the index of the log is memory and dies with it."""
    target.mkdir()
    for suffix in ("", "-wal"):
        file = source / f"jobs.db{suffix}"
        if file.exists():
            shutil.copy(file, target / file.name)
