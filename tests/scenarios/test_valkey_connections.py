"""Connections to a real Valkey: what is too large for one send or one record of TLS, what somebody says who is no Valkey, and
what is left of a connection whose loop or caller has gone.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from servers.valkey import ValkeyServer
from test_valkey_tls import AUTHORITY, behind, doors, port_of

from onejob.stores.valkey import connection as connection_module
from onejob.stores.valkey.address import Address, parse
from onejob.stores.valkey.connection import Connection, connect, prepare
from onejob.stores.valkey.failures import LineLost, ServerError
from onejob.stores.valkey.thread_connection import ThreadConnection

PATIENCE = 30.0
LARGE = 8_000_000
"""More than a socket takes at once."""


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[Connection]:
    connection = await connect(address, address.hosts[0])
    try:
        async with asyncio.timeout(PATIENCE):
            yield connection
    finally:
        connection.close()


async def test_what_is_too_large_for_one_send_arrives_in_order(valkey_url: str) -> None:
    async with connected(parse(valkey_url)) as connection:
        words = [bytes([number]) * LARGE for number in range(4)]
        answers = await asyncio.gather(*(connection.ask(("ECHO", word)) for word in words))
        assert answers == words


async def test_so_does_what_is_too_large_for_one_record_of_tls(valkey_url: str) -> None:
    async with doors([port_of(valkey_url)]) as [door]:
        address = parse(behind(door, valkey_url, tls_ca=AUTHORITY))
        words = [bytes([number]) * (LARGE // 8) for number in range(4)]
        async with connected(address) as connection:
            assert await asyncio.gather(*(connection.ask(("ECHO", word)) for word in words)) == words
        threaded = await asyncio.to_thread(ThreadConnection, address, address.hosts[0])
        assert await asyncio.to_thread(threaded.ask, ("ECHO", words[3])) == words[3]
        threaded.close()


async def test_whoever_gives_up_on_an_answer_leaves_the_others_theirs(valkey_url: str) -> None:
    async with connected(parse(valkey_url)) as connection:
        answers = [connection.ask(("ECHO", str(number))) for number in range(100)]
        for answer in answers[::3]:
            answer.cancel()
        assert [await answer for number, answer in enumerate(answers) if number % 3] == [
            str(number).encode() for number in range(100) if number % 3
        ]


async def test_an_error_is_the_answer_to_its_own_call(valkey_url: str) -> None:
    async with connected(parse(valkey_url)) as connection:
        first, wrong, last = (
            connection.ask(words) for words in (("ECHO", "a"), ("NONSENSE",), ("ECHO", "b"))
        )
        assert (await first, await last) == (b"a", b"b")
        with pytest.raises(ServerError, match="unknown command"):
            await wrong


@pytest.mark.parametrize(
    ("says", "told"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "no words of Valkey's"), (b"", "hung up without a word")],
    ids=["another server", "one that wants TLS"],
)
async def test_somebody_who_is_no_valkey_is_told_from_one(says: bytes, told: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = parse(f"valkey://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(LineLost, match=told):
        await connect(address, address.hosts[0])
    with pytest.raises(LineLost, match=told):
        await asyncio.to_thread(ThreadConnection, address, address.hosts[0])
    server.close()


def test_whoever_is_put_through_to_himself_has_reached_nobody() -> None:
    """A free port may be given to the very socket that dials it."""
    with socket.socket() as dialling:
        dialling.bind(("127.0.0.1", 0))
        dialling.connect(dialling.getsockname())
        with pytest.raises(ConnectionRefusedError):
            prepare(dialling)


async def test_a_server_that_is_frozen_is_given_up_by_loops_and_threads(own_valkey: ValkeyServer) -> None:
    address = parse(f"{own_valkey.url}?patience=1")
    threaded = await asyncio.to_thread(ThreadConnection, address, address.hosts[0])
    async with connected(address) as connection:
        with own_valkey.frozen():
            for ask in (connection.ask, _awaited(threaded.ask)):
                with pytest.raises(LineLost, match="did not answer"):
                    await ask(("PING",))
        assert (connection.is_open, threaded.is_open) == (False, False)
        with pytest.raises(LineLost):
            await connection.ask(("PING",))


def _awaited(ask: Callable[..., Any]) -> Callable[..., Any]:
    return lambda words: asyncio.to_thread(ask, words)


def test_the_connection_of_a_loop_that_has_ended_can_still_be_closed(own_valkey: ValkeyServer) -> None:
    address = parse(own_valkey.url)
    left: list[Connection] = []

    async def leave() -> None:
        left.append(await connect(address, address.hosts[0]))
        assert await left[0].ask(("PING",)) == b"PONG"

    thread = threading.Thread(target=lambda: asyncio.run(leave()))
    thread.start()
    thread.join()
    assert own_valkey.execute("INFO", "clients")["connected_clients"] == 2
    left[0].close()
    assert own_valkey.execute("INFO", "clients")["connected_clients"] == 1


async def test_what_cannot_be_said_takes_nobodys_answer(valkey_url: str) -> None:
    async with connected(parse(valkey_url)) as connection:
        first = connection.ask(("ECHO", "a"))
        with pytest.raises(UnicodeEncodeError):
            connection.ask(("ECHO", "\ud800"))
        last = connection.ask(("ECHO", "b"))
        assert [await first, await last] == [b"a", b"b"]


async def test_an_address_that_swallows_everything_does_not_hide_the_next(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = parse(f"{valkey_url}&patience=4" if "?" in valkey_url else f"{valkey_url}?patience=4")
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        crowd = [socket.socket() for _ in range(3)]
        for one in crowd:  # until the system drops whoever comes next
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        places = [full.getsockname(), address.hosts[0]]

        async def resolved(_node: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]

        monkeypatch.setattr(connection_module, "_resolved", resolved)
        async with connected(address) as connection:
            assert await connection.ask(("ECHO", "a")) == b"a"
        for one in crowd:
            one.close()


async def test_who_is_no_valkey_has_stored_nothing(valkey_url: str) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as other:
        address = parse(f"valkey://127.0.0.1:{other.sockets[0].getsockname()[1]}")
        with pytest.raises(LineLost) as caught:
            await connect(address, address.hosts[0])
        assert not caught.value.sent
