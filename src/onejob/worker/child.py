"""What runs in a process for jobs: it is sent one job at a time, calls the function and says how it ended.

The main thread runs the jobs. A second one listens to the worker, so that a running job can be told or broken
off, and so that all of this ends when the worker does.
"""

from __future__ import annotations

import contextvars
import faulthandler
import fcntl
import inspect
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, cast

from onejob.blockers import as_given
from onejob.codec import CallCodec
from onejob.core.errors import InvalidOption, shown
from onejob.core.lifecycle import Outcome, Raised, Snoozed, Succeeded
from onejob.core.options import JobOptions, decode_options
from onejob.current import bind
from onejob.plans import milliseconds
from onejob.references import Reference, find
from onejob.store import Blocker
from onejob.tasks import Task
from onejob.worker.charging import Charges, encoded, undecodable
from onejob.worker.failure import describe, first_line, headline
from onejob.worker.frames import (
    MAX_FRAME,
    PREFIX,
    Abort,
    Boot,
    Broken,
    End,
    Ended,
    Given,
    Loaded,
    Next,
    Slept,
    Start,
    Stop,
    ToChild,
    read_to_child,
)
from onejob.worker.journal import say
from onejob.worker.link import ChildJob, Forwarder, Link
from onejob.worker.setup import NamedBackoff


def main(channel: int, lifeline: int) -> None:
    """Serve the worker at the other end of these two file descriptors until it hangs up."""
    for number in (channel, lifeline):
        os.set_inheritable(number, False)
    _die_with_worker(lifeline)
    faulthandler.enable()
    Child(socket.socket(fileno=channel)).serve()


class Stopped(SystemExit):
    """Raised inside the handler when the worker breaks it off, so that its `finally` blocks run."""


