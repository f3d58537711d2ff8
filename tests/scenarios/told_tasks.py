"""Handlers for a loop, a thread and a process: they say their lane, or wait to be told to stop and then do something else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from onejob import Fail, Snooze, current_job

PATIENCE = 30


async def lane_in_loop(user: int) -> str | None:
    return current_job().lane


def lane_outside(user: int) -> str | None:
    return current_job().lane


async def in_loop(place: str, then: str = "return") -> str:
    Path(place).touch()
    async with asyncio.timeout(PATIENCE):
        reason = await current_job().aborted
    return told(place, then, reason)


def outside(place: str, then: str = "return") -> str:
    """The same for a thread or a process."""
    Path(place).touch()
    assert current_job().aborted.wait(PATIENCE)
    assert current_job().aborted
    return told(place, then, str(current_job().aborted.reason))


def told(place: str, then: str, reason: str) -> str:
    """Leave the time behind (the same clock in every process), and do as asked."""
    Path(f"{place}-told").write_text(f"{reason} {time.monotonic()}")
    match then:
        case "raise":
            raise ConnectionError("I was told to stop")
        case "fail":
            raise Fail("I was told to stop")
        case "snooze":
            raise Snooze(0)
        case "exit":
            raise SystemExit(3)
        case _:
            return "I finished nevertheless"


async def deaf_in_loop(place: str) -> None:
    """One that only a cancellation ends."""
    Path(place).touch()
    try:
        await asyncio.sleep(PATIENCE)
    except asyncio.CancelledError:
        Path(f"{place}-cancelled").write_text(str(time.monotonic()))
        raise


def deaf_outside(place: str) -> None:
    """The same for a process."""
    Path(place).touch()
    try:
        time.sleep(PATIENCE)
    except SystemExit:
        Path(f"{place}-cancelled").write_text(str(time.monotonic()))
        raise
