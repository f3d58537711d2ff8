"""The line on which hints come from other processes: it can be hung up at any moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onejob.stores.valkey import listening
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.conversation import Words
from onejob.stores.valkey.listening import Channel, Listener


class Silent:
    """A connection on which nobody says anything."""

    async def ask(self, words: Words) -> bytes:
        return b"PONG"

    def close(self) -> None: ...


@pytest.mark.parametrize("ticks", range(6))
async def test_a_hint_that_arrives_while_it_is_hung_up_holds_nothing_up(ticks: int) -> None:
    async def listen(*_: object) -> Any:
        return Silent()

    async def publish(_channel: str, message: str) -> None:
        loop.call_soon(line._on_message, message.encode())
        close_after(ticks)

    def close_after(ticks: int) -> None:
        if ticks:
            loop.call_soon(close_after, ticks - 1)
        else:
            closing.set_result(loop.create_task(line.close()))

    loop = asyncio.get_running_loop()
    closing: asyncio.Future[asyncio.Task[None]] = loop.create_future()
    channel = Channel(parse("valkey://localhost"), publish, listen, "we")
    line = Listener(channel, lambda _topics: None)
    line.listen()
    await asyncio.wait_for(await closing, 5)


async def test_a_server_that_is_slow_is_not_blamed_for_a_missing_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def listen(*_: object) -> Any:
        return Silent()

    async def publish(_channel: str, _message: str) -> None: ...

    monkeypatch.setattr(listening, "PROOF", 0.05)
    line = Listener(Channel(parse("valkey://localhost"), publish, listen, "we"), lambda _topics: None)
    line.listen()
    async with asyncio.timeout(5):
        while line.proven is None:  # noqa: ASYNC110 - it says so to nobody
            await asyncio.sleep(0.001)
    await line.close()
    [record] = caplog.records
    assert "was not heard within 0.05 seconds" in record.getMessage()
    assert "acl setuser" not in record.getMessage()
