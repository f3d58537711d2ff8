"""A connection on which a thread asks and waits: one call at a time, without an event loop."""

from __future__ import annotations

import socket
from typing import Any

from onejob.stores.valkey.address import Address
from onejob.stores.valkey.connection import (
    HUNG_UP,
    NO_ANSWER,
    Node,
    attempt,
    hung_up_while_greeting,
    longest_connect,
    prepare,
    said,
)
from onejob.stores.valkey.conversation import CHUNK, Conversation, Tunnel, Words
from onejob.stores.valkey.failures import LineLost, ServerError


class ThreadConnection:
    """A socket that belongs to whoever asks just now."""

    __slots__ = ("_conversation", "_socket", "is_open")

    def __init__(self, address: Address, node: Node) -> None:
        """Connect and log in. Raises as `connection.connect` does."""
        self._conversation = Conversation(None if address.tls is None else Tunnel(address.tls, node[0]))
        try:
            self._socket = socket.create_connection(node, longest_connect(address))
        except OSError as error:
            raise LineLost(said(error)) from error
        self.is_open = True
        try:
            prepare(self._socket)
            self._introduce(address)
            self._socket.settimeout(attempt(address))
        except OSError as error:
            self.close()
            raise LineLost(said(error)) from error
        except BaseException:
            self.close()
            raise

    def ask(self, words: Words) -> Any:
        """Send a command and wait for its answer. Raises a `ServerError`, or a `LineLost`, after which it is closed."""
        replies: list[Any] = []
        try:
            self._socket.sendall(self._conversation.say(words))
            while not replies:
                data = self._socket.recv(CHUNK)
                if not data:
                    raise LineLost(HUNG_UP, sent=True)
                replies = self._conversation.hear(data)
        except TimeoutError:
            self.close()
            raise LineLost(NO_ANSWER, sent=True) from None
        except OSError as error:
            self.close()
            raise LineLost(said(error), sent=True) from error
        except BaseException:  # an interrupted caller leaves an answer behind that is nobody's
            self.close()
            raise
        [reply] = replies
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def close(self) -> None:
        """Hang up."""
        self.is_open = False
        self._socket.close()

    def _introduce(self, address: Address) -> None:
        talk = self._conversation.begin(address)
        to_send = next(talk)
        while True:
            self._socket.sendall(to_send)
            data = self._socket.recv(CHUNK)
            if not data:
                raise LineLost(hung_up_while_greeting(address))
            try:
                to_send = talk.send(data)
            except StopIteration:
                return
