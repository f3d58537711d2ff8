"""How long it takes to start: Python by itself, a program that defines a task, and the command line."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

PYTHON, IMPORT, COMMAND_LINE = "python", "import", "command line"
_DEFINING = """
from onejob import App, Unique

app = App("sqlite:///never-opened.db")

@app.task(unique=Unique.in_flight(by="user"))
async def send(user: str) -> None: ...
"""
_PROGRAMS = {
    PYTHON: ["-c", "pass"],
    IMPORT: ["-c", _DEFINING],
    COMMAND_LINE: ["-c", "from onejob.cli import main; main()", "--help"],
}


def times(folder: Path, count: int) -> dict[str, float]:
    """Milliseconds from start to end, in turn, the best of `count`: whatever is above that was somebody else's."""
    taken: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    for _ in range(count):
        for name, words in _PROGRAMS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *words], cwd=folder, stdout=subprocess.DEVNULL, check=True)
            taken[name].append(time.perf_counter() - started)
    return {name: 1000 * min(each) for name, each in taken.items()}
