"""Runs scripts: on a connection, within a deadline, again where a failure passes by itself.

Every script is written so that to repeat it does no harm; so a call whose reply was lost is made again. Its first try is made
where its caller is, on his event loop or in his thread. What comes after a failure, and all that is no call of a user's or
a worker's, happens at home: on the store's own loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

import msgspec

from onejob.core.errors import OnejobError, StoreBusy, StoreClosed, StoreUnavailable
from onejob.first_answer import FirstAnswer
from onejob.home import Home, Make
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.client import Client, ThreadClient
from onejob.stores.valkey.connection import Connection, Hear, Node
from onejob.stores.valkey.conversation import Word, Words
from onejob.stores.valkey.facts import Facts, forgetful, gather, refusal
from onejob.stores.valkey.failures import (
    LineLost,
    ServerError,
    explained,
    is_unknown_script,
    passes,
    unreachable,
)
from onejob.stores.valkey.scripts import Library
from onejob.stores.valkey.signals import Signals
from onejob.stores.valkey.topology import Topology
from onejob.stores.valkey.tries import Tries

T = TypeVar("T")
Use = Callable[[Client], Awaitable[T]]

logger = logging.getLogger("onejob")
_GRACE: Final = 2.0
LOAD_AGAIN: Final = 60.0
"""Seconds for which scripts are sent once functions could not be loaded."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One run of a script. In a cluster all its keys share a hash tag."""

    script: str
    keys: Sequence[Word]
    args: Sequence[bytes]


class ThreadTurn:
    """The connections for threads, and the turn to ask on them. A thread that is interrupted at the wrong moment keeps it for ever."""

    __slots__ = ("client", "lock", "since")

    def __init__(self, client: ThreadClient) -> None:
        self.client = client
        self.lock = threading.Lock()
        self.since = time.monotonic()
        """When it was taken last."""


