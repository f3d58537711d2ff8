"""A process that waits for hints of a Valkey store, and says when it heard one. Argument: the store's URL."""

from __future__ import annotations

import asyncio
import sys
import time

from onejob.stores.valkey.address import parse
from onejob.stores.valkey.link import Link


async def main(url: str) -> None:
    link = Link(parse(url), lambda _: "return 1")
    mark = link.signals.mark()
    while not link.signals.arrive:  # noqa: ASYNC110 - it happens on another loop
        await asyncio.sleep(0.001)
    say("listens")
    while await link.signals.wait(frozenset({"work:q", "over"}), 60, mark):
        at = time.monotonic()
        mark = link.signals.mark()
        say(at)


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


asyncio.run(main(sys.argv[1]))