class Child:
    """This process, for as long as its worker wants it."""

    def __init__(self, channel: socket.socket) -> None:
        self._link = Link(channel)
        self._stream = channel.makefile("rb")
        self._given: SimpleQueue[tuple[Start, ChildJob] | None] = SimpleQueue()
        self._codecs: dict[Reference, CallCodec] = {}
        self._curves: dict[Reference, NamedBackoff] = {}
        self._blockers: list[Blocker] = []
        self._home = os.getpid()
        self._job: ChildJob | None = None
        """What runs, from its arrival until its end is about to be sent."""
        self._breakable = False
        self._stopping = False

    def serve(self) -> None:
        """Run what is sent until the worker hangs up or breaks a job off."""
        boot = self._receive()
        assert isinstance(boot, Boot)
        self._boot = boot
        sys.path[:], sys.argv[:] = boot.path, boot.argv
        # Handlers and not SIG_IGN, which what a job starts would inherit.
        signal.signal(signal.SIGINT, _ignore)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=self._listen, name="onejob-listener", daemon=True).start()
        while not self._stopping and (given := self._given.get()) is not None:
            contextvars.Context().run(self._run, *given)

    def _run(self, start: Start, job: ChildJob) -> None:
        bind(job)
        try:
            self._breakable = True
            if self._stopping:
                return
            end = self._end_of(start, job)
        except Stopped:
            return  # the worker knows, and waits only for our end
        finally:
            self._breakable = False
        if os.getpid() != self._home:
            os._exit(0)  # a fork that the handler made has come out of it, too
        _flush()
        try:
            job.close()
            self._job = None  # before the end is sent: the next job may follow at once
            self._link.send(end)
        except OSError:
            _end_all()

    def _end_of(self, start: Start, job: ChildJob) -> End:
        task, options = start.claimed.task, decode_options(start.claimed.options)
        try:
            codec = self._codecs.get(start.function) or self._load(start)
            arguments = codec.decode(start.claimed.payload, options.into)
        except Stopped:
            raise
        except LoadFailed as error:
            return self._after_error(start, options, error)
        except Exception as error:
            return self._told(undecodable(error))
        try:
            value = codec.call(arguments)
        except BaseException as error:
            if self._stopping:
                raise Stopped from error
            return self._after_error(start, options, error)
        job.over = True
        return self._told(encoded(task, value, compresses=start.compresses), then=_next(job))

    def _type_of(self, outputs: Mapping[str, Reference]) -> Callable[[str], Any]:
        """The types that some tasks return; imported when the first output of such a task is asked for."""
        types: dict[str, Any] = {}

        def type_of(task: str) -> Any:
            if task not in types:
                try:
                    function = _function(find(outputs[task], self._boot.script))
                    types[task] = CallCodec(function, task).result_type
                except Exception:  # not to be found here: its outputs are plain JSON
                    types[task] = Any
            return types[task]

        return type_of

    def _load(self, start: Start) -> CallCodec:
        try:
            function = _function(find(start.function, self._boot.script))
            codec = self._codecs[start.function] = CallCodec(function, start.claimed.task)
        except BaseException as error:
            if self._stopping:
                raise Stopped from error
            raise LoadFailed(
                f"task {start.claimed.task} cannot be imported by its process: {headline(error)}"
            ) from error
        self._forward_logs()
        self._link.send(Loaded())
        return codec

    def _after_error(self, start: Start, options: JobOptions, error: BaseException) -> End:
        backoff = options.backoff
        if not isinstance(backoff, str):
            return self._told(Charges({}).raised(start.claimed, options, error))
        if start.curve is None:
            unknown = Charges({backoff: _no_wait}).raised(start.claimed, options, error)
            return self._told(unknown, leave_wait=True)
        return self._told(Charges(self._curve(backoff, start.curve)).raised(start.claimed, options, error))

    def _curve(self, name: str, reference: Reference) -> Mapping[str, NamedBackoff]:
        try:
            curve = self._curves.get(reference) or cast("NamedBackoff", find(reference, self._boot.script))
        except Exception as error:
            text = f"backoff {name!r} cannot be imported here: {first_line(describe(error))}"
            say(logging.ERROR, "backoff.broken", text, backoff=name)
            return {}
        self._curves[reference] = curve
        return {name: curve}

    def _told(self, outcome: Outcome, *, leave_wait: bool = False, then: Next | None = None) -> End:
        memory = _memory() if self._boot.measure else 0
        match outcome:
            case Succeeded(result):
                return Ended(result, memory, then)
            case Raised(error, _, retry_in, final):
                return Broken(error, None if leave_wait else retry_in, final, memory)
            case Snoozed(delay):
                return Slept(delay, memory)
            case _:
                raise AssertionError(f"a handler cannot end as {outcome}")

    def _forward_logs(self) -> None:
        """Leave logging to the worker, unless what was imported has set it up here."""
        if logging.root.handlers:
            return
        logging.root.addHandler(Forwarder(self._link))
        for name, level in self._boot.levels.items():
            logging.getLogger(name).setLevel(level)

    def _listen(self) -> None:
        try:
            while True:
                self._heed(self._receive())
        except EOFError:
            if self._job is None:
                self._given.put(None)
                return
            _end_all()
        except BaseException:
            _end_all()

    def _heed(self, message: ToChild) -> None:
        match message:
            case Given(blockers):
                self._blockers += blockers
            case Start():
                job = self._job = ChildJob(message.claimed, self._link)
                if self._blockers:
                    job.blockers = as_given(self._blockers, self._type_of(message.outputs))
                    self._blockers = []
                self._given.put((message, job))
            case Abort(reason):
                if self._job is not None:
                    self._job.aborted.set(reason)
            case Stop():
                self._stopping = True
                signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGTERM)
            case Boot():
                raise AssertionError("a process is set up once")

    def _on_sigterm(self, *_: object) -> None:
        """Break the handler off, if it is the worker that asks: one who stops everything at once means the worker,
        which then lets running jobs end."""
        if self._stopping and self._breakable:
            self._breakable = False
            raise Stopped("the worker has broken this job off")

    def _receive(self) -> ToChild:
        size = int.from_bytes(self._read(PREFIX))
        assert size <= 2 * MAX_FRAME
        return read_to_child(self._read(size))

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError
        return data


class LoadFailed(Exception):
    """The function could not be imported here."""


def _function(found: object) -> Callable[..., Any]:
    """The function behind a task, whatever has been wrapped around it."""
    if not callable(found):
        raise InvalidOption(f"{shown(found)} is not a function.")
    inner: object = inspect.unwrap(found, stop=_is_task)
    return cast("Task[..., Any]", inner).function if _is_task(inner) else found


def _is_task(thing: object) -> bool:
    return isinstance(thing, Task)


def _next(job: ChildJob) -> Next | None:
    made = job.next_job(milliseconds)
    if made is None:
        return None
    return Next(
        made.queue,
        made.task,
        made.payload,
        made.priority,
        made.delay,
        made.expires,
        made.max_crashes,
        made.options,
        made.lane,
        made.blockers,
        made.runs_anyway,
    )


def _ignore(*_: object) -> None:
    """A Ctrl-C is for the worker."""


def _no_wait(_failures: int, _error: BaseException) -> float:
    return 0


def _die_with_worker(lifeline: int) -> None:
    """Have the kernel kill our whole group when the worker's end of the pipe closes.

    Then it needs no thread of ours, which could not run while a handler holds the GIL. Where there is no such
    service, the listener does it.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _end_all() -> NoReturn:
    """End this process and all that it has started: the worker is gone."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            pass


def _memory() -> int:
    """The memory in use by this process, in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # other systems tell the most that it ever was
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