class Link:
    """The connections of one store in one process: one for each loop that calls, one for threads, one for heartbeats, one that
    listens.
    """

    def __init__(
        self, address: Address, source: Callable[[str], str], library: Library | None = None
    ) -> None:
        """`source` gives the text of a script by its name; `library` has all of them as functions."""
        self.address = address
        self._source = source
        self._library = library
        self._sends_scripts_until: float | None = None
        """When functions could not be loaded: until they are tried again."""
        self._scripts: dict[str, tuple[str, str]] = {}
        self._home = Home("onejob-valkey", self._hang_up)
        self._topology = Topology(address)
        self._calls = Client(address, self._topology, self._connected)
        self._beats = Client(address, self._topology, self._connected)
        """For heartbeats, which must get through while the other is busy."""
        self._elsewhere: dict[asyncio.AbstractEventLoop, Client] = {}
        self._visitors: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Loops that have called before."""
        self._thread_turn = self._new_thread_turn()
        self._first_answer = FirstAnswer(f"Valkey at {address.place}", address.patience)
        self._closed = False
        self._ready = False
        self._known_nodes: set[Node] = set()
        self._judged: set[str] = set()
        """The processes of servers, by their run ids, that are fit."""
        self._looking_again: asyncio.Task[None] | None = None
        self._reached_anew = False
        """Some server was, since one looked last."""
        self._preparing: asyncio.Task[None] | None = None
        self._under_way: deque[None] = deque()
        """As long as there are operations that have not ended, wherever; changed by one step, from any thread."""
        self.signals = Signals(address, self._home, self._publish, self._listen)

    async def run(
        self, script: str, keys: Sequence[Word], args: Sequence[bytes], *, beat: bool = False
    ) -> Any:
        """Run a script by its name and return what it returned: bytes, int, list, None. From any event loop, within an operation.

        With `beat` it goes on the connection for heartbeats.
        """
        call, since, failure = Call(script, keys, args), time.monotonic(), None
        # Whom to ask is found out at home, where patience has its limit.
        owner = self._topology.owner(keys[0]) if self._ready and not beat else None
        client = None if owner is None else self._client_here()
        if owner is not None and client is not None:
            try:
                return await client.ask_at(owner, self._words(call))
            except (ServerError, LineLost) as error:
                failure = error
        return await self._at_home(lambda: self._go_on(call, since, failure, beat=beat))

    def run_from_thread(self, script: str, keys: Sequence[Word], args: Sequence[bytes]) -> Any:
        """As `run`, from a thread that has no event loop, and waits. None: nothing was asked.

        So asks one thread at a time. Others had better gather meanwhile, for one call.
        """
        turn, call, since, taken = self._thread_turn, Call(script, keys, args), time.monotonic(), False
        try:
            taken = turn.lock.acquire(blocking=False)
            if not taken:
                if since - turn.since > self._longest():
                    self._give_up(turn)
                return None
            turn.since = since
            if not self._ready or self._closed:
                return None
            return turn.client.ask(keys[0], self._words(call))
        except (ServerError, LineLost) as error:
            failure = error
        finally:
            if taken:
                turn.lock.release()
        return self.wait(self._go_on(call, since, failure))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine at home, from a thread that waits for it."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._home.loop())
        except RuntimeError:  # that loop has ended
            coroutine.close()
            raise self._gone() from None
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._gone() from None
        except BaseException:
            future.cancel()  # an interrupted caller waits no longer
            raise

    async def open(self) -> None:
        """Connect, and see whether the server is fit; whoever comes first does that. From any event loop."""
        await self.at_home(lambda: self._tries(_nothing))

    async def facts(self) -> list[Facts]:
        """What every primary says of itself, fit or not. From any event loop."""
        return await self.at_home(lambda: self._tries(gather, ready=False))

    def refuse_if_closed(self) -> None:
        """Raise if there are no connections any more, and never will be."""
        if self._closed:
            raise self._gone()

    def begin(self) -> None:
        """An operation begins, which `end` will end: whoever closes lets it. Refused if nothing may begin any more. From any thread."""
        self.refuse_if_closed()
        self._under_way.append(None)

    def end(self) -> None:
        """An operation has ended."""
        self._under_way.pop()

    def post(self, make: Callable[[], object]) -> None:
        """Call a function at home, soon. From any thread."""
        self._home.post(make)

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop at home, started if need be."""
        return self._home.loop()

    async def at_home(self, make: Make[T]) -> T:
        """Run an operation at home; from within it goes straight. From any event loop."""
        self.begin()
        try:
            return await self._at_home(make)
        finally:
            self.end()

    async def close(self) -> None:
        """Let calls under way end, send the last hints, and close every connection. From any event loop."""
        self._closed = True
        if self._home.started:
            with suppress(StoreClosed):  # by somebody else meanwhile, or before
                await self._at_home(self._wind_up)
            self._hang_up_elsewhere()
            await self._home.stopped()

    def abandon(self) -> None:
        """Nobody has the store any more, and nobody closed it. From any thread."""
        self._closed = True
        self._hang_up_elsewhere()
        self._home.stop()

    async def _at_home(self, make: Make[T]) -> T:
        return await (make() if self._home.is_here else self._home.run(make))

    def _client_here(self) -> Client | None:
        """The connections of the running loop; None for one that has not called before, and may never do so again."""
        if self._home.is_here:
            return self._calls
        loop = asyncio.get_running_loop()
        client = self._elsewhere.get(loop)
        if client is None and loop not in self._visitors:
            self._visitors.add(loop)
            return None
        return client or self._client_of(loop)

    def _client_of(self, loop: asyncio.AbstractEventLoop) -> Client:
        """The connections of a loop that calls."""
        client = self._elsewhere.get(loop)
        if client is None:
            for other in list(self._elsewhere):  # other threads do so, too
                if other.is_closed() and (theirs := self._elsewhere.pop(other, None)) is not None:
                    theirs.close()
            client = self._elsewhere[loop] = Client(self.address, self._topology, self._connected)
        return client

    def _words(self, call: Call) -> Words:
        """The command that runs a script."""
        library = self._library_in_use()
        if library is None:
            first: Words = "EVALSHA", self._script(call.script)[1]
        else:
            first = "FCALL", library.function(call.script)
        return *first, str(len(call.keys)), *call.keys, *call.args

    def _library_in_use(self) -> Library | None:
        """The functions, unless scripts are sent instead."""
        until = self._sends_scripts_until
        return self._library if until is None or time.monotonic() >= until else None

    def _script(self, name: str) -> tuple[str, str]:
        """A script's text, and what the server calls it by."""
        known = self._scripts.get(name)
        if known is None:
            text = self._source(name)
            known = self._scripts[name] = text, hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - the server's
        return known

    async def _run(self, client: Client, call: Call) -> Any:
        """Run a script, and let the server have it if it does not know it."""
        try:
            return await client.ask(call.keys[0], self._words(call))
        except ServerError as error:
            if not is_unknown_script(error):
                raise
        library = self._library_in_use()
        if library is not None and await self._load(client, call.keys[0], library):
            return await client.ask(call.keys[0], self._words(call))
        return await client.ask(call.keys[0], ("EVAL", self._script(call.script)[0], *self._words(call)[2:]))

    async def _load(self, client: Client, key: Word, library: Library) -> bool:
        """Let the server that has a key have the functions; False if that is refused, and scripts are sent for a while."""
        try:
            await client.ask(key, ("FUNCTION", "LOAD", "REPLACE", library.text))
        except ServerError as error:
            if passes(error):
                raise
            if self._sends_scripts_until is None:
                logger.info(
                    "functions cannot be loaded into Valkey at %s, so scripts are sent: %s",
                    self.address.place,
                    error,
                    extra={"event": "store.sends_scripts"},
                )
            self._sends_scripts_until = time.monotonic() + LOAD_AGAIN
            return False
        self._sends_scripts_until = None
        return True

    async def _publish(self, channel: str, message: str) -> None:
        await self._at_home(
            lambda: self._tries(lambda client: client.ask_anyone(("PUBLISH", channel, message)), ready=False)
        )

    async def _listen(self, channel: str, hear: Hear, on_loss: Callable[[], None]) -> Connection:
        client = self._calls if self._home.is_here else self._client_of(asyncio.get_running_loop())
        return await client.listen(channel, hear, on_loss)

    async def _go_on(self, call: Call, since: float, failure: Exception | None, *, beat: bool = False) -> Any:
        """Make a call that was begun then, and whose first try elsewhere, if there was one, failed so."""
        if failure is not None and is_unknown_script(failure):
            failure = None  # it will be known in a moment
        tries = Tries(self.address.patience, since, script=call.script)
        client = self._beats if beat else self._calls
        return await self._try(lambda client: self._run(client, call), client, tries, failure)

    async def _tries(self, use: Use[T], *, ready: bool = True) -> T:
        """Use the client for calls; see `_try`."""
        tries = Tries(self.address.patience, time.monotonic())
        return await self._try(use, self._calls, tries, ready=ready)

    async def _try(
        self,
        use: Use[T],
        client: Client,
        tries: Tries,
        failure: Exception | None = None,
        *,
        ready: bool = True,
    ) -> T:
        """Use a client, again and again while failures pass by themselves and there is patience."""
        watch = self._first_answer.watch()
        try:
            while True:
                if failure is not None:
                    await asyncio.sleep(self._pause(tries, failure))
                try:
                    if ready and not self._ready:
                        await self._prepare()
                    tries.asks = True
                    answer = await use(client)
                except Exception as error:
                    failure = error
                else:
                    self._first_answer.came()
                    return answer
        except asyncio.CancelledError:
            if not tries.is_over:
                raise
            tries.task.uncancel()
            raise self._too_late(tries) from None
        finally:
            tries.handle.cancel()
            if watch is not None:
                watch.cancel()

    def _pause(self, tries: Tries, error: Exception) -> float:
        """How long to wait before another try; raises if there is no sense in one."""
        tries.failed(error)
        if isinstance(error, LineLost):
            self.signals.doubt()  # they may go the same way
        pause = tries.pause()
        if pause is not None and passes(error):
            if isinstance(error, LineLost):
                self._first_answer.failed(error)
            return pause
        found = explained(error, self.address, unsure=tries.unsure, script=tries.script)
        # Whoever is told that there is no server has all of the cause in that one line.
        raise found from (None if found is error or isinstance(found, StoreUnavailable) else error)

    def _gone(self) -> StoreClosed:
        return StoreClosed(f"The store at {self.address.place} has been closed.")

    def _too_late(self, tries: Tries) -> Exception:
        unsure = tries.unsure or tries.asks
        if tries.last is not None:
            return explained(tries.last, self.address, unsure=unsure)
        return unreachable(self.address, "it did not answer", unsure=unsure)

    async def _prepare(self) -> None:
        """See whether the server is fit: once for all who wait for it."""
        if self._preparing is None:
            self._preparing = self._home.spawn(self._look())
        preparing = self._preparing
        try:
            await asyncio.shield(preparing)
        finally:
            if preparing.done() and self._preparing is preparing:
                self._preparing = None

    async def _look(self) -> None:
        """See whether those processes of the server are fit that have not been looked at yet."""
        found = [one for one in await gather(self._calls) if one.run_id not in self._judged]
        for one in found:
            if refused := refusal(one, self.address):
                raise refused
        if nodes := forgetful(found):
            logger.warning(
                "Valkey at %s keeps nothing on its disk: with its process, every job is gone. Turn on an append-only file: "
                "CONFIG SET appendonly yes, and the same in its configuration file.",
                ", ".join(node for node in nodes if node) or self.address.place,
                extra={"event": "store.not_durable"},
            )
        self._judged.update(one.run_id for one in found)
        self._ready = True

    def _connected(self, node: Node, anew: bool) -> None:
        """A server was reached that may be another process than before, with other settings. From any loop."""
        known = node in self._known_nodes and not anew
        self._known_nodes.add(node)
        if self._ready and not known:
            self._home.post(self._look_again)

    def _look_again(self) -> None:
        self._reached_anew = True
        if self._looking_again is None and not self._closed:
            self._looking_again = self._home.spawn(self._keep_looking())

    async def _keep_looking(self) -> None:
        try:
            while self._reached_anew:
                self._reached_anew = False
                await self._tries(lambda _client: self._look(), ready=False)
        except StoreBusy:
            self._ready = False  # whoever calls next looks first
        except OnejobError as error:
            self._ready = False  # every call looks now before it asks, and is refused
            logger.error("nothing is asked of the store any more: %s", error, extra={"event": "store.unfit"})
        finally:
            self._looking_again = None

    async def _wind_up(self) -> None:
        self.signals.stop_listening()
        # Each has a limit of its own; but what was on a loop that ended, or in a thread that was interrupted, may never end.
        over = time.monotonic() + self._longest()
        while (self._under_way or self._thread_turn.lock.locked()) and time.monotonic() < over:  # noqa: ASYNC110 - of any loop and thread
            await asyncio.sleep(0.002)
        await self.signals.close()

    def _new_thread_turn(self) -> ThreadTurn:
        return ThreadTurn(ThreadClient(self.address, self._topology))

    def _give_up(self, turn: ThreadTurn) -> None:
        """Nobody asks for so long: whoever has the turn was interrupted before he could give it back."""
        self._thread_turn = self._new_thread_turn()
        turn.client.close()

    def _longest(self) -> float:
        """Seconds after which any call has ended."""
        return self.address.patience + _GRACE

    def _hang_up(self) -> None:
        """At home, when nothing runs there any more."""
        for client in (self._calls, self._beats):
            client.close()

    def _hang_up_elsewhere(self) -> None:
        self._thread_turn.client.close()
        while self._elsewhere:
            loop, client = self._elsewhere.popitem()
            if loop.is_running() and loop is not _running_loop():
                with suppress(RuntimeError):  # it has just been closed
                    loop.call_soon_threadsafe(client.close)
            else:
                client.close()


async def _nothing(_client: Client) -> None:
    return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
