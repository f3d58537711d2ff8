"""The jobs of each queue that match, newest first, and those of all queues as one list.

A queue's numbers say the order of its own jobs; between queues the time of acceptance does, and then the id. They are
read page by page, no more of them than somebody asks for, and only what tells the order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from onejob.stores.valkey.asking import together
from onejob.stores.valkey.forms import text_of
from onejob.stores.valkey.matching import Matching
from onejob.stores.valkey.office import Office

Pages: TypeAlias = Callable[[int | None], Awaitable[Any]]
"""Jobs before a number, or how many; and before which number to go on."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """A job that matches."""

    id: bytes
    queue: str
    number: int
    accepted: int

    @property
    def age(self) -> tuple[int, int]:
        """The newer, the smaller."""
        return -self.accepted, -int.from_bytes(self.id, "big")


class Walk(msgspec.Struct, frozen=True):
    """How a queue is read: by which script, how many jobs at a time, and what else that script is given."""

    script: str
    size: int
    more: tuple[object, ...] = ()


class Stream:
    """The matching jobs of one queue, newest first."""

    def __init__(
        self, queue: str, matching: Matching, before: int | None = None, pages: Pages | None = None
    ) -> None:
        self.queue = queue
        self._matching = matching
        self._before = before
        self._pages = pages
        self._read: deque[Found] = deque()

    def put(self, jobs: Iterable[Found]) -> Stream:
        """Let it have these jobs, in whatever order they come."""
        before = self._before
        known = {one.number: one for one in jobs if before is None or one.number < before}
        self._read.extend(known[number] for number in sorted(known, reverse=True))
        return self

    async def first(self) -> Found | None:
        """The newest that was not taken yet."""
        while not self._read and self._pages is not None:
            rows, go_on = await self._pages(self._before)
            self.put(found_in(rows, self.queue, self._matching))
            self._go_on(go_on)
        return self._read[0] if self._read else None

    def take(self) -> Found:
        """That one, and the next becomes the first."""
        return self._read.popleft()

    async def count(self) -> int:
        """How many there are."""
        number = len(self._read)
        while self._pages is not None:
            rows, go_on = await self._pages(self._before)
            number += rows if isinstance(rows, int) else len(found_in(rows, self.queue, self._matching))
            self._go_on(go_on)
        return number

    def _go_on(self, before: int | None) -> None:
        self._before = before
        if before is None:
            self._pages = None


def found_in(rows: Iterable[Sequence[Any]], queue: str, matching: Matching) -> list[Found]:
    """Those of a script's jobs whose contents match, too."""
    return [
        Found(id, queue, number, accepted)
        for id, number, accepted, options, payload, error in rows
        if matching.contents_hold(options, payload, text_of(error))
    ]


def walked(
    office: Office,
    queue: str,
    matching: Matching,
    walk: Walk,
    *,
    before: int | None = None,
    counts: bool = False,
) -> Stream:
    """A stream that reads its queue page by page; with `counts`, it is only asked for its number."""
    choice = matching.choice(counts=counts)

    def pages(at: int | None) -> Awaitable[Any]:
        return office.look(walk.script, queue, (False if at is None else at, walk.size, choice, *walk.more))

    return Stream(queue, matching, before, pages)


async def take(streams: Sequence[Stream], limit: int) -> list[Found]:
    """The newest jobs of all streams, in order; what they have first afterwards is where the next page starts."""
    await together(stream.first() for stream in streams)
    heads = [head for place, stream in enumerate(streams) if (head := await _head(stream, place))]
    heapq.heapify(heads)
    taken: list[Found] = []
    while heads and len(taken) < limit:
        _, place = heads[0]
        taken.append(streams[place].take())
        head = await _head(streams[place], place)
        if head is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, head)
    return taken


async def _head(stream: Stream, place: int) -> tuple[tuple[int, int], int] | None:
    first = await stream.first()
    return None if first is None else (first.age, place)
