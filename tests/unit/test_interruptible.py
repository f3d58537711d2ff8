"""Waits that a signal ends, though it comes right before them."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from onejob import interruptible


class Interrupted(Exception):
    """Raised by a signal, as Ctrl-C raises KeyboardInterrupt."""


@pytest.fixture(autouse=True)
def _interrupting() -> Iterator[None]:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, former)


def for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    interruptible.acquire(lock)


def for_a_future() -> None:
    interruptible.until_done(concurrent.futures.Future[None]())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("wait", [for_a_lock, for_a_future])
def test_a_signal_that_does_not_wake_the_one_who_waits_ends_his_wait_all_the_same(
    wait: Callable[[], None],
) -> None:
    """As one that came right before: here it comes to a thread that may not run handlers, and wakes no other."""
    begun = threading.Event()

    def signal_itself() -> None:
        begun.wait()
        time.sleep(0.1)  # until that one waits
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    thread = threading.Thread(target=signal_itself)
    thread.start()
    begun.set()
    with pytest.raises(Interrupted):
        wait()
    thread.join()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_a_future_that_is_cancelled_is_done(delay: float) -> None:
    future = concurrent.futures.Future[None]()
    canceller = threading.Timer(delay, future.cancel)
    canceller.start()
    interruptible.until_done(future)
    assert future.cancelled()
    canceller.join()


def test_what_is_there_is_taken_at_once() -> None:
    lock, future = threading.Lock(), concurrent.futures.Future[int]()
    interruptible.acquire(lock)
    assert lock.locked()
    future.set_result(1)
    interruptible.until_done(future)
