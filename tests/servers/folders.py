"""Where servers of tests live and how they are started: a folder that goes with its last user, a port, a process.

Nothing here knows what kind of server it is.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import IO

USERS = "users"
"""The file in a folder that is locked by those who need what is there."""
PATIENCE = 60.0
LAUNCH = Path(__file__).with_name("launch.py")
_LOWEST_PORT = 15_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ServerFailed(Exception):
    """The server did not start; the message is what it said."""


def place() -> Path:
    """Where servers have their folders: on a disk that is memory, if there is one."""
    return Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())


def new_folder(kind: str, owner: tuple[int, int] | None = None) -> Path:
    """A folder for a server of that kind; the user and group who run it own it."""
    folder = Path(tempfile.mkdtemp(prefix=f"onejob-{kind}-", dir=place()))
    (folder / USERS).touch()
    if owner is not None:
        os.chown(folder, *owner)
    return folder


def hold(folder: Path) -> IO[bytes] | None:
    """Have that folder stay until this is closed, or until this process ends; None if it is going or gone."""
    try:
        users = (folder / USERS).open("rb")
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return None
    return users


def remove_leftovers(kind: str) -> None:
    """Remove what was left by those who could not do so themselves: folders that nobody holds."""
    for folder in place().glob(f"onejob-{kind}-*"):
        users = hold(folder)
        if users is None:
            continue
        with users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder, ignore_errors=True)


def launched(
    *command: str, owner: tuple[int, int] | None = None, at_death: signal.Signals = signal.SIGKILL
) -> list[str]:
    """The command, run by its owner, for as long as this process lives; then it gets that signal."""
    ids = ("", "") if owner is None else tuple(map(str, owner))
    return [sys.executable, "-IS", str(LAUNCH), str(os.getpid()), str(int(at_death)), *ids, *command]


def free_port() -> int:
    """A port that nobody listens on, and that the system gives to no client.

    A client that looks for a server which is away could otherwise be given the very port that it tries to reach: then it
    is connected to itself, and the server cannot come back.
    """
    first = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    while True:
        port = random.randrange(_LOWEST_PORT, max(first, _LOWEST_PORT + 1_000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
