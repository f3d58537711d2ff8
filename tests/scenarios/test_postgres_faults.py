"""What can happen to a PostgreSQL server and to the way there: restarts, sessions that are ended, a line that is dead and
says nothing, notifications that never come, a newer schema. Nothing acknowledged is lost, and nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from servers.postgres import Mode, PostgresServer
from servers.proxy import NOTIFICATION, Proxy
from stage import Stage, eventually

from onejob import App, InvalidOption, SchemaMismatch, State, StoreUnavailable, Unique
from onejob.stores import open_store
from onejob.testing.conformance.steps import job, look, put

HANDS = 4
PATIENCE = 30.0
HERE = Path(__file__).parent


class Traffic:
    """An app with a worker, and hands that enqueue one job after the other while something happens."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.runs: Counter[int] = Counter()
        self.acknowledged: dict[int, str] = {}
        self._number = 0
        self._task = self.app.task(name="count", unique=Unique())(self._count)

    async def _count(self, number: int) -> None:
        self.runs[number] += 1

    async def during(self, disturbance: Callable[[], Awaitable[None]]) -> None:
        async with self.app, asyncio.timeout(PATIENCE):
            async with self.app.worker(concurrency=5):
                over = asyncio.Event()
                hands = [asyncio.create_task(self._enqueue(over)) for _ in range(HANDS)]
                await self._until(20)
                await disturbance()
                await self._until(len(self.acknowledged) + 20)
                over.set()
                await asyncio.gather(*hands)
                await eventually(self._all_ended)
            states = {id: (await look(self.app.store, id)).state for id in self.acknowledged.values()}
        assert set(states.values()) == {State.COMPLETED}
        assert len(states) == len(self.acknowledged)
        assert self.runs.keys() >= self.acknowledged.keys()
        assert max(self.runs.values()) == 1, "no lease was lost, so nothing ran again"

    async def _enqueue(self, over: asyncio.Event) -> None:
        while not over.is_set():
            self._number += 1
            number = self._number
            receipt = await self._task.aenqueue(number)
            assert receipt.outcome == "created"
            self.acknowledged[number] = receipt.id

    async def _until(self, count: int) -> None:
        while len(self.acknowledged) < count:  # noqa: ASYNC110 - the hands are busy, not we
            await asyncio.sleep(0.005)

    async def _all_ended(self) -> bool:
        return await self.app.acount("state:live") == 0


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_the_server_is_ridden_out(mode: Mode, own_postgres: PostgresServer) -> None:
    async def restart() -> None:
        await asyncio.to_thread(own_postgres.restart, mode)

    await Traffic(own_postgres.url).during(restart)


async def test_sessions_that_are_ended_all_the_time_lose_nothing(postgres_url: str) -> None:
    url, _, _ = postgres_url.partition("?")
    administrator = await asyncpg.connect(url, server_settings={"application_name": "administrator"})
    ended = 0

    async def end_sessions() -> None:
        nonlocal ended
        end = time.monotonic() + 2
        while time.monotonic() < end or ended <= 20:
            ended += await administrator.fetchval(
                """
                select count(pg_terminate_backend(pid)) from pg_stat_activity
                where application_name = 'onejob' and usename = current_user and random() < 0.7
                """
            )
            await asyncio.sleep(0.1)  # the pace of the disturbance

    await Traffic(postgres_url).during(end_sessions)
    await administrator.close()


