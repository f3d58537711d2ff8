"""One connection to one server, on the event loop that asks: any number of calls are under way, and answered in order.

A bare socket and not a transport: a user's loop may end without a word, and then nobody could close one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from onejob.core.errors import OnejobError
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.conversation import (
    CHUNK,
    NO_VALKEY,
    Conversation,
    Host,
    Tunnel,
    Words,
    speaks_no_tls,
)
from onejob.stores.valkey.failures import LineLost, ServerError

Node = tuple[str, int]
"""A server's host and port."""
Hear = Callable[[bytes], None]

_ATTEMPT: Final = 0.4
"""The part of the patience that one try may take: who is not answered has time for another, on a new connection."""
_LONGEST_CONNECT: Final = 2.0
HUNG_UP: Final = "it hung up"
NO_ANSWER: Final = "it did not answer"
_MESSAGE: Final = b"message"


def attempt(address: Address) -> float:
    """Seconds that a call may take on one connection."""
    return max(0.05, address.patience * _ATTEMPT)


def longest_connect(address: Address) -> float:
    """Seconds that it may take to connect."""
    return min(_LONGEST_CONNECT, address.patience / 4)


class Connection:
    """A socket on which commands are sent at once, whoever else still waits. Lives on one loop."""

    __slots__ = (
        "_conversation",
        "_hear",
        "_heard_at",
        "_limit",
        "_loop",
        "_on_loss",
        "_socket",
        "_timer",
        "_unsent",
        "_waiting",
        "host",
        "is_open",
    )

    def __init__(
        self, connected: socket.socket, conversation: Conversation, host: Host, limit: float
    ) -> None:
        """`limit`: seconds after which a server that says nothing to who waits is given up."""
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._conversation = conversation
        self._limit = limit
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent = bytearray()
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._hear: Hear | None = None
        self._on_loss: Callable[[], None] | None = None
        self.host = host
        self.is_open = True
        self._loop.add_reader(connected.fileno(), self._receive)

    def ask(self, words: Words) -> asyncio.Future[Any]:
        """Send a command; the future has the answer, or a `ServerError` or `LineLost`."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            answer.set_exception(LineLost(HUNG_UP))
            return answer
        data = self._conversation.say(words)  # before anything waits for its answer: it may raise
        if not self._waiting:
            self._heard_at = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._limit, self._watch)
        self._waiting.append(answer)
        self._send(data)
        return answer

    async def listen(self, channel: str, hear: Hear, on_loss: Callable[[], None]) -> None:
        """Be told from now on what is said on a channel, and of the end of the connection."""
        self._hear, self._on_loss = hear, on_loss
        await self.ask(("SUBSCRIBE", channel))

    def close(self) -> None:
        """Hang up; whoever still waits is told. On its loop, or once that runs no more."""
        self._lose(LineLost("we hung up", sent=True))

    def _send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._lose(LineLost(said(error), sent=True))
            return
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._loop.add_writer(self._socket.fileno(), self._send_rest)

    def _send_rest(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(LineLost(said(error), sent=True))
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _receive(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
            if not data:
                raise LineLost(HUNG_UP, sent=True)
            replies = self._conversation.hear(data)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(LineLost(said(error), sent=True))
            return
        except LineLost as lost:
            self._lose(lost)
            return
        self._heard_at = self._loop.time()
        for reply in replies:
            if self._hear is not None and _is_message(reply):
                self._hear(reply[2])
                continue
            if not self._waiting:
                self._lose(LineLost(NO_VALKEY, sent=True))
                return
            answer = self._waiting.popleft()
            if answer.done():
                continue  # whoever asked has given up
            if isinstance(reply, ServerError):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

    def _watch(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        left = self._heard_at + self._limit - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch)
        else:
            self._lose(LineLost(NO_ANSWER, sent=True))

    def _lose(self, lost: LineLost) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(lost)
            if self._timer is not None:
                self._timer.cancel()
        self._waiting.clear()
        self._socket.close()
        if self._on_loss is not None:
            self._on_loss()


async def connect(address: Address, node: Node) -> Connection:
    """Connect to a server and log in. Raises `LineLost`, a `ServerError`, or an `OnejobError` that no other try will change."""
    limit = longest_connect(address)
    tunnel = None if address.tls is None else Tunnel(address.tls, node[0])
    conversation = Conversation(tunnel)
    try:
        async with asyncio.timeout(limit):
            connected = await _reach(node, limit)
            try:
                host = await _introduce(connected, conversation, address)
            except BaseException:
                connected.close()
                raise
    except TimeoutError:
        if address.tls is not None and await _speaks_plainly(node, limit):
            raise speaks_no_tls(address) from None
        raise LineLost(NO_ANSWER) from None
    except OSError as error:
        raise LineLost(said(error)) from error
    return Connection(connected, conversation, host, attempt(address))


async def _reach(node: Node, limit: float) -> socket.socket:
    """A socket that is connected to a server; of several addresses of its name, the first that answers in its share of the time."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    places = await _resolved(node)
    for family, kind, protocol, _, place in places:
        reaching = socket.socket(family, kind, protocol)
        try:
            reaching.setblocking(False)
            async with asyncio.timeout(limit / len(places) if len(places) > 1 else None):
                await loop.sock_connect(reaching, place)
            prepare(reaching)
        except BaseException as error:
            reaching.close()
            if not isinstance(error, OSError):
                raise
            failure = failure or error
        else:
            return reaching
    raise failure or OSError(f"{node[0]} has no address")


async def _resolved(node: Node) -> list[Any]:
    host, port = node
    with suppress(socket.gaierror):  # an address needs no thread to look it up
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def prepare(connected: socket.socket) -> None:
    """Set up a new socket; raises if it is connected to itself."""
    if connected.getsockname() == connected.getpeername():
        # Whoever dials a free port of this machine may be put through to himself, and hear an echo.
        raise ConnectionRefusedError("nobody listens there")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def _introduce(connected: socket.socket, conversation: Conversation, address: Address) -> Host:
    loop, talk = asyncio.get_running_loop(), conversation.begin(address)
    to_send = next(talk)
    while True:
        if to_send:
            await loop.sock_sendall(connected, to_send)
        data = await loop.sock_recv(connected, CHUNK)
        if not data:
            raise LineLost(hung_up_while_greeting(address))
        try:
            to_send = talk.send(data)
        except StopIteration as end:
            return end.value


def hung_up_while_greeting(address: Address) -> str:
    """What to say of a server that hung up before it had said anything."""
    wants = "TLS (valkeys://)" if address.tls is None else "another certificate (?tls_cert=FILE&tls_key=FILE)"
    return f"{HUNG_UP} without a word: does it want {wants}?"


async def _speaks_plainly(node: Node, limit: float) -> bool:
    """True for a server to whom a handshake was no more than a line that does not end."""
    try:
        connection = await connect(Address(hosts=(node,), patience=limit * 4), node)
    except (ServerError, OnejobError):
        return True  # it has something to say
    except LineLost:
        return False
    connection.close()
    return True


def _is_message(reply: Any) -> bool:
    return isinstance(reply, list) and cast("list[Any]", reply)[0] == _MESSAGE


def said(error: OSError) -> str:
    """What the system says of a failure."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)  # asyncio puts words of its own in its place
