"""A pooler before a PostgreSQL server, as pgBouncer is in transaction mode: many connections share a few sessions.

Each transaction goes to the session that has been idle for longest, so that two in a row see different ones. It resets nothing:
what one leaves behind in a session, the next finds there. It lives in a thread of its own; whoever connects, is trusted.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Self
from urllib.parse import urlsplit

from .proxy import Streams, url_of

_SSL: Final = 80877103
_CANCEL: Final = 80877102
_STARTUP: Final = 196608
_ASKED: Final = b"QS"
"""Messages that are answered by a word of being ready: queries and syncs."""
_READY, _IDLE, _TERMINATE = b"Z", b"I", b"X"


class Pooler:
    """Forwards connections to `size` sessions on the server of a URL; `url` is its own."""

    def __init__(self, url: str, *, size: int = 3) -> None:
        self._parts = urlsplit(url)
        self._size = size
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)
        self._server: asyncio.Server | None = None
        self._callers: dict[int, _Caller] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(size)
        self._idle: deque[_Session] = deque()
        self._opened = 0

    @property
    def url(self) -> str:
        return url_of(self._server, self._parts)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self._idle:
            await session.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Cancelled only by us, when all is over.
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._welcome((reader, writer))
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _welcome(self, streams: Streams) -> None:
        """Answer what comes before the first query."""
        reader, writer = streams
        while True:
            body = await reader.readexactly(struct.unpack("!i", await reader.readexactly(4))[0] - 4)
            match struct.unpack("!i", body[:4])[0]:
                case code if code == _STARTUP:
                    await self._talk(streams, body)
                    return
                case code if code == _CANCEL:
                    await self._cancel(struct.unpack("!i", body[4:8])[0])
                    return
                case _:  # no TLS here
                    writer.write(b"N")

    async def _talk(self, streams: Streams, startup: bytes) -> None:
        session = await self._take(startup)
        caller = _Caller(self, streams)
        self._callers[caller.number] = caller
        streams[1].write(session.greeting(caller.number))
        self.give_back(session)
        try:
            while (message := await _message(streams[0]))[:1] != _TERMINATE:
                if caller.session is None:
                    caller.meet(await self._take(startup))
                caller.say(message)
        finally:
            del self._callers[caller.number]
            await caller.leave()

    async def _cancel(self, number: int) -> None:
        caller = self._callers.get(number)
        if caller is not None and caller.session is not None:
            _, writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            writer.write(struct.pack("!ii", 16, _CANCEL) + caller.session.key)
            writer.close()
            await writer.wait_closed()

    async def _take(self, startup: bytes) -> _Session:
        """A session for one transaction: a new one while there may be more, else the one that was idle for longest."""
        await self._slots.acquire()
        if self._opened == self._size:
            return self._idle.popleft()
        self._opened += 1
        try:
            streams = await asyncio.open_connection(self._parts.hostname, self._parts.port)
            return await _Session.open(streams, startup)
        except BaseException:
            self._opened -= 1
            self._slots.release()
            raise

    def give_back(self, session: _Session) -> None:
        """It is idle again, whatever was done there."""
        self._idle.append(session)
        self._slots.release()

    async def discard(self, session: _Session) -> None:
        """Somebody left it in the middle of a transaction."""
        self._opened -= 1
        self._slots.release()
        await session.close()


class _Session:
    """One connection to the server."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.key = b""
        self._facts: list[bytes] = []

    @classmethod
    async def open(cls, streams: Streams, startup: bytes) -> _Session:
        self = cls(streams)
        streams[1].write(struct.pack("!i", len(startup) + 4) + startup)
        while (message := await _message(streams[0]))[:1] != _READY:
            if message[:1] == b"K":
                self.key = message[5:]
            elif message[:1] == b"E":
                raise ConnectionRefusedError(message)
            else:
                self._facts.append(message)
        return self

    def greeting(self, number: int) -> bytes:
        """What a caller is told at the start; `number` is by what he is known."""
        key = b"K" + struct.pack("!iii", 12, number, 0)
        return b"".join((*self._facts, key, _READY, struct.pack("!i", 5), _IDLE))

    async def close(self) -> None:
        writer = self.streams[1]
        with suppress(ConnectionError):
            writer.write(_TERMINATE + struct.pack("!i", 4))
            writer.close()
            await writer.wait_closed()


class _Caller:
    """One connection of a client, and the session that it has for now."""

    _last = 0

    def __init__(self, pooler: Pooler, streams: Streams) -> None:
        _Caller._last += 1
        self.number = _Caller._last
        self.session: _Session | None = None
        self._pooler = pooler
        self._streams = streams
        self._owed = 0
        """So often the server will yet say that it is ready."""
        self._answers: asyncio.Task[None] | None = None

    def meet(self, session: _Session) -> None:
        """Have a session until its transaction ends."""
        self.session = session
        self._answers = asyncio.create_task(self._answer(session))

    def say(self, message: bytes) -> None:
        assert self.session is not None
        self._owed += message[:1] in _ASKED
        self.session.streams[1].write(message)

    async def leave(self) -> None:
        if self._answers is not None:
            self._answers.cancel()
            await asyncio.gather(self._answers, return_exceptions=True)
        if self.session is not None:
            await self._pooler.discard(self.session)

    async def _answer(self, session: _Session) -> None:
        try:
            while True:
                message = await _message(session.streams[0])
                self._streams[1].write(message)
                if message[:1] == _READY:
                    self._owed -= 1
                    if not self._owed and message[5:] == _IDLE:
                        self.session = None
                        self._pooler.give_back(session)
                        return
        except (asyncio.IncompleteReadError, ConnectionError):
            self._streams[1].transport.abort()  # the server has ended the session


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
