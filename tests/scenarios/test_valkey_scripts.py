"""Operations on Valkey are functions of a library; where a server may not be given one, they are sent as scripts."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
import valkey
from servers.valkey import ValkeyServer

from onejob import App, Lane, OnejobError, Unique
from onejob.stores.valkey import scripts
from onejob.testing import adrain


def test_every_operation_is_a_script_by_itself_too(own_valkey: ValkeyServer) -> None:
    with closing(valkey.Valkey(port=own_valkey.port)) as client:
        for name in scripts.names():
            assert client.script_load(scripts.source(name)), name


async def test_a_whole_life_without_functions(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("ACL SETUSER clerk on >secret ~* &* +@all -function")
    async with App(own_valkey.url.replace("//", "//clerk:secret@")) as app:

        @app.task(unique=Unique.once(by="user"), lane=Lane(by="user"))
        async def greet(user: str, name: str) -> str:
            return f"dear {name}"

        first = await greet.aenqueue("u1", "Ada")
        assert (await greet.aenqueue("u1", "Bob")).id == first.id
        await adrain(app)
        assert await first.aresult(timeout=5) == "dear Ada"
    assert own_valkey.execute("FUNCTION LIST") == []


RIGHTS = (
    "~{onejob:* &onejob:* +@read +@write +@scripting +@connection +@pubsub +info +time +cluster +config|get"
)


@pytest.mark.parametrize("given", [RIGHTS, RIGHTS.replace(" +time", "")])
async def test_the_rights_that_are_asked_for_are_those_that_are_needed(
    given: str, own_valkey: ValkeyServer
) -> None:
    own_valkey.execute(f"ACL SETUSER clerk on >secret {given}")
    async with App(own_valkey.url.replace("//", "//clerk:secret@")) as app:

        @app.task(unique=Unique.once(by="user"))
        async def greet(user: str) -> str:
            return user

        if given != RIGHTS:
            with pytest.raises(OnejobError, match=r"lacks a right .*" + re.escape(RIGHTS)):
                await greet.aenqueue("u1")
            return
        receipt = await greet.aenqueue("u1")
        await adrain(app)
        assert await receipt.aresult(timeout=5) == "u1"
        assert [finding.name for finding in await app.store.checkup()] == []


async def test_whether_jobs_are_kept_is_said_to_be_unknown_where_nobody_may_ask(
    own_valkey: ValkeyServer,
) -> None:
    own_valkey.execute("CONFIG SET appendonly no")
    own_valkey.execute("ACL SETUSER clerk on >secret ~* &* +@all -config")
    async with App(own_valkey.url.replace("//", "//clerk:secret@")) as app:
        findings = await app.store.checkup()
    assert [finding.name for finding in findings] == ["unknown_durability"]
    assert "+config|get" in findings[0].remedy


async def test_two_versions_keep_their_libraries_beside_each_other(own_valkey: ValkeyServer) -> None:
    own_valkey.execute(
        "FUNCTION",
        "LOAD",
        "#!lua name=onejob_older\nredis.register_function('onejob_older_time', function() return 1 end)",
    )
    async with App(own_valkey.url) as app:

        @app.task
        async def nothing() -> None: ...

        await nothing.aenqueue()
    with closing(valkey.Valkey(port=own_valkey.port, decode_responses=True)) as client:
        assert client.fcall("onejob_older_time", 0) == 1
        assert client.fcall(scripts.library().function("time"), 2, "{a}d", "{a}i", "q", "")


async def test_a_queue_of_another_format_is_refused_and_left_as_it_is(own_valkey: ValkeyServer) -> None:
    own_valkey.execute("HSET {onejob:default}:data m 1")
    async with App(own_valkey.url) as app:

        @app.task
        async def nothing() -> None: ...

        with pytest.raises(
            OnejobError, match=r"jobs of another version of onejob \(format 1 instead of 3\).*namespace"
        ):
            await nothing.aenqueue()
    assert own_valkey.execute("HGETALL {onejob:default}:data") in ({b"m": b"1"}, [b"m", b"1"])
