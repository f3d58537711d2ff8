"""Lengths of time, and numbers of things, as people say them."""

from __future__ import annotations


def span(milliseconds: int) -> str:
    """A length of time as people say it."""
    seconds = abs(milliseconds) / 1000
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s" if seconds >= 0.1 else f"{milliseconds} ms"


def counted(number: int, what: str) -> str:
    """So many of something, whose plural is a regular one."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
