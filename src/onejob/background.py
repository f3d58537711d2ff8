"""The private event loop behind the sync calls: one daemon thread, started on first use.

Async code never comes here. The loop knows nothing of jobs: it runs coroutines for threads that have no loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from onejob.core.errors import StoreClosed, WrongCall
from onejob.interruptible import until_done
from onejob.loops import new_loop

T = TypeVar("T")


class BackgroundLoop:
    """An event loop on its own daemon thread."""

    def __init__(self) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name="onejob-loop", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for what it returns."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise closed() from None
        return outcome(future)

    def stop(self) -> None:
        """End the loop; calls still under way are cancelled."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()


def outcome(future: concurrent.futures.Future[T]) -> T:
    """Wait for a future of the loop; the loop's end is reported as the app's."""
    try:
        until_done(future)
        return future.result()
    except concurrent.futures.CancelledError:
        raise closed() from None
    except BaseException:
        # An interrupted caller waits no longer, so nor should its coroutine go on.
        future.cancel()
        raise


def refuse_in_loop(instead: str, task: str = "") -> None:
    """Refuse a sync call from inside a running event loop, which it would block; `{}` stands for the task."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrongCall(
        f"This sync call would block the running event loop: write `{instead.format(task)}` instead."
    )


def closed() -> StoreClosed:
    """The error of a call that the app's end has overtaken."""
    return StoreClosed("The app was closed while this call was under way; use it before `app.close()`.")
