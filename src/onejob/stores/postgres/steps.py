"""Operations without I/O: generators that yield statements and are sent their rows.

So that one set of them runs on our own connections and on a user's, whatever his driver, an operation never touches a
connection. It yields a `Statement` (or `BEGIN`), is sent the rows, and returns its result; whoever drives it commits.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

Row = tuple[Any, ...]
T = TypeVar("T")


class Statement(NamedTuple):
    """One statement by its name, `file.statement`, with its positional parameters ($1, $2, …)."""

    name: str
    parameters: tuple[Any, ...] = ()


BEGIN = Statement("begin")
"""Everything from here on is one transaction, committed when the operation returns. Before it, each statement commits by
itself. Inside somebody's transaction it means nothing."""

Steps = Generator[Statement, list[Row], T]


def ask(name: str, *parameters: Any) -> Steps[list[Row]]:
    """Run a statement and return its rows: `rows = yield from ask("claim.start", queue, limit)`."""
    return (yield Statement(name, parameters))


def begin() -> Steps[None]:
    """Make one transaction of what follows."""
    yield BEGIN
