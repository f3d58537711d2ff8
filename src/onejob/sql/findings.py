"""What is wrong with a store of either kind, in words."""

from __future__ import annotations

from collections.abc import Iterator

from onejob.store import Finding, Level


def on_stranded(count: int) -> Iterator[Finding]:
    """Jobs that wait for what has ended."""
    if count:
        yield Finding(
            Level.ERROR,
            "stranded",
            f"{count} blocked job(s) wait for a job that has ended or is gone.",
            "This must not happen: please report it. Revoke and retry them to set them free.",
        )
