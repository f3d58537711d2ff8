"""Ways to run commands: in this process, as a process without a terminal, and at a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from onejob.cli.program import program

URL = "sqlite:///jobs.db"
on_every_store = pytest.mark.usefixtures("store_url")
"""For what a command asks the store in a way of its own; what it makes of the answer is the same on all of them."""
PROGRAM = [sys.executable, "-c", "from onejob.cli import main; main()"]


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    out: str
    talk: str

    @property
    def lines(self) -> list[list[str]]:
        """Tab-separated data."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """The one document."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """One object per line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs commands in this process, without a terminal."""

    def __init__(self, url: str = URL) -> None:
        self.url = url

    def __call__(self, *arguments: str) -> Outcome:
        result = CliRunner().invoke(program, arguments, prog_name="onejob")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    def at(self, *arguments: str) -> Outcome:
        """The same on the test's store."""
        return self(*arguments, "--url", self.url)


def run(*arguments: str, timeout: float = 60, **options: Any) -> Outcome:
    """Run a command as a process of its own, without a terminal."""
    done = subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, *arguments: str, columns: int = 160, **environment: str) -> None:
        self._screen, theirs = pty.openpty()
        size = {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **size, **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._screen)

    def read_until(self, text: str) -> None:
        """Read until a text has been shown."""
        while text not in self.seen:
            piece = self._read()
            assert piece, f"the command ended without showing {text!r}: {self.seen!r}"

    def wait_until_it_waits(self) -> None:
        """Until its main thread sleeps, in a read of its terminal for example."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            assert self.process.poll() is None

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def end(self, timeout: float = 30) -> tuple[int, str]:
        """Read to the end; the exit code and all that was shown, colours and all."""
        while self._read():
            pass
        return self.process.wait(timeout), self.seen

    @property
    def text(self) -> str:
        """What was shown, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen)

    def _read(self) -> str:
        try:
            piece = os.read(self._screen, 65536).decode(errors="replace")
        except OSError:  # the other end was closed
            return ""
        self.seen += piece
        return piece
