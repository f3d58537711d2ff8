"""The costs as tables of Markdown, as they stand in docs/PERFORMANCE.md, and the arithmetic from them to a limit."""

from __future__ import annotations

from collections.abc import Sequence

from bench.costs import DRAIN, Cost, StoreCosts
from bench.report import TITLES, piped

_HEADS = {
    "sqlite": ("per job", "round trips", "commits", "bytes of WAL", "µs server", "µs client"),
    "postgres": ("per job", "round trips", "commits", "bytes of WAL", "µs server", "µs client"),
    "valkey": ("per job", "round trips", "scripts", "bytes stored", "µs server", "µs client"),
}
_LIMITS = ("drain", "c", "s", "d", "r", "n", "limit by this, jobs/s")


def as_tables(found: Sequence[StoreCosts]) -> str:
    """A table for each store, and one with how far that goes."""
    parts: list[str] = []
    for store in found:
        rows = [(title, *_cells(cost)) for title, cost in store.costs.items()]
        parts += [f"### {TITLES[store.store]}", "", *piped([_HEADS[store.store], *rows]), ""]
    return "\n".join([*parts, "### The limit", "", *piped([_LIMITS, *map(_limit_row, found)])])


def limit(store: StoreCosts) -> float:
    """Jobs per second of one worker, if nobody else wants the machine and nothing is waited for but what is counted."""
    cost = store.costs[DRAIN]
    busy = max(cost.client, cost.server) if store.overlaps else cost.client + cost.server
    return 1e6 / (busy + cost.calls * (store.durable + store.round_trip))


def _limit_row(store: StoreCosts) -> tuple[str, ...]:
    cost = store.costs[DRAIN]
    times = [f"{value:.1f}" for value in (cost.client, cost.server)]
    waits = [f"{value:.0f}" for value in (store.durable, store.round_trip)]
    return (TITLES[store.store], *times, *waits, f"{1 / cost.calls:.0f}", f"{limit(store) / 1000:.0f}k")


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
