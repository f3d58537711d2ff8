"""A store with jobs in it."""

from __future__ import annotations

from typing import Any

from commands import URL

from onejob import App, Unique
from onejob.testing import drain


class Shop:
    """An app with a task that is unique, one that fails and one that collects."""

    def __init__(self, url: str = URL, **options: Any) -> None:
        self.app = App(url, **options)

        @self.app.task(name="shop.send", unique=Unique.once(by="user"))
        def send(user: str, count: int = 1) -> str:
            return f"sent {count} to {user}"

        @self.app.task(name="shop.fail", queue="mail")
        def fail(order: int, text: str = "no such order") -> None:
            raise ValueError(f"{text} {order}")

        @self.app.task(name="shop.gather", unique=Unique.collect(into="items", by=()))
        def gather(items: list[int]) -> None: ...

        self.send, self.fail, self.gather = send, fail, gather

    def drain(self) -> None:
        drain(self.app)

    def failed(self, count: int = 1, **arguments: Any) -> list[str]:
        """Ids of jobs that failed."""
        receipts = self.app.enqueue_many([self.fail.job(order=n, **arguments) for n in range(count)])
        self.drain()
        return [receipt.id for receipt in receipts]
