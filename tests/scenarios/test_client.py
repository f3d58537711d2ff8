"""The client from a user's side, on every store."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from stored import is_postgres

import onejob
from onejob import (
    APP_WINDOW,
    App,
    ArgumentsInvalid,
    DuplicateJob,
    InvalidOption,
    JobFailed,
    JobRevoked,
    Outcome,
    PayloadMismatch,
    ResultGone,
    ResultTimeout,
    Retry,
    State,
    StoreClosed,
    Unique,
    UnknownTask,
    Verdict,
    WrongCall,
    current,
)
from onejob.core.job import Claimed, WorkerId
from onejob.core.lifecycle import Move, Settlement
from onejob.core.options import decode_options
from onejob.store import Amended, Ask, Beat
from onejob.testing.clock import FakeClock


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """SQLite in memory here: what is asked of files is asked in all other modules."""
    return "memory:" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def lasting_url(request: pytest.FixtureRequest, store_url: str) -> str:
    """A store that others can open."""
    return request.getfixturevalue("sqlite_url") if store_url == "memory:" else store_url


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(store_url: str, clock: FakeClock) -> Iterator[App]:
    with App(store_url, clock=clock) as app:
        yield app


def started(app: App, queue: str = "default") -> Claimed:
    """Start the next job of a queue, as a worker would."""
    ask = Ask(WorkerId("w-test"), (queue,), 1)
    return app.client.call(app.store.claim(ask), instead="").jobs[0]


def ended(app: App, job: Claimed, move: Move = Move.COMPLETE, **changes: object) -> None:
    app.client.call(app.store.settle([Settlement(job.lease, move, **changes)]), instead="")  # type: ignore[arg-type]


def stored(app: App) -> int:
    return len(app.jobs(limit=1000).jobs)


@pytest.mark.accepts("Q1", "N16")
def test_without_a_policy_every_call_creates(app: App) -> None:
    send = app.task(name="send")(lambda id: None)
    receipts = [send.enqueue("a") for _ in range(3)]
    assert {receipt.outcome for receipt in receipts} == {Outcome.CREATED}
    assert len({receipt.id for receipt in receipts}) == stored(app) == 3


@pytest.mark.accepts("Q2", "Q3", "Q11", "Q12", "Q13", "N15")
def test_a_duplicate_returns_the_holder_and_its_input_is_ignored(app: App) -> None:
    @app.task(name="send", unique=Unique(by="id"))
    def send(id: str, note: str = "") -> None: ...

    first, again, other = send.enqueue("a", "one"), send.enqueue("a", "two"), send.enqueue("b")
    assert (again.id, again.outcome, again.deduplicated) == (first.id, Outcome.KEPT, True)
    assert again.payload_differs
    assert other.id != first.id
    job = app.job(first)
    assert job is not None
    assert job.payload == b'{"id":"a","note":"one"}'


@pytest.mark.accepts("N4", "N5", "N6", "N7", "N8")
def test_the_key_is_what_by_says(app: App) -> None:
    @app.task(
        name="hook",
        unique=Unique.latest(by=lambda entity_id, entity_type: entity_id and (entity_id, entity_type)),
    )
    def hook(entity_id: str | None, entity_type: str | None = "", data: int = 0) -> None: ...

    first = hook.enqueue("1", "task", 1)
    assert hook.enqueue("1", "task", 2).id == first.id
    assert hook.enqueue("2", "task", 1).id != first.id
    assert hook.enqueue("1", "user", 1).id != first.id
    missing = hook.enqueue("1", None)
    assert hook.enqueue("1", "").id == hook.enqueue("1").id == missing.id
    assert not hook.enqueue(None).deduplicated
    assert not hook.enqueue(None).deduplicated


@pytest.mark.accepts("F3", "F8", "F10")
def test_a_missing_subject_is_a_singleton_of_its_own(app: App) -> None:
    @app.task(name="sync", unique=Unique(by="subject"))
    def sync(subject: str | None = None) -> None: ...

    assert sync.enqueue().id == sync.enqueue(None).id == sync.enqueue("").id
    assert not sync.enqueue("x").deduplicated


def test_every_way_to_name_a_key(app: App) -> None:
    def charge(order: int, note: str = "") -> None: ...

    task = app.task(charge)
    once = [task.using(unique=Unique.once(key="order-9")).enqueue(9, note) for note in "ab"]
    assert once[0].id == once[1].id
    whole = [task.using(unique=Unique.once()).enqueue(9, note) for note in "aba"]
    assert whole[0].id == whole[2].id != whole[1].id
    single = [task.using(unique=Unique.once(by=())).enqueue(order) for order in (1, 2)]
    assert single[0].id == single[1].id
    assert task.using(unique=Unique.once(key=None)).enqueue(9).key is None
    named = task.using(unique=Unique.once(by=lambda *, order: f"order-{order}")).enqueue(9)
    assert named.id == once[0].id
    every = task.using(unique=Unique.once(by=lambda **given: (given["order"], given["note"]))).enqueue(9, "z")
    assert every.key == "9/z"


@pytest.mark.accepts("G28", "N20")
def test_keys_are_per_queue_and_windows_per_call(app: App, clock: FakeClock) -> None:
    @app.task(name="send", unique=Unique.once(by="id", within=5))
    def send(id: str) -> None: ...

    first = send.enqueue("a")
    assert not send.using(queue="other").enqueue("a").deduplicated
    clock.advance(6)
    assert send.using(unique=Unique.once(by="id", within=60)).enqueue("a").id == first.id
    assert not send.enqueue("a").deduplicated


@pytest.mark.accepts("N10", "N11", "N12", "N13")
def test_within_the_window_the_payload_is_replaced_and_at_its_edge_a_new_job_made(
    app: App, clock: FakeClock
) -> None:
    @app.task(name="hook", unique=Unique.latest(by="id", within=5, overlap=True))
    def hook(id: str, version: int) -> None: ...

    first = hook.enqueue("a", 0)
    for version in (2, 4):
        clock.advance(2)
        updated = hook.enqueue("a", version)
        assert (updated.id, updated.outcome) == (first.id, Outcome.UPDATED)
    job = app.job(first)
    assert job is not None
    assert job.payload == b'{"id":"a","version":4}'
    assert job.updated == job.accepted + 4000
    clock.advance(1)
    assert hook.enqueue("a", 5).outcome is Outcome.CREATED


@pytest.mark.accepts("N1", "N2", "N3", "N30")
@pytest.mark.parametrize(
    ("window", "deduplicated"), [(5, True), (30, True), (60, True), (0, False), (-1, False)]
)
def test_the_window_comes_from_configuration_alone(
    monkeypatch: pytest.MonkeyPatch, store_url: str, window: int, deduplicated: bool
) -> None:
    monkeypatch.setenv("ONEJOB_WINDOW", str(window))
    with App(store_url) as by_environment, App("memory:", window=window) as by_argument:
        for app in (by_environment, by_argument):

            @app.task(name="send", unique=Unique.latest(by="id", within=APP_WINDOW))
            def send(id: str) -> None: ...

            send.enqueue("a")
            assert send.enqueue("a").deduplicated is deduplicated


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "1e99"])
def test_a_senseless_window_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ONEJOB_WINDOW", text)
    with pytest.raises(InvalidOption, match=r"\$ONEJOB_WINDOW"):
        App("memory:")


def test_an_app_wide_policy_holds_until_a_task_turns_it_off(store_url: str) -> None:
    with App(store_url, unique=Unique.once()) as app:
        send = app.task(name="send")(lambda: None)
        free = app.task(name="free", unique=None)(lambda: None)
        assert send.enqueue().id == send.enqueue().id
        assert free.enqueue().id != free.enqueue().id
        assert send.using(unique=None).enqueue().outcome is Outcome.CREATED


@pytest.mark.accepts("F16")
def test_force_runs_in_any_case_and_takes_the_key(app: App) -> None:
    @app.task(name="send", unique=Unique.once(by="id"))
    def send(id: str) -> None: ...

    first = send.enqueue("a")
    forced = send.using(force=True).enqueue("a")
    assert forced.outcome is Outcome.CREATED
    assert send.enqueue("a").id == forced.id != first.id
    assert app.job(first) is not None


def test_raise_carries_the_holder_and_stores_nothing(app: App) -> None:
    @app.task(name="charge", unique=Unique.once(by="order", queued="raise"))
    def charge(order: int) -> None: ...

    first = charge.enqueue(9)
    with pytest.raises(DuplicateJob, match="is held by") as caught:
        charge.enqueue(9)
    assert caught.value.holder == first.id
    assert stored(app) == 1


def test_an_idempotency_key_refuses_other_arguments(app: App) -> None:
    def charge(order: int, amount: int) -> None: ...

    keyed = app.task(name="charge")(charge).using(unique=Unique.once(key="k-1", mismatch="raise"))
    first = keyed.enqueue(1, 100)
    assert keyed.enqueue(1, 100).id == first.id
    with pytest.raises(PayloadMismatch):
        keyed.enqueue(1, 200)


def test_collect_gathers_lists(app: App) -> None:
    @app.task(name="index", unique=Unique.collect(into="ids", wait=5, by="kind"))
    def index(kind: str, ids: list[int]) -> None: ...

    first = index.enqueue("user", [1])
    again = index.enqueue("user", [2, 3])
    assert (again.id, again.outcome) == (first.id, Outcome.COLLECTED)
    job = app.job(first)
    assert job is not None
    arguments = index.codec.mapping(index.codec.decode(job.payload, into="ids"))
    assert arguments == {"kind": "user", "ids": [1, 2, 3]}


def test_a_call_from_inside_the_holder_follows_it(app: App) -> None:
    @app.task(name="poll", unique=Unique.in_flight(by=()))
    def poll() -> None: ...

    first = poll.enqueue()
    running = started(app)
    assert poll.enqueue().id == first.id

    def handler() -> onejob.Receipt[None]:
        current.bind(current.CurrentJob(running))
        return poll.enqueue()

    again = contextvars.copy_context().run(handler)
    assert (again.outcome, again.verdict) == (Outcome.CREATED, Verdict.FOLLOW)


def test_arguments_are_checked_at_the_call(app: App) -> None:
    @app.task(name="send")
    def send(id: int) -> None: ...

    for args, kwargs in ((("x",), {}), ((), {}), ((1, 2), {}), ((), {"idd": 1})):
        with pytest.raises(ArgumentsInvalid, match="send"):
            send.enqueue(*args, **kwargs)
        with pytest.raises(ArgumentsInvalid):
            app.enqueue_many([send.job(1), send.job(*args, **kwargs)])
    assert stored(app) == 0


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Unique(by="entity"), "did you mean 'entity_id'"),
        (Unique(by=lambda entty_id: entty_id), "did you mean 'entity_id'"),
        (Unique.collect(into="entity_id"), "needs a list parameter"),
        (Unique.collect(into="ids"), "which is no parameter"),
        (Unique(within=APP_WINDOW), "ONEJOB_WINDOW"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_when_the_task_is_defined(policy: Unique, message: str) -> None:
    app = App("memory:")

    def send(entity_id: str) -> None: ...

    with pytest.raises(InvalidOption, match=message):
        app.task(unique=policy)(send)
    assert not app.tasks


def test_a_key_function_may_bring_its_own_values(app: App) -> None:
    @app.task(name="send", unique=Unique(by=lambda id, prefix="x": f"{prefix}{id}"))
    def send(id: int) -> None: ...

    assert send.enqueue(1).key == "x1"


def test_the_error_of_a_key_function_names_the_task(app: App) -> None:
    @app.task(name="send", unique=Unique(by=lambda id: 1 / id))
    def send(id: int) -> None: ...

    with pytest.raises(ZeroDivisionError) as caught:
        send.enqueue(0)
    assert "'send'" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"at": dt.datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"at": dt.datetime(2130, 1, 1, tzinfo=dt.UTC)}, "ten years"),
        ({"delay": float("nan")}, "finite"),
        ({"delay": "soon"}, "seconds"),
        ({"delay": 1, "at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC)}, "exclude"),
        ({"priority": 2**31}, "priority"),
        ({"priority": True}, "priority"),
        ({"retry": 0}, "attempts"),
        ({"retry": "often"}, "retry"),
        ({"max_crashes": -1}, "max_crashes"),
        ({"expires": 0}, "expires"),
        ({"timeout": 0}, "timeout"),
        ({"queue": "my queue"}, "Queue name"),
        ({"unique": "once"}, "policy"),
        ({"force": 1}, "force"),
        ({"dealy": 3}, "did you mean 'delay'"),
    ],
)
def test_a_senseless_option_is_refused_where_it_is_given(settings: dict[str, object], message: str) -> None:
    send = App("memory:").task(name="send")(lambda: None)
    with pytest.raises(InvalidOption, match=message):
        send.using(**settings)  # type: ignore[arg-type]


def test_a_task_does_not_take_what_is_for_one_call() -> None:
    with pytest.raises(InvalidOption, match="no option 'force'"):
        App("memory:").task(force=True)  # type: ignore[call-overload]


@pytest.mark.parametrize("policy", [Unique.debounce(5), Unique.collect(into="ids")])
def test_delay_does_not_go_with_a_policy_that_decides_itself(policy: Unique) -> None:
    def send(ids: list[int]) -> None: ...

    app = App("memory:")
    with pytest.raises(InvalidOption, match="decide themselves"):
        app.task(unique=policy, delay=5)(send)
    task = app.task(unique=policy)(send)
    with pytest.raises(InvalidOption, match="decide themselves"):
        task.using(delay=5)


def test_two_tasks_of_one_name_are_refused_and_an_unknown_one_names_near_matches() -> None:
    app = App("memory:")
    app.task(name="send_mail")(lambda: None)
    with pytest.raises(InvalidOption, match="'send_mail' is taken"):
        app.task(name="send_mail")(lambda: None)
    with pytest.raises(UnknownTask, match="did you mean 'send_mail'"):
        app.task_named("send_mial")


SHELL = """
from onejob import App, InvalidOption
app = App("memory:")
@app.task
def answer() -> int: return 41
@app.task
def answer() -> int: return 42
assert app.tasks["answer"].function() == 42
try:
    @app.task(name="answer")
    def question() -> str: return "?"
