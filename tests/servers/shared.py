"""The servers that all tests of a run share, whatever their process: one of each kind, for as long as somebody needs it."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.folders import PATIENCE, ServerFailed, hold, remove_leftovers
from servers.keeper import ADDRESS, FAILED, server_of


class SharedServer:
    """A user of the server, which runs for as long as there is one."""

    def __init__(self, meeting: Path, kind: str) -> None:
        """Those who give the same folder to meet in share a server of that kind; the first one has it started."""
        with _locked(meeting / f"{kind}.lock"):
            pointer = meeting / f"{kind}.folder"
            users = hold(Path(pointer.read_text())) if pointer.exists() else None
            if users is None:
                remove_leftovers(kind)
                folder = server_of(kind).new_folder()
                users = hold(folder)
                assert users is not None
                _start_keeper(kind, folder)
                pointer.write_text(str(folder))
        self._users = users
        self.url = (self.folder / ADDRESS).read_text()

    @property
    def folder(self) -> Path:
        """Where it has its files."""
        return Path(self._users.name).parent

    def close(self) -> None:
        """Need it no longer."""
        self._users.close()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start_keeper(kind: str, folder: Path) -> None:
    with (folder / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "servers.keeper", kind, str(folder)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE
    while not (folder / ADDRESS).exists():
        if keeper.poll() is not None or time.monotonic() > deadline:
            failed = folder / FAILED if (folder / FAILED).exists() else folder / "keeper.log"
            raise ServerFailed(failed.read_text())
        time.sleep(0.01)
    keeper.returncode = 0  # nobody waits for it: it ends after us
