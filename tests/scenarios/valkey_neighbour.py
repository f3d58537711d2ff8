"""A program that uses glide itself, and blocks the loop it does so on: ours must be answered all the same.

Glide reads what all clients of a process are answered on the loop of one of them (valkey-glide issue 7122).
Arguments: a store's URL, and who makes the first client of the process.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import glide

from onejob.stores.valkey.address import parse
from onejob.stores.valkey.link import Link

PATIENCE = 20.0


def main(url: str, first: str) -> None:
    link = Link(parse(url), lambda _: "return 1")
    connected, may_block, blocked, may_go_on = (threading.Event() for _ in range(4))

    async def neighbour() -> None:
        host, port = link.address.hosts[0]
        client = await glide.GlideClient.create(
            glide.GlideClientConfiguration([glide.NodeAddress(host, port)])
        )
        assert await client.ping() == b"PONG"
        connected.set()
        while not may_block.is_set():  # noqa: ASYNC110 - the other loop says when
            await asyncio.sleep(0.001)
        blocked.set()
        may_go_on.wait(PATIENCE)  # work of his own
        assert await client.ping() == b"PONG", "his own client still works"
        await client.close()

    async def ours() -> None:
        async with asyncio.timeout(PATIENCE / 2):
            for _ in range(20):
                assert await link.run("one", ["k"], []) == 1

    if first == "ours":
        asyncio.run(ours())
    thread = threading.Thread(target=lambda: asyncio.run(neighbour()))
    thread.start()
    assert connected.wait(PATIENCE)
    asyncio.run(ours())
    may_block.set()
    assert blocked.wait(PATIENCE)
    asyncio.run(ours())
    may_go_on.set()
    thread.join(PATIENCE)
    asyncio.run(link.close())
    sys.stdout.write("answered\n")


main(*sys.argv[1:])
