"""Scripts on a real Valkey and on a real cluster, and what can happen to the server and the way there: each call ends, in an
answer or in an error that says what to do, and no later than its patience.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from servers.cluster import ValkeyCluster
from servers.proxy import Proxy
from servers.valkey import ValkeyServer
from stage import eventually

from onejob import App, OnejobError, StoreFull, StoreUnavailable
from onejob.core.errors import StoreClosed
from onejob.forking import PerProcess
from onejob.stores.valkey.address import parse
from onejob.stores.valkey.failures import ScriptRefused
from onejob.stores.valkey.link import LOAD_AGAIN, Link
from onejob.stores.valkey.scripts import Library

PATIENCE = 30.0
SCRIPTS = {
    "echo": "return {KEYS[1], ARGV[1], 7, false, {}}",
    "add": "redis.call('SADD', KEYS[1], ARGV[1]) return redis.call('SCARD', KEYS[1])",
    "pass": "#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], ARGV[1]) and 1",
    "fail": "return redis.error_reply('GONE it is not there')",
}


@asynccontextmanager
async def linked(url: str, library: Library | None = None, **parameters: object) -> AsyncIterator[Link]:
    more = "&".join(f"{name}={value}" for name, value in parameters.items())
    address = parse(f"{url}{'&' if '?' in url else '?'}{more}" if more else url)
    link = Link(address, SCRIPTS.__getitem__, library)
    try:
        async with asyncio.timeout(PATIENCE):
            yield link
    finally:
        await link.close()


def key(link: Link, name: str = "q") -> str:
    return f"{{{link.address.namespace}:{name}}}:data"


async def add(link: Link, number: int, name: str = "q") -> int:
    link.begin()
    try:
        return await link.run("add", [key(link, name)], [b"%d" % number])
    finally:
        link.end()


class Traffic:
    """Hands that call one script after the other while something happens; every call must be answered."""

    def __init__(self, link: Link, hands: int = 4) -> None:
        self._link = link
        self._hands = hands
        self.acknowledged: list[int] = []

    async def during(self, disturbance: Callable[[], Awaitable[object]]) -> None:
        over = asyncio.Event()
        hands = [asyncio.create_task(self._call(over, hand)) for hand in range(self._hands)]
        await self._until(50)
        await disturbance()
        await self._until(len(self.acknowledged) + 50)
        over.set()
        await asyncio.gather(*hands)
        last = -1
        assert await add(self._link, last) == len(set(self.acknowledged)) + 1, (
            "each counted once, and none is lost"
        )

    async def _call(self, over: asyncio.Event, hand: int) -> None:
        number = hand
        while not over.is_set():
            await add(self._link, number)
            self.acknowledged.append(number)
            number += self._hands

    async def _until(self, count: int) -> None:
        while len(self.acknowledged) < count:  # noqa: ASYNC110 - the hands are busy, not we
            await asyncio.sleep(0.005)


@pytest.fixture(params=["valkey", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


async def test_a_script_returns_what_lua_returned(url: str) -> None:
    async with linked(url) as link:
        assert await link.run("echo", [key(link)], [b"\x00\xff\r\n"]) == [
            key(link).encode(),
            b"\x00\xff\r\n",
            7,
            None,
            [],
        ]


async def test_a_script_that_refuses_says_so_by_its_first_word(url: str) -> None:
    async with linked(url) as link:
        with pytest.raises(ScriptRefused, match="the script fail") as caught:
            await link.run("fail", [key(link)], [])
        assert caught.value.code == "GONE"


async def test_flushed_scripts_are_loaded_again(own_valkey: ValkeyServer) -> None:
    async with linked(own_valkey.url) as link:
        for number in range(3):
            assert await add(link, number) == number + 1
            own_valkey.execute("SCRIPT FLUSH")


LIBRARY = Library(
    "onejob_test",
    """#!lua name=onejob_test
