"""Counts of absorbed duplicates, on their way into the keys' own rows."""

from __future__ import annotations

from typing import Final

from onejob.absorbing import Count
from onejob.stores.postgres.steps import Steps, ask

TRIES: Final = 5
"""How often a count is tried that finds no row, because that is locked or the key is another's by now."""


def write(counts: list[Count]) -> Steps[list[Count]]:
    """Add them to the keys' own counts, and return those to be tried again."""
    rows = yield from ask(
        "enqueue.count_absorbed",
        [one.digest for one in counts],
        [one.holder for one in counts],
        [one.absorbed for one in counts],
        [one.differing for one in counts],
    )
    done = {bytes(row[0]) for row in rows}
    left = [one for one in counts if one.digest not in done]
    for one in left:
        one.tries += 1
    return [one for one in left if one.tries < TRIES]
