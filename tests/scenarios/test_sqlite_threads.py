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

from onejob.core.errors import StoreClosed, UnknownBlocker
from onejob.core.filter import JobFilter
from onejob.core.job import JobId, NewJob
from onejob.core.judge import Answer
from onejob.stores.sqlite.session import Session
from onejob.stores.sqlite.store import SqliteStore

THREADS = 12
ROUNDS = 20
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

    def wait_for(self, gathered: int) -> None:
        """Wait until so many have asked."""
        while self._writer._queue.qsize() < gathered:
            threading.Event().wait(0.001)


def new_job(*blockers: JobId) -> NewJob:
    return NewJob(new_id(), "q", "t", b"{}", blockers=blockers)


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
