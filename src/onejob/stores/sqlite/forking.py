"""Fork: every connection is closed before one, and opened again on both sides by its next use.

SQLite keeps the locks it holds on a file in tables of the process. A forked child inherits the tables but not
the locks: even a connection of its own would then write unlocked, and lose what it wrote when the parent
closes the file. So at the moment of a fork no connection may be open.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from onejob.core.errors import WrongCall

PATIENCE = 10.0
"""Seconds that a fork waits for a connection in use; a user's transaction is bounded in time itself."""


class Lock(Protocol):
    """A lock of either kind."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...


class Holder(Protocol):
    """Who holds a connection, and uses it only under his lock."""

    path: str

    @property
    def lock(self) -> Lock:
        """What whoever uses the connection has."""
        ...

    def drop(self) -> None:
        """Close the connection, if any is open; called under the lock, from the forking thread."""
        ...


class Forks:
    """Who holds connections in this process, and what a fork found still in use."""

    def __init__(self) -> None:
        self._holders: WeakSet[Holder] = WeakSet()
        self._locked: list[Lock] = []
        self._in_use: set[str] = set()
        self._spoilt: set[str] = set()
        os.register_at_fork(
            before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
        )

    def watch(self, holder: Holder) -> None:
        """From now on, make this holder let go before a fork."""
        self._holders.add(holder)

    def check(self, path: str) -> None:
        """Refuse a file that was in use when this process was forked."""
        if path in self._spoilt:
            raise WrongCall(
                f"This process was forked while store {path} was in use, and cannot use it safely: "
                "fork outside of transactions, or start processes by spawn."
            )

    def _before(self) -> None:
        for holder in list(self._holders):
            lock = holder.lock
            if not lock.acquire(timeout=PATIENCE):
                self._in_use.add(holder.path)
                continue
            self._locked.append(lock)
            try:
                holder.drop()
            except Exception:  # whatever it was, that connection may still be open: the child must know
                self._in_use.add(holder.path)

    def _in_parent(self) -> None:
        self._in_use.clear()
        while self._locked:
            self._locked.pop().release()

    def _in_child(self) -> None:
        self._spoilt |= self._in_use
        self._in_use.clear()
        self._locked.clear()
        self._holders = WeakSet()


forks = Forks()
