"""The loop of a store's own, as threads without an event loop use it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from onejob.core.errors import StoreClosed
from onejob.home import Home


class Interrupted(Exception):
    """What a signal handler raises."""


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home("home", lambda: None)
    yield made
    asyncio.run(made.stopped())


def test_a_thread_gets_what_its_call_returned(home: Home) -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert home.run_from_thread(where) == "home"


def test_a_thread_gets_what_its_call_raised(home: Home) -> None:
    async def fail() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        home.run_from_thread(fail)


def test_an_interrupted_thread_leaves_what_has_begun_to_go_on(home: Home) -> None:
    """As one whose call shares a batch with others' does."""
    interrupted, ended, main = asyncio.Event(), threading.Event(), threading.main_thread().ident
    assert main is not None

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    async def last() -> None:
        signal.pthread_kill(main, signal.SIGUSR1)
        await interrupted.wait()
        ended.set()

    former = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            home.run_from_thread(last)
    finally:
        signal.signal(signal.SIGUSR1, former)
    home.post(interrupted.set)
    assert ended.wait(10)


def test_a_call_that_never_began_because_its_thread_was_interrupted_never_does(home: Home) -> None:
    begun, gone, main = list[str](), threading.Event(), threading.main_thread().ident

    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    async def begin() -> None:
        begun.append("the interrupted one")

    def hold_up() -> None:  # the loop, until the thread that waits has been interrupted
        assert main is not None
        signal.pthread_kill(main, signal.SIGUSR1)
        assert gone.wait(10)

    def call_held_up() -> None:
        home.post(hold_up)
        home.run_from_thread(begin)

    former = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            call_held_up()
    finally:
        signal.signal(signal.SIGUSR1, former)
        gone.set()

    async def look() -> list[str]:
        return list(begun)

    assert home.run_from_thread(look) == []


def test_when_it_ends_those_who_wait_hear_of_it(home: Home) -> None:
    begun, errors = threading.Event(), list[BaseException]()

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            home.run_from_thread(wait_for_ever)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(10)
    home.stop()
    thread.join(10)
    assert [type(error) for error in errors] == [StoreClosed]


def test_after_its_end_nothing_begins(home: Home) -> None:
    async def nothing() -> None: ...

    home.run_from_thread(nothing)
    asyncio.run(home.stopped())
    with pytest.raises(StoreClosed):
        home.run_from_thread(nothing)
