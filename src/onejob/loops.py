"""Event loops: uvloop's where it is installed, which halves the time that a wake-up takes."""

from __future__ import annotations

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop of the best kind there is."""
    try:
        import uvloop  # late: most programs never need a loop of ours
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
