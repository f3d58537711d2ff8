"""A connection in a worker's own event loop, for exchanges that are one statement.

Everything else of the store lives on a loop and in a thread of its own (`home`). A worker settles and claims without end, and each
way to another thread and back has to wait until handlers let go of the interpreter, while the server has nothing to
do. So a worker's exchanges go straight from its loop to the server, as long as each statement commits by itself. What takes a
transaction goes on at home: a handler that blocks the worker's loop must not keep locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onejob.home import Limit
from onejob.stores.postgres.driver import Link
from onejob.stores.postgres.steps import BEGIN, Steps, begin

T = TypeVar("T")


class Unfinished(Exception):
    """An operation came to where it needs a transaction; what it did before has been committed."""


class Near:
    """One connection, opened with its first use. Lives in one event loop, and serves one operation at a time."""

    def __init__(self, connect: Callable[[], Awaitable[Link]]) -> None:
        self._connect = connect
        self._link: Link | None = None
        self._in_use = False
        self._closed = False

    @property
    def is_free(self) -> bool:
        """True if an operation may use it now."""
        return not (self._in_use or self._closed)

    async def drive(self, steps: Steps[T], patience: float) -> T:
        """Run an operation to its end within so many seconds. Raises `Unfinished`, or whatever went wrong: then it may have counted."""
        self._in_use = True
        limit = Limit(patience)
        try:
            return await self._drive(steps)
        except asyncio.CancelledError:
            self._hang_up()
            if not limit.is_over:
                raise
            limit.task.uncancel()
            raise TimeoutError from None
        finally:
            limit.handle.cancel()
            self._in_use = False

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        if self._link is not None:
            try:
                await self._link.close()
            finally:
                self._hang_up()  # whoever is cancelled leaves nothing open

    async def _drive(self, steps: Steps[T]) -> T:
        link = self._link
        if link is None or not link.is_sound():
            self._hang_up()
            link = self._link = await self._connect()
        try:
            statement = next(steps)
            while statement is not BEGIN:
                try:
                    rows = await link.fetch(statement.name, statement.parameters)
                except Exception as error:
                    statement = steps.throw(error)
                else:
                    statement = steps.send(rows)
        except StopIteration as end:
            return end.value
        except asyncio.CancelledError:
            steps.close()
            raise
        except Exception:
            self._hang_up()
            raise
        raise Unfinished

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.terminate()


def after_begin(steps: Steps[T]) -> Steps[T]:
    """The rest of an operation that has asked for a transaction."""
    yield from begin()
    return (yield from steps)
