"""A server of tests as a process: on a port and in a folder of its own, which it keeps over restarts."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import ClassVar, Self

from .folders import PATIENCE, ServerFailed, free_port, hold, launched, new_folder


class Server:
    """What a server of any kind does alike. It is private to whoever makes it and dies with him."""

    kind: ClassVar[str]
    port_in_use: ClassVar[str]
    """In what it says when somebody else has its port."""

    def __init__(self, folder: Path | None = None) -> None:
        """Nothing runs before `start`."""
        self.folder = self.new_folder() if folder is None else folder
        self._hold = hold(self.folder) if folder is None else None
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def new_folder(cls) -> Path:
        """A folder that it can run in."""
        return new_folder(cls.kind)

    @property
    def pid(self) -> int:
        """The process that all others descend from."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> Self:
        """Run until it takes calls, with all that it has kept."""
        assert self._process is None, "the server runs already"
        # Whoever finds a free port has it only for as long as nobody else takes it. One that was ours before stays ours: a
        # client that dialled it meanwhile may have been put through to itself, and lets go in a moment.
        known, tries = self.port, 100 if self.port else 3
        for number in range(1, tries + 1):
            self.port = known or free_port()
            try:
                self._launch()
            except ServerFailed as failed:
                if number == tries or self.port_in_use not in str(failed):
                    raise
                time.sleep(0.05)
            else:
                break
        return self

    def remove(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            self._end()
        if self._hold is not None:
            self._hold.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _command(self) -> list[str]:
        """What is run, on `self.port`."""
        raise NotImplementedError

    def _is_ready(self, pid: int) -> bool:
        """True if the server of that process takes calls."""
        raise NotImplementedError

    def _end(self) -> None:
        """Have it end at once, however."""
        raise NotImplementedError

    def _launched(self, *command: str) -> list[str]:
        """A command as it is run, for as long as this process lives."""
        return launched(*command)

    def _left(self) -> subprocess.Popen[bytes]:
        """The process, which from now on is not ours."""
        process, self._process = self._process, None
        assert process is not None, "the server does not run"
        return process

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self._launched(*self._command()),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what interrupts the tests at a terminal is not for it
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise ServerFailed(self.log[-4000:])
            time.sleep(0.01)
        self._process = process
