"""Threads that ask a SQLite store without an event loop in between: they share commits, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from uuid import UUID

import pytest

from onejob.core.dedup import Plan, Unique, compile_rules
from onejob.core.errors import StoreClosed, UnknownBlocker
from onejob.core.filter import JobFilter
from onejob.core.identity import Realm, fingerprint
from onejob.core.job import JobId, NewJob
from onejob.core.judge import Answer, Outcome
from onejob.stores.sqlite import direct
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.store import SqliteStore

THREADS = 12
ROUNDS = 20
REALM = Realm("q", "t")
RULES = compile_rules(Unique.in_flight(), None)
assert RULES is not None
_numbers = count(1)


class Watched(SqliteStore):
    """Counts its commits, and can be kept from making any."""

    commits = 0

    def _after_commit(self, session: Session) -> None:
        self.commits += 1
        super()._after_commit(session)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the writer busy."""
        began, over = threading.Event(), threading.Event()

        def hold(_: Session) -> None:
            began.set()
            over.wait()

        with ThreadPoolExecutor(1) as other:
            held = other.submit(self._writer.call, hold)
            began.wait()
            try:
                yield
            finally:
                over.set()
                held.result()

    def wait_until_idle(self) -> None:
        """Wait until its thread has done all that it was asked for."""
        asyncio.run(self.open())
        while not self._writer.is_idle:
            threading.Event().wait(0.001)

    def wait_for(self, gathered: int) -> None:
        """Wait until so many have asked."""
        while self._writer._queue.qsize() < gathered:
            threading.Event().wait(0.001)


def new_job(*blockers: JobId, key: str | None = None) -> NewJob:
    plan = None if key is None else Plan(*REALM.key(key), RULES, fingerprint(b"{}"))
    return NewJob(new_id(), "q", "t", b"{}", plan, blockers=blockers)


def new_id() -> JobId:
    return JobId(str(UUID(int=next(_numbers))))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(str(tmp_path / "jobs.db"))
    yield made
    asyncio.run(made.close())


@pytest.fixture
def pool() -> Iterator[Callable[[Callable[[NewJob], Answer], NewJob], Future[Answer]]]:
    with ThreadPoolExecutor(THREADS) as made:
        yield made.submit


Submit = Callable[[Callable[[NewJob], Answer], NewJob], Future[Answer]]


def test_what_threads_ask_meanwhile_shares_the_next_commit(store: Watched, pool: Submit) -> None:
    jobs = [new_job() for _ in range(THREADS)]
    with store.busy():
        before = store.commits
        asked = [pool(store.enqueue_from_thread, job) for job in jobs]
        store.wait_for(THREADS)
    assert [future.result().id for future in asked] == [job.id for job in jobs]
    assert asyncio.run(store.count(JobFilter())) == THREADS
    assert store.commits <= before + 3  # the one that kept it busy, all of these, and the count


def test_one_that_is_refused_does_not_fail_its_neighbours(store: Watched, pool: Submit) -> None:
    jobs = [new_job() for _ in range(THREADS - 1)]
    with store.busy():
        bad = pool(store.enqueue_from_thread, new_job(new_id()))
        asked = [pool(store.enqueue_from_thread, job) for job in jobs]
        store.wait_for(THREADS)
    with pytest.raises(UnknownBlocker):
        bad.result()
    assert [future.result().id for future in asked] == [job.id for job in jobs]


