"""What somebody new gets wrong in the first hour, and what they are told: where it was written, not later."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onejob
import onejob.testing
from onejob import (
    APP_WINDOW,
    App,
    ArgumentsInvalid,
    Fail,
    InvalidOption,
    ResultGone,
    Retry,
    Unique,
    WrongCall,
)
from onejob.testing import FakeClock, adrain, drain
from onejob.worker.failure import describe, one_line


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory:") as app:
        yield app


def refused(call: Callable[[], object]) -> str:
    """What a call says when it is refused."""
    with pytest.raises((InvalidOption, WrongCall)) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nosuch://x", "Store URL 'nosuch://x' is not known: use sqlite:///FILE"),
        ("nosuch://x", "valkey+cluster://HOST:PORT"),
        ("valkye://localhost", "did you mean valkey://?"),
        ("postgress://me@localhost/shop", "did you mean postgres://?"),
        ("jobs.db", "did you mean 'sqlite:///jobs.db'?"),
        ("/var/jobs.db", "did you mean 'sqlite:////var/jobs.db'?"),
        ("sqlite://jobs.db", "did you mean 'sqlite:///jobs.db'?"),
        ("sqlite:///jobs.db?patience=long", "only patience=SECONDS is known"),
        ("sqlite:///a%00b", "names no file"),
        ("postgresql+psycopg://me@localhost/shop", "write postgresql:// alone"),
        ("redis://localhost:6379/0", "for a Redis server, too, write valkey://."),
        ("rediss://me:secret@localhost", "for a Redis server, too, write valkeys://."),
        ("postgresql://localhost/shop?schem=jobs", "did you mean schema=…?"),
    ],
)
def test_a_wrong_url_is_refused_where_the_app_is_made(url: str, told: str) -> None:
    assert told in refused(lambda: App(url))


def test_a_mistyped_path_makes_no_folders(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/no/where/jobs.db") as app, pytest.raises(onejob.OnejobError) as caught:
        app.task(name="send")(lambda: None).enqueue()
    assert f"there is no folder {tmp_path}/no/where" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["delay", "apply_async", "send", "defer", "kiq"])
def test_other_libraries_words_for_enqueue_name_ours(app: App, word: str) -> None:
    task: Any = app.task(name="send")(lambda: None)
    for sender in (task, task.using(priority=1)):
        with pytest.raises(AttributeError, match=rf"Task 'send' has no \.{word}\(…\): write \.enqueue\(…\)"):
            getattr(sender, word)(1)
    with pytest.raises(AttributeError, match="has no attribute 'enqeue'"):
        task.enqeue()


def test_a_wrong_url_of_the_environment_is_refused_where_the_app_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONEJOB_URL", "jobs.db")
    assert "did you mean 'sqlite:///jobs.db'?" in refused(App)


def test_a_backoff_that_is_registered_nowhere_is_refused_at_the_first_call(app: App) -> None:
    @app.backoff("polite")
    def polite(failures: int, error: BaseException) -> float:
        return 1.0

    @app.task(name="fetch", retry=Retry(3, "polit"))
    def fetch() -> None: ...

    told = "Task 'fetch' has Retry(backoff='polit'), but no backoff of that name is registered"
    assert told in refused(fetch.enqueue)
    assert "did you mean 'polite'?" in refused(fetch.enqueue)
    assert told in refused(lambda: app.enqueue_many([fetch.job()]))
    assert told in refused(lambda: fetch.using(retry=None).using(retry=Retry(3, "polit")).enqueue())
    assert fetch.using(retry=Retry(3, "polite")).enqueue().id
    assert app.count() == 1


def test_a_backoff_may_be_registered_after_its_task(app: App) -> None:
    @app.task(name="fetch", retry=Retry(3, "polite"))
    def fetch() -> None: ...

    assert "there are none" in refused(fetch.enqueue)
    app.backoff("polite")(lambda failures, error: 1.0)
    assert fetch.enqueue().id


def test_a_backoff_that_can_never_be_registered_is_refused_with_its_task(app: App) -> None:
    assert "Backoff name 'not a name' is not valid" in refused(lambda: app.task(retry=Retry(3, "not a name")))


async def test_a_worker_does_not_start_without_the_backoffs_of_its_tasks() -> None:
    async with App("memory:") as app:
        app.task(name="fetch", retry=Retry(3, "polite"))(lambda: None)
        with pytest.raises(InvalidOption, match=re.escape("@app.backoff('polite')")):
            await app.worker().__aenter__()
        with pytest.raises(InvalidOption, match=re.escape("@app.backoff('polite')")):
            await adrain(app)
        app.backoff("polite")(lambda failures, error: 1.0)
        async with app.worker():
            pass


def test_a_worker_in_a_plain_with_block_names_the_right_way(app: App) -> None:
    def use() -> None:
        with app.worker():  # type: ignore[attr-defined]
            raise AssertionError("never entered")

    assert "async with app.worker(…):" in refused(use)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda app: app.enqueue_many(None), "enqueue_many takes a list of calls made with task.job(…), not None"),
        (lambda app: app.release(task="send"), "release(…) takes a receipt, or a key and its task=…"),
        (lambda app: app.release("u1", task=7), "This app has no task 7"),
        (lambda app: app.worker(queues=7), 'queues must be names of queues, as in ["mail", "default"]'),
        (lambda app: app.jobs(limit=-1), "limit must be a whole number from 1"),
        (lambda app: app.jobs(cursor="x"), "cursor=… must be the cursor of a page before"),
        (lambda app: onejob.current_job(), "onejob.testing.drain(app)"),
        (lambda app: Unique.once("user"), "what makes the key is said with by='user'"),  # type: ignore[arg-type]
        (lambda app: Unique.debounce(2, bye="user"), "This Unique takes no bye=…: did you mean by=…?"),  # type: ignore[call-arg]
        (lambda app: Unique.throttle("1m"), "Unique.throttle(every=…) must be seconds (a number) or a timedelta, not '1m': write 60."),  # type: ignore[arg-type]
        (lambda app: Unique.debounce("1.5s"), "wait must be seconds (a number) or a timedelta, not '1.5s': write 1.5."),  # type: ignore[arg-type]
        (lambda app: Unique.latest("a while"), "within must be seconds (a number) or a timedelta, not 'a while'"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_call_is_told_what_is_right(app: App, call: Callable[[Any], object], told: str) -> None:
    with pytest.raises(onejob.OnejobError) as caught:
        call(app)
    assert told in str(caught.value)


def test_an_error_of_a_callers_own_generator_stays_its_own(app: App) -> None:
    @app.task
    def count(number: int) -> None: ...

    wrong: Any = "one"
    with pytest.raises(ArgumentsInvalid):
        app.enqueue_many(count.job(number) for number in (1, wrong))


async def test_a_result_asked_for_in_the_transaction_that_enqueues_it_says_when_to_ask() -> None:
    async with App("memory:") as app:
        send = app.task(name="send")(lambda: None)
        async with app.transaction():
            receipt = await send.aenqueue()
            with pytest.raises(ResultGone, match="is stored when its block ends"):
                await receipt.aresult(timeout=1)
        with contextlib.suppress(ZeroDivisionError):
            async with app.transaction():
                receipt = await send.aenqueue()
                raise ZeroDivisionError
        with pytest.raises(ResultGone, match="or the transaction that enqueued it was rolled back"):
            await receipt.aresult(timeout=1)


def test_the_same_is_said_in_sync_code(app: App) -> None:
    send = app.task(name="send")(lambda: None)
    with app.transaction():
        receipt = send.enqueue()
        with pytest.raises(ResultGone, match="is stored when its block ends"):
            receipt.result(timeout=1)


async def test_the_line_of_a_failure_says_where_it_was_raised(caplog: pytest.LogCaptureFixture) -> None:
    async with App("memory:") as app:

        @app.task(name="divide")
        async def divide(by: int) -> float:
            return 1 / by

        @app.task(name="give_up")
        async def give_up() -> None:
            raise Fail("enough")

        async with app.worker():
            await await_end(await divide.aenqueue(0))
            await await_end(await give_up.aenqueue())
    lines = [record for record in caplog.records if getattr(record, "event", "") == "job.failed"]
    told = {record.getMessage().partition(" failed: ")[2]: record for record in lines}
    assert "Fail: enough" in told
    [line] = told.keys() - {"Fail: enough"}
    assert re.fullmatch(rf"ZeroDivisionError: division by zero \({re.escape(__file__)}:\d+\)", line)
    assert vars(told[line])["error"] == "ZeroDivisionError: division by zero"


async def await_end(receipt: onejob.Receipt[Any]) -> None:
    with pytest.raises(onejob.JobFailed):
        await receipt.aresult(timeout=10)


def test_the_place_is_that_of_the_error_and_not_of_its_cause() -> None:
    def fail() -> None:
        try:
            raise KeyError("lower")
        except KeyError as error:
            raise ValueError("upper") from error

    with pytest.raises(ValueError, match="upper") as caught:
        fail()
    text = describe(caught.value)
    assert "caused by KeyError" in text
    line = fail.__code__.co_firstlineno + 4
    assert one_line(text) == f"ValueError: upper ({__file__}:{line})"
    assert one_line("undecodable: nothing") == "undecodable: nothing"
    assert one_line(None) == ""


async def test_the_greeting_of_a_worker_names_the_file_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onejob")
    monkeypatch.chdir(tmp_path)
    async with App("sqlite:///jobs.db?patience=3") as app, app.worker():
        pass
    assert f" · sqlite:///{tmp_path / 'jobs.db'}?patience=3" in caplog.text


async def test_the_last_line_of_a_worker_is_in_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onejob")
    async with App("memory:") as app:

        @app.task(name="fetch", retry=Retry(2, 0.0))
        async def fetch() -> None:
            if onejob.current_job().attempt == 1:
                raise onejob.Snooze(0)
            raise ConnectionError

        async with app.worker():
            await await_end(await fetch.aenqueue())
    assert caplog.messages[-1].endswith("stopped: 0 completed, 1 snoozed, 1 to be retried, 1 failed")


def test_what_is_printed_at_a_prompt_says_what_it_is(app: App) -> None:
    app.task(name="send")(lambda: None)
    assert repr(app) == "<App on memory:, 1 task>"
    assert re.fullmatch(r"<Worker w-\w+: starting, serves default>", repr(app.worker()))


@pytest.mark.parametrize(
    "policy",
    [
        "Unique.once()",
        "Unique.once(by='user', failed='keep')",
        "Unique.in_flight(key='order-9', within=60)",
        "Unique.throttle(every=60, trailing=True)",
        "Unique.throttle(every=onejob.APP_WINDOW)",
        "Unique.debounce(by=('kind', 'id'), wait=2, max_wait=10)",
        "Unique.collect(into='items', max_items=5)",
        "Unique.latest(by=(), overlap=True)",
    ],
)
def test_a_policy_is_shown_as_it_is_written(policy: str) -> None:
    assert repr(eval(policy, {"Unique": Unique, "onejob": onejob})) == policy


def test_a_policy_without_a_preset_is_shown_as_what_it_means() -> None:
    assert repr(Unique(within=APP_WINDOW)) == "Unique.in_flight(within=onejob.APP_WINDOW)"


def test_what_one_may_import_is_listed() -> None:
    public = {name for name in dir(onejob) if not name.startswith("_")}
    assert public == set(onejob.__all__)
    assert set(dir(onejob.testing)) == set(onejob.testing.__all__)


def test_a_collected_call_does_not_speak_of_the_same_arguments(app: App) -> None:
    @app.task(unique=Unique.collect(into="items", wait=1, by="user"))
    def index(user: str, items: list[int]) -> None: ...

    index.enqueue("u1", [1])
    assert str(index.enqueue("u1", [2, 3])).endswith(" old)")


def test_drain_takes_only_the_clock_of_its_app() -> None:
    clock = FakeClock()
    with App("memory:", clock=clock) as app:
        send = app.task(name="send")(lambda: None)
        send.using(delay=60).enqueue()
        assert "must be the clock that the app's store goes by, which is FakeClock" in refused(
            lambda: drain(app, clock=FakeClock())
        )
        assert len(drain(app, clock=clock)) == 1
    with App("memory:") as app:
        assert "the computer's" in refused(lambda: drain(app, clock=clock))


@pytest.mark.parametrize("scheme", ["postgresql://me@", "valkey://", "valkey+cluster://"])
def test_a_server_that_is_not_there_makes_one_traceback(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    name = "/shop" if scheme.startswith("postgresql") else ""
    url = f"{scheme}127.0.0.1:{port}{name}?patience=0.2"
    with App(url) as app, pytest.raises(onejob.StoreUnavailable) as caught:
        app.task(name="send")(lambda: None).enqueue()
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("Traceback (most recent call last)") == 1
    assert "refused" in str(caught.value), "the cause is in the message"
