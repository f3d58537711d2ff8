"""The exchanges of a worker with its store: which are under way, and what the next one takes along.

One at a time is enough where there is little to do. While a store has plenty, and gains by it, a worker's slots are shared
by two, so that the store is at work on one half while the handlers of the other run. Nothing here calls the store.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onejob.core.lifecycle import Settlement

AT_ONCE = 2
"""At most."""
WORTH_A_CALL = 32
"""Fewer outcomes than this wait for the exchange under way: one of their own would cost the store more than it gains us."""


class Share(msgspec.Struct, frozen=True, gc=False):
    """What one exchange takes along: how many outcomes, and how many jobs it asks for."""

    outcomes: int
    jobs: int


class Exchange(msgspec.Struct, frozen=True, eq=False):
    """One call that settles and claims. Its outcomes are its own until it is answered, and so are its slots."""

    number: int
    """Its place among all calls of this worker, from 1."""
    done: Sequence[Settlement]
    slots: int
    """How many jobs it asks for to begin at once, and how many more for the stock."""
    stock: int = 0
    alone: bool = False
    """It settles without claiming, because the one before it failed."""


class Traffic:
    """The exchanges that are under way. It belongs to the worker's loop; its counts may be read from any thread."""

    def __init__(self) -> None:
        self.calls_begun = 0
        self.calls_ended = 0
        """Every call up to this number has been answered, whatever came of it; later ones may have been, too."""
        self.jobs = 0
        """How many jobs they ask for together."""
        self.outcomes = 0
        """How many they settle."""
        self._under_way: dict[int, Exchange] = {}
        self._answered: set[int] = set()
        """Those of them that the store has answered, and that have not been looked through."""

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def begin(
        self, done: Sequence[Settlement], slots: int, stock: int = 0, *, alone: bool = False
    ) -> Exchange:
        """A call is about to be made."""
        self.calls_begun += 1
        exchange = Exchange(self.calls_begun, done, slots, stock, alone)
        self._under_way[exchange.number] = exchange
        self.jobs += slots + stock
        self.outcomes += len(done)
        return exchange

    def answered(self, exchange: Exchange) -> None:
        """The store has no more to do for it; what it brought is yet to be looked through."""
        self._answered.add(exchange.number)

    def end(self, exchange: Exchange) -> None:
        """What it brought is known."""
        del self._under_way[exchange.number]
        self._answered.discard(exchange.number)
        self.jobs -= exchange.slots + exchange.stock
        self.outcomes -= len(exchange.done)
        self.calls_ended = min(self._under_way) - 1 if self._under_way else self.calls_begun

    def share(self, owed: int, wanted: int, *, shared: bool) -> Share | None:
        """What an exchange may take along now, of so many outcomes and of so many jobs that are wanted; None: it should wait.

        `shared`: there is work for two at once.
        """
        at_work = self._under_way.keys() - self._answered
        if not at_work:
            if not shared or owed < AT_ONCE * WORTH_A_CALL:
                return Share(owed, wanted)
            return Share(owed - owed // 2, wanted - wanted // 2)
        if not shared or len(at_work) >= AT_ONCE:
            return None
        other = max(len(self._under_way[number].done) for number in at_work)
        # Not much smaller than the other one, or they would become many small ones.
        if owed < max(WORTH_A_CALL, other // 2):
            return None
        # Nor larger, or what the other one brings would be done long before this one is answered.
        outcomes = min(owed, (owed + other + 1) // 2)
        return Share(outcomes, wanted * outcomes // owed)