except InvalidOption as error:
    print(error)
"""


def test_a_shell_may_define_a_task_again_but_not_take_the_name_of_another(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], input=SHELL, capture_output=True, text=True, check=False
        )

    typed = run()
    assert typed.returncode == 0, typed.stderr
    assert "'answer' is taken by __main__.answer" in typed.stdout
    script = tmp_path / "script.py"
    script.write_text(SHELL)
    assert "'script.answer' is taken by __main__.answer" in run(str(script)).stderr


def test_a_task_is_named_after_its_module_and_function() -> None:
    app = App("memory:")

    @app.task
    def _send() -> None: ...

    assert _send.name == f"{__name__}.test_a_task_is_named_after_its_module_and_function._send"


def test_the_password_of_a_url_is_never_shown() -> None:
    with pytest.raises(InvalidOption) as caught:
        App("nosuch://user:s3cret@host/jobs.db")
    assert "s3cret" not in str(caught.value)


def test_options_travel_with_the_job(app: App, clock: FakeClock) -> None:
    @app.task(
        name="send",
        queue="mail",
        priority=3,
        retry=Retry(attempts=4, backoff=2.0),
        timeout=dt.timedelta(seconds=9),
    )
    def send() -> None: ...

    at = dt.datetime.fromtimestamp(clock.now / 1000 + 30, dt.UTC)
    later = app.job(send.using(at=at, expires=60, max_crashes=0).enqueue())
    assert later is not None
    assert (later.queue, later.priority, later.state, later.max_crashes) == ("mail", 3, State.DELAYED, 0)
    assert later.due - later.accepted == 30_000
    assert later.expires == later.accepted + 60_000
    options = decode_options(later.options)
    assert (options.attempts, options.timeout) == (4, 9_000)
    past = app.job(send.using(at=dt.datetime(2000, 1, 1, tzinfo=dt.UTC)).enqueue())
    assert past is not None
    assert past.state is State.WAITING


def test_options_given_one_after_the_other_add_up(app: App) -> None:
    send = app.task(name="send", priority=1)(lambda: None)
    job = app.job(send.using(delay=5).using(priority=7).enqueue())
    assert job is not None
    assert (job.priority, job.state) == (7, State.DELAYED)


def test_bulk_is_the_same_calls_in_order(app: App) -> None:
    @app.task(name="send", unique=Unique.latest(by="id"))
    def send(id: int, version: int = 0) -> None: ...

    receipts = app.enqueue_many(send.job(id, version) for version in (1, 2) for id in range(3))
    assert [receipt.outcome for receipt in receipts] == [Outcome.CREATED] * 3 + [Outcome.UPDATED] * 3
    assert [receipt.id for receipt in receipts[:3]] == [receipt.id for receipt in receipts[3:]]


def test_bulk_takes_any_number_and_answers_each(app: App) -> None:
    @app.task(name="send", unique=Unique(by="id"))
    def send(id: int) -> None: ...

    receipts = app.enqueue_many(send.job(number % 1500) for number in range(2500))
    assert [receipt.deduplicated for receipt in receipts] == [False] * 1500 + [True] * 1000
    assert len({receipt.id for receipt in receipts}) == 1500
    assert app.enqueue_many([]) == []


def test_the_same_call_twice_is_two_jobs(app: App) -> None:
    call = app.task(name="send")(lambda: None).job()
    assert len({receipt.id for receipt in app.enqueue_many([call, call])}) == 2


def test_a_refused_item_in_bulk_is_rejected_and_its_neighbours_are_not(app: App) -> None:
    @app.task(name="send", unique=Unique(by="id", queued="raise"))
    def send(id: int) -> None: ...

    outcomes = [receipt.outcome for receipt in app.enqueue_many([send.job(1), send.job(1), send.job(2)])]
    assert outcomes == [Outcome.CREATED, Outcome.REJECTED, Outcome.CREATED]


def test_what_is_no_call_is_refused_and_nothing_stored(app: App) -> None:
    send = app.task(name="send")(lambda: None)
    with pytest.raises(InvalidOption, match="item 1"):
        app.enqueue_many([send.job(), send])  # type: ignore[list-item]
    assert stored(app) == 0


async def test_a_sync_call_inside_an_event_loop_names_the_async_one(store_url: str) -> None:
    async with App(store_url) as app:
        send = app.task(name="send")(lambda: None)
        with pytest.raises(WrongCall, match=r"await send\.aenqueue"):
            send.enqueue()
        with pytest.raises(WrongCall, match=r"await app\.aenqueue_many"):
            app.enqueue_many([send.job()])
        with pytest.raises(WrongCall, match=r"await app\.acounts"):
            app.counts()
        with pytest.raises(WrongCall, match=r"async with app\.transaction"):
            app.transaction().__enter__()
        receipt = await send.aenqueue()
        with pytest.raises(WrongCall, match=r"await receipt\.aresult"):
            receipt.result()
        with pytest.raises(WrongCall, match=r"await app\.aclose"):
            app.close()


@pytest.mark.accepts("N17", "N18", "F11")
async def test_a_hundred_at_once_for_one_key_make_one_job_with_the_last_payload(store_url: str) -> None:
    async with App(store_url) as app:

        @app.task(name="send", unique=Unique.latest(by="id"))
        async def send(id: str, version: int) -> None: ...

        receipts = await asyncio.gather(*(send.aenqueue("a", version) for version in range(100)))
        assert len({receipt.id for receipt in receipts}) == 1
        job = await app.ajob(receipts[0])
        assert job is not None
        assert job.payload == b'{"id":"a","version":99}'
        assert (await app.acounts()) == {"default": {State.WAITING: 1}}


async def test_concurrent_enqueues_share_a_round_trip(store_url: str) -> None:
    async with App(store_url) as app:
        send = app.task(name="send")(lambda: None)
        sizes: list[int] = []
        enqueue = app.store.enqueue

        async def counted(jobs: list[onejob.core.job.NewJob], **now: int) -> list[onejob.core.judge.Answer]:
            sizes.append(len(jobs))
            return await enqueue(jobs, **now)

        app.store.enqueue = counted  # type: ignore[method-assign]
        await asyncio.gather(*(send.aenqueue() for _ in range(100)))
        assert sizes == [100]


def test_many_threads_and_loops_share_one_app(store_url: str) -> None:
    with App(store_url) as app:

        @app.task(name="send", unique=Unique(by="id"))
        def send(id: int) -> None: ...

        async def in_loop() -> None:
            await asyncio.gather(*(send.aenqueue(id) for id in range(50)))

        def in_thread() -> None:
            for id in range(50):
                send.enqueue(id)

        threads = [threading.Thread(target=in_thread) for _ in range(4)]
        threads += [threading.Thread(target=asyncio.run, args=(in_loop(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stored(app) == 50


def test_a_closed_app_says_so_and_can_be_entered_again(lasting_url: str) -> None:
    app = App(lasting_url)
    send = app.task(name="send")(lambda: None)
    send.enqueue()
    app.close()
    app.close()
    with pytest.raises(StoreClosed):
        send.enqueue()
    with app:
        send.enqueue()
        assert stored(app) == 2


def test_a_task_is_still_its_function() -> None:
    app = App("memory:")

    @app.task
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    @app.task
    async def aadd(a: int, b: int) -> int:
        return a + b

    assert (add(1, 2), asyncio.run(aadd(1, 2)), add.__doc__, add.__name__) == (3, 3, "Add.", "add")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_enqueues_while_its_parents_threads_do(lasting_url: str) -> None:
    with App(lasting_url) as app:

        @app.task(name="send")
        def send(id: int) -> None: ...

        send.enqueue(0)
        stop = threading.Event()
        sent = [0, 0]

        def busy(which: int) -> None:
            while not stop.is_set():
                send.enqueue(which)
                sent[which] += 1

        threads = [threading.Thread(target=busy, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        children: list[int] = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    receipts = [send.enqueue(7) for _ in range(10)] + app.enqueue_many([send.job(7)] * 10)
                    code = 0 if len({receipt.id for receipt in receipts}) == 20 else 2
                    app.close()
                finally:
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        stop.set()
        for thread in threads:
            thread.join()
        assert codes == [0, 0, 0]
        assert sum(app.counts()["default"].values()) == 1 + sum(sent) + 60


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_forked_child_stores_outlives_its_parents_app(lasting_url: str) -> None:
    app = App(lasting_url)

    @app.task(name="send")
    def send(id: int) -> None: ...

    send.enqueue(0)
    child_ready, parent_closed = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            send.enqueue(1)
            os.write(child_ready[1], b".")
            os.read(parent_closed[0], 1)
            send.enqueue(2)
            code = 0
        finally:
            os._exit(code)
    os.read(child_ready[0], 1)
    app.close()
    os.write(parent_closed[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (*child_ready, *parent_closed):
        os.close(end)
    with App(lasting_url) as later:
        assert {job.payload for job in later.jobs().jobs} == {b'{"id":0}', b'{"id":1}', b'{"id":2}'}


@pytest.mark.accepts("N19")
@pytest.mark.usefixtures("database_url")
def test_a_transaction_keeps_rows_and_jobs_together(lasting_url: str) -> None:
    with App(lasting_url) as app:
        send = app.task(name="send")(lambda: None)
        with app.transaction() as tx:
            tx.execute("create table orders (id integer)")
            tx.execute("insert into orders values (:id)", {"id": 1})
            kept = send.enqueue()
        lost: list[onejob.Receipt[None]] = []

        def fail_halfway() -> None:
            with app.transaction() as tx:
                tx.execute("insert into orders values (:id)", {"id": 2})
                lost.extend([send.enqueue(), *app.enqueue_many([send.job()])])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_halfway()
        assert app.job(kept) is not None
        assert [app.job(receipt) for receipt in lost] == [None, None]
        with app.transaction() as tx:
            assert tx.execute("select id from orders") == [(1,)]
        after = send.enqueue()
        assert app.job(after) is not None
    assert read_elsewhere(lasting_url, "select id from orders") == [(1,)]


def read_elsewhere(url: str, statement: str) -> list[tuple[Any, ...]]:
    """By somebody who knows nothing of onejob."""
    if is_postgres(url):
        with psycopg.connect(url.partition("?")[0]) as other:
            return other.execute(statement).fetchall()  # type: ignore[arg-type]
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as plain:
        return plain.execute(statement).fetchall()


async def test_an_async_transaction_does_the_same(database_url: str) -> None:
    async with App(database_url) as app:
        send = app.task(name="send", unique=Unique.once())(lambda: None)
        async with app.transaction() as tx:
            await tx.execute("create table orders (id integer)")
            first = await send.aenqueue()
            assert (await send.aenqueue()).id == first.id

        async def fail_halfway() -> None:
            async with app.transaction() as tx:
                await tx.execute("insert into orders values (1)")
                await send.using(force=True).aenqueue()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_halfway()
        async with app.transaction() as tx:
            assert await tx.execute("select id from orders") == []
        assert len((await app.ajobs()).jobs) == 1


def test_transactions_do_not_nest(app: App) -> None:
    with app.transaction(), pytest.raises(WrongCall, match="do not nest"), app.transaction():
        pass
    used = app.transaction()
    with used:
        pass
    with pytest.raises(WrongCall, match="once"), used:
        pass


async def test_a_task_that_outlives_the_transaction_enqueues_for_itself(store_url: str) -> None:
    async with App(store_url) as app:
        send = app.task(name="send")(lambda: None)
        over = asyncio.Event()

        async def straggler() -> onejob.Receipt[None]:
            await over.wait()
            return await send.aenqueue()

        async with app.transaction():
            task = asyncio.create_task(straggler())
        over.set()
        assert await app.ajob(await task) is not None


async def test_a_receipt_waits_for_its_result(store_url: str) -> None:
    async with App(store_url) as app:

        @app.task(name="add")
        async def add(a: int, b: int) -> dict[int, dt.date]:
            return {a + b: dt.date(2026, 1, 1)}

        async with app.worker(queues=["default"]):
            receipt = await add.aenqueue(1, 2)
            assert await receipt.aresult(timeout=10) == {3: dt.date(2026, 1, 1)}
            in_thread = await asyncio.to_thread(lambda: add.enqueue(2, 2).result(timeout=10))
            assert in_thread == {4: dt.date(2026, 1, 1)}


def test_every_other_end_of_a_result_has_its_error(app: App) -> None:
    send = app.task(name="send")(lambda: None)
    failed = send.enqueue()
    with pytest.raises(ResultTimeout, match="waiting"):
        failed.result(timeout=0)
    ended(app, started(app), Move.FAIL, error="ValueError: no")
    with pytest.raises(JobFailed, match="ValueError: no") as caught:
        failed.result()
    assert caught.value.id == failed.id
    revoked = send.enqueue()
    app.revoke(revoked)
    with pytest.raises(JobRevoked, match=r"revoked: by request$"):
        revoked.result()
    app.delete(revoked)
    with pytest.raises(ResultGone):
        revoked.result()


def test_an_operator_revokes_retries_deletes_and_releases(app: App) -> None:
    @app.task(name="send", unique=Unique.once(by=("kind", "id")))
    def send(kind: str, id: int) -> None: ...

    first = send.enqueue("a", 1)
    assert app.revoke(first.id) is Amended.REVOKED
    assert app.revoke(first) is Amended.FINISHED
    assert app.retry(first) is Amended.RETRIED
    second = send.using(force=True).enqueue("a", 1)
    app.revoke(first)
    assert app.retry(first) is Amended.KEPT
    assert app.retry(first, force=True) is Amended.RETRIED
    assert app.delete(first) is Amended.DELETED
    assert app.revoke("nosuch") is Amended.NOT_FOUND
    assert send.release("a", 1) == second.id
    assert not send.enqueue("a", 1).deduplicated


def test_a_key_is_released_by_receipt_parts_or_the_text_shown(app: App) -> None:
    @app.task(name="send", unique=Unique.once(by=("kind", "id")))
    def send(kind: str, id: int) -> None: ...

    for key in (None, ("a", 1), "a/1"):
        receipt = send.enqueue("a", 1)
        assert not receipt.deduplicated
        given = receipt if key is None else key
        assert app.release(given, task="send") == receipt.id
    assert app.release("never/seen", task=send) is None
    with pytest.raises(InvalidOption, match="task=…"):
        app.release("a/1")


def test_jobs_are_listed_by_what_they_are(app: App) -> None:
    send = app.task(name="send", unique=Unique(by="id"))(_with_id)
    receipts = [send.enqueue(number) for number in range(5)]
    app.revoke(receipts[0])
    assert [job.id for job in app.jobs("state:revoked").jobs] == [receipts[0].id]
    assert [job.id for job in app.jobs("key:3").jobs] == [receipts[3].id]
    page = app.jobs("task:send", limit=3)
    rest = app.jobs("task:send", limit=3, cursor=page.cursor)
    assert [job.id for job in (*page.jobs, *rest.jobs)] == [receipt.id for receipt in reversed(receipts)]
    with pytest.raises(InvalidOption, match="no state 'done'"):
        app.jobs("state:done")


def _with_id(id: int) -> None: ...


@pytest.mark.accepts("N27", "N28")
def test_explain_says_who_holds_the_key_and_what_the_next_call_gets(app: App, clock: FakeClock) -> None:
    @app.task(name="hook", unique=Unique.latest(by="id", within=5, overlap=True))
    def hook(id: str | None, version: int = 0) -> None: ...

    free = hook.explain("a")
    assert (free.holder, free.next_outcome) == (None, Outcome.CREATED)
    assert "Nobody holds" in str(free)
    first = hook.enqueue("a")
    hook.enqueue("a", 1)
    clock.advance(2)
    held = hook.explain("a")
    assert (held.holder, held.holder_state, held.holder_age) == (first.id, State.WAITING, 2.0)
    assert (held.next_outcome, held.next_verdict) == (Outcome.UPDATED, "update")
    assert (held.absorbed, held.differing) == (1, 1)
    assert "which ends in 3 s" in str(held)
    clock.advance(3.5)
    passed = hook.explain("a")
    assert passed.next_outcome is Outcome.CREATED
    assert "window of 5 s has passed, 0.5 s ago" in str(passed)
    assert app.explain(first).as_dict()["state"] == "waiting"


@pytest.mark.accepts("N27")
def test_explain_says_why_a_call_is_not_unique(app: App) -> None:
    send = app.task(name="send")(_with_id)
    assert "no unique=… policy" in str(send.explain(1))
    assert "key=None" in str(send.using(unique=Unique(key=None)).explain(1))
    assert "window is zero" in str(send.using(unique=Unique.once(within=0)).explain(1))
    assert "key function returned None" in str(send.using(unique=Unique(by=lambda id: None)).explain(1))
    assert "never deduplicated" in str(app.explain(send.enqueue(1)))


@pytest.mark.accepts("N28")
def test_explain_says_what_a_job_waits_for(app: App, clock: FakeClock) -> None:
    send = app.task(name="send", unique=Unique.coalesce(by="id"))(_with_id)
    first = send.enqueue(1)
    assert "no worker serves queue 'default'" in str(app.explain(first))
    running = started(app)
    assert "running" in str(app.explain(first))
    follower = send.enqueue(1)
    assert f"only after job {first.id} has ended" in str(app.explain(follower))
    ended(app, running, Move.RETRY, delay=4_000, error="ValueError: no\n  at line 3")
    retried = str(app.explain(first))
    assert "retried after failure 1 (ValueError: no), due in 4 s" in retried
    assert "due in 30 s" in str(app.explain(send.using(delay=30).enqueue(2)))
    beat = Beat(WorkerId("w-test"), 30_000, queues=("default",), concurrency=10)
    app.client.call(app.store.beat(beat), instead="")
    assert "1 worker(s) serve its queue, with 0 of 10 slots in use" in str(app.explain(send.enqueue(3)))
    assert "not on record" in str(app.explain("nosuch"))


def test_explain_knows_what_a_pruned_job_left_in_its_key(app: App) -> None:
    send = app.task(name="send", unique=Unique.once(by="id"))(_with_id)
    receipt = send.enqueue(1)
    ended(app, started(app))
    app.delete(receipt)
    again = send.enqueue(1)
    assert (again.id, again.outcome) == (receipt.id, Outcome.KEPT)
    told = app.explain(again)
    assert told.holder == receipt.id
    assert "not on record" in str(told)
    assert "remembered until it is released" in str(told)
    with pytest.raises(ResultGone):
        again.result()


@pytest.mark.accepts("N23", "N24")
def test_each_enqueue_is_one_log_line_with_fields(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="send", unique=Unique.latest(by="id"))
    def send(id: str) -> None: ...

    with caplog.at_level(logging.INFO, logger="onejob"):
        first = send.enqueue("a\nforged line %s")
        send.enqueue("a\nforged line %s")
    created, updated = [record for record in caplog.records if record.name == "onejob"]
    assert created.getMessage().startswith(f"created: {first.id}")
    assert "send" in created.getMessage()
    assert updated.getMessage().startswith("updated:")
    assert first.id in updated.getMessage()
    assert (updated.job, updated.task, updated.outcome) == (first.id, "send", "updated")  # type: ignore[attr-defined]
    assert "\n" not in created.getMessage() + updated.key  # type: ignore[attr-defined]


def test_named_backoffs_are_registered_once() -> None:
    app = App("memory:")

    @app.backoff("polite")
    def polite(failures: int, error: BaseException) -> float:
        return failures * 2.0

    assert app.backoffs == {"polite": polite}
    with pytest.raises(InvalidOption, match="registered already"):
        app.backoff("polite")


def test_retention_is_given_in_seconds() -> None:
    app = App("memory:", retention=onejob.Retention(completed=60))
    assert app.retention.stored().completed == 60_000
    with pytest.raises(InvalidOption, match="completed"):
        onejob.Retention(completed=-1)


async def test_collected_lists_are_no_part_of_the_default_key(app: App) -> None:
    @app.task(name="gather", unique=Unique.collect(into="items", wait=60))
    async def gather(items: list[int], kind: str = "") -> None: ...

    first, same, other = (
        await gather.aenqueue([1]),
        await gather.aenqueue([2]),
        await gather.aenqueue([3], "b"),
    )
    assert (same.outcome, same.id) == (Outcome.COLLECTED, first.id)
    assert other.outcome is Outcome.CREATED
