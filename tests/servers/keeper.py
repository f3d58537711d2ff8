"""Keeps a server that all tests of a run share: starts it, and stops and removes it when the last user has gone.

A process of its own, so that the server outlives none of its users and none of them has to be the last. Users hold a
shared lock on a file, which the system frees however they end; who gets it for himself alone knows that all are gone.
"""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path
from typing import Protocol, Self

from servers.folders import USERS

ADDRESS, FAILED = "address", "failed"
LASTING = {"appendonly": "yes", "appendfsync": "no"}
"""A Valkey as it should be run, which nobody is warned of; but nobody needs its files."""
SETTINGS = {"valkey": LASTING, "cluster": LASTING}


class Server(Protocol):
    """What can be kept."""

    kind: str

    def __init__(self, folder: Path | None = None, **settings: str) -> None: ...

    @classmethod
    def new_folder(cls) -> Path:
        """A folder that it can run in."""
        ...

    @property
    def url(self) -> str:
        """Where it is, once it runs."""
        ...

    def start(self) -> Self:
        """Run until it takes connections."""
        ...

    def remove(self) -> None:
        """Stop, and leave nothing behind."""
        ...


def server_of(kind: str) -> type[Server]:
    """What is meant by `postgres`, `valkey` or `cluster`."""
    match kind:
        case "postgres":
            from servers.postgres import PostgresServer

            return PostgresServer
        case "valkey":
            from servers.valkey import ValkeyServer

            return ValkeyServer
        case "cluster":
            from servers.cluster import ValkeyCluster

            return ValkeyCluster
        case _:
            raise LookupError(kind)


def keep(kind: str, folder: Path) -> None:
    """Serve those who hold the lock."""
    server = server_of(kind)(folder, **SETTINGS.get(kind, {}))
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
    keep(sys.argv[1], Path(sys.argv[2]))
