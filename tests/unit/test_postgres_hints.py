"""How long hints to other processes gather on PostgreSQL: those of work hardly, unless there are many, and those of ends for longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest

from onejob.home import Home
from onejob.stores.postgres import signals
from onejob.stores.postgres.address import parse
from onejob.stores.postgres.signals import Line


class Wire:
    """A line whose hints are written down instead of sent, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[tuple[int, str]] = []
        """Milliseconds, and the topics."""
        self.meanwhile: dict[int, str] = {}
        """What is told, in which millisecond."""
        self.line = Line(parse("postgresql://host/name"), cast("Home", self), _unused, _ignore)

    def spawn(self, sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(sending)

    async def notify(self, parameters: tuple[str, str]) -> None:
        topics = parameters[1].split("\n")[1:]
        self.sent.append((round(1000 * (self.now - 100)), " ".join(topics)))

    async def pause(self, seconds: float) -> None:
        for _ in range(round(1000 * seconds)):
            self.now += 0.001
            for topic in self.meanwhile.pop(round(1000 * (self.now - 100)), "").split():
                self.line.send({topic})


async def _unused(_make: Callable[[Any], Any]) -> Awaitable[Any]:
    raise AssertionError


def _ignore(_topics: set[str]) -> None: ...


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(wire.line, "_notify", wire.notify)
    monkeypatch.setattr(signals.asyncio, "sleep", wire.pause)
    monkeypatch.setattr(signals, "clock", lambda: wire.now)
    return wire


async def send(wire: Wire, first: str, *, then: dict[int, str]) -> list[tuple[int, str]]:
    """Tell something at once, and more in the milliseconds given; when what was sent."""
    wire.meanwhile = dict(then)
    wire.line.send({first})
    while wire.line._sending is not None:  # pyright: ignore[reportPrivateUsage]
        await wire.line._sending  # pyright: ignore[reportPrivateUsage]
    assert not wire.meanwhile
    return wire.sent


async def test_work_that_comes_now_and_then_is_told_within_a_millisecond(wire: Wire) -> None:
    sent = await send(wire, "work:a", then={1: "work:b", 2: "work:c", 3: "work:d"})

    assert sent == [(0, "work:a"), (1, "work:b"), (2, "work:c"), (3, "work:d")]


async def test_where_more_work_comes_than_that_it_is_told_together(wire: Wire) -> None:
    sent = await send(wire, "work:a", then={1: "work:b work:c", 2: "work:d", 4: "work:e", 7: "work:f"})

    assert sent == [(0, "work:a"), (1, "work:b work:c"), (6, "work:d work:e"), (7, "work:f")]


async def test_ends_gather_until_there_is_work_to_tell(wire: Wire) -> None:
    sent = await send(wire, "work:a", then={1: "done:a", 9: "work:b"})

    assert sent == [(0, "work:a"), (11, "done:a work:b")]


async def test_ends_alone_are_told_in_the_end(wire: Wire) -> None:
    sent = await send(wire, "work:a", then={1: "done:a"})

    assert sent == [(0, "work:a"), (21, "done:a")]
