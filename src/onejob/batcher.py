"""Gathers what arrives while a round trip is under way into the next one.

There are no timers: an idle batcher sends at once, a busy one sends everything that gathered when the reply
comes. A batcher belongs to one event loop; other threads hand items over with `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
Reply = TypeVar("Reply")
Awaited_contra = TypeVar("Awaited_contra", contravariant=True)


class Waiting(Protocol[Awaited_contra]):
    """Where a reply goes: an asyncio future, or a thread's."""

    def done(self) -> bool:
        """True if nobody waits any more."""
        ...

    def cancel(self) -> bool:
        """Give up on the reply."""
        ...

    def set_result(self, result: Awaited_contra, /) -> None:
        """Deliver the reply."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Deliver what went wrong."""
        ...


class Batcher(Generic[Item, Reply]):
    """Sends items in batches, in order of arrival, one batch at a time, and gives each its own reply.

    `send` must be all or nothing, and safe to repeat for the same item. If a batch fails with an error that
    `may_be_one` says could be due to a single item, its items are sent again one by one, so that one bad item
    does not fail its neighbours. An item whose waiter was cancelled before it was sent is never sent. A batch
    that takes longer than `slow` seconds holds up no others: the next one overtakes it.
    """

    __slots__ = (
        "_gathered",
        "_limit",
        "_loop",
        "_may_be_one",
        "_overtaken",
        "_send",
        "_sender",
        "_slow",
        "_turn",
    )

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[list[Reply]]],
        *,
        limit: int,
        may_be_one: Callable[[Exception], bool],
        slow: float | None = None,
    ) -> None:
        self._send = send
        self._limit = limit
        self._may_be_one = may_be_one
        self._slow = slow
        self._turn = 0
        self._overtaken: set[asyncio.Task[None]] = set()  # a loop alone does not keep its tasks
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Item, Waiting[Reply]]] = []
        self._sender: asyncio.Task[None] | None = None

    def put(self, item: Item) -> asyncio.Future[Reply]:
        """Add an item to the next batch; the future brings its reply."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self.put_for(item, future)
        return future

    def put_for(self, item: Item, waiting: Waiting[Reply]) -> None:
        """Add an item to the next batch, whose reply goes to `waiting`."""
        self._gathered.append((item, waiting))
        if self._sender is None:
            self._start()

    def _start(self) -> None:
        # An empty context: a batch carries many callers' items and must not inherit the first one's.
        self._sender = self._loop.create_task(self._drain(), context=contextvars.Context())

    async def _drain(self) -> None:
        batch: list[tuple[Item, Waiting[Reply]]] = []
        turn = self._turn
        overtaking: asyncio.TimerHandle | None = None
        try:
            while self._gathered and self._turn == turn:
                batch = self._gathered[: self._limit]
                del self._gathered[: self._limit]
                if self._slow is not None:
                    overtaking = self._loop.call_later(self._slow, self._overtake)
                await self._round_trip([pair for pair in batch if not pair[1].done()])
                if overtaking is not None:
                    overtaking.cancel()
        except BaseException:
            # The loop is being torn down: whoever still waits would wait for ever.
            for _, waiting in [*batch, *self._gathered]:
                waiting.cancel()
            self._gathered.clear()
            raise
        finally:
            if overtaking is not None:
                overtaking.cancel()
            if self._turn == turn:
                self._sender = None

    def _overtake(self) -> None:
        """The batch under way waits for something, a busy key or a dead connection: others do not wait for it."""
        self._turn += 1
        if self._sender is not None:
            self._overtaken.add(self._sender)
            self._sender.add_done_callback(self._overtaken.discard)
            self._sender = None
        if self._gathered:
            self._start()

    async def _round_trip(self, batch: list[tuple[Item, Waiting[Reply]]]) -> None:
        if not batch:
            return
        try:
            replies = await self._send([item for item, _ in batch])
            answered = list(zip(batch, replies, strict=True))
        except Exception as error:
            if len(batch) > 1 and self._may_be_one(error):
                for pair in batch:
                    await self._round_trip([pair])
                return
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(error)
        else:
            for (_, waiting), reply in answered:
                if not waiting.done():
                    waiting.set_result(reply)
