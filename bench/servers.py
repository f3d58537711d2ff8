"""The PostgreSQL server that is measured: one of our own, durable as a server of value is, gone when the run is over."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

from tests.servers.postgres import ACCOUNT, PostgresServer

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "wal_level": "replica",
    "track_commit_timestamp": "off",
    "dynamic_shared_memory_type": "posix",
}
"""What is not as it comes; all else is PostgreSQL's default."""


def postgres(home: Path) -> PostgresServer:
    """A server with its files in that folder, started."""
    return PostgresServer(_folder(home), **SETTINGS).start()


def _folder(home: Path) -> Path:
    """A folder in which the server may write: as root it runs as somebody else, who must be able to get there."""
    if os.geteuid() != 0:
        return Path(tempfile.mkdtemp(prefix="postgres-", dir=home))
    home.chmod(0o755)
    reachable = all(parent.stat().st_mode & 0o001 for parent in home.resolve().parents)
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=home if reachable else None))
    user = pwd.getpwnam(ACCOUNT)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return folder
