"""A process that waits for hints of a PostgreSQL store, and says when it heard one. Argument: the store's URL."""

from __future__ import annotations

import asyncio
import sys
import time

from onejob.stores.postgres import signals
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.engine import Engine

PATIENCE = 30.0


async def main(url: str) -> None:
    signals.__dict__.update(POLL=2 * PATIENCE, POLL_PROVEN=2 * PATIENCE)  # it never looks for itself
    engine = Engine(parse(url))
    mark = engine.signals.mark()
    assert await engine.at_home(engine.signals.prove)
    say("listens")
    while await engine.signals.wait(frozenset({"work:q"}), PATIENCE, mark):
        at = time.monotonic()
        mark = engine.signals.mark()
        say(at)


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


asyncio.run(main(sys.argv[1]))
