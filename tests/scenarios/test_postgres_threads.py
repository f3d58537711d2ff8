"""Sync calls on PostgreSQL: one thread at a time asks by itself; what others ask meanwhile shares a commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onejob import App, State, Unique
from onejob.batcher import Batcher
from onejob.core.errors import StoreClosed
from onejob.core.job import NewJob
from onejob.core.judge import Answer
from onejob.ids import new_id
from onejob.stores.postgres.store import PostgresStore


def new_job() -> NewJob:
    return NewJob(new_id(), "q", "t", b"{}")


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What went through a batcher."""
    items: list[Any] = []
    put_for = Batcher[Any, Any].put_for

    def watched(batcher: Any, item: Any, waiting: Any) -> None:
        items.append(item)
        put_for(batcher, item, waiting)

    monkeypatch.setattr(Batcher, "put_for", watched)
    return items


def test_a_lone_thread_asks_by_itself(postgres_url: str, batched: list[Any]) -> None:
    with App(postgres_url) as app:

        @app.task(unique=Unique.in_flight(by="number"))
        def once(number: int) -> None: ...

        first, second, other = once.enqueue(1), once.enqueue(1), once.using(unique=None).enqueue(1)
        assert (first.outcome, second.outcome, other.outcome) == ("created", "kept", "created")
        assert second.id == first.id
        assert app.counts()["default"][State.WAITING] == 2
    assert not batched


def test_while_one_thread_asks_others_go_together(
    postgres_url: str, batched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue = PostgresStore.enqueue
    begun, others_are_in = threading.Event(), asyncio.Event()

    async def held_up(
        store: PostgresStore, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> list[Answer]:
        answers = await enqueue(store, jobs, now=now)
        if not begun.is_set():
            begun.set()
            await others_are_in.wait()
        return answers

    with App(postgres_url) as app, ThreadPoolExecutor(4) as pool:

        @app.task
        def plain(number: int) -> None: ...

        plain.enqueue(0)
        monkeypatch.setattr(PostgresStore, "enqueue", held_up)
        first = pool.submit(plain.enqueue, 1)
        assert begun.wait(10)
        try:
            receipts = list(pool.map(plain.enqueue, (2, 3, 4), timeout=10))
        finally:
            home = app.store.loop()
            assert home is not None
            home.call_soon_threadsafe(others_are_in.set)
        assert len({receipt.id for receipt in [first.result(10), *receipts]}) == 4
    assert len(batched) == 3


def test_a_store_that_was_closed_says_so(postgres_url: str) -> None:
    with App(postgres_url) as app:
        store = app.store
        assert isinstance(store, PostgresStore)
        assert store.enqueue_from_thread(new_job()) is not None
    with pytest.raises(StoreClosed):
        store.enqueue_from_thread(new_job())
