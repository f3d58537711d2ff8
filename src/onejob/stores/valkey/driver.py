"""Clients of valkey-glide: how one is made for an address, the little that we ask of it, and the loop they all live on.

Glide (2.5) reads the replies to all clients of a process on one event loop, that of whoever made the first client. While
that loop is blocked, or not running, nobody hears anything (valkey-glide issue 7122). So all of ours live on one loop of
our own, which ends with the process and does nothing else, and which takes the reading over if a user's loop has it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from onejob.core.errors import InvalidOption, MissingDriver
from onejob.home import Home
from onejob.stores.valkey.address import Address, Tls

Word = str | bytes
Hear = Callable[[bytes], None]

_NAME: Final = "onejob"
"""What `CLIENT LIST` shows of us."""
_ATTEMPT: Final = 0.4
"""The part of the patience that one try may take: who is not answered has time for another, on a new connection."""
_LONGEST_CONNECT: Final = 2.0
_IN_FLIGHT: Final = 50_000
"""Calls under way at most; glide's own limit is that of a cache's client."""
_RECONCILE: Final = 500
"""Milliseconds after which glide sees that a subscription was lost with its connection."""
_homes: dict[int, Home] = {}
"""By process: a forked child leaves its parent's untouched."""


class Answers(Protocol):
    """What we use of a `glide.GlideClient` or a `glide.GlideClusterClient`."""

    def custom_command(self, command_args: list[Word], route: Any = None) -> Coroutine[Any, Any, Any]: ...
    async def close(self) -> None: ...


class Client:
    """One connection, or one to each node of a cluster, on which any number of calls are under way at once."""

    __slots__ = ("_client", "_closed", "_cluster", "_sending", "answered")

    def __init__(self, client: Answers, address: Address) -> None:
        self._client = client
        self._cluster = address.cluster
        self._closed = False
        self._sending = threading.Lock()
        self.answered = 0.0
        """When it last had an answer, as the loop counts time."""

    async def ask(self, *command: Word) -> Any:
        """Send a command where its keys are, or anywhere; what the server answered."""
        answer = await self._client.custom_command([*command])
        self.answered = asyncio.get_running_loop().time()
        return answer

    def ask_from_thread(self, *command: Word) -> Any:
        """As `ask`, from a thread that has no event loop, and waits. `NotDirect` if that cannot be, and nothing was sent."""
        answered = threading.Lock()
        answered.acquire()
        asking = self._begin(command, answered.release)
        try:
            answered.acquire()  # glide has a limit of its own
            return self._end(asking)
        finally:
            asking.close()

    async def ask_from_loop(self, *command: Word) -> Any:
        """As `ask`, on another loop than the clients'. `NotDirect` if that cannot be, and nothing was sent."""
        loop = asyncio.get_running_loop()
        answered = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # that loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, answered)

        asking = self._begin(command, wake)
        try:
            await answered
            return self._end(asking)
        finally:
            asking.close()

    def _begin(self, command: tuple[Word, ...], wake: Callable[[], None]) -> Coroutine[Any, Any, Any]:
        """Send a command from this thread; once the answer is there, glide's thread calls `wake`."""
        reply = _Reply(wake)
        asking = self._client.custom_command([*command])
        try:
            with self._sending:  # while nobody hangs up
                if self._closed:
                    raise NotDirect
                _send(asking, reply)
        except BaseException:
            asking.close()
            raise
        return asking

    def _end(self, asking: Coroutine[Any, Any, Any]) -> Any:
        try:
            asking.send(None)
        except StopIteration as end:
            self.answered = time.monotonic()
            return end.value
        raise RuntimeError("glide waits for more than one reply")

    async def ask_owner(self, key: Word, *command: Word) -> Any:
        """Send a command to the server that a key belongs to."""
        if not self._cluster:
            return await self.ask(*command)
        glide = driver()
        name = key.decode() if isinstance(key, bytes) else key
        return await self._client.custom_command([*command], glide.SlotKeyRoute(glide.SlotType.PRIMARY, name))

    async def ask_everyone(self, *command: Word) -> dict[str, Any]:
        """Send a command to every primary; the answers by their addresses, "" where there is but one."""
        if not self._cluster:
            return {"": await self.ask(*command)}
        answers = await self._client.custom_command([*command], driver().AllPrimaries())
        return {node.decode(): answer for node, answer in answers.items()}

    async def tell_everyone(self, *command: Word) -> None:
        """Send a command to every primary; it counts once all have taken it."""
        await self._client.custom_command([*command], *((driver().AllPrimaries(),) if self._cluster else ()))

    async def close(self) -> None:
        """Hang up; whoever still waits for an answer is told."""
        while not self._sending.acquire(blocking=False):  # noqa: ASYNC110 - a thread has it for an instant
            await asyncio.sleep(0.001)
        self._closed = True
        self._sending.release()
        await self._client.close()


class NotDirect(Exception):
    """A thread cannot ask by itself, and has asked for nothing."""


