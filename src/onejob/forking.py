"""Fork: a child inherits sockets that are its parent's, and must neither use nor close them. It opens its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Opened(Protocol):
    """What holds connections of one process."""

    def abandon(self) -> None:
        """Let go of them; nobody has it any more, and nobody closed it."""
        ...


T = TypeVar("T", bound=Opened)
_inherited: list[Opened] = []
"""Kept, untouched, for as long as the child lives: what is collected is closed, and with it the parent's."""


class PerProcess(Generic[T]):
    """That which belongs to whichever process asks."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._process = os.getpid()
        self._opened = make()

    def get(self) -> T:
        """This process's own."""
        if self._process != os.getpid():
            self._renew()
        return self._opened

    def abandon(self) -> None:
        """The store is gone: let go of what this process opened."""
        if self._process == os.getpid():
            self._opened.abandon()
        else:
            _inherited.append(self._opened)

    def _renew(self) -> None:
        with _renewing:
            if self._process != os.getpid():
                _inherited.append(self._opened)
                self._opened = self._make()
                self._process = os.getpid()


_renewing = threading.Lock()


def _after_fork() -> None:
    """Whoever held the lock in the parent is not in the child."""
    global _renewing  # noqa: PLW0603 - nobody is left to let go of the old one
    _renewing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