redis.register_function{ function_name = 'onejob_test_add', callback = function(KEYS, ARGV)
  redis.call('SADD', KEYS[1], ARGV[1])
  return 'f' .. redis.call('SCARD', KEYS[1])
end }
""",
)


async def test_functions_are_loaded_where_they_are_not_known(own_valkey: ValkeyServer) -> None:
    async with linked(own_valkey.url, LIBRARY) as link:
        for number in range(3):
            assert await link.run("add", [key(link)], [b"%d" % number]) == b"f%d" % (number + 1)
            own_valkey.execute("FUNCTION FLUSH")


async def test_every_node_of_a_cluster_has_the_functions(cluster_url: str) -> None:
    async with linked(cluster_url, LIBRARY) as link:
        for number in range(30):
            assert await link.run("add", [key(link, f"q{number}")], [b"1"]) == b"f1"


async def test_who_may_not_load_functions_sends_scripts(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("ACL SETUSER clerk on >secret ~* &* +@all -function")
    url = own_valkey.url.replace("//", "//clerk:secret@")
    async with linked(url, LIBRARY) as link:
        assert await add(link, 1) == 1
        assert await add(link, 2) == 2


async def test_where_memory_is_full_before_the_functions_came_scripts_are_sent(
    own_valkey: ValkeyServer,
) -> None:
    own_valkey.execute("CONFIG SET maxmemory 1")
    async with linked(own_valkey.url, LIBRARY) as link:
        assert await link.run("pass", [key(link)], [b"x"]) == 1


async def test_functions_are_tried_again_after_a_while(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("CONFIG SET maxmemory 1")
    async with linked(own_valkey.url, LIBRARY) as link:
        assert await link.run("pass", [key(link)], [b"x"]) == 1
        own_valkey.execute("CONFIG SET maxmemory 0")
        own_valkey.execute("FLUSHALL")
        assert await add(link, 1) == 1, "for now a script is sent"
        assert link._sends_scripts_until is not None
        link._sends_scripts_until -= LOAD_AGAIN
        assert await link.run("add", [key(link)], [b"2"]) == b"f2"


async def test_a_server_that_is_reached_while_one_looks_is_looked_at_after_that(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with linked(own_valkey.url) as link:
        await add(link, 1)
        look = link._look

        async def slow_look() -> None:
            looks.append("looked")
            if len(looks) == 1:
                await look()
                loop.call_soon_threadsafe(begun.set)
                await asyncio.to_thread(gate.wait)
            else:
                loop.call_soon_threadsafe(go_on.set)

        loop, gate = asyncio.get_running_loop(), threading.Event()
        monkeypatch.setattr(link, "_look", slow_look)
        link._connected(("127.0.0.1", own_valkey.port), anew=True)
        await begun.wait()
        link._connected(("127.0.0.1", own_valkey.port), anew=True)
        await link.at_home(_nothing)
        gate.set()
        await go_on.wait()
    assert looks == ["looked", "looked"]


async def _nothing() -> None: ...


async def test_calls_come_from_any_loop_and_thread(valkey_url: str) -> None:
    async with linked(valkey_url) as link:

        def elsewhere(number: int) -> None:
            asyncio.run(add(link, number))

        threads = [threading.Thread(target=elsewhere, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(add(link, number) for number in range(4, 8)))
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert await link.at_home(lambda: add(link, 8)) == 9


async def test_a_restart_is_ridden_out(own_valkey: ValkeyServer) -> None:
    async with linked(own_valkey.url) as link:
        await Traffic(link).during(lambda: asyncio.to_thread(own_valkey.restart))


async def test_a_kill_is_ridden_out_and_nothing_acknowledged_is_lost(own_valkey: ValkeyServer) -> None:
    def kill() -> None:
        own_valkey.kill()
        own_valkey.start()

    async with linked(own_valkey.url) as link:
        await Traffic(link).during(lambda: asyncio.to_thread(kill))


@pytest.mark.parametrize("act", ["cut before", "cut after"])
async def test_a_call_whose_connection_was_cut_is_made_again(valkey_url: str, act: str) -> None:
    async with Proxy(valkey_url) as proxy, linked(proxy.url) as link:
        await add(link, 1)
        trap = proxy.trap(b"4711", act)  # type: ignore[arg-type]
        assert await add(link, 4711) == 2
        assert trap.sprung.is_set()


async def test_a_call_on_a_line_that_fell_silent_is_made_again_on_another(valkey_url: str) -> None:
    async with Proxy(valkey_url) as proxy, linked(proxy.url, patience=2) as link:
        await add(link, 1)
        trap = proxy.trap(b"4711", "hold")
        began = time.monotonic()
        assert await add(link, 4711) == 2
        assert trap.sprung.is_set()
        assert time.monotonic() - began < 2


async def test_heartbeats_pass_while_the_line_for_calls_is_silent(valkey_url: str) -> None:
    async with Proxy(valkey_url) as proxy, linked(proxy.url, patience=20) as link:
        await add(link, 1)
        trap = proxy.trap(b"4711", "hold")
        call = asyncio.create_task(add(link, 4711))
        await trap.sprung.wait()
        async with asyncio.timeout(5):  # the call's line is given up after eight seconds
            for number in range(10):
                await link.run("echo", [key(link)], [b"%d" % number], beat=True)
        assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_dead_line_holds_up_no_call_past_its_patience(valkey_url: str) -> None:
    async with Proxy(valkey_url) as proxy, linked(proxy.url, patience=1) as link:
        await add(link, 1)
        proxy.stall()
        began = time.monotonic()
        refused = await asyncio.gather(*(add(link, number) for number in range(5)), return_exceptions=True)
        assert time.monotonic() - began < 2
        assert [type(error) for error in refused] == [StoreUnavailable] * 5, refused
        assert "it is not known whether the call counted" in str(refused[0])
        proxy.resume()
        assert await add(link, 1) >= 1


async def test_a_frozen_server_is_waited_for(own_valkey: ValkeyServer) -> None:
    async with linked(own_valkey.url, patience=2) as link:
        await add(link, 1)
        with own_valkey.frozen():
            with pytest.raises(StoreUnavailable):
                await add(link, 2)
            waiting = asyncio.create_task(add(link, 3))
            await asyncio.sleep(0)
        assert await waiting in (2, 3)


async def test_cancelled_calls_leave_the_link_usable(url: str) -> None:
    async with linked(url) as link:
        await add(link, 0)
        for number in range(50):
            call = asyncio.create_task(add(link, number))
            await asyncio.sleep(0 if number % 2 else 0.0002)  # some are under way by then, some are not
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
        assert await add(link, 0) >= 1


async def test_a_closed_link_is_closed_and_calls_under_way_end_first(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        await link.open()
        calls = [asyncio.create_task(add(link, number)) for number in range(20)]
        await asyncio.sleep(0)
        await asyncio.gather(link.close(), link.close())
        assert len(await asyncio.gather(*calls)) == 20
        with pytest.raises(StoreClosed):
            await add(link, 1)


@pytest.mark.parametrize("left", ["a thread's turn", "an operation"])
async def test_what_never_ends_holds_up_nobody_who_closes_for_long(valkey_url: str, left: str) -> None:
    async with linked(valkey_url, patience=0.5) as link:
        await link.open()
        if left == "an operation":
            link.begin()  # on a loop that ended without a word
        else:
            link._thread_turn.lock.acquire()  # by a thread that was interrupted at the wrong moment
        began = time.monotonic()
        await link.close()
        assert 0.5 < time.monotonic() - began < 10


async def test_a_turn_that_an_interrupted_thread_has_kept_is_given_to_others(valkey_url: str) -> None:
    async with linked(valkey_url) as link:
        await link.open()
        ask = functools.partial(link.run_from_thread, "add", [key(link)], [b"1"])
        assert await asyncio.to_thread(ask) == 1
        link._thread_turn.lock.acquire()
        assert await asyncio.to_thread(ask) is None
        link._thread_turn.since -= 3_600
        assert await asyncio.to_thread(ask) is None
        assert await asyncio.to_thread(ask) == 1


async def test_whom_to_ask_is_looked_for_within_the_patience(valkey_url: str) -> None:
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
    hosts = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in silent)
    async with linked(f"valkey://{hosts}", patience=1) as link:
        link._ready = True  # there was a server, and nobody knows where it is now
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="did not answer"):
                await add(link, 1)
            assert time.monotonic() - began < 2
    for one in silent:
        one.close()


async def test_a_host_that_is_something_else_does_not_hide_those_behind_it(valkey_url: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"-ERR unknown command\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        real = valkey_url.removeprefix("valkey://")
        async with linked(f"valkey://127.0.0.1:{port},{real}") as link:
            assert await add(link, 1) == 1
        async with linked(f"valkey://127.0.0.1:{port}") as link:
            with pytest.raises(OnejobError, match="correct the store's URL"):
                await add(link, 1)


async def test_a_bulk_call_that_a_full_server_refuses_half_way_says_what_it_stored(
    own_valkey: ValkeyServer,
) -> None:
    async with App(own_valkey.url) as app:

        @app.task
        async def keep(text: str) -> None: ...

        await keep.aenqueue("")
        used = own_valkey.execute("INFO", "memory")["used_memory"]
        own_valkey.execute("CONFIG SET", "maxmemory", used + 3_000_000)
        with pytest.raises(StoreFull) as caught:
            await app.aenqueue_many([keep.job("x" * 5_000) for _ in range(1_000)])
        stored = await app.acount() - 1
        assert stored > 0
        assert f"{stored:,} of 1,000 jobs were stored" in str(caught.value)


async def test_a_link_that_was_never_used_is_closed(valkey_url: str) -> None:
    async with linked(valkey_url):
        pass


async def test_connections_end_with_the_link_closed_or_abandoned(own_valkey: ValkeyServer) -> None:
    async def ours() -> int:
        return own_valkey.execute("INFO", "clients")["connected_clients"] - 1

    async with linked(own_valkey.url) as link:
        await link.run("echo", [key(link)], [b""])
        await link.run("echo", [key(link)], [b""], beat=True)
        assert await ours() == 2
    await eventually(lambda: _is(ours(), 0))
    async with linked(own_valkey.url) as link:
        await link.open()
        link.abandon()
        await eventually(lambda: _is(ours(), 0))


async def _is(value: Awaitable[object], expected: object) -> bool:
    return await value == expected


async def test_a_server_that_evicts_is_refused_until_it_does_not() -> None:
    with ValkeyServer(maxmemory_policy="allkeys-lru", appendonly="yes") as server:
        async with linked(server.url) as link:
            with pytest.raises(OnejobError, match="CONFIG SET maxmemory-policy noeviction"):
                await add(link, 1)
            server.execute("CONFIG SET", "maxmemory-policy", "noeviction")
            assert await add(link, 1) == 1


async def refused_until_it_keeps_all(
    link: Link, server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Every call is, soon after the server has become another one that throws jobs away."""
    await eventually(lambda: _is_refused(link))
    with pytest.raises(OnejobError, match="CONFIG SET maxmemory-policy noeviction"):
        await add(link, 1)
    [said] = [record for record in caplog.records if vars(record).get("event") == "store.unfit"]
    assert said.levelno == logging.ERROR
    server.execute("CONFIG SET", "maxmemory-policy", "noeviction")
    assert await add(link, 1) >= 1


