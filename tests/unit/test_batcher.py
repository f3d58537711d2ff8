"""The batcher: what gathers while a round trip is under way goes into the next, and nobody pays for a neighbour."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from onejob.batcher import Batcher


class Line:
    """A round trip that ends when the test says so, and remembers what it carried."""

    def __init__(self, *, fails: Callable[[list[int]], Exception | None] = lambda items: None) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self._fails = fails

    async def send(self, items: list[int]) -> list[str]:
        self.batches.append(items)
        await self.open.wait()
        if error := self._fails(items):
            raise error
        return [f"reply to {item}" for item in items]


def batcher_on(line: Line, *, limit: int = 1000, may_be_one: bool = True) -> Batcher[int, str]:
    return Batcher(line.send, limit=limit, may_be_one=lambda error: may_be_one)


async def settled() -> None:
    """Let everything that can run without the line being opened run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_idle_batcher_sends_at_once() -> None:
    line = Line()
    future = batcher_on(line).put(1)
    await settled()
    assert line.batches == [[1]]
    line.open.set()
    assert await future == "reply to 1"


async def test_what_comes_in_one_turn_of_the_loop_goes_together() -> None:
    line = Line()
    line.open.set()
    batcher = batcher_on(line)
    replies = await asyncio.gather(*(batcher.put(item) for item in range(100)))
    assert line.batches == [list(range(100))]
    assert replies == [f"reply to {item}" for item in range(100)]


async def test_newcomers_gather_during_a_round_trip_and_go_in_the_next_in_order() -> None:
    line = Line()
    batcher = batcher_on(line)
    first = batcher.put(1)
    await settled()
    later = [batcher.put(item) for item in (2, 3, 4)]
    await settled()
    assert line.batches == [[1]]
    line.open.set()
    assert [await future for future in (first, *later)] == [f"reply to {item}" for item in (1, 2, 3, 4)]
    assert line.batches == [[1], [2, 3, 4]]


async def test_a_batch_is_never_larger_than_the_limit() -> None:
    line = Line()
    line.open.set()
    batcher = batcher_on(line, limit=3)
    await asyncio.gather(*(batcher.put(item) for item in range(8)))
    assert line.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_a_cancelled_caller_takes_nobody_along() -> None:
    line = Line()
    batcher = batcher_on(line)
    futures = [batcher.put(item) for item in (1, 2, 3)]
    await settled()
    futures[1].cancel()
    line.open.set()
    assert await futures[0] == "reply to 1"
    assert await futures[2] == "reply to 3"


async def test_a_caller_cancelled_before_its_turn_is_never_sent() -> None:
    line = Line()
    batcher = batcher_on(line)
    first = batcher.put(1)
    await settled()
    given_up, kept = batcher.put(2), batcher.put(3)
    given_up.cancel()
    line.open.set()
    await asyncio.gather(first, kept)
    assert line.batches == [[1], [3]]


async def test_one_bad_item_fails_alone() -> None:
    line = Line(fails=lambda items: ValueError("two is bad") if 2 in items else None)
    line.open.set()
    batcher = batcher_on(line)
    replies = await asyncio.gather(*(batcher.put(item) for item in (1, 2, 3)), return_exceptions=True)
    assert replies[0] == "reply to 1"
    assert isinstance(replies[1], ValueError)
    assert replies[2] == "reply to 3"
    assert line.batches == [[1, 2, 3], [1], [2], [3]]


async def test_an_error_that_concerns_all_reaches_all_and_is_not_repeated() -> None:
    line = Line(fails=lambda items: OSError("no line"))
    line.open.set()
    batcher = batcher_on(line, may_be_one=False)
    replies = await asyncio.gather(*(batcher.put(item) for item in (1, 2, 3)), return_exceptions=True)
    assert [type(reply) for reply in replies] == [OSError] * 3
    assert line.batches == [[1, 2, 3]]


async def test_a_reply_too_few_is_an_error_and_not_a_hang() -> None:
    async def short(items: list[int]) -> list[str]:
        return ["only one"]

    batcher: Batcher[int, str] = Batcher(short, limit=10, may_be_one=lambda error: False)
    replies = await asyncio.gather(batcher.put(1), batcher.put(2), return_exceptions=True)
    assert [type(reply) for reply in replies] == [ValueError] * 2


async def test_it_works_again_after_an_error() -> None:
    line = Line(fails=lambda items: ValueError("first") if len(line.batches) == 1 else None)
    line.open.set()
    batcher = batcher_on(line)
    with pytest.raises(ValueError, match="first"):
        await batcher.put(1)
    assert await batcher.put(2) == "reply to 2"


async def test_a_threads_future_is_served_like_a_coroutines() -> None:
    line = Line()
    line.open.set()
    batcher = batcher_on(line)
    answered: concurrent.futures.Future[str] = concurrent.futures.Future()
    batcher.put_for(7, answered)
    assert await asyncio.wrap_future(answered) == "reply to 7"


async def test_a_batch_does_not_run_in_its_first_callers_context() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    seen: list[str] = []

    async def send(items: list[int]) -> list[str]:
        seen.append(whose.get())
        return ["" for _ in items]

    whose.set("the caller's")
    await Batcher(send, limit=10, may_be_one=lambda error: False).put(1)
    assert seen == ["nobody's"]


def test_when_the_loop_ends_nobody_is_left_waiting() -> None:
    abandoned: concurrent.futures.Future[str] = concurrent.futures.Future()
    gathered: concurrent.futures.Future[str] = concurrent.futures.Future()

    async def main() -> None:
        batcher = batcher_on(Line())
        batcher.put_for(1, abandoned)
        await settled()
        batcher.put_for(2, gathered)

    asyncio.run(main())
    assert abandoned.cancelled()
    assert gathered.cancelled()


async def test_a_batch_that_takes_long_is_overtaken_and_still_brings_its_replies() -> None:
    line = Line()
    batcher = Batcher(line.send, limit=1000, may_be_one=lambda _: True, slow=0.01)
    first = batcher.put(1)
    await settled()
    second = batcher.put(2)
    while len(line.batches) < 2:  # noqa: ASYNC110 - it is the time that brings it about
        await asyncio.sleep(0.001)
    assert line.batches == [[1], [2]]
    line.open.set()
    assert [await first, await second] == ["reply to 1", "reply to 2"]
    assert await batcher.put(3) == "reply to 3"
