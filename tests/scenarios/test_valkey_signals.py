"""Hints through a real Valkey: they wake who waits, in this process and in others, at once; and where they cannot, one polls."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path

import pytest
from servers.cluster import ValkeyCluster
from servers.proxy import Proxy
from servers.valkey import ValkeyServer

from onejob.stores.valkey import signals
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.link import Link
from onejob.stores.valkey.store import ValkeyStore
from onejob.testing.conformance.steps import job, put, start

HERE = Path(__file__).parent
PATIENCE = 30.0
WORK = frozenset({"work:q"})


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[Link]:
    link = Link(parse(url), lambda _: "return 1")
    try:
        async with asyncio.timeout(PATIENCE):
            yield link
    finally:
        await link.close()


@contextmanager
def listener(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that says when it hears of work."""
    program = [sys.executable, str(HERE / "valkey_listener.py"), url]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert said(process) == "listens"
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def proven(link: Link) -> None:
    """Until hints are known to arrive."""
    link.signals.mark()
    while not link.signals.arrive:  # noqa: ASYNC110 - it happens on the loop of the link
        await asyncio.sleep(0.002)


@pytest.fixture(params=["valkey", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


async def test_a_hint_wakes_another_process_long_before_it_would_poll(url: str) -> None:
    async with linked(url) as link:
        await link.open()
        with listener(url) as process:
            took: list[float] = []
            for _ in range(20):
                began = time.monotonic()
                link.signals.tell({"work:q"})
                took.append(float(await asyncio.to_thread(said, process)) - began)
        assert sorted(took)[10] < 0.1, "a hundredth of the time after which it would have looked"


async def test_work_that_comes_to_a_queue_without_any_wakes_another_process_though_its_client_says_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, said_by_clients = Link._publish, list[str]()

    async def without_work(self: Link, channel: str, message: str) -> None:
        if "work:" in message:
            said_by_clients.append(message)
        else:
            await publish(self, channel, message)

    monkeypatch.setattr(Link, "_publish", without_work)
    store = ValkeyStore(url)
    try:
        with listener(url) as process:
            took: list[float] = []
            for _ in range(10):
                began = time.monotonic()
                await put(store, job())
                took.append(float(await asyncio.to_thread(said, process)) - began)
                assert len(await start(store)) == 1
        assert sorted(took)[5] < 0.5, "a tenth of the time after which it would have looked"
    finally:
        await store.close()
    assert said_by_clients == [], "what the script has said is not said again"


async def test_a_hint_wakes_those_who_wait_for_it_in_this_process_and_nobody_else(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        mine = asyncio.create_task(link.signals.wait(WORK, PATIENCE, None))
        others = asyncio.create_task(link.signals.wait(frozenset({"work:other"}), PATIENCE, None))
        await asyncio.sleep(0)
        link.signals.tell({"work:q"})
        assert await mine
        assert not others.done()
        others.cancel()


async def test_a_hint_that_came_after_the_mark_is_not_missed(valkey_url: str) -> None:
    async with linked(valkey_url) as sender, linked(valkey_url) as link:
        await proven(link)
        mark = link.signals.mark()
        sender.signals.tell({"work:q"})
        while link.signals.mark() == mark:  # noqa: ASYNC110 - it comes over the network
            await asyncio.sleep(0.001)
        assert await link.signals.wait(WORK, PATIENCE, mark)


async def test_a_storm_of_hints_becomes_few_messages_and_none_is_lost(valkey_url: str) -> None:
    async with linked(valkey_url) as sender, linked(valkey_url) as link:
        await proven(link)
        before = link.signals.mark()
        topics = {f"work:q{number}" for number in range(2_000)}
        waiting = [
            asyncio.create_task(link.signals.wait(frozenset({topic}), PATIENCE, before)) for topic in topics
        ]
        for topic in topics:
            sender.signals.tell({topic})
        assert all(await asyncio.gather(*waiting))
        assert link.signals.mark() - before < 100


async def test_hints_of_one_namespace_are_not_heard_in_another(own_valkey: ValkeyServer) -> None:
    one, other = (f"{own_valkey.url}?namespace={name}" for name in ("one", "other"))
    async with linked(one) as sender, linked(one) as near, linked(other) as far:
        await proven(near)
        await proven(far)
        before = far.signals.mark()
        woken = asyncio.create_task(near.signals.wait(WORK, PATIENCE, near.signals.mark()))
        sender.signals.tell({"work:q"})
        assert await woken
        assert far.signals.mark() == before


async def test_work_is_heard_by_who_has_it_at_hand_though_the_loop_of_the_store_is_held_up(
    valkey_url: str,
) -> None:
    goes_on = threading.Event()
    async with linked(valkey_url) as sender, linked(valkey_url) as link, link.signals.at_hand():
        await proven(link)
        mark = link.signals.mark()
        link.post(goes_on.wait)
        try:
            sender.signals.tell({"work:q"})
            assert await link.signals.wait(WORK, signals.POLL_PROVEN / 2, mark)
        finally:
            goes_on.set()


async def test_who_holds_up_the_loop_on_which_he_hears_holds_up_no_others(valkey_url: str) -> None:
    listens, heard = threading.Event(), threading.Event()

    async def wait_elsewhere(link: Link) -> None:
        mark = link.signals.mark()
        while not link.signals._listener.proven:  # noqa: ASYNC110 - it happens on the loop of the link
            await asyncio.sleep(0.002)
        listens.set()
        if await link.signals.wait(WORK, PATIENCE, mark):
            heard.set()

    async with linked(valkey_url) as sender, linked(valkey_url) as link, link.signals.at_hand():
        await proven(link)
        other = threading.Thread(target=lambda: asyncio.run(wait_elsewhere(link)), daemon=True)
        other.start()
        assert await asyncio.to_thread(listens.wait, signals.POLL_PROVEN)
        sender.signals.tell({"work:q"})
        assert heard.wait(signals.POLL_PROVEN / 2)  # our own loop stands still
        other.join()


async def test_whoever_has_work_at_hand_no_longer_hears_it_as_others_do(valkey_url: str) -> None:
    async with linked(valkey_url) as sender, linked(valkey_url) as link:
        async with link.signals.at_hand():
            async with link.signals.at_hand():
                await proven(link)
            assert link.signals.arrive, "the first is still there"
            mark = link.signals.mark()
            link.signals.doubt()
            while link.signals.mark() == mark:  # noqa: ASYNC110 - whoever doubts looks once more
                await asyncio.sleep(0.001)
            waiting = asyncio.create_task(
                link.signals.wait(WORK, signals.POLL_PROVEN / 2, link.signals.mark())
            )
            await asyncio.sleep(0)
        assert await waiting, "it is time to look, as nobody listens for him any more"
        await proven(link)
        mark = link.signals.mark()
        sender.signals.tell({"work:q"})
        assert await link.signals.wait(WORK, signals.POLL_PROVEN / 2, mark)


@pytest.mark.parametrize("near", [True, False])
async def test_hints_arrive_again_after_a_restart_and_what_was_missed_is_made_up_for(
    own_valkey: ValkeyServer, near: bool
) -> None:
    async with (
        linked(own_valkey.url) as sender,
        linked(own_valkey.url) as link,
        link.signals.at_hand() if near else nullcontext(),
    ):
        await proven(link)
        before = link.signals.mark()
        own_valkey.stop()
        call = asyncio.create_task(link.run("one", ["k"], []))
        await asyncio.to_thread(own_valkey.start)
        await call
        assert await link.signals.wait(WORK, PATIENCE, before), "whoever waits looks once more"
        await proven(link)
        woken = asyncio.create_task(link.signals.wait(WORK, PATIENCE, link.signals.mark()))
        sender.signals.tell({"work:q"})
        assert await woken


async def test_hints_pass_through_a_cluster_that_lost_a_node_for_a_while(own_cluster: ValkeyCluster) -> None:
    async with linked(own_cluster.url) as sender, linked(own_cluster.url) as link:
        await proven(link)
        for node in own_cluster.nodes:
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(own_cluster.wait_until_whole)
            await sender.run("one", [f"{{{node.port}}}"], [])
            link.signals.doubt()
            await proven(link)
            woken = asyncio.create_task(link.signals.wait(WORK, PATIENCE, link.signals.mark()))
            sender.signals.tell({"work:q"})
            assert await woken


async def test_without_the_right_to_the_channel_one_polls_and_is_told_once(
    own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_valkey.execute("ACL SETUSER", "bob", "on", ">pw", "~*", "resetchannels", "+@all")
    with caplog.at_level(logging.WARNING, "onejob"):
        async with linked(own_valkey.url.replace("//", "//bob:pw@")) as link:
            began = time.monotonic()
            assert await link.signals.wait(WORK, PATIENCE, None), "it is time to look"
            assert time.monotonic() - began < signals.POLL + 1
            while link.signals.arrive is not False:  # noqa: ASYNC110 - it happens on the loop of the link
                await asyncio.sleep(0.01)
    [record] = caplog.records
    assert "acl setuser … &onejob:hints +publish +subscribe" in record.getMessage()


async def test_a_line_that_is_dead_holds_up_nobody_who_closes(valkey_url: str) -> None:
    async with Proxy(valkey_url) as proxy, linked(f"{proxy.url}&patience=1") as link:
        await proven(link)
        proxy.stall()
        link.signals.tell({"work:q"})
        began = time.monotonic()
        await link.close()
        assert time.monotonic() - began < 5


async def test_the_last_hint_is_sent_before_the_link_closes(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        await proven(link)
        before = link.signals.mark()
        for _ in range(10):
            async with linked(valkey_url) as sender:
                sender.signals.tell({"work:q"})
            assert await link.signals.wait(WORK, signals.POLL_PROVEN / 2, before)
            before = link.signals.mark()