async def _is_refused(link: Link) -> bool:
    try:
        await add(link, 1)
    except StoreUnavailable:
        raise
    except OnejobError:
        return True
    return False


async def test_a_server_that_evicts_once_it_was_restarted_is_refused_from_then_on(
    own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(own_valkey.url) as link:
        assert await add(link, 1) == 1
        own_valkey.settings["maxmemory-policy"] = "allkeys-lru"
        await asyncio.to_thread(own_valkey.restart)
        await refused_until_it_keeps_all(link, own_valkey, caplog)


async def test_a_replica_that_evicts_is_refused_once_it_leads(
    own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    with ValkeyServer(appendonly="yes", maxmemory_policy="allkeys-lru") as replica:
        replica.follow(own_valkey)
        async with linked(f"{own_valkey.url},{replica.address}") as link:
            assert await add(link, 1) == 1
            own_valkey.kill()
            replica.execute("REPLICAOF", "NO", "ONE")
            await refused_until_it_keeps_all(link, replica, caplog)


@pytest.mark.torture
async def test_a_node_of_a_cluster_that_evicts_once_it_was_restarted_is_refused_from_then_on(
    own_cluster: ValkeyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(own_cluster.url) as link:
        assert await add(link, 1) == 1
        node = own_cluster.owner(own_cluster.slot(key(link)))
        node.settings["maxmemory-policy"] = "allkeys-lru"
        await asyncio.to_thread(node.restart)
        await asyncio.to_thread(own_cluster.wait_until_whole)
        await refused_until_it_keeps_all(link, node, caplog)


async def test_memory_that_is_full_is_told_and_what_frees_some_still_passes() -> None:
    with ValkeyServer(maxmemory="1mb", appendonly="yes") as server:
        async with linked(server.url) as link:
            with pytest.raises(StoreFull, match=r"no memory left.*nothing was stored.*raise its maxmemory"):
                await add(link, 1)
            assert await link.run("pass", [key(link)], [b"1"]) == 1


async def test_a_server_that_keeps_nothing_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with ValkeyServer(save="", appendonly="no") as server, caplog.at_level(logging.WARNING, "onejob"):
        async with linked(server.url) as link:
            await asyncio.gather(*(add(link, number) for number in range(5)))
    assert [record.getMessage().count("CONFIG SET appendonly yes") for record in caplog.records] == [1]


@pytest.mark.parametrize("forbidden", ["-config", "-config -cluster"])
async def test_a_user_who_may_not_see_settings_is_served(own_valkey: ValkeyServer, forbidden: str) -> None:
    own_valkey.execute("ACL SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all", *forbidden.split())
    async with linked(own_valkey.url.replace("//", "//bob:pw@")) as link:
        assert await add(link, 1) == 1


async def test_a_user_without_rights_is_told_which(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("ACL SETUSER", "bob", "on", ">pw", "~other:*", "+@all")
    async with linked(own_valkey.url.replace("//", "//bob:pw@")) as link:
        with pytest.raises(OnejobError, match=r"lacks a right.*acl setuser NAME ~\{onejob:\*"):
            await add(link, 1)


async def test_the_rights_that_are_named_suffice(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("ACL SETUSER", "bob", "on", ">pw", "~other:*", "+@all")
    async with linked(own_valkey.url.replace("//", "//bob:pw@")) as link:
        with pytest.raises(OnejobError) as caught:
            await add(link, 1)
    rights = str(caught.value).rpartition("acl setuser NAME ")[2].rstrip(".")
    own_valkey.execute("ACL SETUSER", "tom", "on", ">pw", *rights.split())
    async with linked(own_valkey.url.replace("//", "//tom:pw@")) as link:
        assert await add(link, 1) == 1
        link.signals.mark()
        await eventually(lambda: _is(_value(link.signals.arrive), True))


async def _value(value: object) -> object:
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("valkey://", "valkey://bob:wrong@"), "refused the login"),
        (("valkey://", "valkeys://"), "it speaks no TLS"),
        (("?", "/99?"), "DB index is out of range"),
        (("valkey://", "valkey+cluster://"), "it is a single server and no cluster: write valkey://"),
    ],
)
async def test_a_url_that_never_works_is_told_in_the_servers_words_at_once(
    valkey_url: str, change: tuple[str, str], message: str
) -> None:
    async with linked(valkey_url.replace(*change)) as link:
        began = time.monotonic()
        with pytest.raises(OnejobError, match=message):
            await add(link, 1)
        assert time.monotonic() - began < 8, "before patience is over"


async def test_nobody_there_is_told_in_the_systems_words(own_valkey: ValkeyServer) -> None:
    own_valkey.stop()
    async with linked(own_valkey.url, patience=1.5) as link:
        with pytest.raises(StoreUnavailable, match=r"refused.*nothing was stored.*Is it running there"):
            await add(link, 1)
        own_valkey.start()
        assert await add(link, 1) == 1


async def test_a_node_of_a_cluster_is_no_single_server(cluster_url: str) -> None:
    single = cluster_url.replace("valkey+cluster://", "valkey://").partition(",")[0]
    async with linked(single) as link:
        with pytest.raises(OnejobError, match=r"is a node of a cluster: .*valkey\+cluster://"):
            await add(link, 1)


async def test_the_primary_is_found_again_after_a_failover(own_valkey: ValkeyServer) -> None:
    with ValkeyServer(appendonly="yes") as other:
        other.execute("REPLICAOF", "127.0.0.1", own_valkey.port)
        await eventually(
            lambda: _is(_value(other.execute("INFO", "replication")["master_link_status"]), "up")
        )
        async with linked(f"valkey://{own_valkey.address},{other.address}") as link:

            async def fail_over() -> None:
                own_valkey.execute("FAILOVER", "TO", "127.0.0.1", other.port)

            await Traffic(link).during(fail_over)
            assert own_valkey.execute("INFO", "replication")["role"] == "slave"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_has_a_link_of_its_own(valkey_url: str) -> None:
    links = PerProcess(lambda: Link(parse(valkey_url), SCRIPTS.__getitem__))
    await add(links.get(), 1)
    child = os.fork()
    if not child:  # no more than the one thread that forked is there
        code = 1
        try:
            code = int(asyncio.run(_add_and_close(links.get())) != 2)
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0
    assert await add(links.get(), 3) == 3
    await links.get().close()


async def _add_and_close(link: Link) -> int:
    async with asyncio.timeout(PATIENCE):
        count = await add(link, 2)
        await link.close()
    return count


async def test_a_slot_may_move_while_calls_run(own_cluster: ValkeyCluster) -> None:
    async with linked(own_cluster.url) as link:
        await add(link, 0)
        slot = own_cluster.slot(key(link))

        async def move_there_and_back() -> None:
            home = own_cluster.owner(slot)
            away = next(node for node in own_cluster.nodes if node is not home)
            for to in (away, home, away):
                await asyncio.to_thread(own_cluster.move_slot, slot, to)

        await Traffic(link).during(move_there_and_back)
        assert own_cluster.nodes.index(own_cluster.owner(slot)) >= 0


async def test_calls_find_their_node_while_a_slot_is_between_two(own_cluster: ValkeyCluster) -> None:
    async with linked(own_cluster.url) as link:
        assert await add(link, 1) == 1
        slot = own_cluster.slot(key(link))
        to = next(node for node in own_cluster.nodes if node is not own_cluster.owner(slot))
        with own_cluster.slot_on_the_move(slot, to) as source:
            assert await add(link, 2) == 2
            assert own_cluster.move_keys(slot, source, to, 100) == 1
            assert await add(link, 3) == 3
        assert await add(link, 4) == 4


async def test_a_node_of_a_cluster_may_be_killed_and_come_back(own_cluster: ValkeyCluster) -> None:
    async with linked(own_cluster.url) as link:
        await add(link, 0)
        node = own_cluster.owner(own_cluster.slot(key(link)))

        def kill() -> None:
            node.kill()
            node.start()
            own_cluster.wait_until_whole()

        await Traffic(link).during(lambda: asyncio.to_thread(kill))
