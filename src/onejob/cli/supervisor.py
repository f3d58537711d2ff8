"""Several worker processes under one: started afresh, restarted when they crash, stopped together."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from onejob.cli.health import HealthCheck, HealthOptions, Report, children_report

USAGE_ERROR = 2
STOPPED = (0, -signal.SIGTERM, -signal.SIGINT)
"""How a worker ends that was told to: with a signal if it had not begun, even before it had a session of its own."""
FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
STEADY_AFTER = 60.0
"""Seconds of life after which a crash counts as the first again."""
PULSE = 1.0
"""Seconds between looks at the children for the health file."""
PATIENCE = 15.0
"""Seconds beyond the drain time after which a child that does not end is killed."""


class Supervisor:
    """Keeps `processes` children running until SIGTERM or SIGINT, and then sends them SIGTERM.

    Each child is a new interpreter, never a fork: threads and connections do not survive one. It has a
    session of its own, so that no Ctrl-C reaches it but through us; and the reading end of a pipe that
    closes when we die, so that it stops even if we are killed.
    """

    def __init__(self, arguments: Sequence[str], processes: int, drain: float, *, quiet: bool) -> None:
        self._arguments = arguments
        self._processes = processes
        self._drain = drain
        self._quiet = quiet
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._exit_code = 0
        self._files: list[Path] = []
        self._draining = False

    def watched(self, options: HealthOptions, patience: float) -> int:
        """Run with a health check over all children: each keeps a file, which is fresh for `patience` seconds."""
        if not options:
            return asyncio.run(self.run())
        with tempfile.TemporaryDirectory(prefix="onejob-health-") as folder:
            self._files = [Path(folder) / str(slot) for slot in range(self._processes)]
            with HealthCheck(options, lambda: self._report(patience), PULSE):
                return asyncio.run(self.run())

    async def run(self) -> int:
        """Run until told to stop; returns the exit code: 0, or 2 if the children cannot start as asked."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._lifeline, self._keep = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop)
        self._say(f"onejob supervisor {os.getpid()} keeps {self._processes} workers")
        try:
            async with asyncio.TaskGroup() as group:
                for slot in range(self._processes):
                    group.create_task(self._keep_one(slot))
        finally:
            os.close(self._keep)
            os.close(self._lifeline)
        self._say(f"onejob supervisor {os.getpid()} stopped")
        return self._exit_code

    async def _keep_one(self, slot: int) -> None:
        crashes = 0
        proven = False
        while not self._stopping.is_set():
            started = self._loop.time()
            code = await self._run_child(slot)
            if self._stopping.is_set():
                if code not in STOPPED:
                    self._exit_code = self._exit_code or 1
                return
            if code == USAGE_ERROR and not proven:
                self._exit_code = USAGE_ERROR
                self._stop()
                return
            proven = True  # it could start once: what stops it now may pass
            crashes = 1 if self._loop.time() - started > STEADY_AFTER else crashes + 1
            delay = min(FIRST_DELAY * 2 ** (crashes - 1), LONGEST_DELAY) * random.uniform(0.8, 1.2)
            self._say(f"onejob worker process {slot + 1} {_ended(code)}; starting another in {delay:.1f} s")
            try:
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    async def _run_child(self, slot: int) -> int:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from onejob.cli import main; main()",
            *self._arguments,
            *self._health_arguments(slot),
            "--lifeline",
            str(self._lifeline),
            pass_fds=(self._lifeline,),
            start_new_session=True,
        )
        self._children[slot] = child
        if self._stopping.is_set():
            child.send_signal(signal.SIGTERM)
        try:
            return await child.wait()
        finally:
            del self._children[slot]

    def _health_arguments(self, slot: int) -> list[str]:
        return ["--health-port", "0", "--health-file", str(self._files[slot])] if self._files else []

    def _report(self, patience: float) -> Report:
        report = children_report(self._files, patience)
        return {**report, "alive": report["alive"] and not self._draining}

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._draining = True
            self._loop.call_later(self._drain + PATIENCE, self._kill)
        for child in self._children.values():
            child.send_signal(signal.SIGTERM)

    def _kill(self) -> None:
        for child in self._children.values():
            self._say(f"onejob worker process {child.pid} did not end in time and is killed")
            child.kill()

    def _say(self, line: str) -> None:
        if not self._quiet:
            click.echo(line, err=True)


def _ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "ended" if code == 0 else f"crashed with exit code {code}"
