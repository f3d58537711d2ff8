"""Hearing the hints of other processes: on the event loop that waits for them most, over a connection for that alone."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from onejob.core.errors import OnejobError, StoreBusy
from onejob.hints import ANY
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.connection import Connection, Hear
from onejob.stores.valkey.failures import ServerError

logger = logging.getLogger("onejob")
Publish = Callable[[str, str], Awaitable[object]]
"""Sends a message on a channel, by a connection that does not listen. From any loop."""
Listen = Callable[[str, Hear, Callable[[], None]], Awaitable[Connection]]
"""Opens a connection of the running loop that hears what is said on a channel, and tells of its own end."""

PROOF: Final = 5.0
PROOF_AGAIN: Final = 2.0
"""Seconds within which a line that is in doubt, because the server was away, has to prove itself; else it is made anew."""
_ASK_AGAIN: Final = 0.1
_TEST: Final = "?"
_LONGEST_BACKOFF: Final = 5.0


def channel(address: Address) -> str:
    """Where a store's hints go. Channels know no databases."""
    return f"{address.namespace}:hints" + (f":{address.database}" if address.database else "")


class Channel(NamedTuple):
    """Where hints go, how, and who we are there."""

    address: Address
    publish: Publish
    listen: Listen
    sender: str

    @property
    def name(self) -> str:
        """What it is called."""
        return channel(self.address)


class Listener:
    """Hears others on a channel, on the loop on which it begins to listen. What is there to be called is called there."""

    def __init__(self, channel: Channel, hear: Callable[[set[str]], None]) -> None:
        """`hear` is told what others say."""
        self._channel = channel
        self._hear = hear
        self.proven: bool | None = None
        """Whether hints arrive; None if that is not known."""
        self._said = ""
        """What lacks, as far as users have been told."""
        self._has_listened = False
        self._test = ""
        self._arrived = asyncio.Event()
        self._doubted = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Begin to hear other processes."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._keep_listening())

    def doubt(self) -> None:
        """Find out whether the line still stands."""
        if self._listening is not None:
            self.proven = None
            self._doubted.set()

    def stop(self) -> None:
        """Hear no more of other processes."""
        if self._listening is not None:
            self._listening.cancel()

    async def close(self) -> None:
        """Hang up."""
        self.stop()
        if self._listening is not None:
            await asyncio.wait([self._listening])

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            connection: Connection | None = None
            try:
                connection = await self._channel.listen(
                    self._channel.name, self._on_message, self._doubted.set
                )
                await self._listen_until_lost(connection)
                failures += 1
            except ServerError as error:
                failures += 1
                if error.code == "NOPERM":
                    self._do_without(lacks_right=True)
            except Exception as error:
                failures = 0 if self.proven else failures + 1
                logger.debug("hints cannot be listened to, so we poll: %s", error)
            finally:
                if self.proven:
                    self.proven = None
                if connection is not None:
                    connection.close()
            await asyncio.sleep(backoff(failures))

    async def _listen_until_lost(self, connection: Connection) -> None:
        """Listen until hints do not arrive, or raise if the connection has ended."""
        while await self._prove(connection, PROOF_AGAIN if self._has_listened else PROOF):
            if self._has_listened:
                self._hear({ANY})  # who knows what was told meanwhile
            self._has_listened = True
            await self._doubted.wait()

    async def _prove(self, connection: Connection, limit: float) -> bool:
        """Send ourselves something on another connection; True if it arrives."""
        self._test, lacks_right = secrets.token_hex(4), False
        self._arrived.clear()
        self._doubted.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await connection.ask(("PING",))  # is it still there?
                lacks_right = await self._send_test()
        self.proven = self._arrived.is_set()
        if not (self.proven or self._has_listened):
            self._do_without(lacks_right=lacks_right)
        return self.proven

    def _do_without(self, *, lacks_right: bool) -> None:
        """Hints do not arrive: say so once, and why, if that is known."""
        self.proven = False
        if self._said in ("a right", "a right" if lacks_right else "silence"):
            return
        self._said = "a right" if lacks_right else "silence"
        name = self._channel.name
        logger.warning(
            "Hints do not arrive from Valkey at %s, so workers look for jobs once a second: %s.",
            self._channel.address.place,
            f"this user needs the right to use the channel {name} (acl setuser … &{name} +publish +subscribe)"
            if lacks_right
            else f"what was sent on the channel {name} was not heard within {PROOF:g} seconds; it is tried again",
            extra={"event": "store.no_hints"},
        )

    async def _send_test(self) -> bool:
        """Send it until it arrives; True if this user may not."""
        while not self._arrived.is_set():  # the first may be sent before the subscription stands
            try:
                await self._channel.publish(
                    self._channel.name, f"{self._channel.sender}\n{_TEST}{self._test}"
                )
            except StoreBusy:
                raise
            except OnejobError as error:
                logger.debug("a test of the hints was refused: %s", error)
                return isinstance(error.__cause__, ServerError) and error.__cause__.code == "NOPERM"
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN):
                    await self._arrived.wait()
        return False

    def _on_message(self, payload: bytes) -> None:
        sender, *topics = payload.decode(errors="replace").split("\n")
        if sender != self._channel.sender:
            self._hear({topic for topic in topics if topic and not topic.startswith(_TEST)})
        elif topics == [f"{_TEST}{self._test}"]:
            self._arrived.set()


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return random.uniform(0.5, 1) * min(0.1 * 2**failures, _LONGEST_BACKOFF)
