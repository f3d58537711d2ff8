"""Calls to the queues of a store, and what lies between them: who lives where, and messages from one to another.

Each queue is an actor: two keys under one hash tag, changed by scripts only. The desk, a queue without a name, knows the
others, the workers and the schedules. What a script of one queue has to say to another lies in its outbox until somebody
has delivered it: whoever called, before he is answered; else any worker. Taking a message twice is harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

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


class Delivered(msgspec.Struct):
    """What deliveries have brought."""

    dropped: int = 0
    answers: list[Any] = []


class Office:
    """Calls queues by their names, and delivers what they leave in their outboxes."""

    def __init__(
        self,
        run: Runs,
        namespace: str,
        clock: Callable[[], int] | None,
        tell: Callable[[set[str]], None],
    ) -> None:
        self._run = run
        self._namespace = namespace
        self._clock = clock
        self._tell = tell
        self._registered: set[str] = set()
        self._seen: set[str] = set()
        """Queues that had something in them."""
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

    async def register(self, queues: Iterable[str]) -> None:
        """Let the desk know of queues before anything is in them."""
        new = [queue for queue in queues if queue not in self._registered]
        if new:
            await self._ask("register", DESK, (new, False), None)  # delivers nothing: deliveries register
            self._registered.update(new)

    def remember(self, id: bytes, queue: str) -> None:
        """Where a job is, for who asks by its id alone."""
        places = self._places
        places[id] = queue
        if len(places) > REMEMBERED:
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
        for queue, some in by_queue.items():
            there = await self.look("known", queue, blobs(some))
            for id, known in zip(some, there, strict=True):
                if known:
                    found[id] = queue
                else:
                    self._places.pop(id, None)
                    missing.append(id)
        if missing:
            queues, wanted = await self.queues(), blobs(missing)
            answers = await asyncio.gather(*(self.look("known", queue, wanted) for queue in queues))
            for queue, there in zip(queues, answers, strict=True):
                for id, known in zip(missing, there, strict=True):
                    if known:
                        found[id] = queue
                        self.remember(id, queue)
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
            while messages := await self.look("outbox", source, (AT_ONCE,)):
                by_target: dict[bytes, list[tuple[int, msgspec.Raw]]] = {}
                for target, number, message in messages:
                    by_target.setdefault(target, []).append((number, blob(message)))
                for target, some in by_target.items():
                    name = target.decode()
                    await self.register([name] if name else [])
                    answer, outgoing = await self._ask("deliver", name, (source, some), now)
                    if delivered is not None:
                        delivered.dropped += answer[0]
                        delivered.answers += answer[1]
                    await self._ask("ack", source, (name, some[-1][0]), now)
                    if outgoing and name not in waiting and name != source:
                        waiting.append(name)

    async def _ask(
        self, script: str, queue: str, argument: object, now: int | None, *, beat: bool = False
    ) -> tuple[Any, bool]:
        at = now if now is not None or self._clock is None else self._clock()
        tag = f"{{{self._namespace}:{queue}}}"
        reply = await self._run(
            script,
            [f"{tag}:data", f"{tag}:index"],
            [queue.encode(), b"" if at is None else b"%d" % at, _encode(argument)],
            beat=beat,
        )
        answer, topics, outgoing, _, fresh = reply
        if fresh:
            await self._notice(queue)
        if topics:
            self._tell({topic.decode() for topic in topics})
        return answer, bool(outgoing)

    async def _notice(self, queue: str) -> None:
        """A queue has just come into being; if it had been there before, the server has lost it."""
        if queue in self._seen:
            self._seen.discard(queue)
            self._registered.clear()
            self._places.clear()
            logger.error(
                "the server has lost %s, and whatever was in it: it was wiped, or was restarted without what it had "
                "acknowledged. See docs/GUARANTEES.md, and `onejob doctor` for how it keeps its data.",
                f"queue {queue!r}" if queue else "its list of queues, workers and schedules",
            )
        if queue:
            await self.register([queue])
