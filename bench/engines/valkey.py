"""Valkey: what it does bare, in a process of its own, and how stores of ours are kept on it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop
import valkey

from bench.engines import Filling
from bench.engines.valkey_fill import fill
from bench.jobs import Repetition
from bench.servers import VALKEY_SETTINGS
from bench.servers import valkey as start_server

DATABASES = 256
PATIENCE = 120.0


class ValkeyEngine:
    """Fits `Engine`. A folder is a database of one server, which a copy is made into by the server itself."""

    name = "valkey"
    run: Callable[[Coroutine[Any, Any, Any]], Any] = staticmethod(uvloop.run)

    def __init__(self, home: Path) -> None:
        """The server is started in `home` when it is needed first."""
        self._home = home
        self._admin: valkey.Valkey | None = None
        self._made: dict[Path, int] = {}
        # That nothing is kept on disk is what we asked for.
        logging.getLogger("onejob").setLevel(logging.ERROR)

    @property
    def durability(self) -> str:
        """Version and settings of the server."""
        settings = ", ".join(f"{name}={value or 'no'}" for name, value in VALKEY_SETTINGS.items())
        return f"{self._ask('INFO', 'server')['valkey_version']}, {settings}"

    def url(self, folder: Path) -> str:
        """See `Engine`."""
        return f"{self._server_url}/{self._number(folder)}"

    def one_by_one(self, folder: Path) -> float:
        """See `Engine`: one small script a call."""
        return self._bare(folder, "one-by-one")

    def tasks(self, folder: Path) -> float:
        """The same from 100 tasks."""
        return self._bare(folder, "tasks")

    def pipeline(self, folder: Path) -> float:
        """The same, 100 calls at a time."""
        return self._bare(folder, "pipeline")

    def bulk(self, folder: Path) -> float:
        """See `Engine`."""
        return self._bare(folder, "bulk")

    def deduplicated(self, folder: Path, repetition: Repetition) -> float:
        """See `Engine`."""
        return self._bare(folder, "keys", repetition.times, int(repetition.known))

    def drain(self, folder: Path, batch: int) -> float:
        """See `Engine`."""
        return self._bare(folder, "drain", batch)

    def fill(self, folder: Path, filling: Filling, count: int) -> None:
        """See `Engine`."""
        fill(self.url(folder), filling, count)

    def copy(self, source: Path, target: Path) -> None:
        """See `Engine`."""
        number = self._number(target)
        with valkey.Valkey.from_url(self.url(source)) as client:
            for key in client.scan_iter(count=1_000):
                client.copy(key, key, destination_db=number)

    def size(self, folder: Path) -> int:
        """See `Engine`: of its memory, all overhead and slack included."""
        number = self._number(folder)
        with valkey.Valkey.from_url(f"{self._server_url}/{number}") as client:
            return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1_000))

    def analyze(self, folder: Path) -> None:
        """See `Engine`: there is nothing to look at."""

    def committed(self, folder: Path) -> int | None:
        """See `Engine`."""

    def forget(self, folder: Path) -> None:
        """See `Engine`."""
        number = self._made.pop(folder, None)
        if number is not None:
            with valkey.Valkey.from_url(f"{self._server_url}/{number}") as client:
                client.flushdb()

    def close(self) -> None:
        """See `Engine`."""
        if self._admin is not None:
            self._admin.close()
            self._server.remove()
            self._admin = None

    def _bare(self, folder: Path, *words: object) -> float:
        done = subprocess.run(
            [sys.executable, "-m", "bench.engines.valkey_bare", self.url(folder), *map(str, words)],
            cwd=Path(__file__).parent.parent.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the bare loop failed: {done.stderr.strip()[-500:]}")
        return float(done.stdout)

    def _number(self, folder: Path) -> int:
        """The database of a folder, which is empty if the folder is new."""
        if folder not in self._made:
            self._made[folder] = min(set(range(DATABASES)).difference(self._made.values()))
        return self._made[folder]

    @property
    def _server_url(self) -> str:
        self._ask("PING")
        return self._server.url

    def _ask(self, *words: str) -> Any:
        if self._admin is None:
            self._server = start_server(self._home, DATABASES)
            self._admin = valkey.Valkey.from_url(self._server.url)
        return self._admin.execute_command(*words)
