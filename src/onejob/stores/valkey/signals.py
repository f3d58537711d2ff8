"""Wake-up hints: within the process through futures, between processes by PUBLISH on one channel, polling behind both.

Where work comes to a queue that had none, the script that brings it publishes that at once, because somebody may wait for it.
All else is published by the client after the operation, and what comes while one hint is under way goes with the next: a
script would publish every job.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from onejob.core.errors import OnejobError, StoreBusy
from onejob.hints import ANY, Hints
from onejob.home import Home
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.connection import Connection, Hear
from onejob.stores.valkey.failures import ServerError

logger = logging.getLogger("onejob")
Publish = Callable[[str, str], Awaitable[object]]
"""Sends a message on a channel, by a connection that does not listen."""
Listen = Callable[[str, Hear, Callable[[], None]], Awaitable[Connection]]
"""Opens a connection that hears what is said on a channel, and tells of its own end."""

POLL_PROVEN: Final = 5.0
"""Seconds after which a waiter looks for himself though hints arrive: a line that has just died is not known to be dead,
and nothing is kept for who did not listen."""
POLL: Final = 1.0
"""The same while no hint has been seen to arrive: nobody listens yet, or this user may not use the channel."""
PROOF: Final = 5.0
PROOF_AGAIN: Final = 2.0
"""Seconds within which a line that is in doubt, because the server was away, has to prove itself; else it is made anew."""
_ASK_AGAIN: Final = 0.1
_PAUSE: Final = 0.005
_SEND: Final = 5.0
_MOST_BYTES: Final = 8_000
_TEST: Final = "?"
_LONGEST_BACKOFF: Final = 5.0


def channel(address: Address) -> str:
    """Where a store's hints go. Channels know no databases."""
    return f"{address.namespace}:hints" + (f":{address.database}" if address.database else "")


class Signals:
    """Who waits for what in this process, and the line to other processes. From any thread, unless said otherwise."""

    def __init__(self, address: Address, home: Home, publish: Publish, listen: Listen) -> None:
        self._hints = Hints()
        self._home = home
        self._line = Line(address, home, publish, listen, hear=self._hints.hear, take=self._take)
        self._listens = False
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._left: deque[tuple[set[str], bool]] = deque()
        """What threads have yet to tell."""
        self._passes_on = False
        """The line is sending, and will come for what is told meanwhile."""

    @property
    def arrive(self) -> bool | None:
        """Whether hints arrive; None if nobody has listened yet."""
        return self._line.proven

    def mark(self) -> int:
        """How many hints have been heard so far."""
        self._listen()
        return self._hints.mark()

    async def wait(self, topics: frozenset[str], timeout: float, since: int | None) -> bool:
        """Sleep until one of the topics is hinted at, or was after `since`, or it is time to look; False: time is up."""
        self._listen()
        poll = POLL_PROVEN if self._line.proven else POLL
        return await self._hints.wait(topics, min(timeout, poll), since, otherwise=timeout > poll)

    @property
    def line(self) -> tuple[bytes, bytes]:
        """How a script says what we would say: the channel, and our name."""
        return self._line.channel.encode(), self._line.name.encode()

    def tell(self, topics: set[str], others_know: bool = False) -> None:
        """Hint to everyone: called after an operation. Others may have been told of work by the operation itself."""
        self._hints.hear(topics)
        if others_know:
            topics = {topic for topic in topics if not topic.startswith("work:")}
        if not topics:
            return
        with self._lock:
            is_first, self._passes_on = not self._passes_on, True
            self._told |= topics
        if is_first and self._home.is_here:
            self._line.send()
        elif is_first:
            self._home.post(self._line.send)

    def tell_from_thread(self, topics: set[str], others_know: bool = False) -> None:
        """The same, without a lock: a signal handler may interrupt this thread, and ask for what needs the locks."""
        self._left.append((topics, others_know))
        if self._hints.are_awaited or not self._passes_on:
            self._home.post(self._collect)

    def doubt(self) -> None:
        """The server was away, and hints may have been lost with it."""
        self._home.post(self._line.doubt)

    def stop_listening(self) -> None:
        """Hear no more of other processes; at home."""
        self._listens = True
        self._line.stop_listening()

    async def close(self) -> None:
        """Send what is still to be sent, and hang up; at home."""
        self._line.send()
        await self._line.close()

    def _collect(self) -> None:
        while self._left:
            self.tell(*self._left.popleft())

    def _take(self) -> set[str]:
        """What the line is to send; at home."""
        while True:
            self._collect()
            with self._lock:
                topics, self._told = self._told, set()
                self._passes_on = bool(topics)
            if topics or not self._left:  # what a thread leaves after this, it sees that it has to say
                return topics

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._home.post(self._line.listen)


