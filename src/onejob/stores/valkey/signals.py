"""Wake-up hints: within the process through futures, between processes by PUBLISH on one channel, polling behind both.

Where work comes to a queue that had none, the script that brings it publishes that at once, because somebody may wait for it.
All else is published by the client after the operation, and what comes while one hint is under way goes with the next: a
script would publish every job.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from onejob.hints import ANY, Hints
from onejob.home import Home
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.listening import Channel, Listen, Listener, Publish, backoff

logger = logging.getLogger("onejob")

POLL_PROVEN: Final = 5.0
"""Seconds after which a waiter looks for himself though hints arrive: a line that has just died is not known to be dead,
and nothing is kept for who did not listen."""
POLL: Final = 1.0
"""The same while no hint has been seen to arrive: nobody listens yet, or this user may not use the channel."""
_PAUSE: Final = 0.005
_SEND: Final = 5.0
_MOST_BYTES: Final = 8_000


class Signals:
    """Who waits for what in this process, and the line to other processes. From any thread, unless said otherwise."""

    def __init__(self, address: Address, home: Home, publish: Publish, listen: Listen) -> None:
        self._hints = Hints()
        self._home = home
        self._channel = Channel(address, publish, listen, secrets.token_hex(4))
        self._line = Line(self._channel, home, self._take)
        self._listener = Listener(self._channel, self._hints.hear)
        """At home, for all who have none of their own."""
        self._near: dict[asyncio.AbstractEventLoop, Near] = {}
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
        found = [
            listener.proven
            for listener in (self._listener, *(near.listener for near in list(self._near.values())))
        ]
        return next((proven for proven in found if proven is not None), None)

    @asynccontextmanager
    async def at_hand(self) -> AsyncGenerator[None]:
        """Meanwhile the running loop hears other processes itself: no other thread has to wake it."""
        loop = asyncio.get_running_loop()
        near = self._near.get(loop)
        if near is None:
            listener = Listener(self._channel, lambda topics: self._hints.hear(topics, here=loop))
            near = self._near[loop] = Near(listener)
            listener.listen()
        near.users += 1
        try:
            yield
        finally:
            near.users -= 1
            if not near.users:
                del self._near[loop]
                self._hints.hear({ANY})  # who still waits here, waits for what is heard at home
                await near.listener.close()

    def mark(self) -> int:
        """How many hints have been heard so far."""
        self._listening()
        return self._hints.mark()

    async def wait(self, topics: frozenset[str], timeout: float, since: int | None) -> bool:
        """Sleep until one of the topics is hinted at, or was after `since`, or it is time to look; False: time is up."""
        poll = POLL_PROVEN if self._listening().proven else POLL
        return await self._hints.wait(topics, min(timeout, poll), since, otherwise=timeout > poll)

    @property
    def line(self) -> tuple[bytes, bytes]:
        """How a script says what we would say: the channel, and our name."""
        return self._channel.name.encode(), self._channel.sender.encode()

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
        self._home.post(self._listener.doubt)
        self._tell_near(lambda listener: listener.doubt)

    def stop_listening(self) -> None:
        """Hear no more of other processes; at home."""
        self._listens = True
        self._listener.stop()
        self._tell_near(lambda listener: listener.stop)

    async def close(self) -> None:
        """Send what is still to be sent, and hang up; at home."""
        self._line.send()
        await self._line.close()
        await self._listener.close()

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

    def _listening(self) -> Listener:
        """Who listens for whoever asks; at home only if he has nobody on his loop."""
        near = self._near.get(asyncio.get_running_loop()) if self._near else None
        if near is not None:
            return near.listener
        if not self._listens:
            self._listens = True
            self._home.post(self._listener.listen)
        return self._listener

    def _tell_near(self, what: Callable[[Listener], Callable[[], None]]) -> None:
        for loop, near in list(self._near.items()):
            with suppress(RuntimeError):  # it has ended without a word
                loop.call_soon_threadsafe(what(near.listener))


class Near:
    """Who listens on a loop, and for how many."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.users = 0


class Line:
    """Sends hints to other processes. Lives at home."""

    def __init__(self, channel: Channel, home: Home, take: Callable[[], set[str]]) -> None:
        """`take` gives what is to be sent; once there is nothing, `send` has to be called again."""
        self._channel = channel
        self._home = home
        self._take = take
        self._sending: asyncio.Task[None] | None = None

    def send(self) -> None:
        """Tell other processes what there is to be told, and what comes while that is under way."""
        if self._sending is None:
            self._sending = self._home.spawn(self._send())

    async def close(self) -> None:
        """Send the rest."""
        if self._sending is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._sending, _SEND)

    async def _send(self) -> None:
        failures, topics = 0, self._take()
        while topics:
            try:
                async with asyncio.timeout(_SEND):
                    await self._channel.publish(self._channel.name, self._message(topics))
                failures, topics = 0, set[str]()
            except Exception as error:
                logger.debug("a hint to other processes could not be sent: %s", error)
                failures += 1
                await asyncio.sleep(backoff(failures))
                if failures == 3:  # by now others will have looked by themselves
                    failures, topics = 0, set[str]()
            await asyncio.sleep(_PAUSE)
            topics |= self._take()
        self._sending = None

    def _message(self, topics: set[str]) -> str:
        message = "\n".join((self._channel.sender, *sorted(topics)))
        return message if len(message.encode()) <= _MOST_BYTES else f"{self._channel.sender}\n{ANY}"
