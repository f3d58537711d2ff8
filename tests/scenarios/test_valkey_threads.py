"""Threads and loops ask the server from where they are, without the way through our loop; where that cannot be, or fails,
they are answered all the same, and nobody is left waiting.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import FrameType
from typing import Any

import pytest
from servers.valkey import ValkeyServer

from onejob import App
from onejob.core.errors import StoreClosed
from onejob.core.job import NewJob
from onejob.ids import new_ids
from onejob.stores.valkey.client import Client, ThreadClient

THREADS = 12
ROUNDS = 20


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    with App(valkey_url) as app:
        yield app


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the server was asked from, in order: a thread, or which thread's loop."""
    taken: list[str] = []

    def note(kind: type[Client] | type[ThreadClient], asks_by: str, name: Callable[[], str]) -> None:
        asks = getattr(kind, asks_by)

        def noted(self: Client | ThreadClient, whom: Any, words: Sequence[Any]) -> Any:
            if words[0] != "PUBLISH":
                taken.append(name())
            return asks(self, whom, words)

        monkeypatch.setattr(kind, asks_by, noted)

    note(Client, "ask_at", lambda: threading.current_thread().name)
    note(ThreadClient, "ask", lambda: "a thread")
    return taken


def greet_of(app: App) -> Any:
    @app.task
    def greet() -> None: ...

    return greet


def test_a_thread_asks_by_itself(app: App, ways: list[str]) -> None:
    greet = greet_of(app)
    first = greet.enqueue()
    ways.clear()
    second = greet.enqueue()
    assert ways == ["a thread"]
    assert {job.id for job in app.jobs().jobs} == {first.id, second.id}


async def test_another_loop_asks_by_itself(valkey_url: str, ways: list[str]) -> None:
    async with App(valkey_url) as app:
        greet = greet_of(app)
        for _ in range(2):
            await greet.aenqueue()
        ways.clear()
        await greet.aenqueue()
        assert ways == ["MainThread"]


async def test_a_loop_that_comes_once_connects_to_nobody(own_valkey: ValkeyServer) -> None:
    def connections() -> int:
        return own_valkey.execute("INFO", "clients")["connected_clients"]

    def enqueue_on_a_loop_of_its_own() -> None:
        asyncio.run(greet.aenqueue())

    async with App(own_valkey.url) as app:
        greet = greet_of(app)
        await asyncio.to_thread(enqueue_on_a_loop_of_its_own)
        before = connections()
        for _ in range(5):
            await asyncio.to_thread(enqueue_on_a_loop_of_its_own)
        assert connections() == before


def test_the_connection_of_a_loop_that_has_ended_is_closed_when_another_comes(
    own_valkey: ValkeyServer,
) -> None:
    async def enqueue_twice() -> None:
        for _ in range(2):
            await greet.aenqueue()

    with App(own_valkey.url) as app:
        greet = greet_of(app)
        counts: list[int] = []
        for _ in range(6):
            asyncio.run(enqueue_twice())
            counts.append(own_valkey.execute("INFO", "clients")["connected_clients"])
        assert counts[2:] == [counts[2]] * 4
    assert own_valkey.execute("INFO", "clients")["connected_clients"] == 1


def test_each_of_many_threads_is_answered_and_stored_once(app: App) -> None:
    greet = greet_of(app)
    with ThreadPoolExecutor(THREADS) as pool:
        receipts = [pool.submit(greet.enqueue) for _ in range(THREADS * ROUNDS)]
    ids = {receipt.result().id for receipt in receipts}
    assert len(ids) == THREADS * ROUNDS
    assert app.count() == THREADS * ROUNDS


def test_functions_that_were_lost_are_loaded_again(own_valkey: ValkeyServer) -> None:
    with App(own_valkey.url) as app:
        greet = greet_of(app)
        greet.enqueue()
        own_valkey.execute("FUNCTION FLUSH")
        greet.enqueue()
        greet.enqueue()
        assert app.count() == 3


def test_a_thread_outlasts_a_server_that_is_away(own_valkey: ValkeyServer) -> None:
    with App(own_valkey.url) as app, ThreadPoolExecutor(1) as pool:
        greet = greet_of(app)
        greet.enqueue()
        own_valkey.stop()
        later = pool.submit(greet.enqueue)
        own_valkey.start()
        assert later.result(timeout=30).outcome == "created"
        assert app.count() == 2


def test_nobody_is_left_waiting_when_the_app_is_closed(valkey_url: str) -> None:
    def ask(greet: Any, going: threading.Barrier) -> None:
        greet.enqueue()
        going.wait()
        while True:
            greet.enqueue()

    for _ in range(ROUNDS):
        app, going = App(valkey_url), threading.Barrier(THREADS + 1)
        greet = greet_of(app)
        with ThreadPoolExecutor(THREADS) as pool:
            asked = [pool.submit(ask, greet, going) for _ in range(THREADS)]
            going.wait()
            app.close()
            assert {type(future.exception(timeout=30)) for future in asked} == {StoreClosed}


def test_a_signal_handler_may_ask_while_its_thread_does(app: App) -> None:
    jobs = iter([NewJob(id, "default", "greet", b"{}") for id in new_ids(5_000)])  # making an id takes a lock
    ask, handled, failures = app.client._ask_from_thread, count(), list[Exception]()

    def ask_too(_: int, __: FrameType | None) -> None:
        try:
            ask(next(jobs), None)
            next(handled)
        except Exception as error:
            failures.append(error)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.002))

    before = signal.signal(signal.SIGALRM, ask_too)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        for _ in range(600):
            ask(next(jobs), None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert failures == []
    assert app.count() == 600 + next(handled)


def test_loops_that_come_and_go_in_many_threads_are_in_nobodys_way(app: App) -> None:
    greet, errors = greet_of(app), list[BaseException]()

    async def twice() -> None:
        await greet.aenqueue()
        await greet.aenqueue()  # on connections of the loop's own

    def come_and_go() -> None:
        try:
            for _ in range(40):
                asyncio.run(twice())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert app.count() == 6 * 40 * 2


async def closed_soon(app: App) -> None:
    await asyncio.sleep(0)
    await app.aclose()


async def test_a_call_of_many_portions_ends_before_the_store_is_closed(valkey_url: str) -> None:
    app = App(valkey_url)
    greet = greet_of(app)
    await greet.aenqueue()
    many, _ = await asyncio.gather(
        app.aenqueue_many([greet.job() for _ in range(1_000)]), closed_soon(app), return_exceptions=True
    )
    assert not isinstance(many, BaseException)
    assert len(many) == 1_000
    async with App(valkey_url) as again:
        assert await again.acount() == 1_001
