"""The costs as tables of Markdown, as they stand in docs/PERFORMANCE.md, and the arithmetic from them to a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.costs import BULK, DRAIN, Cost, StoreCosts
from bench.report import TITLES, piped

_HEADS = {
    "sqlite": ("per job", "round trips", "commits", "bytes of WAL", "µs server", "µs client"),
    "postgres": ("per job", "round trips", "commits", "bytes of WAL", "µs server", "µs client"),
    "valkey": ("per job", "round trips", "scripts", "bytes stored", "µs server", "µs client"),
}
_LIMITS = ("per job", "c", "s", "d", "r", "n", "limit by this, jobs/s")


def as_tables(found: Sequence[StoreCosts]) -> str:
    """A table for each store, and one with how far that goes."""
    parts: list[str] = []
    for store in found:
        rows = [(title, *_cells(cost)) for title, cost in store.costs.items()]
        parts += [f"### {TITLES[store.store]}", "", *piped([_HEADS[store.store], *rows]), ""]
    return "\n".join([*parts, "### The limit", "", *piped([_LIMITS, *_limits(found)])])


def limit(store: StoreCosts, title: str) -> float:
    """Jobs per second of one process, if nobody else wants the machine and nothing is waited for but what is counted.

    A worker has jobs in stock while it waits (ADR 10), so that the slower side is its limit; who enqueues waits.
    """
    cost = store.costs[title]
    waited = cost.server + cost.calls * (store.durable + store.round_trip)
    return 1e6 / (max(cost.client, waited) if title == DRAIN else cost.client + waited)


def _limits(found: Sequence[StoreCosts]) -> Iterator[tuple[str, ...]]:
    for store in found:
        for title in (BULK, DRAIN):
            cost = store.costs[title]
            times = [f"{value:.1f}" for value in (cost.client, cost.server)]
            waits = [f"{value:.0f}" for value in (store.durable, store.round_trip, 1 / cost.calls)]
            yield f"{TITLES[store.store]}: {title}", *times, *waits, f"{limit(store, title) / 1000:.0f}k"


def _cells(cost: Cost) -> tuple[str, ...]:
    return (
        _few(cost.calls),
        _few(cost.commits),
        f"{cost.bytes:,.0f}",
        f"{cost.server:.1f}",
        f"{cost.client:.1f}",
    )


def _few(value: float) -> str:
    """What is shared by many is a small part of one."""
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:.2g}" if value == 0 or value >= 1e-4 else f"{value:.5f}"
