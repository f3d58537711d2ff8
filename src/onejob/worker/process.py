"""One process for jobs, as its worker sees it: started, spoken to, and seen to its end.

The event loop never waits for it. A thread starts the process and waits until it is gone; what is said goes
over a socket that the loop watches.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from onejob.current import AbortReason
from onejob.store import Blocker
from onejob.worker.frames import (
    Abort,
    Boot,
    Broken,
    End,
    Ended,
    FromChild,
    Line,
    Loaded,
    Progress,
    Slept,
    Start,
    Stop,
    Unframer,
    framed,
    in_parts,
    read_from_child,
)

LOAD_LIMIT = 120.0
"""Seconds a process may take to start and to import a task."""
LAST_WORDS = 0.2
"""Seconds to wait for what a dead process had still written, if something it started keeps the socket open."""
LEAVE_LIMIT = 5.0
"""Seconds an idle process may take to end once it is told."""


class Death(msgspec.Struct, frozen=True):
    """The process has ended without an answer; `reason` says how."""

    reason: str
    unborn: bool = False
    """It could not even be started."""


class Listener:
    """Who hears what a running job says. All calls are made in the loop."""

    def begins(self) -> None:
        """The function is imported and is being called."""

    def progresses(self, data: bytes) -> None:
        """The newest progress."""

    def logs(self, line: Line) -> None:
        """A log record."""


class Process(asyncio.Protocol):
    """Runs one job at a time. It has a session of its own, so that a Ctrl-C does not reach it, and it ends with
    the worker: the reading end of a pipe that closes when the worker dies makes the kernel kill it.
    """

    def __init__(self, boot: Boot, ended: Callable[[Process], None]) -> None:
        """`ended` is called once the process is gone."""
        self.jobs = 0
        self.memory = 0
        self._boot = boot
        self._on_gone = ended
        self._loop = asyncio.get_running_loop()
        self._concluded: asyncio.Future[None] = self._loop.create_future()
        self._popen: subprocess.Popen[bytes] | None = None
        self._unframer = Unframer()
        self._loaded: set[object] = set()
        self._listener = Listener()
        self._function: object = None
        self._answer: asyncio.Future[End | Death] | None = None
        self._load_timer: asyncio.TimerHandle | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._doom: str | None = None
        self._unborn = False
        self._dead = False
        self._dismissed = False
        self._stopped = False
        self._connected = True

    @property
    def fit(self) -> bool:
        """True while it can take another job."""
        return not (self._dismissed or self._stopped or self._doom or self._dead) and self._connected

    @property
    def pid(self) -> int | None:
        """Its process id, once it has one."""
        return None if self._popen is None else self._popen.pid

    async def start(self) -> None:
        """Have it started; what is sent meanwhile waits for it."""
        ours, theirs = socket.socketpair()
        try:
            self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=ours)
            reading, self._lifeline = os.pipe()
        except BaseException:
            ours.close()
            theirs.close()
            raise
        self._transport.write(framed(self._boot))
        live = threading.Thread(target=self._live, args=(theirs, reading), name="onejob-process", daemon=True)
        live.start()

    async def run(self, start: Start, listener: Listener, blockers: Sequence[Blocker] = ()) -> End | Death:
        """Run a job to its end; `blockers` are what it waited for. Whoever cancels this kills the process."""
        self.jobs += 1
        self._listener = listener
        self._function = start.function
        self._answer = answer = self._loop.create_future()
        if self._dead:
            return self._death()
        for part in in_parts(blockers):
            self._transport.write(framed(part))
        self._transport.write(framed(start))
        if start.function in self._loaded:
            listener.begins()
        else:
            self._load_timer = self._loop.call_later(LOAD_LIMIT, self._load_too_slow)
        try:
            return await answer
        except asyncio.CancelledError:
            self.kill("its worker let go of it")
            raise
        finally:
            self._answer, self._listener = None, Listener()
            if self._load_timer is not None:
                self._load_timer.cancel()

    def tell(self, reason: AbortReason) -> None:
        """Let the handler see that it should stop."""
        if self._connected:
            self._transport.write(framed(Abort(reason)))

    def stop(self, grace: float) -> None:
        """Break the handler off; what has not ended after `grace` seconds is killed."""
        if not self._stopped and self._connected:
            self._transport.write(framed(Stop()))
        self._stopped = True
        self._kill_within(grace)

    def dismiss(self) -> None:
        """Let it end, now that it is idle."""
        if not self._dismissed:
            self._dismissed = True
            self._transport.close()
            self._kill_within(LEAVE_LIMIT)

    def kill(self, why: str) -> None:
        """End it at once, and all that it has started."""
        self._doom = self._doom or why
        if self._popen is not None and not self._dead:
            _kill_group(self._popen.pid)

    async def wait(self) -> None:
        """Wait until it is gone, and nothing of it is left open."""
        await asyncio.shield(self._concluded)

    def data_received(self, data: bytes) -> None:
        """The process says something."""
        try:
            for frame in self._unframer.feed(data):
                self._hear(frame)
        except (msgspec.MsgspecError, ValueError) as error:
            self.kill(f"its process sent what is no message ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        """The process hung up: it is dead or dying, or is made to."""
        self._connected = False
        if self._dead:
            self._conclude()
        elif not self._dismissed:
            self._kill_within(LAST_WORDS)

    def _hear(self, frame: bytes) -> None:
        message: FromChild = read_from_child(frame)
        match message:
            case Loaded():
                self._loaded.add(self._function)
                if self._load_timer is not None:
                    self._load_timer.cancel()
                self._listener.begins()
            case Progress(data):
                self._listener.progresses(data)
            case Line() as line:
                self._listener.logs(line)
            case (Ended() | Broken() | Slept()) as end:
                self.memory = end.memory
                self._reply(end)

    def _reply(self, end: End | Death) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(end)

    def _load_too_slow(self) -> None:
        self.kill(f"its process did not import the task within {LOAD_LIMIT:g} s")

    def _kill_within(self, seconds: float) -> None:
        at = self._loop.time() + seconds
        if self._kill_timer is not None:
            at = min(at, self._kill_timer.when())
            self._kill_timer.cancel()
        self._kill_timer = self._loop.call_at(at, self.kill, "it did not end when it was told to")

    def _live(self, theirs: socket.socket, reading: int) -> None:
        """The life of the process, from a thread of its own, which must last as long."""
        try:
            try:
                process = subprocess.Popen(
                    _command(theirs.fileno(), reading),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), reading),
                    start_new_session=True,
                )
            finally:
                theirs.close()
                os.close(reading)
        except Exception as error:
            self._in_loop(self._on_unborn, f"its process could not be started ({error})")
            return
        if not self._in_loop(self._on_born, process):
            _kill_group(process.pid)
        try:
            # Left unreaped, so that its number stays its own until its group has been killed.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except (
            AttributeError,
            ChildProcessError,
        ):  # not on every system; or reaped by other code of this process
            process.wait()
        if not self._in_loop(self._on_end):
            process.wait()

    def _in_loop(self, call: Callable[..., None], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the worker's loop is closed
            return False
        return True

    def _on_unborn(self, reason: str) -> None:
        self._doom, self._unborn = reason, True
        self._finish()

    def _on_born(self, process: subprocess.Popen[bytes]) -> None:
        self._popen = process
        if self._doom is not None:
            _kill_group(process.pid)

    def _on_end(self) -> None:
        assert self._popen is not None
        if self._popen.returncode is None:
            if not self._dismissed:
                _kill_group(self._popen.pid)
            self._popen.wait()
        self._finish()

    def _finish(self) -> None:
        os.close(self._lifeline)
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._dead = True
        if self._connected:
            self._loop.call_later(LAST_WORDS, self._conclude)
        else:
            self._conclude()

    def _conclude(self) -> None:
        """Gone, and all that it had written has been read."""
        self._transport.close()
        self._reply(self._death())
        if not self._concluded.done():
            self._concluded.set_result(None)
            self._on_gone(self)

    def _death(self) -> Death:
        if self._doom is not None or self._popen is None:
            return Death(self._doom or "its process is gone", self._unborn)
        code = self._popen.returncode
        if code >= 0:
            return Death(f"its process ended with exit code {code}")
        return Death(f"its process was killed by {_signal_name(-code)}")


def _command(channel: int, lifeline: int) -> list[str]:
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.append({root!r}); from onejob.worker.child import main; main({channel}, {lifeline})"
    return [sys.executable, *_flags(), "-P", "-c", code]


def _flags() -> list[str]:
    """How this interpreter was started, as far as it changes what code means."""
    flags = ["-O"] * sys.flags.optimize
    flags += ["-B"] * bool(sys.flags.dont_write_bytecode)
    flags += ["-I"] * bool(sys.flags.isolated)
    flags += ["-X", "dev"] * bool(sys.flags.dev_mode)
    for option in sys.warnoptions:
        flags += ["-W", option]
    return flags


def _signal_name(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (out of memory?)"
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone already; macOS says the second of a zombie
        pass
