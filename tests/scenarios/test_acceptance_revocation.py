"""Revocation: queued jobs end at once, running ones are told, and nothing brings them back (ACCEPTANCE.md, G37 to G40)."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import told_tasks
from stage import PATIENCE, READY, Stage, eventually
from stored import with_patience

from onejob import (
    App,
    InvalidOption,
    JobRevoked,
    Lane,
    Outcome,
    Queue,
    Receipt,
    Retry,
    State,
    Unique,
    current_job,
)
from onejob.core.job import Job
from onejob.store import Amended
from onejob.tasks import Task
from onejob.testing import FakeClock, adrain

MakeApp = Callable[..., App]
WAYS = ["coroutine", "thread", "process"]


@pytest.fixture
def real(store_url: str) -> App:
    """An app on the real clock."""
    return App(store_url, queues={"default": Queue(dead_letter="dead")})


def waiting_task(app: App, way: str, **settings: Any) -> Task[..., Any]:
    function = told_tasks.in_loop if way == "coroutine" else told_tasks.outside
    return app.task(name="wait", process=way == "process", **settings)(function)


async def there_is(path: Path) -> None:
    async def exists() -> bool:
        return path.exists()

    await eventually(exists)


async def ended(app: App, receipt: Receipt[Any]) -> Job:
    async def has_ended() -> bool:
        job = await app.ajob(receipt)
        return job is not None and job.state.ended

    await eventually(has_ended)
    job = await app.ajob(receipt)
    assert job is not None
    return job


# The four answers


@pytest.mark.accepts("G37")
async def test_a_queued_job_ends_at_once_whatever_it_waits_for(app: App) -> None:
    stage = Stage(app, lane=Lane("x"), unique=Unique.coalesce(by="name"))
    await stage.send("head")
    async with app.worker():
        await stage.shows("head")
        [blocked] = await stage.send("head")
        [parked] = await stage.send("2")
        [delayed] = await stage.send("3", delay=60)
        await app.queue("mail").apause()
        [waiting] = await stage.send("4", queue="mail")
        queued = [blocked, parked, delayed, waiting]
        *states, last = await stage.states(*queued)
        assert states == [State.BLOCKED, State.PARKED, State.DELAYED]
        assert last in READY
        for receipt in queued:
            assert await app.arevoke(receipt) == "revoked"
        assert await stage.states(*queued) == [State.REVOKED] * 4
        stage.release("head")
        await stage.shows()
    assert stage.started == ["head"]
    with pytest.raises(JobRevoked):
        await parked.aresult(timeout=1)


@pytest.mark.accepts("G38")
async def test_a_running_job_is_flagged_and_ends_revoked(app: App) -> None:
    stage = Stage(app)
    [receipt] = await stage.send("1")
    async with app.worker():
        await stage.shows("1")
        assert await app.arevoke(receipt.id) == "flagged"
        job = await stage.job(receipt)
        assert (job.state, job.aborting) == (State.RUNNING, True)
        assert "it has been asked to stop" in str(await app.aexplain(receipt))
        assert await app.arevoke(receipt) == "flagged"
        stage.release("1")
        assert (await ended(app, receipt)).state is State.REVOKED
    assert await app.arevoke(receipt) == "finished"


@pytest.mark.accepts("G39")
async def test_what_has_ended_is_finished_and_what_never_was_is_not_found(app: App) -> None:
    stage = Stage(app)
    stage.open = True
    [receipt] = await stage.send("1")
    await adrain(app)
    assert await app.arevoke(receipt) == "finished"
    assert await stage.states(receipt) == [State.COMPLETED]
    for unknown in ("0198f000-0000-7000-8000-000000000002", "no id at all"):
        assert await app.arevoke(unknown) == "not_found"


# By key


@pytest.mark.accepts("G37", "G38", "G39")
async def test_a_key_or_a_call_names_the_job_as_well(app: App) -> None:
    stage = Stage(app, unique=Unique.in_flight(by="name"))
    assert await stage.work.arevoke("1") == "not_found"
    assert await app.arevoke(key="1", task="work") == "not_found"
    first, second = await stage.send("1", "2")
    assert await stage.work.arevoke("1", "whatever else it is called with") == "revoked"
    assert await stage.work.arevoke("1") == "not_found", "nobody holds it any more"
    async with app.worker():
        await stage.shows("2")
        assert await app.arevoke(key="2", task=stage.work) == "flagged"
        assert await stage.work.arevoke("2") == "flagged"
        stage.release("2")
        await ended(app, second)
    assert await stage.states(first, second) == [State.REVOKED, State.REVOKED]


async def test_a_key_of_several_parts_is_given_as_a_tuple_or_as_it_is_shown(app: App) -> None:
    @app.task(unique=Unique.once(by=("kind", "id")))
    async def sync(kind: str, id: int) -> None: ...

    for key in (("order", 9), "order/9"):
        receipt = await sync.aenqueue("order", 9)
        assert (receipt.outcome, receipt.key) == (Outcome.CREATED, "order/9")
        assert await app.arevoke(key=key, task=sync) == "revoked"
    assert await app.arevoke(key=("order", "9"), task=sync) == "not_found"


async def test_a_key_that_is_remembered_is_finished_though_its_job_be_gone(app: App) -> None:
    stage = Stage(app, unique=Unique.once(by="name"))
    stage.open = True
    [receipt] = await stage.send("1")
    await adrain(app)
    assert await stage.work.arevoke("1") == "finished"
    await app.adelete(receipt)
    assert await stage.work.arevoke("1") == "finished"
    await stage.work.arelease("1")
    assert await stage.work.arevoke("1") == "not_found"


async def test_the_holder_of_the_key_is_meant_and_a_filter_means_all(app: App) -> None:
    stage = Stage(app, unique=Unique.coalesce(by="name"))
    [running] = await stage.send("1")
    async with app.worker():
        await stage.shows("1")
        [follower] = await stage.send("1")
        assert await stage.work.arevoke("1") == "revoked"
        assert await stage.states(running, follower) == [State.RUNNING, State.REVOKED]
        assert await app.arevoke_many("key:1") == {Amended.FLAGGED: 1}
        stage.release("1")
        assert (await ended(app, running)).state is State.REVOKED


def test_sync_code_has_the_same(app: App) -> None:
    @app.task(unique=Unique.in_flight(by="number"))
    def note(number: int) -> None: ...

    assert app.revoke(note.enqueue(1)) == "revoked"
    assert app.revoke(note.enqueue(1).id) == "revoked"
    note.enqueue(1)
    assert note.revoke(1) == "revoked"
    note.enqueue(1)
    assert app.revoke(key=(1,), task=note) == "revoked"
    app.enqueue_many([note.job(number) for number in range(5)])
    assert app.revoke_many("task:note args.number:3,4") == {Amended.REVOKED: 2}
    assert app.revoke_many("state:live,ended") == {Amended.REVOKED: 3}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda app, task: app.revoke(), "a job's id or receipt, or else key="),
        (lambda app, task: app.revoke("x", key="y", task=task), "a job's id or receipt, or else key="),
        (lambda app, task: app.revoke(key="y"), "and the task=… of that key"),
        (lambda app, task: app.revoke("x", task=task), "and the task=… of that key"),
        (lambda app, task: app.revoke(key="", task=task), "A key must be 1 to 1024 characters"),
        (lambda app, task: app.revoke(key=7, task=task), r"revoke\(…\) takes a receipt, a key's text or a tuple"),
        (lambda app, task: app.revoke(7), "Give a job's id or a receipt, not 7"),
        (lambda app, task: task.revoke(), "has no key to revoke by: the task has no unique=… policy"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(
    app: App, ask: Callable[[App, Task[..., Any]], object], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        ask(app, app.task(name="note")(lambda: None))


# What a handler sees


@pytest.mark.accepts("G40")
@pytest.mark.parametrize("way", WAYS)
async def test_the_handler_is_told_within_a_second_without_any_hint(
    real: App, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = waiting_task(real, way)
    took: list[float] = []
    deafen(real, monkeypatch)
    async with real, real.worker(poll=0.2, children=3):
        places = [tmp_path / str(number) for number in range(3)]
        receipts = [await task.aenqueue(str(place)) for place in places]
        for place in places:
            await there_is(place)
        for place, receipt in zip(places, receipts, strict=True):
            revoked_at = time.monotonic()
            assert await real.arevoke(receipt) == "flagged"
            assert (await ended(real, receipt)).state is State.REVOKED
            reason, told_at = Path(f"{place}-told").read_text().split()
            assert reason == "revoked"
            took.append(float(told_at) - revoked_at)
    # The middle one: a machine may be busy with something else for a moment.
    assert statistics.median(took) < 1, took


def deafen(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no hint get through to anybody."""

    async def hear_nothing(topics: frozenset[str], timeout: float, *, since: int | None = None) -> bool:
        await asyncio.sleep(min(timeout, 0.02))
        return False

    monkeypatch.setattr(app.store, "wait", hear_nothing)


