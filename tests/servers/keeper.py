"""Keeps the server that all tests of a run share: starts it, and stops and removes it when the last user has gone.

A process of its own, so that the server outlives none of its users and none of them has to be the last. Users hold a
shared lock on a file, which the system frees however they end; who gets it for himself alone knows that all are gone.
"""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from servers.postgres import USERS, PostgresServer

ADDRESS, FAILED = "address", "failed"


def keep(folder: Path) -> None:
    """Serve those who hold the lock."""
    server = PostgresServer(folder)
    with (folder / USERS).open("rb") as users:
        try:
            server.start()
            _tell(folder / ADDRESS, server.url)
            fcntl.flock(users, fcntl.LOCK_EX)
        except Exception as error:
            _tell(folder / FAILED, str(error))
            raise
        else:
            server.remove()


def _tell(file: Path, text: str) -> None:
    """Whoever sees the file sees all of it."""
    draft = file.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(file)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
