"""Calls to whichever server has their key: the connections of one event loop, or of threads, and the way between servers.

A call is sent once, and on to where a server sends it; whether it is made again is for `link` to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from onejob.core.errors import OnejobError
from onejob.stores.valkey.address import Address
from onejob.stores.valkey.connection import Connection, Hear, Node, connect
from onejob.stores.valkey.conversation import Word, Words
from onejob.stores.valkey.failures import ASK, MOVED, READ_ONLY, LineLost, ServerError, misdirected
from onejob.stores.valkey.thread_connection import ThreadConnection
from onejob.stores.valkey.topology import Topology

T = TypeVar("T")
_REDIRECTIONS: Final = 5


class Client:
    """One connection to each server that is asked. Lives on one loop, and connects with its first call."""

    def __init__(
        self, address: Address, topology: Topology, on_connect: Callable[[Node, bool], None]
    ) -> None:
        """`on_connect` is told of each new connection, and whether it is in the place of one that was lost."""
        self._address = address
        self._topology = topology
        self._on_connect = on_connect
        self._connections: dict[Node, Connection] = {}
        self._under_way: dict[Node | None, asyncio.Task[Any]] = {}
        """Connecting to a server; under None, looking who there is."""
        self._closed = False

    async def ask(self, key: Word, words: Words) -> Any:
        """Send a command to the server that has a key. Raises a `ServerError`, a `LineLost`, or an `OnejobError` that no other
        try will change.
        """
        return await self.ask_at(self._topology.owner(key) or await self._find(key), words)

    async def ask_at(self, node: Node, words: Words) -> Any:
        """The same of a server that is known to have the key."""
        redirected: ServerError | None = None
        for _ in range(_REDIRECTIONS):
            connection = self._connections.get(node)
            if connection is None or not connection.is_open:
                connection = await self._connected(node)
            try:
                return await connection.ask(words)
            except ServerError as error:
                redirected = error
            except LineLost:
                self._topology.forget()
                raise
            if redirected.code == READ_ONLY:  # it led when it was greeted, and follows another now
                connection.close()
                self._topology.forget()
            if redirected.code not in (MOVED, ASK):
                break
            node = self._topology.moved(node, redirected)
            if redirected.code == ASK:
                return await self._ask_during_move(node, words)
        assert redirected is not None
        raise redirected

    async def ask_anyone(self, words: Words) -> Any:
        """Send a command that any server can answer for all."""
        for node, connection in self._connections.items():
            if connection.is_open:
                return await self.ask_at(node, words)
        return await self.ask("", words)

    async def ask_everyone(self, words: Words) -> dict[str, Any]:
        """Send a command to every primary that is there; the answers by their addresses, "" where there is but one."""
        if not self._address.cluster:
            return {"": await self.ask("", words)}
        await self._look()
        nodes = self._topology.primaries()
        answers = await asyncio.gather(*(self.ask_at(node, words) for node in nodes), return_exceptions=True)
        found: dict[str, Any] = {}
        for (host, port), answer in zip(nodes, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[f"{host}:{port}"] = answer
            elif not isinstance(answer, LineLost):
                raise answer
        if not found:
            raise LineLost("no node of the cluster answers")
        return found

    async def listen(self, channel: str, hear: Hear, on_loss: Callable[[], None]) -> Connection:
        """A connection of its own, to any server, that hears what is said on a channel."""
        node = self._topology.owner(channel) or await self._find(channel)
        connection = await self._heard(connect(self._address, node))
        try:
            await connection.listen(channel, hear, on_loss)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Hang up; whoever still waits for an answer is told. On its loop, or once that runs no more."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _ask_during_move(self, node: Node, words: Words) -> Any:
        """Ask the node to which a slot is on its way."""
        connection = await self._connected(node)
        allowed, answer = connection.ask(("ASKING",)), connection.ask(words)
        try:
            await asyncio.wait((allowed, answer))
        except asyncio.CancelledError:
            allowed.cancel()
            answer.cancel()
            raise
        allowed.exception()  # if it is refused, so is the call
        return await self._heard(answer)

    async def _heard(self, answer: Awaitable[T]) -> T:
        """Wait for somebody's answer; if he is gone, whoever asks next looks who there is."""
        try:
            return await answer
        except LineLost:
            self._topology.forget()
            raise

    async def _find(self, key: Word) -> Node:
        await self._look()
        node = self._topology.owner(key)
        if node is None:
            raise ServerError("CLUSTERDOWN no node has the slot")
        return node

    async def _look(self) -> None:
        await self._once(None, self._look_around)

    async def _look_around(self) -> None:
        """Ask one after the other who leads, or who has which slots."""
        failure: Exception | None = None
        for node in self._topology.candidates():
            try:
                connection = await self._connected(node)
                if self._address.cluster:
                    return await self._learn(node, connection)
                if connection.host.leads:
                    return self._topology.leads(node)
                connection.close()
                raise ServerError(f"{READ_ONLY} it follows another")
            except (LineLost, ServerError, OnejobError) as error:
                failure = failure or error
        assert failure is not None
        raise failure

    async def _learn(self, node: Node, connection: Connection) -> None:
        if not connection.host.in_cluster:
            scheme = "valkey://" if self._address.tls is None else "valkeys://"
            raise misdirected(self._address, f"it is a single server and no cluster: write {scheme}")
        self._topology.learn(node, await connection.ask(("CLUSTER", "SLOTS")))

    async def _connected(self, node: Node) -> Connection:
        connection = self._connections.get(node)
        if connection is not None and connection.is_open:
            return connection
        return await self._once(node, lambda: self._connect(node))

    async def _connect(self, node: Node) -> Connection:
        connection = await self._heard(connect(self._address, node))
        if self._closed:
            connection.close()
        self._on_connect(node, node in self._connections)
        self._connections[node] = connection
        return connection

    async def _once(self, what: Node | None, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something once for all who wait for it; whoever gives up leaves it to the others."""
        task = self._under_way.get(what)
        if task is None:
            task = self._under_way[what] = asyncio.get_running_loop().create_task(make())
            task.add_done_callback(lambda task: self._ended(what, task))
        return await asyncio.shield(task)

    def _ended(self, what: Node | None, task: asyncio.Task[Any]) -> None:
        del self._under_way[what]
        if not task.cancelled():
            task.exception()  # whoever waits for it has it as well; if nobody does, it is no news


class ThreadClient:
    """The same for threads, of which one asks at a time."""

    def __init__(self, address: Address, topology: Topology) -> None:
        self._address = address
        self._topology = topology
        self._connections: dict[Node, ThreadConnection] = {}

    def ask(self, key: Word, words: Words) -> Any:
        """Send a command to the server that has a key, and wait. Raises as `Client.ask` does; it does not go where it is sent on."""
        node = self._topology.owner(key)
        if node is None:
            raise LineLost("it is not known whom to ask")
        try:
            connection = self._connections.get(node)
            if connection is None or not connection.is_open:
                connection = self._connections[node] = ThreadConnection(self._address, node)
            return connection.ask(words)
        except LineLost:
            self._topology.forget()
            raise

    def close(self) -> None:
        """Hang up, once nobody asks."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
