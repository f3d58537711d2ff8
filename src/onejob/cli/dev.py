"""`onejob dev`: a worker that is started again whenever a .py file below the current directory changes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from onejob.cli.output import Seconds, example, say

SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
PATIENCE: Final = 15.0
"""Seconds beyond the drain time after which a worker that does not end is killed."""


@click.command(epilog=example("onejob dev jobs:app"))
@click.argument("target", metavar="MODULE:APP", envvar="ONEJOB_APP")
@click.option(
    "-q", "--queues", help="Queues to serve, in this order: a,b.  [default: all that the app names]"
)
@click.option(
    "-c",
    "--concurrency",
    default=10,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Jobs at a time.",
)
@click.option(
    "--drain",
    default=3.0,
    show_default=True,
    type=Seconds(0),
    help="Seconds that running jobs may take at a restart.",
)
@click.option(
    "--every", default=0.5, show_default=True, type=Seconds(0.05, 60), help="Seconds between looks."
)
def dev(target: str, queues: str | None, concurrency: int, drain: float, every: float) -> None:
    """Run an app's jobs, and start again whenever a .py file changes.

    Looks below the current directory, not into hidden folders or virtual environments. Ctrl-C ends it.
    """
    arguments = ["worker", target, "--verbose", "--drain", str(drain), "--concurrency", str(concurrency)]
    if queues is not None:
        arguments += ["--queues", queues]
    sys.exit(asyncio.run(_Reloader(arguments, drain, every).run()))


class _Reloader:
    """Keeps one worker process, and replaces it after each change."""

    def __init__(self, arguments: list[str], drain: float, every: float) -> None:
        self._arguments = arguments
        self._drain = drain
        self._every = every

    async def run(self) -> int:
        """Run until SIGINT or SIGTERM; returns 0, or what the last worker ended with."""
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        # It closes when we die, however that comes about, and then the worker stops too.
        self._lifeline, keep = os.pipe()
        seen = snapshot(Path.cwd())
        code = 0
        try:
            while not self._stopping.is_set():
                worker = await self._start()
                seen, changed = await self._until_changed(seen, worker)
                code = await self._stop(worker)
                if changed is not None and not self._stopping.is_set():
                    say(f"onejob dev: {changed} changed, starting again")
        finally:
            os.close(keep)
            os.close(self._lifeline)
        return code

    async def _start(self) -> asyncio.subprocess.Process:
        program = "from onejob.cli import main; main()"
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            *self._arguments,
            "--lifeline",
            str(self._lifeline),
            pass_fds=(self._lifeline,),
            start_new_session=True,
        )

    async def _until_changed(
        self, seen: dict[str, int], worker: asyncio.subprocess.Process
    ) -> tuple[dict[str, int], str | None]:
        told = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return seen, None
            now = await asyncio.to_thread(snapshot, Path.cwd())
            if now != seen:
                changed = min(name for name in seen.keys() | now.keys() if seen.get(name) != now.get(name))
                return now, changed
            if worker.returncode is not None and not told:
                told = True
                say("onejob dev: the worker has ended; waiting for a change")

    async def _stop(self, worker: asyncio.subprocess.Process) -> int:
        with suppress(ProcessLookupError):
            worker.terminate()
        try:
            async with asyncio.timeout(self._drain + PATIENCE):
                code = await worker.wait()
                return 0 if code == -signal.SIGTERM else code  # it had not begun
        except TimeoutError:
            worker.kill()
            return await worker.wait()


def snapshot(folder: Path) -> dict[str, int]:
    """Each .py file below a folder and when it was last written."""
    found: dict[str, int] = {}
    for path in _python_files(str(folder)):
        with suppress(OSError):  # gone since it was listed
            found[os.path.relpath(path, folder)] = os.stat(path).st_mtime_ns  # noqa: PTH116 - polled: speed counts
    return found


def _python_files(folder: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith(".") and entry.name not in SKIPPED:
                yield from _python_files(entry.path)
        elif entry.name.endswith(".py"):
            yield entry.path