@pytest.mark.accepts("G40")
async def test_the_signal_can_be_handed_to_io(real: App) -> None:
    begun, sent = asyncio.Event(), bytearray()

    @real.task
    async def upload() -> str:
        aborted = asyncio.ensure_future(current_job().aborted)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun.set()
        answer = asyncio.ensure_future(reader.read())
        await asyncio.wait({answer, aborted}, return_when=asyncio.FIRST_COMPLETED)
        writer.write(b"never mind" if aborted.done() else b"thanks")
        await writer.drain()
        writer.close()
        answer.cancel()
        return "stopped"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.extend(await reader.read())  # and never answers
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, real, real.worker():
        receipt = await upload.aenqueue()
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await real.arevoke(receipt)
        job = await ended(real, receipt)

        async def heard() -> bool:
            return sent == b"never mind"

        await eventually(heard)
    assert (job.state, job.result) == (State.REVOKED, None)


@pytest.mark.accepts("G40")
@pytest.mark.parametrize("way", ["coroutine", "process"])
async def test_a_task_may_ask_to_be_cancelled_instead(real: App, tmp_path: Path, way: str) -> None:
    function = told_tasks.deaf_in_loop if way == "coroutine" else told_tasks.deaf_outside
    task = real.task(name="deaf", cancel_on_abort=True, process=way == "process", retry=3)(function)
    place = tmp_path / "here"
    async with real, real.worker(poll=60):
        receipt = await task.aenqueue(str(place))
        await there_is(place)
        revoked_at = time.monotonic()
        await real.arevoke(receipt)
        job = await ended(real, receipt)
    assert (job.state, job.attempt) == (State.REVOKED, 1)
    assert float((tmp_path / "here-cancelled").read_text()) - revoked_at < 5


async def test_a_flagged_job_that_still_waits_for_a_process_never_begins(real: App, tmp_path: Path) -> None:
    task = waiting_task(real, "process")
    first, second = tmp_path / "first", tmp_path / "second"
    async with real, real.worker(poll=0.2, children=1):
        running, waiting = await task.aenqueue(str(first)), await task.aenqueue(str(second))
        await there_is(first)

        async def claimed() -> bool:
            job = await real.ajob(waiting)
            return job is not None and job.state is State.RUNNING

        await eventually(claimed)
        assert await real.arevoke(waiting) == "flagged"
        job = await ended(real, waiting)
        assert (job.state, job.attempt, job.error) == (State.REVOKED, 0, None)
        assert not second.exists()
        await real.arevoke(running)
        assert (await ended(real, running)).attempt == 1


# Whatever the handler does then


@pytest.mark.accepts("G38")
@pytest.mark.parametrize("way", WAYS)
async def test_a_flagged_job_ends_revoked_whatever_its_handler_does(
    real: App, tmp_path: Path, way: str
) -> None:
    deeds = ["return", "raise", "fail", "snooze", "exit"]
    task = waiting_task(
        real, way, retry=Retry(5, 0), max_crashes=5, unique=Unique.in_flight(by="then"), lane=Lane(by="then")
    )
    async with real, real.worker(poll=0.2, concurrency=20, children=5):
        receipts = {deed: await task.aenqueue(str(tmp_path / deed), deed) for deed in deeds}
        for deed in deeds:
            await there_is(tmp_path / deed)
        parked = {
            deed: await task.using(unique=None).aenqueue(str(tmp_path / f"{deed}-next"), deed)
            for deed in deeds
        }
        for deed, receipt in receipts.items():
            assert (await task.aenqueue("", deed)).outcome is Outcome.KEPT
            assert await real.arevoke(receipt) == "flagged"
        for deed, receipt in receipts.items():
            job = await ended(real, receipt)
            assert (job.state, job.attempt, job.result) == (State.REVOKED, 1, None), deed
            again = await task.using(delay=60).aenqueue("", deed)
            assert again.outcome is Outcome.CREATED, "its key is free"
            await there_is(tmp_path / f"{deed}-next")  # and its slot
        views = {view.plan.key: view for view in await real.alanes()}
        for deed in deeds:
            view = views[f"then:{deed}"]
            assert (view.holders, view.taken, view.ready) == ([parked[deed].id], 1, 0), "freed once"
        await real.arevoke_many("state:live")
        assert await real.adead() == []


