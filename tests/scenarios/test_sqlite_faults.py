"""What can go wrong with one SQLite file: locks, damage, a file taken away, transactions that end by themselves."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import apsw
import pytest

from onejob import App, OnejobError, State, StoreBusy, StoreFull, Unique, WrongCall
from onejob.store import Amendment, Retention
from onejob.stores.sqlite import connect


def app_in(folder: Path, query: str = "") -> App:
    return App(f"sqlite:///{folder / 'jobs.db'}{query}")


def hold_the_lock(path: str, entered: Event, leave: Event) -> None:
    with App(f"sqlite:///{path}") as app, app.transaction(timeout=30):
        entered.set()
        leave.wait(30)


async def test_a_file_locked_by_another_process_is_busy_after_the_patience_for_all_callers_at_once(
    tmp_path: Path,
) -> None:
    spawn = multiprocessing.get_context("spawn")
    entered, leave = spawn.Event(), spawn.Event()
    async with app_in(tmp_path, "?patience=0.5") as app:
        task = app.task(name="task")(noop)
        await app.store.open()
        other = spawn.Process(target=hold_the_lock, args=(str(tmp_path / "jobs.db"), entered, leave))
        other.start()
        assert await asyncio.to_thread(entered.wait, 30)
        began = time.monotonic()
        calls = [app.store.amend([], Amendment.REVOKE) for _ in range(8)]
        refused = await asyncio.gather(task.aenqueue(), *calls, return_exceptions=True)
        assert all(isinstance(error, StoreBusy) for error in refused), refused
        assert time.monotonic() - began < 3, "they waited together, not one after the other"
        leave.set()
        await asyncio.to_thread(other.join)
        assert not (await task.aenqueue()).deduplicated


async def noop() -> None: ...


def test_who_finds_a_new_file_while_another_makes_it_waits_for_him(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "jobs.db")
    other = apsw.Connection(path)
    other.execute("create table t (a)")
    other.execute("begin immediate")
    pauses: list[float] = []

    def make_way(seconds: float) -> None:
        pauses.append(seconds)
        if other.in_transaction:
            other.execute("commit")

    monkeypatch.setattr(connect, "sleep", make_way)
    connection = connect.connect(path, patience=5)
    assert connection.pragma("journal_mode") == "wal"
    assert pauses
    connection.close()
    other.close()


async def test_one_damaged_row_does_not_stop_the_queue(tmp_path: Path) -> None:
    async with app_in(tmp_path) as app:
        task = app.task(name="task")(noop)
        _, sound = await task.aenqueue(), await task.aenqueue()
        async with app.transaction() as tx:
            await tx.execute(
                "update onejob_job set task = cast(x'ff80' as text), key = cast(x'ff' as text) where seq = 1"
            )
        async with app.worker():
            await sound.aresult(timeout=20)
            async with app.transaction() as tx:
                [(state, misses)] = await tx.execute("select state, misses from onejob_job where seq = 1")
        assert (state, misses > 0) == ("delayed", True), "handed back, as a task nobody here knows"


async def test_a_statement_that_ends_the_transaction_is_not_mistaken_for_a_commit(tmp_path: Path) -> None:
    async with app_in(tmp_path) as app:
        task = app.task(name="task", unique=Unique())(noop)
        async with app.transaction() as tx:
            await tx.execute("create table once (id integer primary key)")
            await tx.execute("insert into once values (1)")

        async def end_it_by_a_statement() -> None:
            async with app.transaction() as tx:
                await task.aenqueue()
                with pytest.raises(Exception, match="UNIQUE"):
                    await tx.execute("insert or rollback into once values (1)")

        with pytest.raises(OnejobError, match="rolled back, and nothing of it is stored"):
            await end_it_by_a_statement()
        assert await app.acounts() == {}
        assert (await task.aenqueue()).outcome == "created"


@pytest.mark.parametrize("statement", ["commit", " END;", "rollback", "begin immediate"])
async def test_a_transaction_is_ended_by_its_block_alone(statement: str, tmp_path: Path) -> None:
    async with app_in(tmp_path) as app, app.transaction() as tx:
        with pytest.raises(WrongCall, match="leave the block to commit"):
            await tx.execute(statement)
        assert await tx.execute("select 1") == [(1,)]


async def test_a_caller_that_gives_up_entering_a_transaction_does_not_hold_the_writer(tmp_path: Path) -> None:
    async with app_in(tmp_path) as app:
        task = app.task(name="task")(noop)
        await app.store.open()
        inside, given_up = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with app.transaction(timeout=20):
                inside.set()
                await given_up.wait()

        async def give_up() -> None:
            async with app.transaction(timeout=20):
                raise AssertionError("it was cancelled before it could enter")

        holder = asyncio.create_task(hold())
        await inside.wait()
        waiting = asyncio.create_task(give_up())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        given_up.set()
        await holder
        async with asyncio.timeout(20):
            await task.aenqueue()


async def test_closing_does_not_block_the_event_loop(tmp_path: Path) -> None:
    app = app_in(tmp_path)
    await app.store.open()
    inside, turns = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with app.transaction(timeout=10):
            inside.set()
            await turns.wait()

    async def turn() -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)
        turns.set()

    holder = asyncio.create_task(hold())
    await inside.wait()
    turning = asyncio.create_task(turn())
    await app.aclose()
    assert turns.is_set(), "it waits for those who are inside, and the loop went on meanwhile"
    await asyncio.gather(holder, turning)


async def test_a_file_taken_away_is_noticed_and_not_written_to(tmp_path: Path) -> None:
    async with app_in(tmp_path) as app:
        task = app.task(name="task")(noop)
        await task.aenqueue()
        for file in list(tmp_path.iterdir()):
            file.unlink()
        await asyncio.sleep(1.1)  # it looks once a second
        with pytest.raises(OnejobError, match="removed or replaced"):
            await task.aenqueue()
        assert (await task.aenqueue()).outcome == "created"
        assert (await app.acounts())["default"] == {State.WAITING: 1}


async def test_a_full_disk_loses_nothing_that_was_acknowledged_and_recovers(tmp_path: Path) -> None:
    async with app_in(tmp_path) as app:

        @app.task(name="big")
        async def big(data: str) -> None: ...

        stored = 0

        async def fill() -> None:
            nonlocal stored
            while True:
                await big.aenqueue("x" * 100_000)
                stored += 1

        async with app.transaction() as tx:
            [(pages,)] = await tx.execute("pragma page_count")
            await tx.execute(f"pragma max_page_count = {pages + 100}")
        with pytest.raises(StoreFull, match="nothing was stored"):
            await fill()
        assert stored > 0
        assert (await app.acounts())["default"] == {State.WAITING: stored}
        async with app.transaction() as tx:
            await tx.execute("pragma max_page_count = 1000000")
        await big.aenqueue("x" * 100_000)
        assert (await app.acounts())["default"] == {State.WAITING: stored + 1}


async def test_pruned_and_vacuumed_files_go_on(tmp_path: Path) -> None:
    async with app_in(tmp_path) as app:
        task = app.task(name="task", unique=Unique.once(by=()))(noop)
        first = await task.aenqueue()
        async with app.worker():
            await first.aresult(timeout=20)
        await app.store.prune(Retention(0, 0, 0), 100, now=await app.store.time() + 1)
        again = await task.aenqueue()
        assert (again.outcome, again.id) == ("kept", first.id)
