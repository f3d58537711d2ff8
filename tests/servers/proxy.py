"""A network that can be trusted with nothing: a proxy before a server that delays, stalls, swallows and cuts.

It lives in the event loop of the test. What it does is chosen by what a client says: a statement that is prepared, or a
script, is known by a parameter of it, another by its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Self
from urllib.parse import SplitResult, urlsplit, urlunsplit

READY = b"Z\x00\x00\x00\x05"
"""How the last message of every answer of PostgreSQL begins."""
NOTIFICATION = b"A"
Act = Literal["cut before", "cut after", "hold"]


def url_of(server: asyncio.Server | None, parts: SplitResult) -> str:
    """The URL by which one comes to a server of ours that stands before another."""
    assert server is not None
    host, port = server.sockets[0].getsockname()[:2]
    user = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{host}:{port}"))


class Trap:
    """Waits for a client to say something, once."""

    def __init__(self, words: bytes, act: Act) -> None:
        self.words = words
        self.act: Act = act
        self.sprung = asyncio.Event()
        self.closed = asyncio.Event()
        """The connection on which it was said is gone."""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Forwards connections to the server of a URL; `url` is its own."""

    def __init__(self, url: str, *, port: int = 0) -> None:
        """`port` is its own; 0: any that is free."""
        self._parts = urlsplit(url)
        self._port = port
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._callers: set[asyncio.StreamWriter] = set()
        """Who is connected to us."""
        self.open = asyncio.Event()
        """While this is not set, nothing is forwarded, and nobody is told."""
        self.open.set()
        self.swallows: Callable[[bytes], bool] = lambda _: False
        """Which of the server's words never arrive."""
        self.traps: list[Trap] = []
        self.ready = READY if self._parts.scheme.startswith("postgres") else b""
        """By what the end of an answer is known."""

    @property
    def url(self) -> str:
        return url_of(self._server, self._parts)

    def trap(self, words: bytes, act: Act) -> Trap:
        """Cut the connection before the server hears these words, or after it has answered; or hold the answer back."""
        trap = Trap(words, act)
        self.traps.append(trap)
        return trap

    def stall(self) -> None:
        """As if a cable were pulled: connections stay open, and nothing comes."""
        self.open.clear()

    def resume(self) -> None:
        self.open.set()

    def cut(self) -> None:
        """End all connections."""
        for line in [*self._lines]:
            line.cut()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for writer in self._callers:
            writer.transport.abort()
        self.open.set()
        while self._callers:  # noqa: ASYNC110 - they end by themselves, now that they are cut
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers.add(writer)
        try:
            await self.open.wait()
            if not writer.transport.is_closing():
                await self._forward((reader, writer))
        finally:
            writer.transport.abort()
            self._callers.discard(writer)

    async def _forward(self, client: Streams) -> None:
        try:
            server = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        except OSError:
            return
        line = _Line(self, client, server)
        self._lines.add(line)
        try:
            await line.run()
        finally:
            self._lines.discard(line)


class _Line:
    """One connection and its counterpart."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._trap: Trap | None = None

    async def run(self) -> None:
        ways = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.cut()
            if self._trap is not None:
                self._trap.closed.set()

    def cut(self) -> None:
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def _ask(self) -> None:
        while data := await self._read(self._client):
            self._trap = self._trap or self._sprung(data)
            if self._trap is not None and self._trap.act == "cut before":
                self._trap.sprung.set()
                return
            self._server[1].write(data)
            if self._trap is not None and self._trap.act == "hold":
                self._trap.sprung.set()

    async def _answer(self) -> None:
        while data := await self._read(self._server):
            if self._trap is not None:
                if self._trap.act == "cut after" and self._proxy.ready in data:
                    self._trap.sprung.set()
                    return
                continue
            if not self._proxy.swallows(data):
                self._client[1].write(data)

    async def _read(self, streams: Streams) -> bytes:
        try:
            data = await streams[0].read(65_536)
        except OSError:
            return b""
        await self._proxy.open.wait()
        return data

    def _sprung(self, data: bytes) -> Trap | None:
        found = next((trap for trap in self._proxy.traps if trap.words in data), None)
        if found is not None:
            self._proxy.traps.remove(found)
        return found
