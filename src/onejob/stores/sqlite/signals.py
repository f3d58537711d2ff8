"""Wake-up hints: within the process through futures, between processes on one machine through datagrams.

A process that waits binds a datagram socket in a folder named after the store's file; whoever commits sends
the topics to every socket there. Behind it `PRAGMA data_version` is polled, so that a lost hint costs a
second at most, and a machine without such sockets only latency.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw

from onejob.core.errors import OnejobError
from onejob.hints import ANY, Hints
from onejob.stores.sqlite.connect import Connection
from onejob.stores.sqlite.forking import forks
from onejob.stores.sqlite.sweeping import SUFFIX, sweep

POLL_WITH_SOCKET = 1.0
POLL_WITHOUT_SOCKET = 0.02
_MAX_DATAGRAM = 8_192


class Signals:
    """Who waits for what in this process, and the line to other processes on the same file."""

    def __init__(self, path: str | None, connect: Callable[[], Connection]) -> None:
        self._path = path
        self._connect = connect
        self._lock = threading.Lock()
        self._hints = Hints()
        self._folder = None if path is None else wake_folder(path)
        self._listener: Listener | None = None
        self._sender: socket.socket | None = None
        self._peers: tuple[int, list[str]] = (-1, [])

    def mark(self) -> int:
        """How many hints have been heard so far."""
        self._listen()
        return self._hints.mark()

    async def wait(self, topics: frozenset[str], timeout: float, since: int | None) -> bool:
        """Sleep until one of the topics is hinted at, or was after `since`; False when the time is up."""
        self._listen()
        return await self._hints.wait(topics, timeout, since)

    def tell(self, topics: set[str]) -> None:
        """Hint to everyone: called after a commit, from the thread that committed."""
        self._hints.hear(topics)
        if self._folder is not None:
            self._send("\n".join(topics))

    def close(self) -> None:
        """Stop listening and take our socket away."""
        with self._lock:
            listener, self._listener, self._folder = self._listener, None, None
        if listener is not None:
            listener.close()
        if self._sender is not None:
            self._sender.close()

    def _listen(self) -> None:
        if self._listener is not None or self._folder is None:
            return
        with self._lock:
            if self._listener is None and self._folder is not None and self._path is not None:
                self._listener = Listener(self._folder, self._path, self._connect, self._hints.hear)

    def _send(self, message: str) -> None:
        """Tell every other process that listens. Never blocks, never fails: it is only a hint."""
        data = message.encode()
        if len(data) > _MAX_DATAGRAM:
            data = ANY.encode()
        own = None if self._listener is None else self._listener.address
        for address in self._addresses():
            if address == own:
                continue
            if self._sender is None:
                self._sender = self._new_sender()
            try:
                self._sender.sendto(data, address)
            except (ConnectionRefusedError, FileNotFoundError):
                with suppress(OSError):
                    Path(address).unlink()  # its process is gone
            except OSError:
                continue  # its buffer is full: it has hints enough

    def _new_sender(self) -> socket.socket:
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.setblocking(False)
        # Whoever forgets to close us, or tells something while we are being closed, leaves no open socket.
        weakref.finalize(self, sender.close)
        return sender

    def _addresses(self) -> list[str]:
        folder = self._folder
        if folder is None:
            return []
        try:
            stamp = folder.stat().st_mtime_ns
            if stamp != self._peers[0]:
                self._peers = (stamp, [str(entry) for entry in folder.iterdir() if entry.suffix == SUFFIX])
        except OSError:
            self._peers = (-1, [])
        return self._peers[1]


class Listener:
    """A thread that hears other processes: by its socket, and by looking whether the file has changed."""

    def __init__(
        self, folder: Path, path: str, connect: Callable[[], Connection], hear: Callable[[set[str]], None]
    ) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._connect = connect
        self._connection: Connection | None = None
        self._hear = hear
        self._socket = _bind(folder)
        self.address: str | None = None if self._socket is None else str(self._socket.getsockname())
        self._stopping = threading.Event()
        forks.watch(self)
        self._thread = threading.Thread(target=self._serve, name="onejob-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the socket."""
        self._stopping.set()
        if self._socket is not None and self.address is not None:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
                waker.sendto(b"", self.address)
        self._thread.join(timeout=5)

    def drop(self) -> None:
        """Close the connection before a fork; the next look opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _serve(self) -> None:
        version: object = None
        if self.address is not None:
            sweep(Path(self.address).parent.parent)
        try:
            while not self._stopping.is_set():
                topics = self._receive()
                if topics:
                    self._hear(topics)
                    continue
                with self.lock:
                    fresh = self._connection is None
                    try:
                        self._connection = self._connection or self._connect()
                        now = self._connection.pragma("data_version")
                    except (apsw.Error, OnejobError):
                        self._stopping.wait(POLL_WITH_SOCKET)
                        continue  # locked for a while: the next look will tell
                if fresh:
                    version = None  # of another connection: not to be compared
                if now != version and version is not None:
                    self._hear({ANY})
                version = now
        finally:
            with self.lock:
                self.drop()
            if self._socket is not None:
                self._socket.close()
            if self.address is not None:
                with suppress(OSError):
                    Path(self.address).unlink()
                    Path(self.address).parent.rmdir()  # stays unless it is empty

    def _receive(self) -> set[str]:
        if self._socket is None:
            self._stopping.wait(POLL_WITHOUT_SOCKET)
            return set()
        try:
            data = self._socket.recv(_MAX_DATAGRAM)
        except TimeoutError:
            return set()
        return {topic for topic in data.decode("utf-8", "replace").split("\n") if topic}


def wake_folder(path: str) -> Path:
    """Where the processes that share this file meet; private to the user."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    user = os.getuid() if hasattr(os, "getuid") else 0
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    return base / f"onejob-{user}" / name


def _bind(folder: Path) -> socket.socket | None:
    """A socket of our own in the folder, or None where there is no such thing or the folder is not ours."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    return _try_to_bind(folder) or _try_to_bind(folder)  # the last one out may just have removed the folder


def _try_to_bind(folder: Path) -> socket.socket | None:
    try:
        for place in (folder.parent, folder):
            place.mkdir(mode=0o700, parents=place is not folder, exist_ok=True)
            if place.lstat().st_uid != os.getuid():  # not even a link of somebody else's to a folder of ours
                return None
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
    try:
        bound.settimeout(POLL_WITH_SOCKET)
        bound.bind(str(folder / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"))
    except OSError:
        bound.close()
        return None
    return bound
