"""A signal handler that enqueues in the midst of its thread's first call, which makes the store, its threads and its loops:
both are answered, whatever was being made.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from onejob import App, background, home


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    with App(store_url) as app:
        yield app


@pytest.mark.parametrize("being_made", ["store", "loop"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_handler_that_interrupts_the_first_call_is_answered_and_so_is_that(
    app: App, being_made: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts: list[Any] = []

    @app.task(name="greet")
    def greet() -> None: ...

    def call() -> None:
        receipts.extend(app.enqueue_many([greet.job()]) if many else [greet.enqueue()])

    def interrupt(_: int, __: FrameType | None) -> None:
        interruptions.append(being_made)
        call()

    interruptions: list[str] = []

    def interrupted(make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            if not interruptions and signal.getsignal(signal.SIGUSR1) is interrupt:
                signal.raise_signal(signal.SIGUSR1)
            return make()

        return made

    if being_made == "store":
        monkeypatch.setattr(app.client, "_make_store", interrupted(app.client._make_store))
    else:
        for module in (home, background):
            monkeypatch.setattr(module, "new_loop", interrupted(module.new_loop))
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        call()
    finally:
        signal.signal(signal.SIGUSR1, before)
    needs_no_loop = app.store.loop() is None and not many
    assert len(interruptions) == (0 if being_made == "loop" and needs_no_loop else 1)
    assert {job.id for job in app.jobs().jobs} == {receipt.id for receipt in receipts}
    assert len(receipts) == 1 + len(interruptions)
