"""Handlers in threads: whatever becomes of who waits for them, they are awaited to their real end."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from onejob.worker import threads as module
from onejob.worker.threads import Threads

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(4)
    yield threads
    threads.close()


def nothing() -> None: ...


async def test_a_call_returns_what_it_did_in_a_copy_of_the_context(threads: Threads) -> None:
    def look() -> tuple[str, bool]:
        found = WHERE.get()
        WHERE.set("there")
        return found, threading.current_thread() is threading.main_thread()

    WHERE.set("here")
    assert await threads.run(look, nothing) == ("here", False)
    assert WHERE.get() == "here"


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt])
async def test_whatever_it_raises_is_raised(threads: Threads, error: type[BaseException]) -> None:
    def raises() -> None:
        raise error("told")

    with pytest.raises((error, RuntimeError)) as told:
        await threads.run(raises, nothing)
    assert error in (type(told.value), type(told.value.__cause__))


async def test_who_is_cancelled_waits_for_the_return_all_the_same(threads: Threads) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        release.wait(10)
        return "returned"

    waiting = asyncio.ensure_future(threads.run(slow, nothing))
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(3):
        waiting.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
    release.set()
    assert await waiting == "returned"


async def test_calls_that_return_at_once_are_all_heard_of(threads: Threads) -> None:
    for _ in range(200):
        together = threading.Barrier(4)
        numbers = await asyncio.wait_for(
            asyncio.gather(*(threads.run(partial(together.wait, 10), nothing) for _ in range(4))), 10
        )
        assert sorted(numbers) == [0, 1, 2, 3]


def test_a_return_is_noted_though_its_loop_is_gone(threads: Threads) -> None:
    release, noted = threading.Event(), threading.Event()

    async def leave() -> None:
        waiting = asyncio.ensure_future(threads.run(lambda: release.wait(10), noted.set))
        await asyncio.sleep(0)
        assert not waiting.done()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    left = asyncio.all_tasks(loop)
    loop.close()
    release.set()
    assert noted.wait(10)
    assert len(left) == 1
    [task] = left
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_another_loop_may_follow(threads: Threads) -> None:
    assert [asyncio.run(threads.run(partial(int, text), nothing)) for text in "012"] == [0, 1, 2]


def alive() -> list[threading.Thread]:
    """The threads for handlers that there are now."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("onejob-handler")]


async def gone() -> None:
    """Wait until there are none."""
    deadline = time.monotonic() + 10
    while alive():
        assert time.monotonic() < deadline, alive()
        await asyncio.sleep(0.01)


async def test_there_are_as_many_as_calls_at_once_and_never_more_than_asked_for(threads: Threads) -> None:
    await gone()
    for _ in range(20):
        await threads.run(nothing, nothing)
    assert len(alive()) == 1
    release = threading.Event()
    waiting = [asyncio.ensure_future(threads.run(lambda: release.wait(10), nothing)) for _ in range(9)]
    await asyncio.sleep(0)
    assert len(alive()) == 4
    release.set()
    assert await asyncio.gather(*waiting) == [True] * 9


async def test_who_has_nothing_to_do_stays_for_the_next_call(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.001)
    first = await threads.run(threading.get_ident, nothing)
    await asyncio.sleep(0.05)
    assert await threads.run(threading.get_ident, nothing) == first


def test_a_program_ends_though_nobody_closed_them() -> None:
    program = (
        "import asyncio; from onejob.worker.threads import Threads; threads = Threads(2); "
        "print(asyncio.run(threads.run(lambda: 7, lambda: None)))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=True)
    assert told.stdout == b"7\n"


async def test_closed_it_ends_and_takes_no_more_calls(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 600)
    begun, release = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        release.wait(10)
        return "returned"

    waiting = [asyncio.ensure_future(threads.run(call, nothing)) for call in (slow, nothing)]
    await asyncio.to_thread(begun.wait, 10)
    threads.close()
    with pytest.raises(RuntimeError, match="stopped"):
        await threads.run(nothing, nothing)
    release.set()
    assert await asyncio.gather(*waiting) == ["returned", None]
    await gone()


async def test_a_call_that_comes_when_idle_threads_have_left_starts_another(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a worker in a thread of its own that outlives the main one."""
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(threading, "main_thread", threading.Thread)  # one that is not alive
    assert await threads.run(lambda: 1, nothing) == 1
    await asyncio.to_thread(until_none_is_left)
    assert await asyncio.wait_for(threads.run(lambda: 2, nothing), 10) == 2


def until_none_is_left() -> None:
    while any(thread.name.startswith("onejob-handler") for thread in threading.enumerate()):
        time.sleep(0.005)
