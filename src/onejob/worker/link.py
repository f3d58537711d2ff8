"""How a process for jobs speaks to its worker: the socket, the job's progress, and log records on their way to
the worker's own logging.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import NoReturn

from onejob.core.errors import WrongCall
from onejob.core.job import Claimed
from onejob.core.options import Seconds
from onejob.current import CurrentJob
from onejob.worker.failure import cut
from onejob.worker.frames import FromChild, Line, Progress, framed

PROGRESS_PAUSE = 0.05
"""Seconds between two messages about progress: a tight loop may report each turn and costs the worker nothing."""

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Link:
    """The way to the worker, for any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def send(self, message: FromChild) -> None:
        """Send a message; waits while the worker is slow to read."""
        data = framed(message)
        with self._lock:
            self._channel.sendall(data)


class ChildJob(CurrentJob):
    """The current job in a process of its own."""

    def __init__(self, claimed: Claimed, link: Link) -> None:
        super().__init__(claimed)
        self._link = link
        self._lock = threading.RLock()
        self._sent: bytes | None = None
        self._next = 0.0
        self._timer: threading.Timer | None = None
        self._over = False

    def complete(self, output: object = None, *, timeout: Seconds | None = None) -> NoReturn:
        """Refused: the transaction is the worker's."""
        raise WrongCall(
            "complete() does not work in a process of its own: the transaction belongs to the worker's connection. "
            "Return the output, and call current_job().continue_with(…) for the next step, which may complete() in a "
            "task without process=True."
        )

    def progress(self, value: object) -> None:
        """Say how far the work is: any small JSON value. The newest is stored with the next heartbeat."""
        super().progress(value)
        with self._lock:
            wait = self._next - time.monotonic()
            if wait <= 0:
                self._send_newest()
            elif self._timer is None and not self._over:
                self._timer = threading.Timer(wait, self._send_newest)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """The handler has ended: send what is unsent, and nothing from now on."""
        if self.latest_progress is None:
            self._over = True
            return
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._send_newest()
            self._over = True

    def _send_newest(self) -> None:
        with self._lock:
            self._timer = None
            data = self.latest_progress
            if self._over or data is None or data is self._sent:
                return
            self._next = time.monotonic() + PROGRESS_PAUSE
            self._sent = data
            self._link.send(Progress(data))


class Forwarder(logging.Handler):
    """Sends to the worker the records that nothing in this process handles."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, unless a handler of the application's own has had it."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger is not logging.root:
            if logger.handlers:
                return
            logger = logger.parent
        try:
            self._link.send(Line(record.name, record.levelno, cut(self.format(record)), _fields(record)))
        except Exception:
            self.handleError(record)


def _fields(record: logging.LogRecord) -> dict[str, str | int | float | bool | None]:
    return {
        name: cut(value) if isinstance(value, str) else value
        for name, value in vars(record).items()
        if name not in _OWN and (value is None or isinstance(value, (str, float, bool)) or _is_small(value))
    }


def _is_small(value: object) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63