async def test_a_dead_line_holds_up_no_call_past_its_patience(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy, App(f"{proxy.url}&patience=1") as app:
        task = app.task(name="task")(nothing)
        first = await task.aenqueue()
        proxy.stall()
        calls = {
            "enqueue": task.aenqueue(),
            "a batch": app.aenqueue_many([task.job(), task.job()]),
            "counts": app.acounts(),
            "a job": app.ajob(first),
            "a transaction": enter(app),
            "revoke": app.arevoke(first),
        }
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            refused = await asyncio.gather(*calls.values(), return_exceptions=True)
        assert time.monotonic() - began < 5
        assert [type(error) for error in refused] == [StoreUnavailable] * len(calls), refused
        proxy.resume()
        async with asyncio.timeout(PATIENCE):
            receipt = await task.aenqueue()
            async with app.worker():
                await receipt.aresult(timeout=PATIENCE)


async def test_whoever_hears_his_own_echo_tries_again(postgres_url: str) -> None:
    """As it happens while a server is down: a socket whose own port was chosen to be the one it dials is its own peer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free.connect(free.getsockname())
        free.send(b"echo")
        assert free.recv(9) == b"echo", "so it is on this system"
    parts, echoes = urlsplit(postgres_url), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal echoes
        echoes += 1
        writer.write(await reader.read(100))
        await reader.read()  # until he hangs up
        writer.close()

    echo = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = echo.sockets[0].getsockname()[1]
    store = open_store(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl())
    async with asyncio.timeout(PATIENCE):
        putting = asyncio.create_task(put(store, job()))
        while echoes < 2:  # noqa: ASYNC110 - the store is busy, not we
            await asyncio.sleep(0.005)
        echo.close()
        async with Proxy(postgres_url, port=port):
            assert (await putting).outcome == "created"
            await store.close()


async def enter(app: App) -> None:
    async with app.transaction():
        raise AssertionError("nobody answered")


async def test_heartbeats_come_back_after_a_dead_line_and_no_job_is_lost(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy, App(f"{proxy.url}&patience=1") as app:
        stage = Stage(app)
        [receipt] = await stage.send("a")
        async with app.worker(lease=6, heartbeat=0.5), asyncio.timeout(PATIENCE):
            await stage.until(lambda: stage.running)

            async def beats() -> int:
                [worker] = await app.store.workers()
                return worker.seen

            before = await beats()
            proxy.stall()
            await asyncio.sleep(2.5)  # longer than the patience, shorter than the lease
            proxy.resume()
            resumed = await App(postgres_url).store.time()
            await eventually(lambda: is_later(beats, max(before, resumed)))
            stage.release("a")
            await receipt.aresult(timeout=PATIENCE)
        assert (await stage.job(receipt)).attempt == 1


async def is_later(beats: Callable[[], Awaitable[int]], instant: int) -> bool:
    return await beats() > instant


async def test_a_connection_with_a_cancelled_query_is_never_used_again(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy, App(proxy.url) as app, asyncio.timeout(PATIENCE):
        await put(app.store, job(task="an open connection"))
        trap = proxy.trap(b"in mid-query", "hold")
        call = asyncio.create_task(put(app.store, job(task="in mid-query")))
        await trap.sprung.wait()
        began = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        newcomers = [job() for _ in range(10)]
        assert [(await put(app.store, one)).id for one in newcomers] == [one.id for one in newcomers]
        await trap.closed.wait()
        assert time.monotonic() - began < 8


async def test_a_transaction_that_is_cancelled_takes_its_connection_with_it(postgres_url: str) -> None:
    async with App(postgres_url) as app, asyncio.timeout(PATIENCE):
        pids: list[int] = []
        inside = asyncio.Event()

        async def sleep() -> None:
            async with app.transaction() as tx:
                pids.extend(pid for (pid,) in await tx.execute("select pg_backend_pid()"))
                inside.set()
                await tx.execute("select pg_advisory_xact_lock(4711), pg_sleep(20)")

        async def is_asleep() -> bool:
            async with app.transaction() as tx:
                return bool(await tx.execute("select 1 from pg_locks where granted and objid = 4711"))

        sleeping = asyncio.create_task(sleep())
        await inside.wait()
        await eventually(is_asleep)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping

        async def is_gone() -> bool:
            async with app.transaction() as tx:
                [(pid,)] = await tx.execute("select pg_backend_pid()")
                assert pid not in pids
                return not await tx.execute("select 1 from pg_stat_activity where pid = $1", pids)

        await eventually(is_gone)


async def test_jobs_whose_notification_is_lost_are_found_by_looking(postgres_url: str) -> None:
    async with Proxy(postgres_url) as proxy, App(proxy.url) as app, App(postgres_url) as other:
        task = app.task(name="task")(nothing)
        there = other.task(name="task")(nothing)
        async with app.worker(poll=1), asyncio.timeout(PATIENCE):
            await (await task.aenqueue()).aresult()
            swallowed = 0

            def swallow(data: bytes) -> bool:
                nonlocal swallowed
                swallowed += data.startswith(NOTIFICATION)
                return data.startswith(NOTIFICATION)

            proxy.swallows = swallow
            while swallowed < 3:  # one that comes with the answer to another statement is not swallowed
                receipt = await there.aenqueue()
                await eventually(lambda receipt=receipt: has_ended(other, receipt.id))


async def has_ended(app: App, id: str) -> bool:
    return (await look(app.store, id)).ended is not None


async def nothing() -> None: ...


async def test_an_old_worker_beside_a_newer_schema_is_refused_and_told_what_to_upgrade(
    postgres_url: str,
) -> None:
    url, _, query = postgres_url.partition("?")
    schema = query.removeprefix("schema=")
    connection = await asyncpg.connect(url)
    await connection.execute(f"update {schema}.meta set value = '99' where name = 'schema'")
    async with App(postgres_url) as app:
        task = app.task(name="task")(nothing)
        with pytest.raises(SchemaMismatch, match=r"has version 99, .* upgrade onejob here"):
            await task.aenqueue()
    worker = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", "from onejob.cli import main; main()", "worker", "storm_app:app"],
        env={**os.environ, "ONEJOB_URL": postgres_url, "PYTHONPATH": str(HERE)},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert worker.returncode != 0
    assert "upgrade onejob here" in worker.stdout + worker.stderr
    assert await connection.fetchval(f"select count(*) from {schema}.worker") == 0
    await connection.execute(f"update {schema}.meta set value = '1' where name = 'schema'")
    await connection.close()


async def test_closing_from_several_sides_at_once_ends_in_good_order(postgres_url: str) -> None:
    for _ in range(5):
        store = open_store(postgres_url)
        await store.counts()
        await asyncio.gather(*(store.close() for _ in range(4)))


async def test_a_session_without_our_prepared_statements_is_not_used_again(postgres_url: str) -> None:
    app = App(postgres_url)

    @app.task(name="note")
    async def note() -> None: ...

    async with app:
        for statement in ("deallocate all", "do $$ begin execute 'set search_path = pg_temp'; end $$"):
            async with app.transaction() as tx:
                await note.aenqueue()
                before = await tx.execute("select current_setting('search_path')")
                await tx.execute(statement)
            async with app.transaction() as tx:
                await note.aenqueue()
                assert await tx.execute("select current_setting('search_path')") == before
        assert await app.acount() == 4


def test_the_servers_own_schemas_are_refused() -> None:
    for schema in ("information_schema", "pg_catalog"):
        with pytest.raises(InvalidOption, match="schema"):
            App(f"postgresql://localhost/shop?schema={schema}")


def test_a_plain_program_ends_by_itself_without_a_word(postgres_url: str) -> None:
    program = f"""
from onejob import App, Unique
app = App({postgres_url!r})
@app.task(name="welcome", unique=Unique.once(by="user"))
def welcome(user: str) -> None: ...
print(welcome.enqueue("u1").outcome, welcome.enqueue("u1").outcome)
"""
    for outcome in ("created kept", "kept kept", "kept kept"):
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
        )
        assert (ended.stdout.strip(), ended.stderr) == (outcome, "")
