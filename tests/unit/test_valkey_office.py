"""What the office makes of replies that come in another order than their calls were made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onejob.stores.valkey.office import Office

FRESH = 2


@pytest.mark.parametrize("lost", [False, True])
async def test_only_a_queue_that_was_known_when_it_was_asked_has_been_lost(
    lost: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two first calls under way at once, the one that made the queue may be answered last."""
    heard, calls = asyncio.Event(), list[str]()

    async def run(script: str, *_: Any, **__: Any) -> tuple[None, int]:
        calls.append(script)
        if len(calls) != (2 if lost else 1):
            return None, 0
        await heard.wait()
        return None, FRESH

    async def register(_queues: object) -> None: ...

    office = Office(run, "onejob", None, lambda *_: None)  # type: ignore[arg-type]
    monkeypatch.setattr(office, "register", register)
    if lost:
        await office.call("first", "default")
    slow = asyncio.create_task(office.call("slow", "default"))
    await asyncio.sleep(0)
    await office.call("quick", "default")
    heard.set()
    await slow
    assert ("has lost queue 'default'" in caplog.text) == lost