class _Reply:
    """Where glide puts what somebody elsewhere waits for: as much of a future, and of the loop that makes it, as glide uses."""

    __slots__ = ("_answer", "_error", "_is_done", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self._is_done = False
        self._wake = wake

    def create_future(self) -> _Reply:
        """What a running loop is asked for."""
        return self

    def done(self) -> bool:
        """True once it is there."""
        return self._is_done

    def set_result(self, answer: Any) -> None:
        """What the server said."""
        self._answer, self._is_done = answer, True
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        """What went wrong."""
        self._error, self._is_done = error, True
        self._wake()

    def __await__(self) -> Generator[_Reply, None, Any]:
        yield self
        if self._error is not None:
            raise self._error
        return self._answer


def _send(asking: Coroutine[Any, Any, Any], reply: _Reply) -> None:
    """Let glide send, and come to where it waits for the reply. It takes the future that it waits for from the running loop."""
    events: Any = asyncio
    running = events._get_running_loop()
    events._set_running_loop(reply)
    try:
        waits_for = asking.send(None)
    finally:
        events._set_running_loop(running)
    if waits_for is not reply:
        raise NotDirect


def home() -> Home:
    """This process's loop for clients."""
    return _homes.setdefault(os.getpid(), Home("onejob-valkey", lambda: None))


async def connect(address: Address, *, channel: str = "", hear: Hear | None = None) -> Client:
    """Make a client, at home; it connects with its first command. With `hear` it is told what is said on the channel."""
    glide = driver()
    # To its end, whoever loses patience: half-way nobody would read.
    await asyncio.shield(home().spawn(_read_replies_here()))
    client = await (glide.GlideClusterClient if address.cluster else glide.GlideClient).create(
        _configuration(glide, address, channel, hear)
    )
    return Client(client, address)


@cache
def driver() -> Any:
    """The glide module, imported with the first connection."""
    try:
        import glide
    except ImportError as error:
        raise MissingDriver("Valkey", "valkey-glide", "valkey") from error
    # What it has to say, we say; unless a user has already chosen to hear it.
    glide.Logger.init(glide.LogLevel.OFF)
    return glide


def attempt(address: Address) -> float:
    """Seconds that a call may take on one connection."""
    return max(0.05, address.patience * _ATTEMPT)


def _configuration(glide: Any, address: Address, channel: str, hear: Hear | None) -> Any:
    kind = glide.GlideClusterClientConfiguration if address.cluster else glide.GlideClientConfiguration
    advanced = (
        glide.AdvancedGlideClusterClientConfiguration
        if address.cluster
        else glide.AdvancedGlideClientConfiguration
    )
    return kind(
        [glide.NodeAddress(host, port) for host, port in address.hosts],
        use_tls=address.tls is not None,
        credentials=glide.ServerCredentials(address.password, address.user) if address.password else None,
        request_timeout=round(attempt(address) * 1000),
        client_name=_NAME,
        inflight_requests_limit=_IN_FLIGHT,
        lazy_connect=True,  # else the loop stands still until it has connected, or failed to
        reconnect_strategy=glide.BackoffStrategy(5, 20, 2, 20),
        advanced_config=advanced(
            connection_timeout=round(min(_LONGEST_CONNECT, address.patience / 4) * 1000),
            tls_config=None if address.tls is None else _tls(glide, address.tls),
            pubsub_reconciliation_interval=_RECONCILE,
        ),
        pubsub_subscriptions=None if hear is None else _subscription(kind, channel, hear),
        **({} if address.cluster else {"database_id": address.database}),
    )


def _subscription(kind: Any, channel: str, hear: Hear) -> Any:
    def on_message(message: Any, _context: object) -> None:
        hear(message.message)

    return kind.PubSubSubscriptions({kind.PubSubChannelModes.Exact: {channel}}, on_message, None)


def _tls(glide: Any, tls: Tls) -> Any:
    return glide.TlsAdvancedConfiguration(
        use_insecure_tls=not tls.verifies,
        root_pem_cacerts=_read("tls_ca", tls.ca),
        client_cert_pem=_read("tls_cert", tls.cert),
        client_key_pem=_read("tls_key", tls.key),
    )


def _read(name: str, file: str | None) -> bytes | None:
    if file is None:
        return None
    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise InvalidOption(
            f"{name}={file} cannot be read ({error.strerror}): correct the store's URL."
        ) from error
    if not text:
        raise InvalidOption(f"{name}={file} is an empty file: correct the store's URL.")
    return text


async def _read_replies_here() -> None:
    """Take the reading of replies over from a user's loop, which may be busy with his own work when we need an answer.

    There is no public way to do so; where glide has changed its ways, it is left as it is.
    """
    import glide.glide_client as inside

    here = asyncio.get_running_loop()
    there: asyncio.AbstractEventLoop | None = getattr(inside, "_async_pipe_loop", None)
    reads: Callable[[], None] | None = getattr(inside, "_on_async_pipe_readable", None)
    lock: threading.Lock | None = getattr(inside, "_async_pipe_lock", None)
    pipe: int = getattr(inside, "_async_pipe_read_fd", -1)
    owner: int = getattr(inside, "_async_pipe_init_pid", -1)
    if there is None or there is here or there.is_closed() or reads is None or lock is None:
        return
    if owner != os.getpid():  # that loop is our parent's; glide will see that, too
        return
    let_go = here.create_future()
    there.call_soon_threadsafe(_stop_reading, there, pipe, let_go)
    if there.is_running():  # if not, it will stop before it does anything else
        await let_go
    with lock:
        if inside._async_pipe_loop is there:  # pyright: ignore[reportPrivateUsage] - nobody of ours was faster
            here.add_reader(pipe, reads)
            inside._async_pipe_loop = here  # pyright: ignore[reportPrivateUsage]


def _stop_reading(loop: asyncio.AbstractEventLoop, pipe: int, done: asyncio.Future[None]) -> None:
    loop.remove_reader(pipe)
    done.get_loop().call_soon_threadsafe(_resolve, done)


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