class Line:
    """Sends hints and, once somebody waits, listens to those of others, on a connection for that alone. Lives at home."""

    def __init__(
        self,
        address: Address,
        home: Home,
        publish: Publish,
        listen: Listen,
        *,
        hear: Callable[[set[str]], None],
        take: Callable[[], set[str]] = set,
    ) -> None:
        """`hear` is told what others say, `take` gives what is to be sent; once there is nothing, `send` has to be called again."""
        self._address = address
        self.channel = channel(address)
        self._home = home
        self._publish = publish
        self._open = listen
        self._hear = hear
        self._take = take
        self.name = secrets.token_hex(4)
        self.proven: bool | None = None
        self._warned = False
        self._has_listened = False
        self._test = ""
        self._arrived = asyncio.Event()
        self._doubted = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def send(self) -> None:
        """Tell other processes what there is to be told, and what comes while that is under way."""
        if self._sending is None:
            self._sending = self._home.spawn(self._send())

    def listen(self) -> None:
        """Begin to hear other processes."""
        if self._listening is None:
            self._listening = self._home.spawn(self._keep_listening())

    def doubt(self) -> None:
        """Find out whether the line still stands."""
        if self._listening is not None:
            self.proven = None
            self._doubted.set()

    def stop_listening(self) -> None:
        """Hear no more of other processes."""
        if self._listening is not None:
            self._listening.cancel()

    async def close(self) -> None:
        """Send the rest, then hang up."""
        if self._sending is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._sending, _SEND)
        self.stop_listening()
        if self._listening is not None:
            await asyncio.wait([self._listening])

    async def _send(self) -> None:
        failures, topics = 0, self._take()
        while topics:
            try:
                async with asyncio.timeout(_SEND):
                    await self._publish(self.channel, self._message(topics))
                failures, topics = 0, set[str]()
            except Exception as error:
                logger.debug("a hint to other processes could not be sent: %s", error)
                failures += 1
                await asyncio.sleep(_backoff(failures))
                if failures == 3:  # by now others will have looked by themselves
                    failures, topics = 0, set[str]()
            await asyncio.sleep(_PAUSE)
            topics |= self._take()
        self._sending = None

    def _message(self, topics: set[str]) -> str:
        message = "\n".join((self.name, *sorted(topics)))
        return message if len(message.encode()) <= _MOST_BYTES else f"{self.name}\n{ANY}"

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            connection: Connection | None = None
            try:
                connection = await self._open(self.channel, self._on_message, self._doubted.set)
                await self._listen_until_lost(connection)
                failures += 1
            except ServerError as error:
                failures += 1
                if error.code == "NOPERM":
                    self._do_without()
            except Exception as error:
                failures = 0 if self.proven else failures + 1
                logger.debug("hints cannot be listened to, so we poll: %s", error)
            finally:
                if self.proven:
                    self.proven = None
                if connection is not None:
                    connection.close()
            await asyncio.sleep(_backoff(failures))

    async def _listen_until_lost(self, connection: Connection) -> None:
        """Listen until hints do not arrive, or raise if the connection has ended."""
        while await self._prove(connection, PROOF_AGAIN if self._has_listened else PROOF):
            if self._has_listened:
                self._hear({ANY})  # who knows what was told meanwhile
            self._has_listened = True
            await self._doubted.wait()

    async def _prove(self, connection: Connection, limit: float) -> bool:
        """Send ourselves something on another connection; True if it arrives."""
        self._test = secrets.token_hex(4)
        self._arrived.clear()
        self._doubted.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await connection.ask(("PING",))  # is it still there?
                await self._send_test()
        self.proven = self._arrived.is_set()
        if not (self.proven or self._has_listened):
            self._do_without()
        return self.proven

    def _do_without(self) -> None:
        """Hints do not arrive: say so once."""
        self.proven = False
        if self._warned:
            return
        self._warned = True
        logger.warning(
            "Hints do not arrive from Valkey at %s, so workers look for jobs once a second: this user needs the right "
            "to use the channel %s (acl setuser … &%s +publish +subscribe).",
            self._address.place,
            self.channel,
            self.channel,
        )

    async def _send_test(self) -> None:
        while not self._arrived.is_set():  # the first may be sent before the subscription stands
            try:
                await self._publish(self.channel, f"{self.name}\n{_TEST}{self._test}")
            except StoreBusy:
                raise
            except OnejobError as error:
                logger.debug("a test of the hints was refused: %s", error)
                return
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN):
                    await self._arrived.wait()

    def _on_message(self, payload: bytes) -> None:
        sender, *topics = payload.decode(errors="replace").split("\n")
        if sender != self.name:
            self._hear({topic for topic in topics if topic and not topic.startswith(_TEST)})
        elif topics == [f"{_TEST}{self._test}"]:
            self._arrived.set()


def _backoff(failures: int) -> float:
    return random.uniform(0.5, 1) * min(0.1 * 2**failures, _LONGEST_BACKOFF)
