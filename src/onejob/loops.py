"""Event loops: uvloop's where it is installed, which halves the time that a wake-up takes; and waiting in them that lasts."""

from __future__ import annotations

import asyncio
from typing import Any


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop of the best kind there is."""
    try:
        import uvloop  # late: most programs never need a loop of ours
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def outlast(task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until a task is done, however it ends; returns the cancellation that came meanwhile, if one did."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled
