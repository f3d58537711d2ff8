"""Jobs in processes of their own: what comes back, what is told, what is killed, and what a death costs.

Everything is real: processes, signals, stores. Signals to a whole worker are in test_process_signals.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import process_tasks
import psutil
import pytest

from onejob import App, Exponential, Retry, Unique
from onejob.core.errors import InvalidOption
from onejob.core.job import ChainId, Claimed, Job, JobId, Lease, Millis, NewJob, State
from onejob.core.lifecycle import Returned
from onejob.ids import new_id
from onejob.receipt import Receipt
from onejob.tasks import Task
from onejob.testing import adrain
from onejob.worker import WorkerSetup
from onejob.worker.attempt import Attempt, Interruption
from onejob.worker.runner import Runner

PATIENCE = 60.0
anywhere = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
"""For what happens between a worker and its processes, whichever store the job is from."""


@pytest.fixture
def app(store_url: str) -> App:
    return App(store_url)


def in_process(app: App, function: Callable[..., Any], **options: Any) -> Task[..., Any]:
    return app.task(name=function.__name__, process=True, **options)(function)


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[None]:
    """A worker beside the test, and the store closed after it."""
    async with app.worker(**{"poll": 0.2, **options}):
        yield
    await app.aclose()


async def until(condition: Callable[[], Awaitable[object] | object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = condition()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.01)


async def stored(app: App, receipt: Receipt[Any]) -> Job:
    job = await app.ajob(receipt)
    assert job is not None
    return job


async def ended(app: App, receipt: Receipt[Any]) -> Job:
    async def has_ended() -> bool:
        return (await stored(app, receipt)).state.ended

    await until(has_ended)
    return await stored(app, receipt)


async def run(app: App, function: Callable[..., Any], *arguments: Any, **options: Any) -> Job:
    """Run one job of a function to its end."""
    task = in_process(app, function, **options)
    async with working(app):
        return await ended(app, await task.aenqueue(*arguments))


def result_of(job: Job) -> Any:
    assert job.state is State.COMPLETED, job.error
    assert job.result is not None
    return msgspec.json.decode(job.result)


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def own_children() -> set[int]:
    """The processes of this one that are not gone, zombies included."""
    found = set[int]()
    for file in Path("/proc/self/task").glob("*/children"):
        found |= set(map(int, file.read_text().split()))
    return found


def open_channels() -> int:
    """The sockets and pipes of this process; a store opens files, and lines to its server, in its own time."""
    to_servers = {connection.fd for connection in psutil.Process().net_connections("tcp")}
    kinds = [
        os.readlink(file)  # noqa: PTH115
        for file in Path("/proc/self/fd").iterdir()
        if file.is_symlink() and int(file.name) not in to_servers
    ]
    return sum(kind.startswith(("socket:", "pipe:")) for kind in kinds)


# What comes back


async def test_the_function_runs_in_another_process_and_its_result_comes_back(app: App) -> None:
    answer = result_of(await run(app, process_tasks.square, 7))
    assert answer["square"] == 49
    assert answer["pid"] != os.getpid()


@anywhere
async def test_the_process_is_a_new_interpreter_and_not_a_fork(app: App) -> None:
    process_tasks.changed_in_the_worker = True
    changed, program, parent = result_of(await run(app, process_tasks.state_of_module))
    assert changed is False
    assert (program, parent) == (Path(sys.argv[0]).name, os.getpid())


@anywhere
async def test_an_error_comes_back_with_its_type_message_and_place(app: App) -> None:
    job = await run(app, process_tasks.raises, "value")
    assert (job.state, job.failures, job.crashes) == (State.FAILED, 1, 0)
    first, *places = (job.error or "").split("\n")
    assert first == r"ValueError: no such \x1b order"
    assert "process_tasks.py" in places[-1]
    assert "in raises" in places[-1]
    assert not any("onejob/worker" in place for place in places)


@anywhere
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("unprintable", "Unprintable: <no message: its __str__ raised RuntimeError>"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("fail", "Fail: never mind"),
    ],
)
async def test_whatever_is_raised_is_a_failed_attempt(app: App, kind: str, text: str) -> None:
    job = await run(app, process_tasks.raises, kind)
    assert (job.state, job.failures, job.crashes) == (State.FAILED, 1, 0)
    assert (job.error or "").startswith(text)


@anywhere
async def test_a_retry_curve_sees_the_error_itself(app: App) -> None:
    app.backoff("polite")(process_tasks.polite)
    job = await run(app, process_tasks.raises, "impatient", retry=Retry(2, "polite"))
    assert (job.state, job.attempt, job.failures) == (State.FAILED, 2, 2)


@anywhere
async def test_a_retry_curve_that_no_process_can_import_sees_the_text_of_the_error(app: App) -> None:
    seen: list[str] = []

    @app.backoff("local")
    def local(failures: int, error: BaseException) -> float:
        seen.append(f"{failures} {error}")
        return 0.01

    job = await run(app, process_tasks.raises, "impatient", retry=Retry(2, "local"))
    assert (job.state, job.failures) == (State.FAILED, 2)
    assert seen == ["1 Impatient: later"]


@anywhere
async def test_an_error_that_is_never_retried_fails_at_once(app: App) -> None:
    retry = Retry(5, Exponential(0.01), never=(LookupError, process_tasks.Impatient))
    job = await run(app, process_tasks.raises, "impatient", retry=retry)
    assert (job.state, job.attempt) == (State.FAILED, 1)


async def test_a_job_may_snooze(app: App) -> None:
    task = in_process(app, process_tasks.raises)
    async with working(app):
        receipt = await task.aenqueue("snooze")

        async def snoozes() -> bool:
            return (await stored(app, receipt)).state is State.DELAYED

        await until(snoozes)
        job = await stored(app, receipt)
    assert (job.failures, job.crashes, job.attempt) == (0, 0, 1)
    assert job.due - job.accepted > 3_500_000


@anywhere
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("object", "result of task returns cannot be stored: ArgumentsInvalid: result"),
        ("function", "result of task returns cannot be stored: ArgumentsInvalid: result"),
        ("too much", "result of task returns cannot be stored: PayloadTooLarge: The result exceeds"),
        ("cycle", "result of task returns cannot be stored: ArgumentsInvalid: result"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_job(app: App, what: str, text: str) -> None:
    job = await run(app, process_tasks.returns, what)
    assert job.state is State.FAILED
    assert (job.error or "").startswith(text)


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_large_result_comes_back_whole(store_url: str, compression: Any) -> None:
    app = App(store_url, compression=compression)
    task = in_process(app, process_tasks.returns)
    async with working(app):
        receipt = await task.aenqueue("large")
        assert await receipt.aresult(timeout=PATIENCE) == {"large": "x" * 900_000}
        size = len((await stored(app, receipt)).result or b"")
    assert size < 10_000 if compression else size > 900_000


@anywhere
async def test_bytes_that_cannot_be_read_fail_the_job_and_not_the_process(app: App) -> None:
    task = in_process(app, process_tasks.square)
    async with working(app, concurrency=1):
        first = await (await task.aenqueue(1)).aresult(timeout=PATIENCE)
        id = new_id()
        await app.store.enqueue([NewJob(id, "default", "square", b"\x80\x04pickled.")])

        async def has_failed() -> bool:
            job = await app.ajob(id)
            return job is not None and job.state is State.FAILED

        await until(has_failed)
        job = await app.ajob(id)
        again = await (await task.aenqueue(2)).aresult(timeout=PATIENCE)
    assert job is not None
    assert (job.error or "").startswith("undecodable: ")
    assert first["pid"] == again["pid"]


# The current job, across the border


@anywhere
async def test_the_current_job_is_known_there_and_its_logs_come_back(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        job = await run(app, process_tasks.about_me, unique=Unique.in_flight(key="mine"))
    assert result_of(job) == {
        "id": job.id,
        "attempt": 1,
        "key": "mine",
        "idempotency_key": job.id,
        "aborted": False,
    }
    [record] = [record for record in caplog.records if record.name == "onejob.job"]
    assert (record.getMessage(), record.levelno) == ("hello from about_me", logging.WARNING)
    assert vars(record)["job"] == job.id
    assert vars(record)["colour"] == "blue"
    assert "and hello from a stranger" in [
        r.getMessage() for r in caplog.records if r.name == "somebody.else"
    ]


async def test_the_newest_progress_is_stored_while_the_job_runs(app: App, tmp_path: Path) -> None:
    task = in_process(app, process_tasks.reports)
    async with working(app):
        receipt = await task.aenqueue(str(tmp_path / "go-on"))

        async def has_reported() -> bool:
            return (await stored(app, receipt)).progress == b'{"done":1999}'

        await until(has_reported)
        assert (await stored(app, receipt)).state is State.RUNNING
        (tmp_path / "go-on").touch()
        assert (await ended(app, receipt)).state is State.COMPLETED


async def test_a_revoked_job_is_told_within_a_second_or_two(app: App, tmp_path: Path) -> None:
    place = tmp_path / "here"
    task = in_process(app, process_tasks.waits_to_be_told)
    async with working(app):
        receipt = await task.aenqueue(str(place))
        await until(place.exists)
        await app.arevoke(receipt)
        revoked_at = time.monotonic()
        await until((tmp_path / "here-told").exists)
        assert time.monotonic() - revoked_at < 10
        job = await ended(app, receipt)
    assert (tmp_path / "here-told").read_text() == "revoked"
    assert job.state is State.REVOKED


# What is killed


@anywhere
@pytest.mark.parametrize(
    ("how", "cleaned_up"),
    [("spins", True), ("sleeps", True), ("deaf", False), ("swallows", False), ("holds the gil", False)],
)
async def test_a_job_that_exceeds_its_timeout_is_killed(
    app: App, tmp_path: Path, how: str, cleaned_up: bool
) -> None:
    place = tmp_path / "here"
    job = await run(app, process_tasks.never_ends, str(place), how, timeout=0.3)
    assert (job.state, job.failures, job.crashes) == (State.FAILED, 1, 0)
    assert job.error == "TimedOut after 0.3 s, the timeout of task never_ends"
    assert is_gone(int(place.read_text()))
    assert (tmp_path / "here-cleaned-up").exists() is cleaned_up


@anywhere
async def test_starting_a_process_does_not_count_as_time_of_the_job(app: App) -> None:
    # No interpreter starts in a tenth of a second on a busy machine; the function itself takes no time.
    assert result_of(await run(app, process_tasks.square, 3, timeout=0.1))["square"] == 9


@anywhere
async def test_a_revoked_job_is_killed_if_its_task_asks_for_it(app: App, tmp_path: Path) -> None:
    place = tmp_path / "here"
    task = in_process(app, process_tasks.never_ends, cancel_on_abort=True)
    async with working(app):
        receipt = await task.aenqueue(str(place), "sleeps")
        await until(place.exists)
        await app.arevoke(receipt)
        job = await ended(app, receipt)
    assert job.state is State.REVOKED
    assert is_gone(int(place.read_text()))
    assert (tmp_path / "here-cleaned-up").exists()


@anywhere
async def test_what_the_process_has_started_is_killed_with_it(app: App, tmp_path: Path) -> None:
    place = tmp_path / "here"
    job = await run(app, process_tasks.starts_another, str(place), timeout=0.5)
    assert (job.error or "").startswith("TimedOut")
    await until(lambda: is_gone(int(place.read_text())))


async def test_a_job_whose_lease_is_lost_is_killed_at_once(app: App, tmp_path: Path) -> None:
    place = tmp_path / "here"
    in_process(app, process_tasks.never_ends)
    payload = msgspec.json.encode({"place": str(place), "how": "deaf"})
    runner, attempt = alone(app, "never_ends", payload)
    attempt.handle = asyncio.ensure_future(runner.run(attempt))
    await until(lambda: place.exists() and place.read_text())
    attempt.interrupt(Interruption.LOST)
    assert await attempt.handle == Returned()
    assert is_gone(int(place.read_text()))
    await runner.close_processes()
    runner.close()


def alone(app: App, task: str, payload: bytes) -> tuple[Runner, Attempt]:
    """A runner without a worker, and something for it to run."""
    id = JobId("0198f000-0000-7000-8000-000000000000")
    claimed = Claimed(
        Lease(id, b"token"),
        "default",
        task,
        payload,
        None,
        1,
        0,
        0,
        3,
        0,
        Millis(0),
        Millis(0),
        ChainId(id),
        0,
        None,
    )
    return Runner(WorkerSetup(app.store, app.tasks), threads=1), Attempt(claimed)


# What a death costs


@anywhere
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "Crashed: its process ended with exit code 7"),
        ("exit with 0", "Crashed: its process ended with exit code 0"),
        ("SIGKILL", "Crashed: its process was killed by SIGKILL (out of memory?)"),
        ("SIGSEGV", "Crashed: its process was killed by SIGSEGV"),
    ],
)
async def test_a_process_that_dies_is_charged_to_the_crash_budget(app: App, how: str, reason: str) -> None:
    job = await run(app, process_tasks.dies, how, max_crashes=0, retry=5)
    assert (job.state, job.attempt, job.failures, job.crashes) == (State.FAILED, 1, 0, 1)
    assert job.error == f"{reason}; crashed 1 times, max_crashes is 0"


async def test_a_job_whose_process_died_runs_again_and_its_worker_lives_on(app: App, tmp_path: Path) -> None:
    job = await run(app, process_tasks.dies_once, str(tmp_path / "died"))
    assert result_of(job) == 2
    assert (job.attempt, job.failures, job.crashes) == (2, 0, 1)


async def test_a_crash_waits_longer_each_time_and_then_fails_into_the_dead_letters(
    store_url: str,
) -> None:
    from onejob.testing import FakeClock

    clock = FakeClock()
    app = App(store_url, clock=clock)
    task = in_process(app, process_tasks.dies, max_crashes=2, dead_letter="graves")
    receipt = await task.aenqueue("exit")
    began = clock.now
    ran = await adrain(app, clock=clock)
    assert [str(one.move) for one in ran] == ["crash", "crash", "succumb"]
    assert clock.now - began == 1_000 + 2_000
    job = await stored(app, receipt)
    assert (job.state, job.failures, job.crashes) == (State.FAILED, 0, 3)
    assert (job.error or "").endswith("; crashed 3 times, max_crashes is 2")
    [letter] = await app.adead("default")
    assert letter.origin == job.id
    await app.aclose()


@anywhere
async def test_a_process_that_sends_nonsense_is_killed(app: App) -> None:
    job = await run(app, process_tasks.babbles, max_crashes=0)
    assert job.state is State.FAILED
    assert (job.error or "").startswith("Crashed: its process sent what is no message")


@anywhere
async def test_a_handler_that_forks_ends_once(app: App, tmp_path: Path) -> None:
    assert result_of(await run(app, process_tasks.forks, str(tmp_path / "forked"))) == 1


@anywhere
async def test_a_job_for_which_no_process_can_be_started_waits_uncharged(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = in_process(app, process_tasks.square)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    receipt = await task.aenqueue(1)
    [ran] = await adrain(app)
    assert str(ran.move) == "snooze"
    assert "because it got no process" in caplog.text
    job = await stored(app, receipt)
    assert (job.state, job.failures, job.crashes) == (State.DELAYED, 0, 0)
    await app.aclose()


# The processes themselves


@anywhere
async def test_a_process_is_used_again_and_replaced_after_so_many_jobs(app: App) -> None:
    task = in_process(app, process_tasks.square)
    pids: list[int] = []
    async with working(app, children=1, max_jobs_per_child=2):
        for number in range(5):
            answer = await (await task.aenqueue(number)).aresult(timeout=PATIENCE)
            pids.append(answer["pid"])
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
        await until(lambda: is_gone(pids[0]) and is_gone(pids[2]))


@anywhere
async def test_a_process_that_has_grown_too_large_is_replaced(app: App) -> None:
    task = in_process(app, process_tasks.hoards)
    async with working(app, children=1, max_memory_per_child=300):
        pids = [
            await (await task.aenqueue(megabytes)).aresult(timeout=PATIENCE) for megabytes in (1, 1, 400, 1)
        ]
    assert pids[0] == pids[1] == pids[2] != pids[3]


@anywhere
async def test_work_that_holds_the_gil_runs_at_the_same_time(app: App) -> None:
    task = in_process(app, process_tasks.holds_the_gil_a_second)
    async with working(app, children=2):
        receipts = [await task.aenqueue() for _ in range(2)]
        first, second = [await receipt.aresult(timeout=PATIENCE) for receipt in receipts]
        if min(first[1], second[1]) < max(
            first[0], second[0]
        ):  # one process was still starting: both run by now
            receipts = [await task.aenqueue() for _ in range(2)]
            first, second = [await receipt.aresult(timeout=PATIENCE) for receipt in receipts]
    assert min(first[1], second[1]) > max(first[0], second[0])


async def test_no_more_processes_than_allowed_and_the_jobs_that_wait_go_back_at_the_end(
    app: App, tmp_path: Path
) -> None:
    task = in_process(app, process_tasks.reports)
    receipts = [await task.aenqueue(str(tmp_path / "go-on")) for _ in range(3)]
    worker = app.worker(concurrency=3, children=1)
    before = own_children()
    serving = asyncio.create_task(worker.run())

    async def has_reported() -> bool:
        return (await stored(app, receipts[0])).progress is not None

    await until(has_reported)
    assert len(own_children() - before) == 1
    assert worker.health().running == 3
    worker.stop()

    async def are_back() -> bool:
        return [(await stored(app, receipt)).attempt for receipt in receipts] == [1, 0, 0]

    await until(are_back)
    (tmp_path / "go-on").touch()
    await serving
    states = [(await stored(app, receipt)).state for receipt in receipts]
    assert states == [State.COMPLETED, State.WAITING, State.WAITING]
    await app.aclose()


async def test_a_second_stop_kills_the_processes_and_hands_their_jobs_back(app: App, tmp_path: Path) -> None:
    place = tmp_path / "here"
    task = in_process(app, process_tasks.never_ends)
    receipt = await task.aenqueue(str(place), "deaf")
    worker = app.worker()
    serving = asyncio.create_task(worker.run())
    await until(lambda: place.exists() and place.read_text())
    worker.stop()
    worker.stop()
    await serving
    job = await stored(app, receipt)
    assert (job.state, job.attempt, job.failures, job.crashes) == (State.WAITING, 0, 0, 0)
    assert is_gone(int(place.read_text()))
    assert worker.stuck == []
    await app.aclose()


@anywhere
async def test_nothing_is_left_behind(app: App, tmp_path: Path) -> None:
    square, dies = in_process(app, process_tasks.square), in_process(app, process_tasks.dies, max_crashes=0)
    never_ends = in_process(app, process_tasks.never_ends, timeout=0.2)
    await app.acounts()
    async with app.worker():
        pass  # what the first worker opens for good is open
    gc.collect()  # what tests before this one left is none of it
    channels, children, threads = open_channels(), own_children(), threading.active_count()
    async with app.worker(children=2, max_jobs_per_child=3):
        receipts = [await square.aenqueue(number) for number in range(8)]
        receipts += [
            await dies.aenqueue("SIGKILL"),
            await never_ends.aenqueue(str(tmp_path / "here"), "deaf"),
        ]
        for receipt in receipts:
            await ended(app, receipt)
    assert own_children() == children
    assert open_channels() <= channels, "fewer is fine: threads of earlier tests may still be closing theirs"
    await until(lambda: threading.active_count() <= threads)
    await app.aclose()


@anywhere
async def test_the_loop_is_never_blocked_by_a_process(app: App, tmp_path: Path) -> None:
    place = tmp_path / "here"
    task = in_process(app, process_tasks.never_ends, timeout=1)
    longest, ticking = 0.0, True

    async def tick() -> None:
        nonlocal longest
        while ticking:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    ticker = asyncio.create_task(tick())
    async with working(app):
        receipt = await task.aenqueue(str(place), "deaf")
        assert ((await ended(app, receipt)).error or "").startswith("TimedOut")
    ticking = False
    await ticker
    # Waiting for a deaf one to die would take two seconds and more.
    assert longest < 1.5


# What is refused


@anywhere
def test_a_coroutine_function_is_refused(app: App) -> None:
    with pytest.raises(
        InvalidOption, match=r"'slow' is a coroutine function, and process=True is for plain ones"
    ):

        @app.task(name="slow", process=True)
        async def slow() -> None: ...


@anywhere
def test_a_function_inside_another_is_refused(app: App) -> None:
    with pytest.raises(
        InvalidOption, match=r"cannot find: define it with `def` at the top level of a module"
    ):

        @app.task(name="local", process=True)
        def local() -> None: ...

    with pytest.raises(InvalidOption, match=r"cannot find: define it with `def`"):
        app.task(name="anonymous", process=True)(lambda: None)


@anywhere
async def test_a_function_that_is_not_where_it_says_fails_its_job(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tasks.square, "__qualname__", "circle")
    job = await run(app, process_tasks.square, 1)
    assert (job.state, job.crashes) == (State.FAILED, 0)
    assert (
        "task square cannot be imported by its process: InvalidOption: Module process_tasks has no 'circle'"
        in (job.error or "")
    )


@anywhere
@pytest.mark.parametrize(
    "options",
    [
        {"children": 0},
        {"children": True},
        {"children": 1.5},
        {"max_jobs_per_child": 0},
        {"max_memory_per_child": 0},
        {"max_memory_per_child": "1G"},
    ],
)
def test_limits_of_the_processes_are_checked(app: App, options: Any) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        app.worker(**options)