async def test_only_an_operator_brings_a_revoked_job_back(app: App, clock: FakeClock) -> None:
    stage = Stage(app, retry=Retry(5, 1.0), lane=Lane("x"))
    stage.fails["1"] = ConnectionError()
    [receipt] = await stage.send("1")
    async with app.worker():
        await stage.shows("1")
        await app.arevoke(receipt)
        stage.release("1")
        await ended(app, receipt)
    clock.advance(3_600)
    assert not await adrain(app)
    del stage.fails["1"]
    assert await app.aretry(receipt) == "retried"
    await adrain(app)
    assert await stage.states(receipt) == [State.COMPLETED]


# Whatever happens to everything else

MODULE = """
import time
from pathlib import Path
from onejob import App, Lane, Unique, current_job

app = App()

@app.task(name="stubborn", unique=Unique.in_flight(by=()), lane=Lane("x"), retry=5)
def stubborn() -> None:
    with Path("runs").open("a") as runs:
        runs.write("x")
    time.sleep(60)
"""


@pytest.mark.accepts("G38")
def test_a_revocation_survives_a_restart_of_everything(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(MODULE)
    url = with_patience(store_url)
    env = {**os.environ, "ONEJOB_URL": url}
    workers: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from onejob.cli import main; main()", "worker", "jobs:app"]
        options = ("--lease", "3", "--poll", "0.2", "--quiet")
        workers.append(subprocess.Popen([*command, *options], cwd=tmp_path, env=env))
        return workers[-1]

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE * 2
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.02)

    try:
        with App(url) as app:
            receipt = app.task(name="stubborn", unique=Unique.in_flight(by=()), lane=Lane("x"))(
                _nothing
            ).enqueue()
            first = start()
            until((tmp_path / "runs").exists)
            assert app.revoke(receipt) == "flagged"
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
        with App(url) as again:
            job = again.job(receipt.id)
            assert job is not None
            assert (job.state, job.aborting) == (State.RUNNING, True)
            start()
            until(lambda: (found := again.job(receipt.id)) is not None and found.state.ended)
            job = again.job(receipt.id)
            assert job is not None
            assert (job.state, job.attempt, job.crashes) == (State.REVOKED, 1, 1)
            assert again.lanes() == []
            assert (tmp_path / "runs").read_text() == "x"
            task = again.task(name="stubborn", unique=Unique.in_flight(by=()))(_nothing)
            assert task.enqueue().outcome is Outcome.CREATED
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _nothing() -> None: ...
