"""Runs scripts: on a connection, within a deadline, again where a failure passes by itself.

Every script is written so that to repeat it does no harm; so a call whose reply was lost is made again. Everything below
`run` happens on the loop that all clients of the process live on (`driver.home`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from onejob.core.errors import OnejobError, StoreClosed
from onejob.home import Make
from onejob.stores.valkey import diagnosis
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.driver import Client, NotDirect, Word, connect, home
from onejob.stores.valkey.facts import Facts, forgetful, gather, parse, refusal
from onejob.stores.valkey.failures import (
    NO_SCRIPT,
    READ_ONLY,
    code,
    explained,
    is_lost,
    is_unanswered,
    is_unknown_function,
    passes,
    unreachable,
)
from onejob.stores.valkey.scripts import Library
from onejob.stores.valkey.signals import Signals
from onejob.stores.valkey.tries import Tries

T = TypeVar("T")
Use = Callable[[Client], Awaitable[T]]

logger = logging.getLogger("onejob")
_SLOW: Final = 0.05
"""Seconds after which an answer may have come from a server that was away meanwhile."""
_DOUBTS: Final = 1.0
"""Seconds between doubts of the hints: a server that is merely slow should not be asked all the time."""


class Link:
    """The connections of one store in one process: one for calls, one for heartbeats, one that listens."""

    def __init__(
        self, address: Address, source: Callable[[str], str], library: Library | None = None
    ) -> None:
        """`source` gives the text of a script by its name; `library` has all of them as functions."""
        self.address = address
        self._source = source
        self._library = library
        self._home = home()
        self._scripts: dict[str, tuple[str, str]] = {}
        self._clients: dict[bool, Client] = {}
        """By whether they are for heartbeats, which must get through while the other is busy."""
        self._connecting = asyncio.Lock()
        self._closed = False
        self._ready = False
        self._preparing: asyncio.Task[None] | None = None
        self._reason = ""
        """Why the server could not be connected to at all."""
        self._under_way = 0
        self._direct = threading.Lock()
        """Whoever has it asks from his own thread."""
        self._may_be_direct = True
        self._elsewhere = 0
        """Calls under way from other loops than ours; with a lock, as they begin and end in other threads."""
        self._counting = threading.Lock()
        self._doubted = 0.0
        self.signals = Signals(address, self._home, self._publish)

    async def run(
        self, script: str, keys: Sequence[Word], args: Sequence[bytes], *, beat: bool = False
    ) -> Any:
        """Run a script by its name and return what it returned: bytes, int, list, None. From any event loop.

        In a cluster all keys share a hash tag. With `beat` it goes on the connection for heartbeats.
        """
        client = None if beat or self._home.is_here else self._direct_client()
        if client is not None:
            known, result = await self._run_from_loop(client, script, keys, args)
            if known:
                return result
        return await self.at_home(
            lambda: self._tries(
                lambda client: self._run(client, script, keys, args), beat=beat, script=script
            )
        )

    def run_from_thread(self, script: str, keys: Sequence[Word], args: Sequence[bytes]) -> Any:
        """As `run`, from a thread that has no event loop, and waits: it saves the way to our loop. None: nothing was asked.

        So asks one thread at a time. Others had better gather meanwhile, for one call.
        """
        client = self._direct_client()
        if client is None or not self._direct.acquire(blocking=False):
            return None
        since = time.monotonic()
        try:
            answer = client.ask_from_thread(*self._function(script, keys, args))
        except Exception as error:
            if not self._was_asked(error):
                return None
            return self.wait(self._go_on(script, keys, args, (client, error, since)))
        else:
            self._note_time(since)
            return answer
        finally:
            self._direct.release()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the connections, from a thread that waits for it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._home.loop())
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

    async def run_id(self, key: Word = "") -> str:
        """What names this run of the server that has a key: another means that it was started anew. From any event loop."""
        answer = await self.at_home(
            lambda: self._tries(lambda client: client.ask_owner(key, "INFO", "server"))
        )
        return parse(answer).get("run_id", "")

    async def facts(self) -> list[Facts]:
        """What every primary says of itself, fit or not. From any event loop."""
        return await self.at_home(lambda: self._tries(self._gather, ready=False))

    def refuse_if_closed(self) -> None:
        """Raise if there are no connections any more, and never will be."""
        if self._closed:
            raise self._gone()

    def post(self, make: Callable[[], object]) -> None:
        """Call a function on the loop of the connections, soon. From any thread."""
        self._home.post(make)

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the connections, started if need be."""
        return self._home.loop()

    async def at_home(self, make: Make[T]) -> T:
        """Run a coroutine on the loop of the connections; from within it goes straight. From any event loop."""
        self.refuse_if_closed()
        if self._home.is_here:
            return await make()
        return await self._home.run(make)

    async def close(self) -> None:
        """Let calls under way end, send the last hints, and close every connection. From any event loop."""
        self._closed = True
        if self._home.started:
            await (self._wind_up() if self._home.is_here else self._home.run(self._wind_up))

    def abandon(self) -> None:
        """Nobody has the store any more, and nobody closed it. From any thread."""
        self._closed = True
        if self._home.started:
            self._home.post(lambda: self._home.spawn(self._wind_up()))

    async def _run_from_loop(
        self, client: Client, script: str, keys: Sequence[Word], args: Sequence[bytes]
    ) -> tuple[bool, Any]:
        """Run a script from another loop than ours, without the way there; False first: nothing was asked."""
        since = time.monotonic()
        with self._counting:
            self._elsewhere += 1
        try:
            answer = await client.ask_from_loop(*self._function(script, keys, args))
        except Exception as error:
            if not self._was_asked(error):
                return False, None
            before = client, error, since
            return True, await self._home.run(lambda: self._go_on(script, keys, args, before))
        else:
            self._note_time(since)
            return True, answer
        finally:
            with self._counting:
                self._elsewhere -= 1

    def _direct_client(self) -> Client | None:
        """The client of calls, if who is elsewhere may ask it by himself."""
        if self._closed or not (self._ready and self._may_be_direct) or self._library is None:
            return None
        return self._clients.get(False)

    def _was_asked(self, error: Exception) -> bool:
        if isinstance(error, NotDirect):
            self._may_be_direct = False
            return False
        return not is_unknown_function(error)

    def _note_time(self, since: float) -> None:
        if time.monotonic() - since > _SLOW:
            self._home.post(self._doubt_hints)

    def _function(self, script: str, keys: Sequence[Word], args: Sequence[bytes]) -> tuple[Word, ...]:
        assert self._library is not None
        return "FCALL", self._library.function(script), str(len(keys)), *keys, *args

    async def _run(self, client: Client, script: str, keys: Sequence[Word], args: Sequence[bytes]) -> Any:
        if self._library is not None:
            command = self._function(script, keys, args)
            for loads in (True, False):
                try:
                    return await client.ask(*command)
                except Exception as error:
                    if not is_unknown_function(error):
                        raise
                if not (loads and await self._load(client, self._library)):
                    break
        return await self._run_script(client, script, keys, args)

    async def _load(self, client: Client, library: Library) -> bool:
        """Let every primary have the functions; False if that is refused, and scripts are sent from now on."""
        try:
            await client.tell_everyone("FUNCTION", "LOAD", "REPLACE", library.text)
        except Exception as error:
            if passes(error):
                raise
            self._library = None
            logger.info(
                "functions cannot be loaded into Valkey at %s, so scripts are sent: %s",
                self.address.place,
                error,
            )
            return False
        return True

    async def _run_script(
        self, client: Client, script: str, keys: Sequence[Word], args: Sequence[bytes]
    ) -> Any:
        known = self._scripts.get(script)
        if known is None:
            text = self._source(script)
            known = self._scripts[script] = text, hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - the server's
        text, digest = known
        rest = (str(len(keys)), *keys, *args)
        try:
            return await client.ask("EVALSHA", digest, *rest)
        except Exception as error:
            if code(error) != NO_SCRIPT:
                raise
        return await client.ask("EVAL", text, *rest)  # by which this very node knows it from now on

    async def _publish(self, channel: str, message: str) -> None:
        await self._tries(lambda client: client.ask("PUBLISH", channel, message), ready=False)

    async def _tries(self, use: Use[T], *, beat: bool = False, ready: bool = True, script: str = "") -> T:
        """Use a client, again and again while failures pass by themselves and there is patience."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        client = self._clients.get(beat) if self._ready or not ready else None
        failure: Exception | None = None
        self._under_way += 1
        try:
            if client is not None:
                try:  # the common case, without a clock of ours: glide's own is shorter than patience
                    result = await use(client)
                except Exception as error:
                    failure = error
                else:
                    if loop.time() - since > _SLOW:
                        self._doubt_hints()
                    return result
            tries = Tries(self.address.patience, since, beat=beat, ready=ready, script=script)
            return await self._try_again(use, tries, client, failure)
        finally:
            self._under_way -= 1

    async def _go_on(
        self,
        script: str,
        keys: Sequence[Word],
        args: Sequence[bytes],
        before: tuple[Client, Exception, float],
    ) -> Any:
        """Make a call again whose first try, on that client, failed so; it was begun then."""
        client, failure, since = before
        tries = Tries(self.address.patience, since, beat=False, ready=True, script=script)
        return await self._try_again(
            lambda client: self._run(client, script, keys, args), tries, client, failure
        )

    async def _try_again(
        self, use: Use[T], tries: Tries, client: Client | None, failure: Exception | None
    ) -> T:
        try:
            while True:
                if failure is not None:
                    tries.asks = client is not None
                    await asyncio.sleep(self._pause(tries, client, failure))
                client = None
                try:
                    if tries.ready and not self._ready:
                        await self._prepare()
                    client = self._clients.get(tries.beat) or await self._connect(tries.beat)
                    tries.asks = True
                    result = await use(client)
                except Exception as error:
                    failure = error
                else:
                    if tries.number:
                        self._doubt_hints()
                    return result
        except asyncio.CancelledError:
            if not tries.is_over:
                raise
            tries.task.uncancel()
            raise self._too_late(tries) from None
        finally:
            tries.handle.cancel()

    def _pause(self, tries: Tries, client: Client | None, error: Exception) -> float:
        """How long to wait before another try; raises if there is no sense in one."""
        tries.failed(error)
        if client is not None and self._is_stale(client, error, tries):
            self._drop(client, tries.beat)
        pause = tries.pause()
        if pause is not None and passes(error):
            return pause
        found = explained(error, self.address, unsure=tries.unsure, script=tries.script, reason=self._reason)
        raise found from (None if found is error else error)

    def _doubt_hints(self) -> None:
        """The server may have been away: glide connects again without a word, but what was told meanwhile is lost."""
        now = asyncio.get_running_loop().time()
        if now - self._doubted > _DOUBTS:
            self._doubted = now
            self.signals.doubt()

    def _is_stale(self, client: Client, error: Exception, tries: Tries) -> bool:
        """True if another connection may do better than this one, which glide goes on to use."""
        if code(error) == READ_ONLY:
            return not self.address.cluster  # there may be another primary among the hosts now
        return is_unanswered(error) and (client.answered < tries.since or tries.unanswered > 1)

    def _gone(self) -> StoreClosed:
        return StoreClosed(f"The store at {self.address.place} has been closed.")

    def _too_late(self, tries: Tries) -> Exception:
        unsure = tries.unsure or tries.asks
        if tries.last is not None:
            return explained(tries.last, self.address, unsure=unsure, reason=self._reason)
        return unreachable(self.address, self._reason or "it did not answer", unsure=unsure)

    async def _connect(self, beat: bool) -> Client:
        async with self._connecting:
            if beat not in self._clients:
                self._clients[beat] = await connect(self.address)
            return self._clients[beat]

    def _drop(self, client: Client, beat: bool) -> None:
        if self._clients.get(beat) is client:
            del self._clients[beat]
            self._home.spawn(client.close())  # who still waits for it is told, and asks another

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
        found = await self._gather()
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
        self._ready = True

    async def _gather(self, client: Client | None = None) -> list[Facts]:
        try:
            found = await gather(client or self._clients.get(False) or await self._connect(False))
        except Exception as error:
            if is_lost(error):
                await self._find_reason()
            raise
        self._reason = ""
        return found

    async def _find_reason(self) -> None:
        reason = await diagnosis.reason(self.address)
        if reason is not None and reason.lasts:
            raise OnejobError(
                f"Valkey at {self.address.place} cannot be connected to ({reason.said}): correct the store's URL."
            )
        self._reason = "" if reason is None else reason.said

    async def _wind_up(self) -> None:
        self.signals.stop_listening()
        while self._under_way or self._elsewhere or self._direct.locked():  # noqa: ASYNC110 - each has its own limit
            await asyncio.sleep(0.002)
        await self.signals.close()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            with suppress(Exception):
                await client.close()


async def _nothing(_client: Client) -> None:
    return None
