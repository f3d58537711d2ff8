"""Steps that are not left half done: whoever is cancelled in the middle of one waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def _always() -> bool:
    return True


async def uncut(step: Coroutine[Any, Any, T], *, begun: Callable[[], bool] = _always) -> T:
    """Take a step; once it has `begun`, a cancellation is heard only behind it.

    Who waits for that says for how long: a worker that stops does not wait for ever.
    """
    running = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not begun():
            running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # nobody will ask for it any more
        raise
