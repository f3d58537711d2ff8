"""Fork: a child inherits sockets that are its parent's, and must neither use nor close them. It opens its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from onejob.stores.postgres.engine import Engine

_inherited: list[Engine] = []
"""Kept, untouched, for as long as the child lives: what is collected is closed, and with it the parent's."""


class PerProcess:
    """The engine of whichever process asks."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._process = os.getpid()
        self._engine = make()

    def get(self) -> Engine:
        """This process's engine."""
        if self._process != os.getpid():
            self._renew()
        return self._engine

    def abandon(self) -> None:
        """The store is gone: let go of what this process opened."""
        if self._process == os.getpid():
            self._engine.abandon()
        else:
            _inherited.append(self._engine)

    def _renew(self) -> None:
        with _renewing:
            if self._process != os.getpid():
                _inherited.append(self._engine)
                self._engine = self._make()
                self._process = os.getpid()


_renewing = threading.Lock()


def _after_fork() -> None:
    """Whoever held the lock in the parent is not in the child."""
    global _renewing  # noqa: PLW0603 - nobody is left to let go of the old one
    _renewing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
