"""Hints through a real PostgreSQL: they wake who waits in other processes, come in few messages on one channel, and lose nobody."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import pytest

from onejob import App
from onejob.store import JobStore
from onejob.stores import open_store
from onejob.stores.postgres import signals
from onejob.stores.postgres.signals import POLL, hint
from onejob.testing.conformance.steps import finish, job, put, start_one

HERE = Path(__file__).parent
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def nobody_looks_for_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever waits is awake after a while, hint or not."""
    monkeypatch.setattr(signals, "POLL", 2 * PATIENCE)
    monkeypatch.setattr(signals, "POLL_PROVEN", 2 * PATIENCE)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[JobStore]:
    store = open_store(url)
    try:
        async with asyncio.timeout(PATIENCE):
            yield store
    finally:
        await store.close()


@contextmanager
def listener(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that says when it hears of work."""
    program = [sys.executable, str(HERE / "postgres_listener.py"), url]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert said(process) == "listens"
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Channel:
    """Hears what is sent on a store's channel, message by message."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], name: str) -> None:
        self.connection = connection
        self.name = name
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    async def open(self) -> None:
        await self.connection.add_listener(self.name, lambda *heard: self._heard.put_nowait(heard[3]))

    async def so_far(self) -> list[set[str]]:
        """The topics of each message that was sent by now; who says nothing but that hints arrive is left out."""
        fence = secrets.token_hex(4)
        await self.connection.execute("select pg_notify($1, $2)", self.name, fence)
        found: list[set[str]] = []
        while (payload := await self._heard.get()) != fence:
            found.append(set(payload.split("\n")[1:]))
        return [topics for topics in found if not any(topic.startswith("?") for topic in topics)]


@asynccontextmanager
async def channel(url: str) -> AsyncIterator[Channel]:
    address, _, name = url.partition("?schema=")
    connection = await asyncpg.connect(address)
    try:
        channel = Channel(connection, name)
        await channel.open()
        yield channel
    finally:
        await connection.close()


async def test_an_enqueue_wakes_another_process_long_before_it_would_poll(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await put(store, job(queue="other"))
        with listener(postgres_url) as process:
            took: list[float] = []
            for _ in range(10):
                began = time.monotonic()
                await put(store, job())
                took.append(float(await asyncio.to_thread(said, process)) - began)
        assert sorted(took)[5] < POLL / 4, "it would have looked after that time at the earliest"


async def test_what_is_enqueued_together_is_one_notification(postgres_url: str) -> None:
    async with channel(postgres_url) as heard:
        async with opened(postgres_url) as store:
            await store.enqueue([job(queue=f"q{number % 10}") for number in range(100)])
        assert await heard.so_far() == [{f"work:q{number}" for number in range(10)}]


async def test_calls_of_one_moment_share_a_notification(postgres_url: str) -> None:
    async with channel(postgres_url) as heard:
        async with App(postgres_url) as app:

            @app.task(name="task")
            async def task() -> None: ...

            await app.store.open()
            await asyncio.gather(*(task.aenqueue() for _ in range(50)))
        messages = await heard.so_far()
        assert {*map(frozenset, messages)} == {frozenset({"work:default"})}
        assert len(messages) <= 3


async def test_a_users_transaction_sends_one_notification_for_a_queue_once_it_commits(
    postgres_url: str,
) -> None:
    async with App(postgres_url) as app, channel(postgres_url) as heard:

        @app.task(name="task")
        async def task(number: int) -> None: ...

        user = await asyncpg.connect(postgres_url.partition("?")[0])
        try:
            async with user.transaction():
                for number in range(20):
                    await task.using(connection=user).aenqueue(number)
                assert await heard.so_far() == []
            assert await heard.so_far() == [{"work:default"}]
        finally:
            await user.close()


async def test_all_queues_and_all_kinds_of_hints_are_on_one_channel(postgres_url: str) -> None:
    async with channel(postgres_url) as heard:
        async with opened(postgres_url) as store:
            for queue in ("a", "b"):
                await put(store, job(queue=queue))
            await put(store, job())
            await finish(store, await start_one(store))
        messages = await heard.so_far()
        assert set().union(*messages) == {"work:a", "work:b", "work:q", "done:q"}


async def test_more_queues_than_a_notification_can_name_wake_everybody(postgres_url: str) -> None:
    names = [f"{number:03}{'x' * 90}" for number in range(100)]
    async with channel(postgres_url) as heard, opened(postgres_url) as other:
        mark = other.mark()
        assert "no_notify" not in {finding.name for finding in await other.checkup()}  # now it listens
        topics = [f"work:{names[0]}", f"work:{names[-1]}", "work:of none of them"]
        waiting = [other.wait(frozenset({topic}), PATIENCE, since=mark) for topic in topics]
        async with opened(postgres_url) as store:
            await store.enqueue([job(queue=name) for name in names])
        assert await asyncio.gather(*waiting) == [True] * 3
        assert await heard.so_far() == [{"*"}]


async def test_a_notification_is_as_large_as_the_server_takes(postgres_url: str) -> None:
    async with channel(postgres_url) as heard:
        send = "select pg_notify($1, $2)"
        largest, too_large = {"x" * 7_998}, {"x" * 7_999}
        await heard.connection.execute(send, *hint(heard.name, largest))
        await heard.connection.execute(send, *hint(heard.name, too_large))
        assert await heard.so_far() == [largest, {"*"}]
        with pytest.raises(asyncpg.InvalidParameterValueError, match="too long"):
            await heard.connection.execute(send, heard.name, "\n".join(("", *too_large)))