def test_a_thread_that_is_interrupted_before_its_turn_has_asked_for_nothing(
    store: Watched, pool: Submit
) -> None:
    this = threading.get_ident()

    def interrupt(job: NewJob) -> Answer:
        store.wait_for(1)
        signal.pthread_kill(this, signal.SIGUSR1)
        return store.enqueue_from_thread(job)

    def raise_it(_: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with store.busy():
            later = pool(interrupt, new_job())
            with pytest.raises(KeyboardInterrupt):
                store.enqueue_from_thread(new_job())
        later.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert asyncio.run(store.count(JobFilter())) == 1


def test_nobody_is_left_waiting_when_the_store_is_closed(tmp_path: Path, pool: Submit) -> None:
    for number in range(ROUNDS):
        path = str(tmp_path / f"{number}.db")
        closing = SqliteStore(path)
        asked = [pool(closing.enqueue_from_thread, new_job()) for _ in range(THREADS)]
        asked[number % THREADS].result()
        asyncio.run(closing.close())
        answered = [future for future in asked if future.exception(timeout=30) is None]
        assert all(isinstance(future.exception(), StoreClosed) for future in asked if future not in answered)
        again = SqliteStore(path)
        assert asyncio.run(counted_and_closed(again)) == len(answered)


async def counted_and_closed(store: SqliteStore) -> int:
    try:
        return await store.count(JobFilter())
    finally:
        await store.close()


def test_a_thread_writes_by_itself_what_takes_one_step_where_nobody_else_writes(
    store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enqueue_from_thread(new_job())  # which opens the file
    store.wait_until_idle()
    with monkeypatch.context() as patched:
        patched.setattr(store._writer, "call", None)
        plain, vacant, duplicate = new_job(), new_job(key="k"), new_job(key="k")
        assert store.enqueue_from_thread(plain).outcome is Outcome.CREATED
        assert store.enqueue_from_thread(vacant).outcome is Outcome.CREATED
        for _ in range(3):
            store.wait_until_idle()
            kept = store.enqueue_from_thread(duplicate)
            assert (kept.outcome, kept.id) == (Outcome.KEPT, vacant.id)
    [key] = asyncio.run(store.keys())
    assert (key.holder.id, key.absorbed) == (vacant.id, 3)
    assert asyncio.run(store.count(JobFilter())) == 3


def test_what_takes_more_than_one_step_is_left_to_the_writer(store: Watched) -> None:
    first = new_job(key="k")
    store.enqueue_from_thread(first)
    rules = compile_rules(Unique.latest(), None)
    assert rules is not None
    newer = NewJob(new_id(), "q", "t", b'{"a":1}', Plan(*REALM.key("k"), rules, fingerprint(b'{"a":1}')))
    assert store.enqueue_from_thread(newer).outcome is Outcome.UPDATED
    stored = asyncio.run(store.job(first.id))
    assert stored is not None
    assert stored.payload == b'{"a":1}'


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def interrupted_store(path: Path) -> Iterator[tuple[Watched, list[int]]]:
    """A store whose threads are interrupted where they look at the clock, as often as the list says."""
    interruptions: list[int] = []

    def clock() -> int:
        if interruptions and threading.current_thread() is threading.main_thread():
            interruptions.pop()
            signal.raise_signal(signal.SIGUSR1)
        return 1_000_000

    made = Watched(str(path / "jobs.db"), clock=clock)
    made.enqueue_from_thread(new_job())
    made.wait_until_idle()
    yield made, interruptions
    asyncio.run(made.close())


@pytest.mark.parametrize("key", [None, "k"])
def test_a_signal_handler_may_enqueue_while_its_thread_writes_by_itself(
    tmp_path: Path, key: str | None
) -> None:
    with interrupted_store(tmp_path) as (store, interruptions):
        answers: list[Answer] = []

        def enqueue(_: int, __: FrameType | None) -> None:
            answers.append(store.enqueue_from_thread(new_job(key=key)))

        with handled(enqueue):
            interruptions.append(1)
            answers.append(store.enqueue_from_thread(new_job(key=key)))
        assert len(answers) == 2
        assert len({answer.id for answer in answers}) == (2 if key is None else 1)
        assert asyncio.run(store.count(JobFilter())) == (3 if key is None else 2)


def test_a_thread_that_is_interrupted_for_good_is_in_nobodys_way(tmp_path: Path) -> None:
    with interrupted_store(tmp_path) as (store, interruptions):

        def give_up(_: int, __: FrameType | None) -> None:
            raise KeyboardInterrupt

        with handled(give_up):
            interruptions.append(1)
            with pytest.raises(KeyboardInterrupt):
                store.enqueue_from_thread(new_job())
        assert store.enqueue_from_thread(new_job()).outcome is Outcome.CREATED
        assert asyncio.run(store.enqueue([new_job()]))[0].outcome is Outcome.CREATED
        assert asyncio.run(store.count(JobFilter())) == 3


def test_a_fork_waits_for_a_thread_that_writes_by_itself_whoever_has_the_turn(
    tmp_path: Path, pool: Submit
) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def clock() -> int:
        if threading.current_thread().name.startswith("ThreadPool") and not looking.is_set():
            looking.set()
            go_on.wait()
        return 1_000_000

    store = Watched(str(tmp_path / "jobs.db"), clock=clock)
    store.enqueue_from_thread(new_job())
    store.wait_until_idle()
    held_up = pool(store.enqueue_from_thread, new_job())
    looking.wait()
    assert asyncio.run(store.enqueue([new_job()]))  # the writer has waited for its turn for long enough
    assert not store._direct.lock.acquire(blocking=False)
    go_on.set()
    held_up.result()
    assert store._direct.lock.acquire(blocking=False)
    store._direct.lock.release()
    asyncio.run(store.close())


def test_what_goes_wrong_in_a_thread_is_told_in_the_writers_words(
    store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enqueue_from_thread(new_job(key="k"))
    store.wait_until_idle()

    def damaged(*_: object) -> None:
        raise ValueError("a damaged row")

    monkeypatch.setattr(direct, "find_holder", damaged)
    assert store.enqueue_from_thread(new_job(key="k")).outcome is Outcome.KEPT


def test_threads_and_loops_make_one_job_of_each_key(store: Watched, pool: Submit) -> None:
    for number in range(ROUNDS):
        keys = [f"{number}.{each}" for each in range(4)]
        barrier = threading.Barrier(THREADS)

        def by_itself(job: NewJob, barrier: threading.Barrier = barrier) -> Answer:
            barrier.wait()
            return store.enqueue_from_thread(job)

        def by_a_loop(job: NewJob, barrier: threading.Barrier = barrier) -> Answer:
            barrier.wait()
            return asyncio.run(store.enqueue([job]))[0]

        asked = [
            pool(by_itself if each % 3 else by_a_loop, new_job(key=keys[each % len(keys)]))
            for each in range(THREADS)
        ]
        answers = [future.result() for future in asked]
        assert sum(answer.outcome is Outcome.CREATED for answer in answers) == len(keys)
        assert len({answer.id for answer in answers}) == len(keys)
