"""The servers that are measured: each our own, set as the reports say, and gone when the run is over."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

from tests.servers.postgres import ACCOUNT, PostgresServer
from tests.servers.valkey import ValkeyServer

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
VALKEY_SETTINGS = {
    "save": "",
    "appendonly": "no",
    "maxmemory-policy": "noeviction",
}
"""Nothing is kept on disk, as the peers' figures are usually taken; all else is Valkey's default."""


def postgres(home: Path, **settings: str) -> PostgresServer:
    """A server with its files in that folder, started; `settings` replace some of those above."""
    return PostgresServer(_folder(home), **{**SETTINGS, **settings}).start()


def valkey(home: Path, databases: int) -> ValkeyServer:
    """A server with its files in that folder, started."""
    folder = Path(tempfile.mkdtemp(prefix="valkey-", dir=home))
    return ValkeyServer(folder, **VALKEY_SETTINGS, databases=str(databases)).start()


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
