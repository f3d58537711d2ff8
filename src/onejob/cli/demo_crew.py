"""The worker processes of `onejob demo`: started, found by their pid, killed, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

LEASE, HEARTBEAT = 2.0, 0.4
"""Short, so that one who watches sees a killed worker's job resumed."""


class Crew:
    """Some `onejob worker` processes. Each ends if we do, because a pipe of ours closes then."""

    def __init__(self, size: int, log: Path) -> None:
        self._size = size
        self._log = log
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        lifeline, self._keep = os.pipe()
        with self._log.open("wb") as log:
            try:
                self._workers = [_start(lifeline, log.fileno()) for _ in range(self._size)]
            finally:
                os.close(lifeline)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._keep)
        for worker in self._workers:
            worker.kill()  # nothing of theirs is needed any more
        for worker in self._workers:
            worker.wait()

    @property
    def pids(self) -> list[int]:
        """All of them, in the order of their numbers, dead or alive."""
        return [worker.pid for worker in self._workers]

    def alive(self) -> list[int]:
        """The pids of those that run."""
        return [worker.pid for worker in self._workers if worker.poll() is None]

    def number(self, pid: int) -> int:
        """The number by which people know a worker, from 1."""
        return self.pids.index(pid) + 1

    def kill(self, pid: int) -> None:
        """End one of them as hard as an operating system can."""
        for worker in self._workers:
            if worker.pid == pid:
                with contextlib.suppress(ProcessLookupError):
                    worker.send_signal(signal.SIGKILL)
                worker.wait()

    def said(self, lines: int = 12) -> list[str]:
        """The last they wrote, for when something went wrong."""
        return self._log.read_text(errors="replace").splitlines()[-lines:]


def _start(lifeline: int, log: int) -> subprocess.Popen[bytes]:
    settings = f"--lease {LEASE} --heartbeat {HEARTBEAT} --concurrency 8 --poll 1 --drain 2 --quiet"
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from onejob.cli import main; main()",
            "worker",
            "onejob.cli.demo_app:app",
            *settings.split(),
            "--lifeline",
            str(lifeline),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(lifeline,),
        start_new_session=True,  # Ctrl-C is for us
    )
