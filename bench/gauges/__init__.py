"""Gauges: what a store's engine has spent so far, read just before and just after jobs are sent through our own client.

Another store is another module that fits `Gauge`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums since a gauge was made."""

    calls: int
    """Round trips: how often somebody of ours waited for an answer; hints to others are told beside, and nobody waits."""
    commits: int
    """That wrote something, those of hints included."""
    server: float
    """Seconds of processor time."""
    gauge: float = 0.0
    """The seconds that the client has lost to being watched."""


class Gauge(Protocol):
    """Looks at one store from outside its operations."""

    apart: bool
    """Whether the engine spends its time in processes of its own."""
    durable: bool
    """Whether a commit waits for the disk."""

    def spent(self) -> Spent:
        """What was spent so far; cheap enough to be asked in between."""
        ...

    def written(self) -> int:
        """The bytes logged so far, or stored where nothing is logged; may be dear."""
        ...

    def round_trip(self) -> None:
        """Ask for nothing, and wait for the answer."""
        ...


Gauges: TypeAlias = Callable[[str], AbstractContextManager[Gauge]]
"""Makes the gauge of a store by its URL, before the store is opened."""
