"""Calls to the queues of a store, and what lies between them: who lives where, and messages from one to another.

Each queue is an actor: two keys under one hash tag, changed by scripts only. The desk, a queue without a name, knows the
others, the workers and the schedules. What a script of one queue has to say to another lies in its outbox until somebody
has delivered it: whoever called, before he is answered; else any worker. Taking a message twice is harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from onejob.stores.valkey.bounds import MOST_BYTES, PORTION
from onejob.stores.valkey.wire import blob, blobs

DESK: Final = ""
"""The queue without a name."""
AT_ONCE: Final = 100
"""Messages that are delivered by one call."""
REMEMBERED: Final = 10_000
"""Jobs whose queue is remembered: more than a worker runs at once; of others, all queues are asked."""

logger = logging.getLogger("onejob")
_encode = msgspec.msgpack.Encoder().encode


class Runs(Protocol):
    """What runs a script on the server: `Link.run`."""

    def __call__(
        self, script: str, keys: list[str], args: list[bytes], *, beat: bool = False
    ) -> Awaitable[Any]:
        """Run a script by its name; see `scripts`."""
        ...


T = TypeVar("T")
Tell = Callable[[set[str], bool], None]
"""Passes hints on, and knows whether other processes have been told of work already."""


class ThreadLine(NamedTuple):
    """How a thread that waits runs a script (None: nothing was asked), has a coroutine run at home, and passes hints on."""

    run: Callable[[str, list[str], list[bytes]], Any]
    wait: Callable[[Coroutine[Any, Any, None]], None]
    tell: Tell


def portions(whole: Sequence[T], size: Callable[[T], int] | None = None) -> Iterator[Sequence[T]]:
    """Some at a time, in order; `size` says how many bytes one brings."""
    first = brought = 0
    for place, one in enumerate(whole):
        if place - first == PORTION or brought > MOST_BYTES:
            yield whole[first:place]
            first, brought = place, 0
        if size is not None:
            brought += size(one)
    if first < len(whole):
        yield whole[first:]


class Delivered(msgspec.Struct):
    """What deliveries have brought."""

    dropped: int = 0
    answers: list[Any] = []


_OUTGOING, _FRESH, _TOLD, _WORK, _DONE, _SCHEDULES = 1, 2, 4, 8, 16, 32
_HINTS = _WORK | _DONE | _SCHEDULES


class Reply(NamedTuple):
    """What every script replies: its answer, and in bits what there is to be done; see `reply` in `records.lua`."""

    answer: Any
    says: int


class Office:
    """Calls queues by their names, and delivers what they leave in their outboxes."""

    def __init__(
        self,
        run: Runs,
        namespace: str,
        clock: Callable[[], int] | None,
        tell: Tell,
        line: tuple[bytes, ...] = (),
    ) -> None:
        """`tell` passes hints on, and knows whether other processes have been told of work already: scripts tell them by `line`,
        a channel and who says it."""
        self._run = run
        self._line = line
        self._namespace = namespace
        self._clock = clock
        self._tell = tell
        self._registered: set[str] = set()
        self._seen: set[str] = set()
        """Queues that had something in them."""
        self._born: dict[str, bytes | None] = {}
        """When queues came into being, of those that this process has been told."""
        self._places: OrderedDict[bytes, str] = OrderedDict()

    async def call(
        self,
        script: str,
        queue: str,
        argument: object = (),
        *,
        now: int | None = None,
        beat: bool = False,
        delivered: Delivered | None = None,
    ) -> Any:
        """Run a script in a queue and return what it says, once its messages are delivered."""
        answer, outgoing = await self._ask(script, queue, argument, now, beat=beat)
        self._seen.add(queue)
        if outgoing:
            await self.deliver(queue, now=now, delivered=delivered)
        return answer

    def call_from_thread(self, line: ThreadLine, script: str, queue: str, argument: bytes) -> Any:
        """As `call` in a queue that is known to the desk, from a thread that waits; None: nothing was asked."""
        if queue not in self._registered:
            return None
        known = queue in self._seen
        found = line.run(script, *self._words(queue, argument, None))
        if found is None:
            return None
        reply = Reply(*found)
        self._pass_on(queue, reply, line.tell)
        if reply.says & (_OUTGOING | _FRESH):
            line.wait(self._attend(queue, reply, known=known))
        return reply.answer

    async def _attend(self, queue: str, reply: Reply, *, known: bool) -> None:
        """See to what a reply to a thread brought beside its answer; at home."""
        if reply.says & _FRESH:
            await self._notice(queue, known=known)
        self._seen.add(queue)
        if reply.says & _OUTGOING:
            await self.deliver(queue)

    def _pass_on(self, queue: str, reply: Reply, tell: Tell) -> None:
        """Pass on the hints of a reply."""
        says = reply.says
        if says & _HINTS:
            topics = {f"work:{queue}"} if says & _WORK else set[str]()
            if says & _DONE:
                topics.add(f"done:{queue}")
            if says & _SCHEDULES:
                topics.add("schedules")
            tell(topics, says & _TOLD > 0)

    async def look(
        self,
        script: str,
        queue: str,
        argument: object = (),
        *,
        now: int | None = None,
        delivers: bool = False,
    ) -> Any:
        """Run a script that only reads. A keeper `delivers` what has lain in the outbox since somebody died."""
        answer, outgoing = await self._ask(script, queue, argument, now)
        if outgoing and delivers:
            await self.deliver(queue, now=now)
        return answer

    async def queues(self) -> list[str]:
        """The names of all queues, in order."""
        names, _ = await self.look("registered", DESK)
        return [name.decode() for name in names]

    def knows(self, queues: AbstractSet[str]) -> bool:
        """True if the desk knows of them all."""
        return queues <= self._registered

    async def register(self, queues: Iterable[str]) -> None:
        """Let the desk know of queues before anything is in them."""
        new = [queue for queue in queues if queue not in self._registered]
        if new:
            answer, _ = await self._ask(
                "register", DESK, (new, False), None
            )  # no delivery: deliveries register
            await self.compare_birth(DESK, answer[1])
            self._registered.update(new)

    async def compare_birth(self, queue: str, born: bytes | None) -> None:
        """Notice that a queue was lost and has come into being again by what somebody else did."""
        if self._born.setdefault(queue, born) != born:
            await self._notice(queue)
            self._born[queue] = born

    def remember(self, ids: Iterable[bytes], queue: str) -> None:
        """Where jobs are, for who asks by their ids alone. From any thread."""
        places = self._places
        for id in ids:
            places[id] = queue
        while len(places) > REMEMBERED:
            places.popitem(last=False)

    def remembered(self, id: bytes) -> str | None:
        """Where a job was last seen."""
        return self._places.get(id)

    async def find(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        """The queues of jobs; those that are nowhere are left out. Remembered, or else every queue is asked."""
        found: dict[bytes, str] = {}
        missing: list[bytes] = []
        by_queue: dict[str, list[bytes]] = {}
        for id in dict.fromkeys(ids):
            queue = self._places.get(id)
            if queue is None:
                missing.append(id)
            else:
                by_queue.setdefault(queue, []).append(id)
        for queue, all_of_them in by_queue.items():
            for some in portions(all_of_them):
                there = await self.look("known", queue, blobs(some))
                for id, known in zip(some, there, strict=True):
                    if known:
                        found[id] = queue
                    else:
                        self._places.pop(id, None)
                        missing.append(id)
        queues = await self.queues() if missing else []
        for some in portions(missing):
            answers = await asyncio.gather(*(self.look("known", queue, blobs(some)) for queue in queues))
            for queue, there in zip(queues, answers, strict=True):
                for id, known in zip(some, there, strict=True):
                    if known:
                        found[id] = queue
                        self.remember([id], queue)
        return found

    async def find_one(self, id: bytes) -> str | None:
        """The queue of one job."""
        return (await self.find([id])).get(id)

    async def deliver(
        self, queue: str, *, now: int | None = None, delivered: Delivered | None = None
    ) -> None:
        """Deliver the messages of a queue, and those that they cause, until nothing is left."""
        waiting = [queue]
        while waiting:
            source = waiting.pop()
            lost: dict[
                str, int
            ] = {}  # up to what number a queue has taken messages that this one no longer knows of
            while messages := await self.look("outbox", source, (AT_ONCE,)):
                by_target: dict[bytes, list[tuple[int, msgspec.Raw]]] = {}
                for target, number, message in messages:
                    by_target.setdefault(target, []).append((number, blob(message)))
                for target, some in by_target.items():
                    name = target.decode()
                    await self.register([name] if name else [])
                    words = source, some, lost.pop(name, False)
                    (dropped, answers, taken), outgoing = await self._ask("deliver", name, words, now)
                    if delivered is not None:
                        delivered.dropped += dropped
                        delivered.answers += answers
                    fell_back, _ = await self._ask("ack", source, (name, taken), now)
                    if fell_back:
                        lost[name] = taken
                        self._say_it_fell_back(source)
                    if outgoing and name not in waiting and name != source:
                        waiting.append(name)

    async def _ask(
        self, script: str, queue: str, argument: object, now: int | None, *, beat: bool = False
    ) -> tuple[Any, bool]:
        known = queue in self._seen
        reply = Reply(*await self._run(script, *self._words(queue, argument, now), beat=beat))
        if reply.says & _FRESH:
            await self._notice(queue, known=known)
        self._pass_on(queue, reply, self._tell)
        return reply.answer, reply.says & _OUTGOING > 0

    def _words(self, queue: str, argument: object, now: int | None) -> tuple[list[str], list[bytes]]:
        """The keys and the arguments of a call."""
        at = now if now is not None or self._clock is None else self._clock()
        tag = f"{{{self._namespace}:{queue}}}"
        return [f"{tag}:data", f"{tag}:index"], [
            queue.encode(),
            b"" if at is None else b"%d" % at,
            argument if isinstance(argument, bytes) else _encode(argument),
            *self._line,
        ]

    def _say_it_fell_back(self, queue: str) -> None:
        logger.error(
            "%s has fallen back behind what it had handed over to others: another server took over that did not have "
            "all of it, or it was restarted without. See docs/GUARANTEES.md.",
            f"queue {queue!r}" if queue else "the list of queues, workers and schedules",
            extra={"event": "store.fell_back"},
        )

    async def _notice(self, queue: str, *, known: bool = True) -> None:
        """A queue has come into being; if it was `known` before it was asked, the server has lost it. Of two first calls under way at
        once, the one that made it may be answered last.
        """
        self._born.pop(queue, None)
        if known and queue in self._seen:
            self._seen.discard(queue)
            self._registered.clear()
            self._places.clear()
            logger.error(
                "the server has lost %s, and whatever was in it: it was wiped, or was restarted without what it had "
                "acknowledged. See docs/GUARANTEES.md, and `onejob doctor` for how it keeps its data.",
                f"queue {queue!r}" if queue else "its list of queues, workers and schedules",
                extra={"event": "store.wiped"},
            )
        if queue:
            await self.register([queue])
