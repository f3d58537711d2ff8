"""Wake-up hints: within the process through futures, between processes by NOTIFY on one channel, polling behind both.

A hint is sent after the commit, on a connection of its own: a NOTIFY inside a transaction makes all commits that have
one wait for each other. What comes while one is under way goes with the next.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import monotonic as clock
from typing import Any, Final

from onejob.hints import ANY, Hints
from onejob.home import Home
from onejob.stores.postgres.address import Address
from onejob.stores.postgres.driver import Link, connect
from onejob.stores.postgres.steps import Steps, ask
from onejob.stores.postgres.work import Work

logger = logging.getLogger("onejob")
POLL_PROVEN: Final = 5.0
"""Seconds after which a waiter looks for himself though notifications arrive: a line that has just died is not known to
be dead, and nothing is kept for who did not listen."""
POLL: Final = 1.0
"""The same while no notification has been seen to arrive: nobody listens yet, or there is a pooler in between."""
PROOF: Final = 5.0
_PAUSE: Final = 0.001
"""Seconds between two notifications of work: whoever is idle waits for them."""
_OFTEN: Final = 0.001
"""If hints come sooner after each other than this, more of them share one: whoever makes so many is the one who notices."""
_LONG_PAUSE: Final = 0.005
_SHORT_OF_WORK: Final = 5
"""So many long pauses between hints that only tell of ends: of those a busy worker has more than anybody waits for."""
_ENDS: Final = "done:"
_SEND: Final = 5.0
_MAX_PAYLOAD: Final = 7_999
_TEST: Final = "?"
_LONGEST_BACKOFF: Final = 5.0


def hint(schema: str, topics: Iterable[str], sender: str = "") -> tuple[str, str]:
    """The channel and the payload of a notification: the parameters of `signals.notify`."""
    payload = "\n".join((sender, *sorted(topics)))
    if len(payload.encode()) > _MAX_PAYLOAD:
        payload = f"{sender}\n{ANY}"
    return schema, payload


class Signals:
    """Who waits for what in this process, and the line to other processes."""

    def __init__(
        self, address: Address, home: Home, run: Callable[[Callable[[Work], Steps[Any]]], Awaitable[Any]]
    ) -> None:
        self._hints = Hints()
        self._home = home
        self._line = Line(address, home, run, self._hints.hear)
        self._pooled = address.pooled  # behind a pooler nothing would arrive
        self._listens = address.pooled

    async def prove(self) -> bool | None:
        """Whether notifications arrive, tried if nobody has listened yet; None: that cannot be said. At home."""
        return None if self._pooled else await self._line.prove()

    def mark(self) -> int:
        """How many hints have been heard so far."""
        self._listen()
        return self._hints.mark()

    async def wait(self, topics: frozenset[str], timeout: float, since: int | None) -> bool:
        """Sleep until one of the topics is hinted at, or was after `since`, or it is time to look; False: time is up."""
        self._listen()
        poll = POLL_PROVEN if self._line.proven else POLL
        return await self._hints.wait(topics, min(timeout, poll), since, otherwise=timeout > poll)

    def tell(self, topics: set[str]) -> None:
        """Hint to everyone: called after a commit, at home."""
        self._hints.hear(topics)
        self._line.send(topics)

    def stop_listening(self) -> None:
        """Hear no more of other processes; at home."""
        self._listens = True
        self._line.stop_listening()

    async def close(self) -> None:
        """Send what is still to be sent, and hang up."""
        await self._line.close()

    def terminate(self) -> None:
        """Hang up at once."""
        self._listens = True
        self._line.terminate()

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._home.post(self._line.listen)


class Line:
    """One connection that sends notifications and, once somebody waits, listens to those of others. Lives at home."""

    def __init__(
        self,
        address: Address,
        home: Home,
        run: Callable[[Callable[[Work], Steps[Any]]], Awaitable[Any]],
        hear: Callable[[set[str]], None],
    ) -> None:
        self._address = address
        self._home = home
        self._run = run
        self._hear = hear
        self._name = secrets.token_hex(4)
        self.proven: bool | None = None
        self._warned = False
        self._has_listened = False
        self._test = ""
        self._arrived = asyncio.Event()
        self._tried = asyncio.Event()
        """It was seen whether notifications arrive, or that cannot be seen for now."""
        self._link: Link | None = None
        self._lock = asyncio.Lock()
        self._outgoing: set[str] = set()
        self._told = 0
        """How many hints have come since the last pause began."""
        self._paused = 0.0
        """When that was."""
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def send(self, topics: set[str]) -> None:
        """Tell other processes, now or with the next."""
        self._outgoing |= topics
        self._told += 1
        if self._sending is None:
            self._sending = self._home.spawn(self._send())

    def listen(self) -> None:
        """Begin to hear other processes."""
        if self._listening is None:
            self._listening = self._home.spawn(self._keep_listening())

    async def prove(self) -> bool | None:
        """Whether what others send is heard here; None if nobody could listen."""
        self.listen()
        await self._tried.wait()
        return self.proven

    def stop_listening(self) -> None:
        """Hear no more of other processes."""
        self._tried.set()
        if self._listening is not None:
            self._listening.cancel()

    async def close(self) -> None:
        """Send the rest, then hang up."""
        if self._sending is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._sending, _SEND)
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def terminate(self) -> None:
        """Hang up at once."""
        link, self._link = self._link, None
        if link is not None:
            link.terminate()

    async def _send(self) -> None:
        failures = 0
        while self._outgoing and failures < 3:
            topics, self._outgoing = self._outgoing, set()
            try:
                async with asyncio.timeout(_SEND):
                    await self._notify(hint(self._address.schema, topics, self._name))
                failures = 0
            except Exception as error:
                logger.debug("a hint to other processes could not be sent: %s", error)
                self._outgoing |= topics
                failures += 1
                self.terminate()
                await asyncio.sleep(_backoff(failures))
            await self._pause()
        self._outgoing.clear()  # after so many failures others will have looked by themselves
        self._sending = None

    async def _pause(self) -> None:
        """Let hints gather; those of work not for long, and less so while there are few."""
        now = clock()
        many = self._told > 1 and self._told * _OFTEN > now - self._paused
        self._told, self._paused = 0, now
        await asyncio.sleep(_LONG_PAUSE if many else _PAUSE)
        for _ in range(_SHORT_OF_WORK - 1):
            if not self._outgoing or any(not topic.startswith(_ENDS) for topic in self._outgoing):
                return
            await asyncio.sleep(_LONG_PAUSE)

    async def _notify(self, parameters: tuple[str, str]) -> None:
        async with self._lock:
            await (await self._open()).fetch("signals.notify", parameters)

    async def _open(self) -> Link:
        """The line, as it stands or made anew; under the lock."""
        if self._link is None or self._link.connection.is_closed():
            # A hint that a crash of the server loses is of no use after it: nobody waits for its disk.
            self._link = await connect(self._address, settings={"synchronous_commit": "off"})
        return self._link

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen_until_lost()
                failures = 0
            except Exception as error:
                failures += 1
                logger.debug("notifications cannot be listened to, so we poll: %s", error)
            self.proven = None
            self._tried.set()
            await asyncio.sleep(_backoff(failures))

    async def _listen_until_lost(self) -> None:
        lost = asyncio.Event()
        async with asyncio.timeout(self._address.patience), self._lock:
            link = await self._open()
            link.connection.add_termination_listener(lambda _: self._hang_up(lost))
            await link.connection.add_listener(self._address.schema, self._on_notification)
        if self._has_listened:
            self._hear({ANY})  # who knows what was told meanwhile
        self._has_listened = True
        await self._try_out(lost)
        self._tried.set()
        if not link.connection.is_closed():
            await lost.wait()

    def _hang_up(self, lost: asyncio.Event) -> None:
        lost.set()
        self._arrived.set()  # nothing will

    async def _try_out(self, lost: asyncio.Event) -> None:
        """Send ourselves something from another session: what comes from our own would arrive through any pooler."""
        self._test = secrets.token_hex(4)
        self._arrived.clear()
        if lost.is_set():
            return
        parameters = (self._address.schema, f"{self._name}\n{_TEST}{self._test}")
        await self._run(lambda _: ask("signals.notify", *parameters))
        try:
            async with asyncio.timeout(PROOF):
                await self._arrived.wait()
        except TimeoutError:
            if lost.is_set():
                return
            self.proven = False
            if not self._warned:
                self._warned = True
                logger.warning(
                    "NOTIFY does not arrive from PostgreSQL at %s, so workers look for jobs once a second: is there a "
                    "transaction pooler before it? Add ?pooler=transaction to the store's URL, or connect directly.",
                    self._address.place,
                )

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        sender, *topics = payload.split("\n")
        if sender != self._name:
            self._hear({topic for topic in topics if topic})
        elif topics == [f"{_TEST}{self._test}"]:
            self.proven = True
            self._arrived.set()


def _backoff(failures: int) -> float:
    return random.uniform(0.5, 1) * min(0.1 * 2**failures, _LONGEST_BACKOFF)
